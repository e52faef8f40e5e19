"""Draw a figure of the paper from finished runs, as PDF and PNG.

python scripts/figures.py fig4 --budget smoke
python scripts/figures.py fig1
python scripts/figures.py ranks --table voc2012_mlml_sota_resnet50 --rows SPLC TKPR_a2
python scripts/figures.py cases --table coco_mlc_sota_swin --budget features dataset=coco
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from tkpr.runs.script import Parser, output_folder, script

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tkpr.reporting.rows import Run

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("consistency", "ranks", "sensitivity_k", "sensitivity_warmup", "cases", "dots", "decay")
WITHOUT_RUNS = {"fig1": "overview", "gradient": "gradient"}
# the paper's figures: what they show, and the table they belong to
FIGURES = {
    "fig2": ("consistency", "voc2007_mlc_ranking_resnet101", ("L_rank", "TKPR_a2")),
    "fig3a": ("ranks", "coco_mlc_ranking_resnet101", None),
    "fig3b": ("ranks", "voc2007_mlc_ranking_resnet101", None),
    "fig4": ("consistency", "voc2007_mlc_ranking_resnet101", None),
    "fig5": ("sensitivity_k", "voc2012_mlml_sensitivity", None),
    "fig6": ("sensitivity_warmup", "voc2012_mlml_sensitivity", None),
    "fig7": ("sensitivity_k", "voc2007_mlc_sensitivity", None),
    "fig8": ("cases", "coco_mlc_sota_swin", None),
    "fig9": ("cases", "nuswide_mlc_sota_swin", None),
}
NAMES = ", ".join([*WITHOUT_RUNS, *FIGURES, *KINDS])


def main() -> None:
    """Read the command line, select the runs, draw."""
    parser = Parser(__doc__)
    parser.add_argument("figure", help=f"one of {NAMES}")
    parser.add_argument("--table", help="take the runs of this experiment")
    parser.add_argument("--budget", default="paper", help="a file of configs/budget (paper)")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the runs are")
    parser.add_argument("--rows", nargs="+", help="the rows to draw, as the tables name them")
    parser.add_argument(
        "--after-warmup", action="store_true", help="consistency: leave the warm-up epochs out"
    )
    parser.add_argument("--measure", default="mAP@3", help="dots, decay: which (mAP@3)")
    parser.add_argument("--count", type=int, default=4, help="cases: how many images")
    parser.add_argument("--losses", action="store_true", help="cases: where TKPR does worst")
    parser.add_argument("--output", type=output_folder, default="figures", help="where to write")
    parser.add_argument(
        "overrides", nargs="*", help="cases on features: dataset=... for the images"
    )
    arguments = parser.parse_intermixed_args()
    if arguments.rows:  # settings may follow a list
        arguments.overrides += [word for word in arguments.rows if "=" in word]
        arguments.rows = [word for word in arguments.rows if "=" not in word]

    from tkpr.reporting.figures.style import save
    from tkpr.reporting.rows import load_runs, of_table

    if arguments.figure in WITHOUT_RUNS:
        module = importlib.import_module(f"tkpr.reporting.figures.{WITHOUT_RUNS[arguments.figure]}")
        print("written:", *save(module.draw(), arguments.output / arguments.figure))
        return
    kind, table, rows = FIGURES.get(arguments.figure, (arguments.figure, None, None))
    if kind not in KINDS:
        raise ValueError(f"no figure {arguments.figure!r}: choose one of {NAMES}")
    table = arguments.table or table
    if table is None:
        raise ValueError(f"{kind} needs --table, such as --table voc2012_mlml_ranking_resnet50")
    runs = of_table(load_runs(arguments.runs), table, arguments.budget)
    if not runs:
        raise FileNotFoundError(
            f"no finished runs of {table} at budget {arguments.budget} in {arguments.runs}: first "
            f"python train.py -m experiment={table} budget={arguments.budget}"
        )
    figure = draw(kind, runs, arguments.rows or rows, arguments)
    variant = "-losses" * arguments.losses + "-after_warmup" * arguments.after_warmup
    path = arguments.output / f"{arguments.figure}{variant}-{table}-{arguments.budget}"
    print("written:", *save(figure, path))


def draw(
    kind: str, runs: "list[Run]", rows: Sequence[str] | None, arguments: argparse.Namespace
) -> "Figure":
    """Draw one kind of figure from the runs of a table."""
    from tkpr.reporting.figures import cases, consistency, decay, dots, ranks, sensitivity

    if kind.startswith("sensitivity_"):
        return sensitivity.draw(runs, kind.removeprefix("sensitivity_"))
    if kind == "consistency":
        chosen = select(runs, rows, consistency)
        return consistency.draw(chosen, after_warmup=arguments.after_warmup)
    if kind == "dots":
        return dots.draw(select(runs, rows), measure=arguments.measure)
    if kind == "decay":
        return decay.draw(runs, measure=arguments.measure)
    if kind == "ranks":
        return ranks.draw(select(runs, rows, ranks))
    found = {row: group[0] for row, group in select(runs, rows).items()}
    found = dict(sorted(found.items(), key=lambda item: not item[0].startswith("TKPR")))
    dataset = None
    if arguments.overrides:
        import hydra

        with hydra.initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
            dataset = hydra.compose("train", arguments.overrides).dataset
    picked = cases.choose(found, count=arguments.count, losses=arguments.losses)
    images = cases.pictures(next(iter(found.values())), dataset)
    return cases.draw(picked, images, list(found))


def select(
    runs: "list[Run]", rows: Sequence[str] | None, kind: ModuleType | None = None
) -> "dict[str, list[Run]]":
    """Group the runs by row: the rows named, which must be there, or the usual ones of a kind."""
    from tkpr.reporting.rows import rows_in_paper_order

    grouped = rows_in_paper_order(runs)
    if rows is None and kind is not None:
        chosen = kind.usual(grouped)
        missing = [row for row in kind.ROWS if row not in chosen]
        if missing and set(chosen) <= set(kind.ROWS):
            print(f"missing, not drawn: {', '.join(missing)}", file=sys.stderr)
        return chosen
    if missing := [row for row in rows or [] if row not in grouped]:
        raise ValueError(
            f"no finished runs of {', '.join(missing)}; there are {', '.join(grouped)}"
        )
    return {row: grouped[row] for row in rows or grouped}


if __name__ == "__main__":
    script(main)
