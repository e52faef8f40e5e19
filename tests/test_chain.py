"""What train.py leaves is what tables, figures and the report read: the whole chain, in small."""

import csv
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tkpr.metrics import measure_names

ROOT = Path(__file__).parents[1]
MEASURES = measure_names(scopes=["image"])
TABLE = "voc2007_mlc_ranking_resnet101"
SHORT = ["budget=smoke", "split.limit=40", "trainer.epochs=3"]
# a few rows of each experiment that a figure of the paper shows
TRAINED = [
    [TABLE, "method=rank,u4,tkpr_a2", "seed=0,1"],
    ["coco_mlc_ranking_resnet101", "method=rank,tkpr_a2"],
    ["voc2012_mlml_sensitivity", "method=tkpr_a2", "loss.k=2,4", "trainer.warmup_epochs=1,2"],
    ["voc2007_mlc_sensitivity", "method=tkpr_a2", "loss.k=2,4", "seed=0"],
    ["coco_mlc_sota_swin", "method=asl_swin,ccd_swin,tkpr_a2"],
    ["nuswide_mlc_sota_swin", "method=db,tkpr_a2"],
]
FIGURES = {
    "fig2": TABLE,
    "fig3a": "coco_mlc_ranking_resnet101",
    "fig3b": TABLE,
    "fig4": TABLE,
    "fig5": "voc2012_mlml_sensitivity",
    "fig6": "voc2012_mlml_sensitivity",
    "fig7": "voc2007_mlc_sensitivity",
    "fig8": "coco_mlc_sota_swin",
    "fig9": "nuswide_mlc_sota_swin",
}


def train(folder, *words):
    """Run train.py in a folder of its own."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("TKPR_")}
    done = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), "-m", *words],
        **{"cwd": folder, "capture_output": True, "text": True, "timeout": 600},
        env=env | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_from_training_to_the_report(tmp_path, monkeypatch, capsys):
    def call(script, *words):
        monkeypatch.setattr(sys, "argv", [script, *map(str, words)])
        runpy.run_path(str(ROOT / "scripts" / script), run_name="__main__")
        return capsys.readouterr().out

    monkeypatch.chdir(tmp_path)
    for experiment, *words in TRAINED:
        train(tmp_path, f"experiment={experiment}", *SHORT, *words)
    told = [json.loads(file.read_text()) for file in tmp_path.rglob("metrics.json")]
    assert len(told) == 3 * 2 + 2 + 4 + 2 + 3 + 2

    listed = call("tables.py", TABLE, "--dry-run", "--budget", "smoke")
    states = {line.split()[0]: line.split("  ")[-1] for line in listed.splitlines()[2:12]}
    assert (states["rank"], states["u1"]) == ("2 finished", "to run")
    call("tables.py", "all", "--budget", "smoke", "--paper")
    assert len(list((tmp_path / "tables").iterdir())) == 10 * 4 + 1  # and the verdicts
    lines = (tmp_path / "tables" / f"{TABLE}-smoke.csv").read_text().splitlines()
    means = {line["method"]: line for line in csv.DictReader(lines) if line["kind"] == "mean"}
    assert means["L_u1"]["mAP@3"] == ""
    for row in ("L_rank", "TKPR_a2"):
        runs = [
            run["metrics"]
            for run in told
            if (run["config"]["table"], run["config"]["row"]) == (TABLE, row)
        ]
        assert len(runs) == 2
        for measure in MEASURES:
            mean = sum(run[measure] for run in runs) / 2
            assert float(means[row][measure]) == pytest.approx(mean, abs=1e-6)
    page = (tmp_path / "tables" / "coco_mlc_sota_swin-smoke.html").read_text()
    assert re.search(r"Missing, not run yet: DB-Loss, Hill, SPLC, TKPR_a1, TKPR_a3\.", page)

    for name, table in FIGURES.items():
        call("figures.py", name, "--budget", "smoke")
        for ending in ("pdf", "png"):
            file = tmp_path / "figures" / f"{name}-{table}-smoke.{ending}"
            assert file.stat().st_size > 5000

    place = Path("runs", TABLE, "smoke")
    settings = "split.limit=40,trainer.epochs=3"
    words = [str(place / method / settings) for method in ("tkpr_a2", "rank")]
    compared = call("compare.py", *words, "--measures", "mAP@3")
    assert re.search(rf"mAP@3 +{float(means['TKPR_a2']['mAP@3']):.4f}", compared)

    call("report.py")
    page = (tmp_path / "report.html").read_text()
    assert set(re.findall(r"<h2>(.+), budget smoke</h2>", page)) == {one[0] for one in TRAINED}
    assert "19 finished runs" in page
    figures = {TABLE: 5, "coco_mlc_ranking_resnet101": 5, "voc2012_mlml_sensitivity": 2}
    figures |= {"voc2007_mlc_sensitivity": 1, "coco_mlc_sota_swin": 5, "nuswide_mlc_sota_swin": 5}
    for part in page.split("<section ")[1:]:
        name = re.search(r"<h2>(.+), budget smoke</h2>", part)[1]
        assert part.count("data:image/png;base64,") == figures[name]
