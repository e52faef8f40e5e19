"""A table from finished runs: rows, means, marks of significance, notes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tkpr.metrics import find_measure, lower_is_better, per_image
from tkpr.reporting.paper_numbers import (
    oddities,
    paper_digits,
    paper_table,
    table_names,
    table_number,
)
from tkpr.reporting.rows import (
    Run,
    averages,
    best_competitors,
    deviations,
    group_rows,
    is_ours,
    of_table,
    places,
)
from tkpr.reporting.significance import LEVEL, Comparison, check_same_images, holm, paired_bootstrap
from tkpr.runs.plan import Budget
from tkpr.runs.saved_model import load_predictions

RESAMPLES = 5000
BETTER, WORSE = "*", "°"
WORDS = {BETTER: "better", "": "level", WORSE: "worse"}
MISSING = "–"


@dataclass(frozen=True)
class Table:
    """What a table shows.

    Attributes:
        name: a table of the paper, or one of other experiments.
        budget: the scale of its runs.
        rows: the runs of each row, none for one that is missing.
        mean: over the seeds, a line per row.
        std: over the seeds, NaN where there is only one.
        marks: "*" where TKPR is significantly better than the best competitor, "°" where worse.
        notes: what a reader should know.
        compared: how many comparisons the marks are of; 0 without a bootstrap.
    """

    name: str
    budget: Budget
    rows: dict[str, list[Run]]
    mean: pd.DataFrame
    std: pd.DataFrame
    marks: pd.DataFrame
    notes: list[str]
    compared: int = 0


def collect(runs: Sequence[Run], name: str, budget: Budget, *, significance: bool = True) -> Table:
    """Collect the finished runs of a table.

    Args:
        runs: all runs that there are; those of other tables are left out.
        name: a table of the paper, or one of other experiments.
        budget: the scale of the runs.
        significance: whether to compare TKPR with the best competitor, image by image.
    """
    runs = of_table(runs, name, budget.name)
    rows = group_rows(runs, list(paper_table(name).index))
    measures = None if name in table_names() or not runs else per_image_measures(runs[0])
    mean, std = averages(rows, measures), deviations(rows, measures)
    marks = pd.DataFrame("", index=mean.index, columns=mean.columns)
    notes, compared = [], 0
    if name in table_names() or budget.name != "paper":  # others have no scale of the paper's
        notes.append(f"Budget {budget.name}{': ' * bool(budget.about)}{budget.about}.")
    cannot = budget.unsupported_rows
    notes += [f"{row} {why}: not at this budget." for row, why in cannot.items() if row in rows]
    if missing := [row for row, group in rows.items() if not group and row not in cannot]:
        notes.append(f"Missing, not run yet: {', '.join(missing)}.")
    counts = {row: len(group) for row, group in rows.items() if group}
    if counts and max(counts.values()) > 1:
        notes.append(f"Mean ± standard deviation over seeds; seeds per row: {_count(counts)}.")
    notes.append(
        "Best: red, bold. Runner-up: blue, italic. Best competitor on each measure: underlined."
    )
    if significance and measures and "ranking_loss" not in measures:
        notes.append("Not compared sample by sample: the runs kept the best labels of each only.")
    elif significance and any(is_ours(row) and group for row, group in rows.items()):
        marks, compared = significance_marks(rows, mean)
        notes.append(
            f"{BETTER} TKPR is better, {WORSE} worse than the best competitor by a paired "
            f"bootstrap over the test images ({RESAMPLES} draws, two-sided p < {LEVEL} after "
            f"Holm's correction for {compared} comparisons)."
        )
    notes += [f"About the paper's numbers: {note}" for note in oddities(name)]
    return Table(name, budget, rows, mean, std, marks, notes, compared)


def per_image_measures(run: Run) -> list[str]:
    """The measures of a run that are means over images, with the K that it was tested at."""
    return [name for name in run.metrics if find_measure(name)[0].scope == "image"]


def _count(counts: dict[str, int]) -> str:
    """Write down how many runs the rows have.

    >>> _count({"L_u1": 3, "L_u2": 3}), _count({"L_u1": 3, "L_u2": 1})
    ('3', 'L_u1 3, L_u2 1')
    """
    if len(set(counts.values())) == 1:
        return str(next(iter(counts.values())))
    return ", ".join(f"{row} {count}" for row, count in counts.items())


def significance_marks(rows: dict[str, list[Run]], mean: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Compare each row of TKPR with the best competitor on each measure, by the predictions.

    Returns:
        The marks, and the number of comparisons that they are corrected for.
    """
    marks = pd.DataFrame("", index=mean.index, columns=mean.columns)
    best = best_competitors(mean)
    ours = [row for row, group in rows.items() if is_ours(row) and group]
    needed = {*ours, *(row for row in best if row)}
    stored = {
        row: [(run.folder, load_predictions(run.folder)) for run in rows[row]] for row in needed
    }
    reference = next(iter(stored.values()))[0]
    for group in stored.values():
        for folder, predictions in group:
            check_same_images(reference[1], predictions, reference[0], folder)

    def values(row: str, measure: str) -> np.ndarray:
        parts = [
            per_image(measure, one["logits"], one["targets"], one.get("unknown"))
            for _, one in stored[row]
        ]
        return np.mean(parts, axis=0)

    measures = [measure for measure in mean.columns if best[measure] is not None]
    if not measures:
        return marks, 0
    theirs = np.stack([values(best[measure], measure) for measure in measures], axis=1)
    compared: dict[tuple[str, str], Comparison] = {}
    for row in ours:
        mine = np.stack([values(row, measure) for measure in measures], axis=1)
        found = paired_bootstrap(mine, theirs, resamples=RESAMPLES)
        compared |= {(row, measure): one for measure, one in zip(measures, found, strict=True)}
    corrected = holm([one.p_value for one in compared.values()])
    for ((row, measure), one), p_value in zip(compared.items(), corrected, strict=True):
        if p_value < LEVEL:
            gain = -one.difference if lower_is_better(measure) else one.difference
            marks.loc[row, measure] = BETTER if gain > 0 else WORSE
    return marks, len(compared)


def verdicts(table: Table, measure: str = "mAP@3") -> pd.DataFrame:
    """Where TKPR leads, is level and falls behind; nothing for a table that was not compared.

    Args:
        table: with the marks of :func:`significance_marks`.
        measure: shown beside the best competitor's.

    Returns:
        A line per row of TKPR: its value of the measure, the best competitor's, and on how many
        measures it is significantly better than the best competitor of each, level, or worse.
    """
    best = best_competitors(table.mean)
    columns = [name for name in table.mean.columns if best[name] is not None]
    if not table.compared or measure not in columns:
        return pd.DataFrame()
    found = []
    for row in table.mean.index[[is_ours(str(name)) for name in table.mean.index]]:
        if not table.rows[row]:
            continue
        marks = table.marks.loc[row, columns].replace(WORDS)
        value, theirs = (table.mean.loc[name, measure] for name in (row, best[measure]))
        found.append(
            {
                "table": table_number(table.name),
                "row": row,
                measure: value,
                "best competitor": best[measure],
                f"its {measure}": theirs,
                "difference": value - theirs,
                "TKPR is": marks[measure],
                **{f"{word} on": int((marks == word).sum()) for word in WORDS.values()},
            }
        )
    return pd.DataFrame(found)


def cell_texts(table: Table) -> pd.DataFrame:
    """Each cell as text: mean, deviation, mark of significance; a dash where nothing was run."""
    texts = pd.DataFrame(MISSING, index=table.mean.index, columns=table.mean.columns, dtype=object)
    for row in texts.index:
        for measure in texts.columns:
            mean, std = table.mean.loc[row, measure], table.std.loc[row, measure]
            if pd.notna(mean):
                spread = f" ± {number(std, measure)}" if pd.notna(std) else ""
                texts.loc[row, measure] = (
                    f"{number(mean, measure)}{spread}{table.marks.loc[row, measure]}"
                )
    return texts


def number(value: float, measure: str, *, digits: int | None = None, sign: bool = False) -> str:
    """Write a value with the digits of its measure, or with ``digits``.

    >>> number(0.66651, "mAP@3"), number(0.01234, "ranking_loss"), number(0.5, "P@3", sign=True)
    ('0.667', '0.0123', '+0.500')
    """
    digits = digits or find_measure(measure)[0].digits
    return f"{value:{'+' if sign else ''}.{digits}f}"


def lines(table: Table, *, paper: bool = False) -> pd.DataFrame:
    """The body of a table: row names, number of seeds, cells; below each row the paper's numbers.

    Args:
        table: what to show.
        paper: add two lines to each row: the paper's value, and ours minus the paper's.
    """
    texts, theirs = cell_texts(table), paper_table(table.name)
    digits, cannot = paper_digits(table.name), table.budget.unsupported_rows
    body = []
    for row in texts.index:
        seeds = str(len(table.rows[row])) if table.rows[row] else "missing"
        seeds = "not possible" if seeds == "missing" and row in cannot else seeds
        body.append({"method": row, "seeds": seeds, **texts.loc[row]})
        name = row.split(" (")[0]
        if paper and name in theirs.index:
            known, mean = theirs.loc[name], table.mean.loc[row]
            printed, difference = (
                {
                    m: number(values[m], m, digits=digits.get(m), sign=sign)
                    if pd.notna(values[m])
                    else MISSING
                    for m in texts.columns
                }
                for values, sign in ((known, False), (mean - known, True))
            )
            body.append({"method": "  paper", "seeds": ""} | printed)
            body.append({"method": "  difference", "seeds": ""} | difference)
    return pd.DataFrame(body)


def styles(table: Table, body: pd.DataFrame) -> pd.DataFrame:
    """The words best, second and competitor for each cell of a body, "" for most."""
    place, competitors = places(table.mean), best_competitors(table.mean)
    marks = pd.DataFrame("", index=body.index, columns=body.columns)
    for index, row in body["method"].items():
        if row in table.mean.index:
            for measure in table.mean.columns:
                words = [{1: "best", 2: "second"}.get(place.loc[row, measure], "")]
                words += ["competitor"] if competitors[measure] == row else []
                marks.loc[index, measure] = " ".join(words).strip()
    return marks
