"""Tables say what the runs say, cell by cell, in every format."""

import csv
import io
import re
import runpy
import sys
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from tests.fake_runs import labels, write_run
from tkpr.metrics import measure_names
from tkpr.reporting import formats, tables
from tkpr.reporting.paper_numbers import paper_digits, paper_table, table_names
from tkpr.reporting.rows import best_competitors, load_runs, places
from tkpr.runs.plan import load_budgets

MEASURES = measure_names(scopes=["image"])

ROOT = Path(__file__).parents[2]
BUDGETS = load_budgets(ROOT / "configs")
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
    return tables.collect(load_runs(folder), TABLE, BUDGETS["smoke"])


def read_markdown(text):
    """Return the cells of a Markdown table by row and column."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    head, _, *body = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(head, line, strict=True)) for line in body]


def test_markdown_cell_by_cell(table):
    body = read_markdown(formats.to_markdown(table))
    assert [line["method"] for line in body] == paper_table(TABLE).index.tolist()
    place, best = places(table.mean), best_competitors(table.mean)
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
    table = tables.collect(load_runs(tmp_path), TABLE, BUDGETS["smoke"])
    assert (table.marks.loc["TKPR_a2", ["mAP@3", "NDCG@5", "ranking_loss"]] == "°").all()
    assert (table.marks.loc["TKPR_a3"] == "").all()
    verdicts = tables.verdicts(table).set_index("row")
    assert verdicts.loc["TKPR_a3", ["TKPR is", "difference", "level on"]].tolist() == [
        "level",
        0,
        15,
    ]
    worse = verdicts.loc["TKPR_a2"]
    assert (worse["table"], worse["best competitor"], worse["TKPR is"]) == (
        *("Tab. 13", "L_rank", "worse"),
    )
    means = table.mean["mAP@3"]
    assert worse["difference"] == means["TKPR_a2"] - means["L_rank"] < 0
    assert worse["worse on"] == (table.marks.loc["TKPR_a2"] == "°").sum() > 2
    assert worse["better on"] == 0


def test_csv_cell_by_cell(table):
    body = list(csv.DictReader(io.StringIO(formats.to_csv(table, paper=True))))
    assert len(body) == 10 * 4
    cells = {(line["method"], line["kind"]): line for line in body}
    paper = paper_table(TABLE)
    for row in paper.index:
        values = [[run.metrics[m] for run in table.rows[row]] for m in MEASURES]
        assert {cells[row, kind]["seeds"] for kind in ("mean", "std")} == {str(len(values[0]))}
        for measure, runs in zip(MEASURES, values, strict=True):
            assert float(cells[row, "paper"][measure]) == paper.loc[row, measure]
            if not runs:
                assert cells[row, "mean"][measure] == cells[row, "difference"][measure] == ""
                continue
            mean = sum(runs) / len(runs)
            assert float(cells[row, "mean"][measure]) == pytest.approx(mean, abs=1e-6)
            if len(runs) == 1:
                assert cells[row, "std"][measure] == ""
            else:
                spread = abs(runs[0] - runs[1]) / 2**0.5
                assert float(cells[row, "std"][measure]) == pytest.approx(spread, abs=1e-6)
            difference = mean - paper.loc[row, measure]
            assert float(cells[row, "difference"][measure]) == pytest.approx(difference, abs=1e-6)


def test_the_papers_value_and_the_difference(table):
    body = read_markdown(formats.to_markdown(table, paper=True))
    assert len(body) == 30
    names = [line["method"].replace("&nbsp;", " ").strip() for line in body]
    assert names[:6] == ["L_rank", "paper", "difference", "L_u1", "paper", "difference"]
    assert (body[1]["mAP@3"], body[1]["ranking_loss"]) == ("0.893", "0.0199")
    assert body[2]["mAP@3"] == f"{table.mean.loc['L_rank', 'mAP@3'] - 0.893:+.3f}"
    assert body[8]["P@3"] == "–"  # L_u2 was not run


def test_the_papers_value_has_the_digits_that_the_paper_prints(tmp_path):
    """Its ranking loss on MS-COCO has three, that on VOC 2012 four."""
    name = "coco_mlc_ranking_resnet101"
    told = write_run(tmp_path, "L_rank", table=name, skill=1)
    table = tables.collect(load_runs(tmp_path), name, BUDGETS["smoke"])
    ours, paper, difference = read_markdown(formats.to_markdown(table, paper=True))[:3]
    value = told["metrics"]["ranking_loss"]
    assert f"{value:.4f}" in ours["ranking_loss"]
    assert paper["ranking_loss"] == "0.034"
    assert difference["ranking_loss"] == f"{value - 0.034:+.3f}"
    for table in table_names():
        printed = (
            (ROOT / "tkpr" / "reporting" / "paper" / f"{table}.csv").read_text().splitlines()[1]
        )
        known = paper_table(table).iloc[0]
        digits = paper_digits(table)
        texts = [tables.number(known[m], m, digits=digits[m]) for m in MEASURES]
        assert texts == printed.split(",")[1:]


class Cells(HTMLParser):
    """The cells of the first table of a page, and their classes."""

    def __init__(self):
        super().__init__()
        self.rows, self.kinds, self.inside = [], [], False

    def handle_starttag(self, tag, attributes):
        if tag == "tr":
            self.rows.append([])
            self.kinds.append([])
        elif tag in ("td", "th"):
            self.inside = True
            self.rows[-1].append("")
            self.kinds[-1].append(dict(attributes).get("class", "").split())

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.rows[-1][-1] += data


def test_html_cell_by_cell(table):
    parser = Cells()
    parser.feed(formats.to_html(table))
    texts = tables.cell_texts(table)
    assert parser.rows[0] == ["method", "seeds", *MEASURES]
    place, best = places(table.mean), best_competitors(table.mean)
    assert len(parser.rows) == 1 + 10
    for (row, _, *cells), kinds in zip(parser.rows[1:], parser.kinds[1:], strict=True):
        assert cells == texts.loc[row].tolist()
        for measure, kind in zip(MEASURES, kinds[2:], strict=True):
            assert ("best" in kind) == (place.loc[row, measure] == 1)
            assert ("second" in kind) == (place.loc[row, measure] == 2)
            assert ("competitor" in kind) == (best[measure] == row)


def test_html_is_a_page_in_a_named_character_set(table):
    page = formats.to_page(table)
    assert re.match(r'<!doctype html>\s*<html lang="en"><head><meta charset="utf-8">', page)
    for style in (".best { color: #c00000; font-weight: bold", ".second { color: #1f4fd8"):
        assert style in page
    assert page.endswith("</html>\n")
    assert "±" in page
    assert "<title>voc2012_mlml_ranking_resnet50, budget smoke</title>" in page
    parser = Cells()
    parser.feed(page)
    assert len(parser.rows) == 11


def test_latex_cell_by_cell(table):
    text = formats.to_latex(table)
    assert r"\multicolumn{2}{c}{TKPR$^{\alpha_2}$@K}" in text
    assert r"\toprule" in text
    assert text.count(r"\\") == 12  # two lines of head, ten rows
    lines = [line for line in text.splitlines() if line.rstrip().endswith(r"\\")]
    place, best = places(table.mean), best_competitors(table.mean)
    names = [r"$L_{\text{rank}}$", *(rf"$L_{{u_{i}}}$" for i in range(1, 5)), "LSEP", "TKML"]
    names += [rf"TKPR $\alpha_{i}$" for i in (1, 2, 3)]
    for line, name, row in zip(lines[2:], names, table.mean.index, strict=True):
        head, seeds, *cells = [cell.strip() for cell in line.rstrip("\\ ").split("&")]
        assert head == name
        assert seeds == (str(len(table.rows[row])) if table.rows[row] else "missing")
        for measure, cell in zip(MEASURES, cells, strict=True):
            mean, std = table.mean.loc[row, measure], table.std.loc[row, measure]
            digits = 4 if measure == "ranking_loss" else 3
            expected = "--" if mean != mean else f"{mean:.{digits}f}"
            if std == std:
                expected += rf" $\pm$ {std:.{digits}f}"
            expected += {"*": "$^{*}$", "°": r"$^{\circ}$", "": ""}[table.marks.loc[row, measure]]
            if best[measure] == row:
                expected = rf"\underline{{{expected}}}"
            if place.loc[row, measure] == 1:
                expected = rf"\textcolor{{red}}{{\textbf{{{expected}}}}}"
            elif place.loc[row, measure] == 2:
                expected = rf"\textcolor{{blue}}{{\textit{{{expected}}}}}"
            assert cell.replace(" ", "") == expected.replace(" ", "")
    for special in ("±", "°", "–"):
        assert special not in text.split(r"\begin")[1]


def test_notes_name_what_is_missing_and_what_is_odd(table):
    notes = " ".join(table.notes)
    assert "Missing, not run yet: L_u2, L_u4, LSEP, TKML, TKPR_a3." in notes
    assert "not the paper's setting" in BUDGETS["features"].about
    assert "alpha_1 = alpha_2 = 1 and alpha_3 = K" in notes  # one positive label per image
    odd = tables.collect([], "coco_mlc_sota_resnet101", BUDGETS["paper"])
    assert "likely a misprint" in formats.to_markdown(odd)
    assert all(line["P@3"] == "–" for line in read_markdown(formats.to_markdown(odd)))


def test_a_row_run_with_two_settings_has_two_lines(tmp_path):
    for k in (3, 5):
        write_run(tmp_path, "TKPR_a2", table=TABLE, skill=2, loss__k=k)
    table = tables.collect(load_runs(tmp_path), TABLE, BUDGETS["smoke"])
    methods = [line["method"] for line in read_markdown(formats.to_markdown(table, paper=True))]
    assert "TKPR_a2 (loss.k=3)" in methods
    assert "TKPR_a2 (loss.k=5)" in methods
    assert r"TKPR $\alpha_2$ (loss.k=3)" in formats.to_latex(table)


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
    files = [f"{TABLE}-smoke.{ending}" for ending in ("csv", "html", "md", "tex")]
    assert names == ["verdicts-smoke.csv", *files]
    verdicts = pd.read_csv(tmp_path / "verdicts-smoke.csv").set_index("row")
    assert verdicts.index.tolist() == ["TKPR_a1", "TKPR_a2"]
    assert verdicts.loc["TKPR_a1", "TKPR is"] == "better"
    assert "TKPR_a1" in told.out.rpartition("best competitor")[2]


def test_no_verdict_without_a_comparison(folder, tmp_path, monkeypatch, capsys):
    words = ["--budget", "smoke", "--runs", folder, "--output", tmp_path]
    script(monkeypatch, capsys, TABLE, *words, "--no-significance")
    assert not (tmp_path / "verdicts-smoke.csv").exists()


def test_script_without_runs_says_where_there_are_some(folder, tmp_path, monkeypatch, capsys):
    told = script(monkeypatch, capsys, TABLE, "--runs", folder, "--output", tmp_path)
    assert "there are some at --budget smoke" in told.err


def test_dry_run_lists_what_it_takes(folder, monkeypatch, capsys):
    words = ["--dry-run", "--budget", "smoke", "--runs", folder]
    lines = script(monkeypatch, capsys, TABLE, *words).out.splitlines()
    cells = [re.split(r"\s{2,}", line) for line in lines]
    assert cells[2] == ["rank", "L_rank", "1", "10", "2,000", "20,000", "2 finished"]
    assert cells[4] == ["u2", "L_u2", "1", "10", "2,000", "20,000", "to run"]
    assert cells[12] == ["runs x epochs x images", "200,000"]
    assert lines[13] == f"python train.py -m experiment={TABLE} budget=smoke"


def test_dry_run_follows_sweeps(tmp_path, monkeypatch, capsys):
    """Seeds on the command line, K and E_w of a sensitivity experiment; the command is whole."""
    words = ["--dry-run", "--budget", "smoke", "--runs", tmp_path, "seed=0,1,2", "split.limit=50"]
    lines = script(monkeypatch, capsys, "voc2012_mlml_sensitivity", *words).out.splitlines()
    cells = [re.split(r"\s{2,}", line) for line in lines]
    runs = 3 * 2 * 3  # values of K, of E_w, seeds
    expected = ["tkpr_a1", "TKPR_a1", str(runs), "10", "50", f"{runs * 10 * 50:,}", "to run"]
    assert cells[2] == expected
    assert cells[5] == ["runs x epochs x images", f"{3 * runs * 10 * 50:,}"]
    assert lines[6] == (
        "python train.py -m experiment=voc2012_mlml_sensitivity budget=smoke seed=0,1,2 "
        "split.limit=50"
    )


def test_ccd_needs_feature_maps(tmp_path, monkeypatch, capsys):
    name = "voc2007_mlc_sota_resnet101"
    words = ["--dry-run", "--budget", "features", "--runs", tmp_path]
    lines = script(monkeypatch, capsys, name, *words).out.splitlines()
    assert re.split(r"\s{2,}", lines[9]) == ["ccd", "CCD", "needs feature maps: not at this budget"]
    table = tables.collect([], name, BUDGETS["features"])
    assert "CCD needs feature maps: not at this budget." in table.notes
    assert "Missing, not run yet: ASL, DB-Loss, Hill, SPLC, TKPR_a1, TKPR_a2, TKPR_a3." in (
        table.notes
    )
    seeds = {line["method"]: line["seeds"] for line in read_markdown(formats.to_markdown(table))}
    assert (seeds["CCD"], seeds["ASL"]) == ("not possible", "missing")
    paper = tables.collect([], name, BUDGETS["paper"])
    assert "Missing, not run yet: ASL, DB-Loss, CCD, Hill" in " ".join(paper.notes)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_table_that_is_not_in_the_paper(sparse, tmp_path):
    """Its rows are the ones that were run; label lists leave no ranking to compare."""
    name = "xmc_bibtex" if sparse else "beyond_coco_mlml"
    for row, skill in {"GR": 2, "TKPR_a2": 1}.items():
        write_run(tmp_path, row, table=name, budget="paper", skill=skill)
    runs = load_runs(tmp_path)
    if sparse:
        for run in runs:
            del run.metrics["ranking_loss"]
    table = tables.collect(runs, name, BUDGETS["paper"])
    assert list(table.rows) == ["GR", "TKPR_a2"]
    assert ("ranking_loss" in table.mean.columns) != sparse
    notes = " ".join(table.notes)
    assert ("paired bootstrap" in notes, "kept the best labels" in notes) == (not sparse, sparse)
    assert "the paper's scale" not in notes
    lines = read_markdown(formats.to_markdown(table))
    assert [line["method"] for line in lines] == ["GR", "TKPR_a2"]
    assert "GR,mean" in formats.to_csv(table)


def test_script_names_the_tables(monkeypatch, capsys):
    with pytest.raises(SystemExit, match="xmc_bibtex is not in the paper: leave out --paper"):
        script(monkeypatch, capsys, "xmc_bibtex", "--paper")
    with pytest.raises(SystemExit, match="no table 'voc'"):
        script(monkeypatch, capsys, "voc")
    with pytest.raises(SystemExit, match=r"no experiment 'voc': choose one of .*sensitivity"):
        script(monkeypatch, capsys, "voc", "--dry-run")
    with pytest.raises(SystemExit, match="Could not override 'seeds'"):
        script(monkeypatch, capsys, TABLE, "--dry-run", "seeds=0,1")


def test_names_are_shown_as_they_are(tmp_path):
    """Settings that a row is named by may hold anything."""
    nasty = "=a_b$|<i>\\x*\n%#"
    for value in (nasty, "plain"):
        write_run(tmp_path, "TKPR_a2", table=TABLE, skill=2, loss={"k": 5, "name": value})
    write_run(tmp_path, "=HYPERLINK(1)", table=TABLE, skill=1)
    table = tables.collect(load_runs(tmp_path), TABLE, BUDGETS["smoke"], significance=False)
    table.notes.append(nasty)
    body = formats.to_markdown(table).splitlines()
    (line,) = [line for line in body if "loss.name==a" in line]
    assert r"(loss.name==a_b\$\|&lt;i&gt;\\x\* %\#)" in line
    assert len(re.findall(r"(?<!\\)\|", line)) == 1 + 2 + len(MEASURES)
    latex = formats.to_latex(table)
    written = r"(loss.name==a\_b\$|\textless{}i\textgreater{}\textbackslash{}x* \%\#)"
    assert rf"TKPR $\alpha_2$ {written}" in latex
    comments = latex.split(r"\begin")[0].splitlines()
    assert all(line.startswith("% ") for line in comments)
    rows = list(csv.DictReader(io.StringIO(formats.to_csv(table))))
    assert f"TKPR_a2 (loss.name={nasty})" in {row["method"] for row in rows}
    assert "'=HYPERLINK(1)" in {row["method"] for row in rows}
    assert not [row for row in rows if row["method"][0] in "=+-@"]
    page = formats.to_page(table)
    assert "&lt;i&gt;" in page
    assert "<i>" not in page
