"""Tables say what the runs say, cell by cell, in every format."""

import csv
import io
import re
import runpy
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.made_up import labels, write_run
from tkpr import results, tables
from tkpr.results import MEASURES

ROOT = Path(__file__).parents[1]
TABLE = "voc2012_mlml_ranking_resnet50"
SKILLS = {"L_rank": 0.5, "L_u1": 1.0, "L_u3": 0.9, "TKPR_a1": 3.0, "TKPR_a2": 2.5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Five of the ten rows, two seeds of each but the last."""
    folder = tmp_path_factory.mktemp("runs")
    targets = labels(num_images=120)
    for row, skill in SKILLS.items():
        for seed in (0, 1) if row != "TKPR_a2" else (0,):
            write_run(folder, row, table=TABLE, skill=skill, seed=seed, targets=targets)
    return folder


@pytest.fixture(scope="module")
def table(folder):
    return tables.collect(results.load_runs(folder), TABLE, "smoke")


def read_markdown(text):
    """Return the cells of a Markdown table by row and column."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    head, _, *body = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(head, line, strict=True)) for line in body]


def test_markdown_cell_by_cell(table):
    body = read_markdown(tables.to_markdown(table))
    assert [line["method"] for line in body] == results.paper_table(TABLE).index.tolist()
    place, best = results.places(table.mean), results.best_competitors(table.mean)
    for line in body:
        row = line["method"]
        runs = table.rows[row]
        assert line["seeds"] == (str(len(runs)) if runs else "missing")
        for measure in MEASURES:
            cell = line[measure]
            if not runs:
                assert cell == "–"
                continue
            digits = 4 if measure == "ranking_loss" else 3
            values = [run.metrics[measure] for run in runs]
            mean = sum(values) / len(values)
            expected = f"{mean:.{digits}f}"
            if len(values) == 2:
                expected += f" ± {abs(values[0] - values[1]) / 2**0.5:.{digits}f}"
            assert re.sub(r"</?u>|\\\*|\*|°", "", cell) == expected
            plain = cell.replace("\\*", "")
            assert plain.replace("<u>", "").startswith("**") == (place.loc[row, measure] == 1)
            italic = re.fullmatch(r"(<u>)?\*[^*].*", plain) is not None
            assert italic == (place.loc[row, measure] == 2)
            assert cell.startswith("<u>") == (best[measure] == row)


def test_only_tkpr_is_compared_and_only_clear_differences_are_marked(table):
    assert (table.marks.drop(["TKPR_a1", "TKPR_a2"]) == "").all().all()
    assert (table.marks.loc["TKPR_a1", ["mAP@3", "NDCG@5", "ranking_loss"]] == "*").all()
    assert any("paired bootstrap" in note for note in table.notes)


def test_a_tkpr_that_is_worse_is_marked_so(tmp_path):
    write_run(tmp_path, "L_rank", table=TABLE, skill=3.0)
    write_run(tmp_path, "TKPR_a2", table=TABLE, skill=0.0)
    write_run(tmp_path, "TKPR_a3", table=TABLE, skill=3.0)  # the same predictions as L_rank
    table = tables.collect(results.load_runs(tmp_path), TABLE, "smoke")
    assert (table.marks.loc["TKPR_a2", ["mAP@3", "NDCG@5", "ranking_loss"]] == "°").all()
    assert (table.marks.loc["TKPR_a3"] == "").all()


def test_csv_cell_by_cell(table):
    body = list(csv.DictReader(io.StringIO(tables.to_csv(table, paper=True))))
    assert len(body) == 10 * 4
    cells = {(line["method"], line["kind"]): line for line in body}
    paper = results.paper_table(TABLE)
    for row in paper.index:
        values = [[run.metrics[m] for run in table.rows[row]] for m in MEASURES]
        for measure, runs in zip(MEASURES, values, strict=True):
            assert float(cells[row, "paper"][measure]) == paper.loc[row, measure]
            if not runs:
                assert cells[row, "mean"][measure] == cells[row, "difference"][measure] == ""
                continue
            mean = sum(runs) / len(runs)
            assert float(cells[row, "mean"][measure]) == pytest.approx(mean, abs=1e-6)
            difference = mean - paper.loc[row, measure]
            assert float(cells[row, "difference"][measure]) == pytest.approx(difference, abs=1e-6)


def test_the_papers_value_and_the_difference(table):
    body = read_markdown(tables.to_markdown(table, paper=True))
    assert len(body) == 30
    names = [line["method"].replace("&nbsp;", " ").strip() for line in body]
    assert names[:6] == ["L_rank", "paper", "difference", "L_u1", "paper", "difference"]
    assert (body[1]["mAP@3"], body[1]["ranking_loss"]) == ("0.893", "0.0199")
    assert body[2]["mAP@3"] == f"{table.mean.loc['L_rank', 'mAP@3'] - 0.893:+.3f}"
    assert body[8]["P@3"] == "–"  # L_u2 was not run


class Cells(HTMLParser):
    """The cells of the first table of a page."""

    def __init__(self):
        super().__init__()
        self.rows, self.inside = [], False

    def handle_starttag(self, tag, attributes):
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.inside = True
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.rows[-1][-1] += data


def test_html_cell_by_cell(table):
    page = tables.to_html(table)
    parser = Cells()
    parser.feed(page)
    texts = tables.cell_texts(table)
    assert [cell.strip() for cell in parser.rows[0]] == ["method", "seeds", *MEASURES]
    for line in parser.rows[1:]:
        row, _, *cells = [cell.strip() for cell in line]
        assert cells == texts.loc[row].tolist()
    styles = dict(re.findall(r"#(T_\S*?)[ ,{][^{]*{([^}]*)}", page))
    assert any("color: #c00000" in style for style in styles.values())
    assert "text-decoration: underline" in page
    assert "#1f4fd8" in page


def test_latex_has_the_papers_layout(table):
    text = tables.to_latex(table)
    assert r"\multicolumn{2}{c}{$\text{TKPR}^{\alpha_2}$}" in text
    assert r"\toprule" in text
    assert text.count(r"\\") == 12  # two lines of head, ten rows
    line = next(line for line in text.splitlines() if line.startswith(r"TKPR $\alpha_1$"))
    cells = [cell.strip() for cell in line.rstrip("\\ ").split("&")]
    assert len(cells) == 2 + 15
    mean, std = table.mean.loc["TKPR_a1", "mAP@3"], table.std.loc["TKPR_a1", "mAP@3"]
    inner = rf"{mean:.3f} $\pm$ {std:.3f}$^{{*}}$"
    assert cells[6].replace(" ", "") == rf"\textcolor{{red}}{{\textbf{{{inner}}}}}".replace(" ", "")
    competitor = next(line for line in text.splitlines() if line.startswith(r"$L_{u_1}$"))
    assert r"\underline" in competitor
    for special in ("±", "°", "–"):
        assert special not in text.split(r"\begin")[1]


def test_notes_name_what_is_missing_and_what_is_odd(table):
    notes = " ".join(table.notes)
    assert "Missing, not run yet: L_u2, L_u4, LSEP, TKML, TKPR_a3." in notes
    assert "not the paper's setting" in tables.BUDGETS["features"]
    assert "alpha_1 = alpha_2 = 1 and alpha_3 = K" in notes  # one positive label per image
    odd = tables.collect([], "coco_mlc_sota_resnet101", "paper")
    assert "likely a misprint" in tables.to_markdown(odd)
    assert all(line["P@3"] == "–" for line in read_markdown(tables.to_markdown(odd)))


def test_a_row_run_with_two_settings_has_two_lines(tmp_path):
    for k in (3, 5):
        write_run(tmp_path, "TKPR_a2", table=TABLE, skill=2, loss__k=k)
    table = tables.collect(results.load_runs(tmp_path), TABLE, "smoke")
    methods = [line["method"] for line in read_markdown(tables.to_markdown(table, paper=True))]
    assert "TKPR_a2 (loss.k=3)" in methods
    assert "TKPR_a2 (loss.k=5)" in methods
    assert r"TKPR $\alpha_2$ (loss.k=3)" in tables.to_latex(table)


def script(monkeypatch, capsys, *words):
    """Run scripts/tables.py and return what it prints."""
    monkeypatch.setattr(sys, "argv", ["tables.py", *map(str, words)])
    runpy.run_path(str(ROOT / "scripts" / "tables.py"), run_name="__main__")
    return capsys.readouterr()


def test_script_writes_four_files(folder, tmp_path, monkeypatch, capsys):
    told = script(
        monkeypatch, capsys, TABLE, "--budget", "smoke", "--runs", folder, "--output", tmp_path
    )
    assert len(read_markdown(told.out)) == 10
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == [f"{TABLE}-smoke.{ending}" for ending in ("csv", "html", "md", "tex")]


def test_script_without_runs_says_where_there_are_some(folder, tmp_path, monkeypatch, capsys):
    told = script(monkeypatch, capsys, TABLE, "--runs", folder, "--output", tmp_path)
    assert "there are some at --budget smoke" in told.err


def test_dry_run_lists_what_it_takes(folder, monkeypatch, capsys):
    told = script(monkeypatch, capsys, TABLE, "--dry-run", "--budget", "smoke", "--runs", folder)
    lines = told.out.splitlines()
    assert re.split(r"\s{2,}", lines[2]) == [
        "rank",
        "L_rank",
        "10",
        "2,000",
        "20,000",
        "2 finished",
    ]
    assert re.split(r"\s{2,}", lines[4]) == ["u2", "L_u2", "10", "2,000", "20,000", "to run"]
    assert lines[12].split() == ["together", "200,000"]


def test_script_names_the_tables(monkeypatch, capsys):
    with pytest.raises(SystemExit, match="no table 'voc'"):
        script(monkeypatch, capsys, "voc")
