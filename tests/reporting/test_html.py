"""The report is one file that works without a network, and in a real browser."""

import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import hydra
import pytest
from omegaconf import OmegaConf

from tests.fake_runs import write_run
from tkpr import records
from tkpr.reporting.figures import cases
from tkpr.reporting.figures.style import shown
from tkpr.reporting.html import build_report, draw_figures, sections
from tkpr.reporting.rows import load_runs
from tkpr.runs.plan import load_budgets

ROOT = Path(__file__).parents[2]
BUDGETS = load_budgets(ROOT / "configs")
TABLE = "voc2012_mlml_ranking_resnet50"
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for row, skill in {"L_rank": 1.0, "L_u4": 1.5, "LSEP": 0.5, "TKPR_a2": 2.5}.items():
        write_run(folder, row, table=TABLE, skill=skill)
    write_run(folder, "L_rank", table=TABLE, skill=1.0, split__holdout=0.2)
    for k in (2, 5):
        write_run(folder, "TKPR_a2", table="voc2012_mlml_sensitivity", skill=2, loss__k=k)
    return folder


@pytest.fixture(scope="module")
def page(folder):
    return build_report(load_runs(folder), BUDGETS, title="Made up & small")


def test_sections_are_tables_then_the_rest(folder):
    runs = load_runs(folder)
    assert sections(runs) == [(TABLE, "smoke"), ("voc2012_mlml_sensitivity", "smoke")]
    assert sections([run for run in runs if run.held_out]) == []


def test_page_is_self_contained(page):
    assert page.startswith("<!doctype html>")
    assert "<h1>Made up &amp; small</h1>" in page
    assert 'name="viewport" content="width=device-width' in page
    assert not re.findall(r"https?://", page)
    sources = re.findall(r'src="([^"]{0,30})', page)
    assert len(sources) == 2 + 1 + 2 + 1  # epochs twice, ranks, cases twice, sensitivity to K
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    assert "7 finished runs" in page
    assert "1 of them on a held-out\npart of the training set" in page


def test_every_row_is_there(page):
    table = page.partition("</table>")[0]
    for row in ("L_rank", "L_u1", "TKML", "TKPR_a3"):
        assert re.search(rf">\s*{row}\s*<", table)
    assert table.count("missing") == 6
    ids = re.findall(r'id="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_images_on_another_machine(tmp_path):
    """Then the case study shows their ids."""
    with hydra.initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        named = hydra.compose("train", ["dataset=voc2012", f"dataset.root={tmp_path / 'voc'}"])
    dataset = OmegaConf.to_container(named.dataset, resolve=True)
    for row, skill in (("L_rank", 1), ("TKPR_a2", 2)):
        write_run(tmp_path / "runs", row, table=TABLE, skill=skill, dataset=dataset)
    runs = load_runs(tmp_path / "runs")
    with pytest.raises(FileNotFoundError):
        cases.pictures(runs[0])
    captions = [caption for caption, _ in draw_figures(TABLE, runs)]
    assert sum("gain of" in caption for caption in captions) == 2


def test_figures_of_a_table_without_ranking_losses_show_its_competitors(tmp_path):
    name = "voc2012_mlml_sota_resnet50"
    rows = ["ROLE", "EM+APL", "Hill", "SPLC", "LL-R", "LL-Ct", "LL-Cp"]
    rows += ["TKPR_a1", "TKPR_a2", "TKPR_a3"]
    for i, row in enumerate(rows):
        write_run(tmp_path, row, table=name, skill=1 + i / 5)
    drawn = dict(draw_figures(name, load_runs(tmp_path)))
    epochs = drawn["Normalised measures against the epoch (as Fig. 2 and 4)."]
    titles = [panel.get_title() for panel in epochs.axes]
    names = ("ROLE", "EM+APL", "Hill", r"TKPR $\alpha_2$")
    for title, row in zip(titles, names, strict=True):
        assert f"optimize {row}:" in title
    bars = drawn["Where the relevant labels end up (as Fig. 3)."].axes[0].containers
    assert [container.get_label() for container in bars] == [shown(row) for row in rows]
    looks = {(bar[0].get_hatch(), bar[0].get_facecolor()) for bar in bars}
    assert len({bar[0].get_hatch() for bar in bars}) == len(looks) == 10


def test_no_name_becomes_markup(tmp_path):
    """Settings, rows and tables from a foreign metrics.json are text, wherever they are shown."""
    evil = "<script>alert(1)</script>"
    write_run(tmp_path, "L_rank", table=TABLE, skill=1)
    record = write_run(tmp_path, "TKPR_a2", table=TABLE, skill=2)
    for place, changed in {
        "row": {"row": f"TKPR{evil}"},
        "table": {"table": evil},
        "budget": {"budget": evil},
        "setting": {"loss": {"k": evil}},
    }.items():
        config = record["config"] | changed
        kept = {key: record[key] for key in ("metrics", "seconds", "seed")} | {"config": config}
        folder = tmp_path / place
        shutil.copytree(record["folder"], folder)
        records.write(folder / "metrics.json", kept)
    page = build_report(load_runs(tmp_path), BUDGETS, title=evil)
    assert evil not in page
    assert page.count("<script>") == 1
    assert page.count("&lt;script&gt;alert(1)") >= 5


def test_script(folder, tmp_path, monkeypatch, capsys):
    def run(*words):
        monkeypatch.setattr(sys, "argv", ["report.py", *map(str, words)])
        runpy.run_path(str(ROOT / "scripts" / "report.py"), run_name="__main__")

    run("--runs", folder, "--output", tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text().endswith("</html>\n")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit, match="no finished runs"):
        run("--runs", tmp_path / "empty")


# clicks on the head of mAP@3 twice, and writes what it sees into the title
PROBE = """<script>
const table = document.querySelector("table.sortable");
const head = [...table.tHead.rows[0].cells].findIndex((c) => c.textContent.trim() === "mAP@3");
const order = () => [...table.tBodies[0].rows].map((row) => row.cells[0].textContent.trim());
const click = () => { table.tHead.rows[0].cells[head].querySelector("button").click();
                      return order().join(","); };
const sorted = [click(), click()];
const pictures = [...document.images].filter((image) => image.complete && image.naturalWidth > 0);
const overflow = document.documentElement.scrollWidth - document.documentElement.clientWidth;
document.title = [...sorted, pictures.length, overflow, innerWidth,
                  performance.getEntriesByType("resource").length].join(";");
</script>"""


@pytest.mark.skipif(BROWSER is None, reason="needs Debian's chromium")
def test_in_a_browser_as_wide_as_a_phone(page, tmp_path):
    file = tmp_path / "report.html"

    file.write_text(page.replace("</html>", PROBE + "</html>"))
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=390,844"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=10000"]
    shown = subprocess.run(
        [*command, "--dump-dom", file.as_uri()], capture_output=True, text=True, timeout=120
    )
    title = re.search(r"<title>(.*?)</title>", shown.stdout)
    assert title, shown.stderr
    down, up, pictures, overflow, width, requests = title.group(1).split(";")
    ran = ["TKPR_a2", "L_u4", "L_rank", "LSEP"]
    assert down.split(",")[:4] == ran
    assert up.split(",")[:4] == ran[::-1]
    assert len(down.split(",")) == 10  # rows not run come last, either way
    assert pictures == "6"
    assert int(width) < 600
    assert int(overflow) <= 0  # tables scroll inside their frames, the page does not
    assert requests == "0"
