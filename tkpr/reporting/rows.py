"""Finished runs as rows of a table: grouped by settings, averaged over seeds, ranked."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from tkpr import records
from tkpr.config import experiment_settings
from tkpr.metrics import lower_is_better, measure_names
from tkpr.reporting.paper_numbers import paper_table, table_names

CHECKSUMS = ("train_checksum", "test_checksum")


@dataclass(frozen=True)
class Run:
    """A finished run, read from its metrics.json.

    Attributes:
        folder: where it is.
        config: all its settings.
        metrics: its final values, by measure.
        seconds: how long it took.
        overrides: the words of its command.
        origin: what else decides its numbers: the fingerprint of data and pretrained weights, the
            checksums of the labels, the number of processes.
    """

    folder: Path
    config: dict[str, Any]
    metrics: dict[str, float]
    seconds: float
    overrides: list[str] = field(default_factory=list)
    origin: dict[str, Any] = field(default_factory=dict)

    @property
    def row(self) -> str | None:
        """The row of a table that it computes."""
        return self.config.get("row")

    @property
    def seed(self) -> int:
        """Its seed."""
        return self.config["seed"]

    @property
    def held_out(self) -> bool:
        """Whether it was tested on a part of the training set, to choose something."""
        return bool(self.config["split"]["holdout"])

    @property
    def settings(self) -> dict[str, Any]:
        """What identifies the experiment: neither the seed nor the machine."""
        return experiment_settings(self.config)

    def history(self) -> list[dict[str, float]]:
        """The rows of its metrics.csv, one per epoch."""
        return records.read_history(self.folder)


def load_runs(root: Path) -> list[Run]:
    """Read every finished run below a folder.

    Args:
        root: for instance ``runs``.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"no folder {root}: train something first, or name another folder")
    runs = []
    for file in sorted(root.rglob("metrics.json")):
        try:
            record = records.read_results(file.parent)
            run = Run(
                folder=file.parent,
                config=record["config"],
                metrics=record["metrics"],
                seconds=record["seconds"],
                overrides=record.get("overrides", []),
                origin={
                    "fingerprint": record.get("fingerprint"),
                    "processes": record.get("processes"),
                    **{key: record.get("counts", {}).get(key) for key in CHECKSUMS},
                },
            )
            runs.append(run)
        except KeyError as error:
            raise ValueError(f"{file} was not written by train.py: it has no {error}") from error
    return runs


def of_table(runs: Iterable[Run], table: str, budget: str) -> list[Run]:
    """Select the runs of a table at a budget that were tested on its test set.

    Of several draws of the labels (``scripts/tune.py --again``), the one that was searched counts.
    """
    runs = [
        run
        for run in runs
        if run.config.get("table") == table
        and run.config.get("budget") == budget
        and run.row is not None
    ]
    return [run for run in on_searched_labels(runs) if not run.held_out]


def on_searched_labels(runs: Sequence[Run]) -> list[Run]:
    """Leave out final runs with another draw of labels than the search had.

    Args:
        runs: of one table at one budget, final and searched ones.
    """

    def labels(run: Run) -> dict[str, Any]:
        return {key: value for key, value in run.settings.items() if key.startswith("labels.")}

    searched = [labels(run) for run in runs if run.held_out]
    return [run for run in runs if run.held_out or not searched or labels(run) in searched]


def group_rows(runs: Iterable[Run], rows: Sequence[str]) -> dict[str, list[Run]]:
    """Group runs by row, those of one row that differ in more than the seed by their settings.

    Args:
        runs: of one table.
        rows: the rows that the table should have; those without runs get an empty list.

    Returns:
        The runs of each row, in the order of ``rows``, then of rows found besides. Where a row was
        run with several settings, each has a line of its own that names what differs.
    """
    runs = list(runs)
    check_same_labels(runs)
    grouped: dict[str, list[Run]] = {}
    for row in dict.fromkeys([*rows, *(run.row or "" for run in runs)]):
        groups = variants(run for run in runs if run.row == row)
        if not groups:
            grouped[row] = []
        for group in groups:
            name = row if len(groups) == 1 else f"{row} ({_difference(group, groups)})"
            grouped[name] = group
    return grouped


def check_same_labels(runs: Iterable[Run], keys: Iterable[str] = CHECKSUMS) -> None:
    """Refuse runs whose labels differ although their settings of the data do not.

    Args:
        runs: to be compared with each other.
        keys: of ``origin``: what may not differ.
    """
    first: dict[str, Run] = {}
    for run in runs:
        parts = {
            key: value
            for key, value in run.settings.items()
            if key.split(".")[0] in ("dataset", "labels", "split")
        }
        check_same_origin([first.setdefault(repr(sorted(parts.items())), run), run], keys)


def rows_in_paper_order(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The rows that were run, in the order of the paper's table.

    Args:
        runs: of one table, or of a sensitivity experiment, which has no order.
    """
    table = runs[0].config["table"]
    rows = list(paper_table(table).index) if table in table_names() else []
    return {row: group for row, group in group_rows(runs, rows).items() if group}


def variants(runs: Iterable[Run]) -> list[list[Run]]:
    """Group runs that differ in the seed only; no seed may be there twice, nor data differ."""
    groups: list[list[Run]] = []
    for run in runs:
        same = [group for group in groups if group[0].settings == run.settings]
        if same:
            same[0].append(run)
        else:
            groups.append([run])
    for group in groups:
        group.sort(key=lambda run: run.seed)
        seeds = [run.seed for run in group]
        if len(set(seeds)) < len(seeds):
            folders = ", ".join(str(run.folder) for run in group)
            raise ValueError(f"run twice with the same seed and settings: {folders}")
        check_same_origin(group)
    return groups


def check_same_origin(runs: Sequence[Run], keys: Iterable[str] | None = None) -> None:
    """Refuse to put runs together that were computed from other data or by other processes.

    Args:
        runs: with the same settings.
        keys: of ``origin``; all of them unless named.
    """
    for run in runs[1:]:
        for key in keys or run.origin:
            values = runs[0].origin.get(key), run.origin.get(key)
            if values[0] != values[1]:
                raise ValueError(
                    f"{runs[0].folder} and {run.folder} do not belong together: their {key} "
                    f"differ ({values[0]}, {values[1]}); repeat one of them or move it elsewhere"
                )


def one_experiment(folder: Path) -> list[Run]:
    """The runs below a folder, one per seed; those on held-out images only if there are no others.

    Args:
        folder: a run folder, or one that holds the runs of one method.
    """
    runs = load_runs(folder)
    groups = variants([run for run in runs if not run.held_out] or runs)
    if not groups:
        raise FileNotFoundError(f"no finished run in {folder}")
    if len(groups) > 1:
        found = "; ".join(_difference(group, groups) for group in groups)
        raise ValueError(
            f"{folder} holds runs with several settings ({found}): name the folder of one of them"
        )
    return groups[0]


def _difference(group: list[Run], groups: list[list[Run]]) -> str:
    """Name the settings of a group that not all groups share."""
    every = [other[0].settings for other in groups]
    keys = sorted({key for settings in every for key in settings})
    differing = [key for key in keys if len({repr(settings.get(key)) for settings in every}) > 1]
    return ", ".join(f"{key}={group[0].settings.get(key)}" for key in differing)


def averages(rows: dict[str, list[Run]], measures: Sequence[str] | None = None) -> pd.DataFrame:
    """Mean over the seeds, a line per row, NaN where a row was not run."""
    return _aggregate(rows, measures, lambda frame: frame.mean())


def deviations(rows: dict[str, list[Run]], measures: Sequence[str] | None = None) -> pd.DataFrame:
    """Standard deviation over the seeds (divided by n - 1), NaN where there are not two."""
    return _aggregate(rows, measures, lambda frame: frame.std(ddof=1))


def _aggregate(
    rows: dict[str, list[Run]], measures: Sequence[str] | None, function: Any
) -> pd.DataFrame:
    measures = measures or measure_names(scopes=["image"])
    lines = {
        name: function(
            pd.DataFrame([run.metrics for run in group], columns=list(measures), dtype=float)
        )
        for name, group in rows.items()
    }
    return pd.DataFrame(lines, index=list(measures)).T


def is_ours(row: str) -> bool:
    """Whether a row is TKPR, not a competitor.

    >>> is_ours("TKPR_a2"), is_ours("TKML")
    (True, False)
    """
    return row.startswith("TKPR")


def places(values: pd.DataFrame) -> pd.DataFrame:
    """Place of each row on each measure: 1 the best, 2 the runner-up, then NaN; ties share one.

    >>> places(pd.DataFrame({"P@3": [0.5, 0.7, 0.6], "ranking_loss": [0.1, 0.1, 0.3]}))
       P@3  ranking_loss
    0  NaN           1.0
    1  1.0           1.0
    2  2.0           2.0
    """
    ranks = {
        name: column.rank(method="dense", ascending=lower_is_better(str(name)))
        for name, column in values.items()
    }
    frame = pd.DataFrame(ranks, index=values.index)
    return frame.where(frame <= 2)


def best_competitors(values: pd.DataFrame) -> pd.Series:
    """The best row other than TKPR on each measure; NaN if none was run."""
    theirs = values[[not is_ours(str(name)) for name in values.index]]
    best = {
        name: (column.idxmin() if lower_is_better(str(name)) else column.idxmax())
        if column.notna().any()
        else None
        for name, column in theirs.items()
    }
    return pd.Series(best, dtype=object)
