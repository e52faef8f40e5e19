"""Is run A better than run B beyond chance? A paired bootstrap over their test images.

python scripts/compare.py runs/.../tkpr_a2/seed=0 runs/.../rank/seed=0
python scripts/compare.py runs/.../tkpr_a2 runs/.../rank --measures mAP@3 mAP@10 ranking_loss
"""

from pathlib import Path

from tkpr.runs.script import Parser, positive_int, script


def main() -> None:
    """Read the command line, compare, print a line per measure."""
    parser = Parser(__doc__)
    parser.add_argument(
        "run_a",
        type=Path,
        help="a run, or a folder with one per seed (those on held-out images: if no others)",
    )
    parser.add_argument("run_b", type=Path, help="the same for the other method")
    parser.add_argument("--measures", nargs="+", help="default: the fifteen of the tables")
    parser.add_argument(
        "--resamples", type=positive_int, help="draws (2000; 200 for mAP, CF1, OF1)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draws")
    arguments = parser.parse_args()

    from tkpr.metrics import lower_is_better, measure_names
    from tkpr.reporting.rows import one_experiment
    from tkpr.reporting.significance import LEVEL, compare, holm

    first, second = one_experiment(arguments.run_a), one_experiment(arguments.run_b)
    print(f"A: {arguments.run_a} ({len(first)} run{'s' * (len(first) > 1)})")
    print(f"B: {arguments.run_b} ({len(second)} run{'s' * (len(second) > 1)})\n")
    head = f"{'measure':<14}{'A':>9}{'B':>9}{'A - B':>10}{'95 % interval':>22}{'p':>8}{'Holm':>8}"
    print(head)
    measures = arguments.measures or measure_names(scopes=["image"])
    compared = [
        compare(
            [run.folder for run in first],
            [run.folder for run in second],
            measure,
            resamples=arguments.resamples,
            seed=arguments.seed,
        )
        for measure in measures
    ]
    corrected = holm([one.p_value for one in compared])
    for measure, one, p_value in zip(measures, compared, corrected, strict=True):
        interval = f"[{one.low:+.4f}, {one.high:+.4f}]"
        gain = -one.difference if lower_is_better(measure) else one.difference
        verdict = "" if p_value >= LEVEL else "  A better" if gain > 0 else "  B better"
        print(
            f"{measure:<14}{one.first:9.4f}{one.second:9.4f}{one.difference:+10.4f}"
            f"{interval:>22}{one.p_value:8.4f}{p_value:8.4f}{verdict}"
        )
    if len(measures) > 1:
        print(f"\nHolm: p corrected for {len(measures)} comparisons; verdicts at {LEVEL} of it")


if __name__ == "__main__":
    script(main)
