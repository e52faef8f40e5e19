"""Printed tables are those of results/*.csv; links, anchors and pictures exist."""

import re
import runpy
import shutil
from pathlib import Path

import pandas as pd
import pytest

from tests.readme_commands import FENCE

ROOT = Path(__file__).parents[1]
DOCS = runpy.run_path(str(ROOT / "scripts" / "docs.py"))
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("data/*.md")]
RESULTS = sorted((ROOT / "results").glob("*.csv"))
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def call(*words, monkeypatch):
    monkeypatch.setattr("sys.argv", ["docs.py", *map(str, words)])
    DOCS["main"]()


@pytest.fixture
def checkout(tmp_path):
    """A copy of the pages and of what they are printed from."""
    for page in DOCS["pages"](ROOT):
        copy = tmp_path / page.relative_to(ROOT)
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(page, copy)
    shutil.copytree(ROOT / "results", tmp_path / "results")
    return tmp_path


@pytest.mark.parametrize("page", DOCS["pages"](ROOT), ids=lambda path: path.name)
def test_text_and_csv_agree(page):
    assert DOCS["render"](page.read_text(), ROOT / "results") == page.read_text(), (
        "run python scripts/docs.py"
    )


def change(file):
    """Change the last number of a CSV file."""
    lines = file.read_text().splitlines()
    lines[-1] = re.sub(r"\d+(?=\D*$)", "7654", lines[-1])
    file.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("file", RESULTS, ids=lambda path: path.stem)
def test_every_file_is_printed_somewhere(file, checkout):
    change(checkout / "results" / file.name)
    texts = [page.read_text() for page in DOCS["pages"](checkout) if file.stem in page.read_text()]
    assert any("7654" in DOCS["render"](text, checkout / "results") for text in texts)


def test_a_changed_number_is_refused_then_printed(checkout, monkeypatch):
    call("--check", "--root", checkout, monkeypatch=monkeypatch)
    change(checkout / "results" / "performance.csv")
    with pytest.raises(ValueError, match=r"not as in results/: docs/performance\.md"):
        call("--check", "--root", checkout, monkeypatch=monkeypatch)
    call("--root", checkout, monkeypatch=monkeypatch)
    call("--check", "--root", checkout, monkeypatch=monkeypatch)
    assert "7654" in (checkout / "docs" / "performance.md").read_text()


def test_best_and_runner_up_are_those_of_all_rows(tmp_path):
    table = pd.DataFrame(
        [
            ["L_rank", "mean", 2, 0.5, 0.02],
            ["L_rank", "std", 2, 0.01, 0.001],
            ["L_u1", "mean", 2, 0.7, 0.01],
            ["L_u1", "std", 2, 0.01, 0.001],
            ["TKPR_a2", "mean", 2, 0.6, 0.03],
            ["TKPR_a2", "std", 2, 0.0, 0.0],
        ],
        columns=["method", "kind", "seeds", "mAP@3", "ranking_loss"],
    )
    table.to_csv(tmp_path / "voc2012_mlml_ranking_resnet50-smoke.csv", index=False)
    asked = (
        "results: voc2012_mlml_ranking_resnet50-smoke\n"
        "columns: [mAP@3, ranking_loss]\nrows: [TKPR_a2, L_rank]\npaper: true\n"
    )
    assert DOCS["table"](asked, tmp_path).splitlines() == [
        "| | mAP@3 | paper | ranking_loss | paper |",
        "| --- | --- | --- | --- | --- |",
        "| TKPR_a2 | *.600 ± .000* | .938 | .0300 ± .0000 | .0116 |",
        "| L_rank | .500 ± .010 | .893 | *.0200 ± .0010* | .0199 |",
    ]


def test_an_unknown_option_is_an_error():
    with pytest.raises(ValueError, match="no option colums"):
        DOCS["table"]("csv: performance\ncolums: [mAP@3]\n", ROOT / "results")


def anchor(head):
    """The anchor that GitHub gives a head."""
    return re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        if link.startswith("http"):
            continue
        file, _, place = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), f"{page.name}: no {link}"
        if place:
            heads = re.findall(r"^#+ (.*)$", FENCE.sub("", target.read_text()), flags=re.M)
            assert place in map(anchor, heads), f"{page.name}: no head for {link}"


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/[a-z]*.md")), ids=lambda path: path.name)
def test_every_page_has_a_head_contents_and_a_place_in_the_index(page):
    text = page.read_text()
    heads = re.findall(r"^## (.*)$", FENCE.sub("", text), flags=re.M)
    assert text.startswith("# ")
    contents = re.findall(r"^- \[.*\]\(#(.*)\)$", text.partition("\n## ")[0], flags=re.M)
    assert contents == [anchor(head) for head in heads]
    assert f"({page.name})" in (ROOT / "docs" / "README.md").read_text()


def test_the_front_page_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_the_tree_of_the_front_page_is_the_tree():
    (tree,) = [
        text for name, text in FENCE.findall((ROOT / "README.md").read_text()) if name == "text"
    ]
    named = {word.strip("/,") for line in tree.splitlines() for word in line[:20].split()}
    folders = {path.name for path in (ROOT / "tkpr").iterdir() if (path / "__init__.py").exists()}
    assert folders <= named
    assert {name for name in named if not (ROOT / name).exists()} <= {
        path.stem for path in (ROOT / "tkpr").iterdir()
    }


def test_every_picture_is_used():
    texts = "".join(page.read_text() for page in PAGES)
    unused = [file.name for file in (ROOT / "docs" / "images").iterdir() if file.name not in texts]
    assert not unused


def test_every_loss_is_described():
    """By its file's name in the first column of a table of docs/losses.md."""
    rows = re.findall(r"^\| (`[^|]+) \|", (ROOT / "docs" / "losses.md").read_text(), re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(names) == sorted(path.stem for path in (ROOT / "configs" / "loss").glob("*.yaml"))
