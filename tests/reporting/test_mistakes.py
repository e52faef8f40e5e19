"""What a single run gets wrong, as the report shows it."""

import re
import shutil

import numpy as np
import pytest
from sklearn.metrics import precision_recall_fscore_support

from tests.short_runs import SMALL, train
from tkpr.reporting.html import alone, build_report
from tkpr.reporting.mistakes import draw, most_wrong
from tkpr.reporting.rows import load_runs
from tkpr.runs.saved_model import load_decisions, load_predictions


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "mine"
    train(*SMALL, "loss=bce", "trainer.epochs=2", folder=folder)
    return folder


@pytest.fixture(scope="module")
def page(folder):
    return build_report(load_runs(folder.parent), {})


def cells(table):
    return [
        re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", table, re.S)
    ]


def test_the_table_of_classes_agrees_with_scikit_learn(folder, page):
    stored = load_predictions(folder)
    given = stored["logits"] > 0
    expected = precision_recall_fscore_support(stored["targets"], given, zero_division=0)
    table = page.split("Per class")[1].partition("</table>")[0]
    found = {row[0]: [float(value) for value in row[1:]] for row in cells(table) if row}
    assert len(found) == stored["targets"].shape[1]
    for number, name in enumerate(stored["class_names"].tolist()):
        precision, recall, f1, threshold, support = found[name]
        wanted = [column[number] for column in expected]
        np.testing.assert_allclose([precision, recall, f1, support], wanted, atol=5e-5)
        assert threshold == 0.5
    f1s = [row[2] for row in found.values()]
    assert f1s == sorted(f1s)


def test_the_page_shows_measures_confusions_and_images(folder, page):
    assert page.count("data:image/png;base64,") == 1
    assert "Most often confused" in page
    value = load_runs(folder)[0].metrics["mAP@3"]
    assert f"<td>{value:.4f}</td>" in page
    assert "The most wrong images" in page


def test_margin_by_double_loop():
    rng = np.random.default_rng(0)
    logits, targets = rng.normal(size=(50, 6)), (rng.random((50, 6)) < 0.3).astype(int)
    margins = {}
    for image in range(50):
        pairs = [
            logits[image, wrong] - logits[image, right]
            for wrong in range(6)
            for right in range(6)
            if targets[image, right] and not targets[image, wrong]
        ]
        if pairs and max(pairs) > 0:
            margins[image] = max(pairs)
    expected = sorted(margins, key=lambda image: -margins[image])
    assert most_wrong(logits, targets, count=8) == expected[:8]
    assert most_wrong(logits, targets, count=99) == expected


def test_no_image_is_wrong():
    assert most_wrong(np.array([[2.0, 1.0], [1.0, 2.0]]), np.array([[1, 0], [0, 0]])) == []


def test_names_are_text():
    stored = {
        "class_names": np.array(["$x_1$", "a\nb"]),
        "ids": np.array(["<i>"]),
        "logits": np.array([[0.0, 1.0]]),
        "targets": np.array([[1, 0]]),
    }
    figure = draw([0], stored, {})
    figure.canvas.draw()
    assert figure.axes[0].get_title() == r"\$x_1\$"


def test_a_foreign_or_missing_model_is_named(folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    content = bytearray((copy / "model.safetensors").read_bytes())
    content[-5] ^= 1
    (copy / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        load_decisions(copy)
    (copy / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"no .*model\.safetensors"):
        load_decisions(copy)


def test_runs_of_a_table_have_no_part_of_their_own(folder):
    runs = load_runs(folder)
    assert alone(runs) == runs
    runs[0].config["table"] = "voc2012_mlml_ranking_resnet50"
    assert alone(runs) == []
