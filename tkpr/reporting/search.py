"""Choose settings by runs on held-out images; ``best.py`` and ``tune.py`` follow the same rule.

A run is ranked by the epoch for which the winner would be retrained: with early stopping its best
epoch of the main loss, otherwise its last one (:func:`tkpr.training.selection.counted_epoch`).
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tkpr.metrics import lower_is_better
from tkpr.reporting.rows import Run
from tkpr.runs.plan import PlannedRun
from tkpr.training.selection import counted_epoch

HOLDOUT = 0.2
Values = tuple[float | str, ...]
Grid = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Candidate:
    """A run on held-out images with the epoch that counts.

    Attributes:
        run: the run.
        epoch: counted from 1.
        value: of the measure that decides, after that epoch.
    """

    run: Run
    epoch: int
    value: float

    @property
    def retrain_words(self) -> list[str]:
        """What a run on all training images needs besides the settings: the number of epochs."""
        if not self.run.config["trainer"].get("patience"):
            return []
        return [f"trainer.stop_after={self.epoch}"]


def candidate(run: Run, monitor: str) -> Candidate:
    """Score a run on held-out images.

    Args:
        run: a finished run.
        monitor: the measure that decides.
    """
    history = run.history()
    try:
        epoch = counted_epoch(history, monitor, run.config)
    except ValueError as error:
        raise ValueError(f"{run.folder}: {error}") from error
    return Candidate(run, epoch, history[epoch - 1][monitor])


def ranked(runs: Iterable[Run], monitor: str) -> list[Candidate]:
    """Score runs and put the best first; equals keep their order.

    Args:
        runs: finished runs on held-out images.
        monitor: the measure that decides.
    """
    sign = 1 if lower_is_better(monitor) else -1
    return sorted((candidate(run, monitor) for run in runs), key=lambda one: sign * one.value)


def combinations(grid: Grid) -> list[Values]:
    """All combinations of a grid, numbers as numbers.

    >>> combinations({"optimizer.lr": ["1e-3", "1e-2"], "loss.surrogate": ["square"]})
    [(0.001, 'square'), (0.01, 'square')]
    """
    return [tuple(map(_plain, values)) for values in itertools.product(*grid.values())]


def matching(
    row: PlannedRun, grid: Grid, runs: Iterable[Run], *, held_out: bool
) -> list[tuple[Values, Run]]:
    """The finished runs that differ from a row by the grid alone, with their values of it.

    Args:
        row: of a table.
        grid: the values searched, by setting.
        runs: finished runs.
        held_out: runs of the search; otherwise the final runs with the chosen settings.
    """
    expected = row.settings | ({"split.holdout": HOLDOUT} if held_out else {})
    if not held_out:
        expected = {key: value for key, value in expected.items() if key != "trainer.patience"}
    wanted, found = set(combinations(grid)), []
    for run in runs:
        settings = run.settings
        differing = {
            key for key in {*settings, *expected} if settings.get(key) != expected.get(key)
        }
        if run.held_out == held_out and differing <= set(grid):
            values = tuple(_plain(settings.get(key)) for key in grid)
            if values in wanted:
                found.append((values, run))
    return found


def winner(row: PlannedRun, grid: Grid, runs: Iterable[Run], monitor: str) -> Candidate:
    """The best of a finished search; every combination must have been run, once.

    Args:
        row: of a table.
        grid: the values searched, by setting.
        runs: finished runs.
        monitor: the measure that decides.
    """
    found: dict[Values, Run] = {}
    for values, run in matching(row, grid, runs, held_out=True):
        if values in found:
            raise ValueError(
                f"{row.method} was searched twice with the same settings: "
                f"delete {found[values].folder} or {run.folder}"
            )
        found[values] = run
    wanted = combinations(grid)
    for values in wanted:
        if values not in found:
            named = ", ".join(f"{key}={value}" for key, value in zip(grid, values, strict=True))
            raise FileNotFoundError(f"no finished search of {row.method} with {named}")
    return ranked([found[values] for values in wanted], monitor)[0]


def chosen_words(best: Candidate, grid: Grid) -> list[str]:
    """The settings of the winner, in the words of the grid, and how long to train."""
    settings = best.run.settings
    words = [
        f"{key}={next(v for v in values if _plain(v) == _plain(settings.get(key)))}"
        for key, values in grid.items()
    ]
    return [*words, *best.retrain_words]


def at_an_edge(best: Candidate, grid: Grid) -> list[str]:
    """The settings whose best value is the smallest or largest of three or more."""
    found = []
    for key, values in grid.items():
        numbers = {value for value in map(_plain, values) if isinstance(value, float)}
        value = _plain(best.run.settings.get(key))
        if len(numbers) > 2 and value in (min(numbers), max(numbers)):
            found.append(key)
    return found


def _plain(value: object) -> float | str:
    """A number where it is one."""
    try:
        return float(str(value))
    except ValueError:
        return str(value)
