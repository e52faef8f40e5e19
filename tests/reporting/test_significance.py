"""The paired bootstrap agrees with normal theory where that holds, and refuses other images."""

import runpy
import sys
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tests.fake_runs import labels, predictions, write_run
from tkpr.metrics import evaluate, mean_average_precision, measure_names
from tkpr.reporting.significance import bootstrap_whole, compare, holm, paired_bootstrap, per_image

MEASURES = measure_names(scopes=["image"])

ROOT = Path(__file__).parents[2]


def single(first, second, **options):
    """Compare on one measure."""
    return paired_bootstrap(first[:, None], second[:, None], **options)[0]


def test_measures_at_once_and_one_by_one_are_the_same():
    rng = np.random.default_rng(0)
    first, second = rng.random((2, 50, 3))
    first[7, 1] = np.nan
    together = paired_bootstrap(first, second, resamples=50)
    alone = [single(first[:, m], second[:, m], resamples=50) for m in range(3)]
    for one, other in zip(together, alone, strict=True):
        assert astuple(one) == pytest.approx(astuple(other), rel=1e-12)
    assert together[1].first == pytest.approx(np.nanmean(first[:, 1]))
    assert together[1].second == pytest.approx(np.delete(second[:, 1], 7).mean())


def test_values_per_image_have_the_mean_of_the_table():
    targets = labels()
    targets[3] = 0  # on this image no measure says anything
    logits = predictions(targets, 1.0)
    table = evaluate(logits, targets)
    for measure in MEASURES:
        values = per_image(measure, logits, targets)
        assert np.isnan(values[3])
        assert np.nanmean(values) == pytest.approx(table[measure], rel=1e-12)


@pytest.mark.parametrize("measure", ["P", "F1@3", "P@", "P@three"])
def test_unknown_measure(measure):
    targets = labels()
    with pytest.raises(ValueError, match=f"no measure '{measure}'"):
        per_image(measure, predictions(targets, 1.0), targets)


def test_interval_and_p_value_are_those_of_the_normal_distribution():
    rng = np.random.default_rng(1)
    second = rng.normal(size=2000)
    first = second + rng.normal(0.05, 1.0, size=2000)  # paired: the common part cancels
    result = single(first, second, resamples=20_000)
    difference = first - second
    error = difference.std() / np.sqrt(2000)
    assert result.difference == pytest.approx(difference.mean())
    assert result.low == pytest.approx(difference.mean() - 1.96 * error, abs=0.05 * error)
    assert result.high == pytest.approx(difference.mean() + 1.96 * error, abs=0.05 * error)
    expected = 2 * stats.norm.sf(abs(difference.mean()) / error)
    assert 0.001 < expected < 0.2
    assert result.p_value == pytest.approx(expected, rel=0.2)


def test_order_of_the_two_only_changes_the_sign():
    rng = np.random.default_rng(2)
    first, second = rng.random(300), rng.random(300)
    one = single(first, second, resamples=1000)
    other = single(second, first, resamples=1000)
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low))
    assert one.p_value == other.p_value


def test_equal_methods_are_not_told_apart():
    values = np.random.default_rng(3).random(100)
    result = single(values, values, resamples=100)
    assert (result.difference, result.low, result.high, result.p_value) == (0, 0, 0, 1)


def test_false_alarms_are_as_rare_as_promised():
    rng = np.random.default_rng(4)
    alarms = [
        single(*rng.normal(size=(2, 100)), resamples=200, seed=i).p_value < 0.05 for i in range(400)
    ]
    # 400 draws at 5 %: two-sided 99.9 % limits of the binomial distribution
    low, high = stats.binom.ppf([0.0005, 0.9995], 400, 0.05)
    assert low <= sum(alarms) <= high


def test_images_that_say_nothing_are_left_out():
    result = single(np.array([1.0, np.nan, 3.0]), np.array([0.0, 5.0, 0.0]), resamples=10)
    assert (result.first, result.second) == (2.0, 0.0)
    with pytest.raises(ValueError, match="says nothing about any image"):
        single(np.array([np.nan]), np.array([1.0]), resamples=10)


def test_a_measure_of_the_whole_set(tmp_path):
    one = write_run(tmp_path, "A", table="t", skill=3.0)
    two = write_run(tmp_path, "B", table="t", skill=0.2)
    result = compare([one["folder"]], [two["folder"]], "mAP", resamples=100)
    assert result.first == pytest.approx(one["metrics"]["mAP"])
    assert result.second == pytest.approx(two["metrics"]["mAP"])
    assert 0 < result.low < result.difference < result.high
    assert result.p_value < 0.05
    again = bootstrap_whole(
        mean_average_precision, one["logits"], two["logits"], one["targets"], resamples=100
    )
    assert again == result


def test_seeds_are_averaged_image_by_image(tmp_path):
    ones = [write_run(tmp_path, "A", table="t", skill=2.0, seed=s) for s in (0, 1)]
    two = write_run(tmp_path, "B", table="t", skill=1.0)
    result = compare([run["folder"] for run in ones], [two["folder"]], "mAP@3")
    values = [run["metrics"]["mAP@3"] for run in ones]
    assert result.first == pytest.approx(np.mean(values))
    assert result.second == pytest.approx(two["metrics"]["mAP@3"])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_what_its_procedure_rejects(p_values):
    """Step down: the smallest of m against level / m, the next against level / (m - 1), ..."""
    corrected = holm(p_values)
    for level in (0.001, 0.05, 0.3):
        rejected, left = set(), len(p_values)
        for index in sorted(range(len(p_values)), key=p_values.__getitem__):
            if p_values[index] * left >= level:
                break
            rejected.add(index)
            left -= 1
        assert {i for i, p in enumerate(corrected) if p < level} == rejected
    assert all(c >= p for c, p in zip(corrected, p_values, strict=True))


def test_other_images_are_refused(tmp_path):
    one = write_run(tmp_path, "A", table="t", skill=2.0)
    two = write_run(tmp_path, "B", table="t", skill=1.0, targets=labels(seed=9))
    with pytest.raises(ValueError, match="not tested on the same images: their targets differ"):
        compare([one["folder"]], [two["folder"]], "mAP@3")


def test_script_compares_any_two_runs(tmp_path, monkeypatch, capsys):
    ones = [write_run(tmp_path, "A", table="t", skill=2.5, seed=s) for s in (0, 1)]
    two = write_run(tmp_path, "B", table="t", skill=0.5)
    words = [ones[0]["folder"].parent, two["folder"], "--measures", "mAP@3", "ranking_loss", "P@1"]
    monkeypatch.setattr(sys, "argv", ["compare.py", *map(str, words)])
    runpy.run_path(str(ROOT / "scripts" / "compare.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("(2 runs)")
    assert lines[1].endswith("(1 run)")
    assert lines[-1].startswith("Holm: p corrected for 3 comparisons")
    cells = {line.split()[0]: line.split() for line in lines[4:-2]}
    p_values = [[float(text) for text in line[-4:-2]] for line in list(cells.values())[:2]]
    assert all(corrected == pytest.approx(3 * p, abs=2e-4) for p, corrected in p_values[:1])
    assert list(cells) == ["mAP@3", "ranking_loss", "P@1"]
    for measure in ("mAP@3", "ranking_loss"):
        mean = (ones[0]["metrics"][measure] + ones[1]["metrics"][measure]) / 2
        assert cells[measure][1] == f"{mean:.4f}"
        assert cells[measure][2] == f"{two['metrics'][measure]:.4f}"
        assert cells[measure][-2:] == ["A", "better"]  # also where less is better
    monkeypatch.setattr(sys, "argv", ["compare.py", str(tmp_path / "none"), str(two["folder"])])
    with pytest.raises(SystemExit, match=r"no folder .*none"):
        runpy.run_path(str(ROOT / "scripts" / "compare.py"), run_name="__main__")


def test_script_takes_the_runs_of_one_setting_on_the_test_set(tmp_path, monkeypatch, capsys):
    """As scripts/tune.py leaves them: the runs of the search are tested on other images."""

    def run(one, other):
        words = [one, other, "--measures", "mAP@3"]
        monkeypatch.setattr(sys, "argv", ["compare.py", *map(str, words)])
        runpy.run_path(str(ROOT / "scripts" / "compare.py"), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    held_out = labels(seed=5)
    for row, skill in (("A", 2.5), ("B", 0.5)):
        for k in (3, 5):
            settings = {"loss__k": k, "split__holdout": 0.2, "targets": held_out}
            write_run(tmp_path, row, table="t", skill=9, **settings)
        for seed in (0, 1):
            write_run(tmp_path, row, table="t", skill=skill, seed=seed, loss__k=3)
    place = tmp_path / "t" / "smoke"
    lines = run(place / "A", place / "B")
    assert [line.split("(")[1] for line in lines[:2]] == ["2 runs)"] * 2
    write_run(tmp_path, "A", table="t", skill=9, loss__k=5)
    with pytest.raises(SystemExit, match=r"several settings \(loss\.k=3; loss\.k=5\): name"):
        run(place / "A", place / "B")
    # where nothing else is there, runs on held-out images may be compared
    one, other = (place / row / "loss__k=5_split__holdout=0.2" for row in "AB")
    assert run(one, other)[0].endswith("(1 run)")
    with pytest.raises(SystemExit, match="not tested on the same images"):
        run(one, place / "B")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit, match="no finished run in"):
        run(tmp_path / "empty", one)
