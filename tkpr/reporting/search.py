"""Choose settings by runs on held-out images; ``best.py`` and ``tune.py`` follow the same rule.

A run is ranked by the epoch for which the winner would be retrained: with early stopping its best
epoch of the main loss, otherwise its last one (:func:`tkpr.training.selection.counted_epoch`).
"""

import itertools
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tkpr.metrics import lower_is_better
from tkpr.reporting.rows import CHECKSUMS, Run, check_same_labels
from tkpr.runs.plan import PlannedRun
from tkpr.training.selection import counted_epoch

HOLDOUT = 0.2
STEP = 2  # neighbours tried before the search looks for the best again
# Settings whose range is not bounded: a search may step beyond the values that a file names
OPEN_ENDED = (
    "optimizer.lr",
    "optimizer.weight_decay",
    "trainer.temperature",
    "loss.alpha",
    "loss.delta_rel",
    "loss.gamma_neg",
    "loss.lamb",
    "loss.neg_scale",
    "loss.tau",
)
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
    runs = list(runs)
    check_same_labels(runs)
    sign = 1 if lower_is_better(monitor) else -1
    return sorted((candidate(run, monitor) for run in runs), key=lambda one: sign * one.value)


def combinations(grid: Grid) -> list[Values]:
    """All combinations of a grid, numbers as numbers.

    >>> combinations({"optimizer.lr": ["1e-3", "1e-2"], "loss.surrogate": ["square"]})
    [(0.001, 'square'), (0.01, 'square')]
    """
    return [tuple(map(_plain, values)) for values in itertools.product(*grid.values())]


def widened(grid: Grid, steps: int = 2) -> Grid:
    """Continue the open-ended settings of a grid at both ends, in its own steps.

    >>> widened({"optimizer.lr": ["1e-3", "3e-3", "1e-2"], "loss.k": ["3", "5", "10"]}, steps=1)
    {'optimizer.lr': ['0.0003', '1e-3', '3e-3', '1e-2', '0.03'], 'loss.k': ['3', '5', '10']}
    """
    wide = {}
    for key, texts in grid.items():
        numbers = [float(text) for text in texts] if key in OPEN_ENDED else []
        wide[key] = texts
        if len(numbers) > 2 and min(numbers) > 0:
            below, above = numbers[:3][::-1], numbers[-3:]
            for values in (below, above):  # 1, 3, 10 goes on with 30, 100: as two steps before
                for _ in range(steps):
                    values.append(values[-2] * values[-1] / values[-3])
            wide[key] = [
                *(f"{value:.6g}" for value in reversed(below[3:])),
                *texts,
                *(f"{value:.6g}" for value in above[3:]),
            ]
    return wide


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
    wanted, found = set(combinations(widened(grid))), []
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


def next_settings(grid: Grid, scores: Mapping[Values, float], count: int) -> list[Values]:
    """What a search of ``count`` settings tries next: a random half, then the best's neighbours.

    A neighbour differs in one setting, by one step of the grid, which goes on beyond its ends where
    a setting is open-ended (:func:`widened`). The search tries two neighbours, in random order, of
    the best setting so far, of the next one when all of its neighbours were tried, and so on.

    Args:
        grid: the values searched, by setting.
        scores: what was tried, the higher the better.
        count: how many settings to try altogether.

    Returns:
        Settings to try before asking again; none at the end.

    Example:
        >>> grid = {"optimizer.lr": ["1", "2", "3", "4", "5"]}
        >>> tried = {}
        >>> while settings := next_settings(grid, tried, 4):
        ...     tried |= {(lr,): -abs(lr - 5) for (lr,) in settings}
        >>> tried
        {(3.0,): -2.0, (2.0,): -3.0, (4.0,): -1.0, (5.0,): -0.0}
    """
    drawn = combinations(grid)
    random.Random(0).shuffle(drawn)
    start = drawn if count >= len(drawn) else drawn[: count // 2]
    if missing := [values for values in start if values not in scores]:
        return missing
    left, wide = min(count, len(drawn)) - len(scores), widened(grid)
    for best in sorted(scores, key=lambda values: -scores[values]):
        near = [values for values in _neighbours(wide, best) if values not in scores]
        random.Random(repr(best)).shuffle(near)  # the same order in every process
        if near and left > 0:
            return near[: min(left, STEP)]
    return []


def _neighbours(grid: Grid, values: Values) -> list[Values]:
    found = []
    for place, options in enumerate(grid.values()):
        steps = list(map(_plain, options))
        at = steps.index(values[place])
        for value in steps[max(0, at - 1) : at] + steps[at + 1 : at + 2]:
            found.append((*values[:place], value, *values[place + 1 :]))
    return found


def grid_words(grid: Grid, values: Values) -> list[str]:
    """Values of a grid as words of a command.

    >>> grid_words({"optimizer.lr": ["1e-3", "1e-2"]}, (0.01,))
    ['optimizer.lr=1e-2']
    """
    return [
        f"{key}={next(text for text in texts if _plain(text) == value)}"
        for (key, texts), value in zip(widened(grid).items(), values, strict=True)
    ]


def scored(
    row: PlannedRun, grid: Grid, runs: Iterable[Run], monitor: str
) -> dict[Values, Candidate]:
    """The finished runs of a search, by their values of the grid.

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
    check_same_labels(found.values(), (*CHECKSUMS, "fingerprint"))
    return {values: candidate(run, monitor) for values, run in found.items()}


def untried(
    row: PlannedRun,
    grid: Grid,
    runs: Iterable[Run],
    monitor: str,
    count: int | None = None,
    diverged: Iterable[Values] = (),
) -> list[Values]:
    """The settings that a search has to try next; none when it is finished.

    Args:
        row: of a table.
        grid: the values searched, by setting.
        runs: finished runs.
        monitor: the measure that decides.
        count: how many settings to try altogether; None: all combinations.
        diverged: settings whose runs ended in a loss that is not finite: tried, worse than any.
    """
    sign = -1 if lower_is_better(monitor) else 1
    found = scored(row, grid, runs, monitor)
    scores = dict.fromkeys(diverged, -math.inf)
    scores |= {values: sign * one.value for values, one in found.items()}
    return next_settings(grid, scores, count or len(combinations(grid)))


def winner(
    row: PlannedRun,
    grid: Grid,
    runs: Iterable[Run],
    monitor: str,
    count: int | None = None,
    diverged: Iterable[Values] = (),
) -> Candidate:
    """The best of a finished search; each of its settings must have been run, once.

    Args:
        row: of a table.
        grid: the values searched, by setting.
        runs: finished runs.
        monitor: the measure that decides.
        count: how many settings were to be tried; None: all combinations.
        diverged: settings whose runs ended in a loss that is not finite.
    """
    runs = list(runs)
    for values in untried(row, grid, runs, monitor, count, diverged):
        named = ", ".join(f"{key}={value}" for key, value in zip(grid, values, strict=True))
        raise FileNotFoundError(f"no finished search of {row.method} with {named}")
    found = scored(row, grid, runs, monitor)
    allowed = combinations(widened(grid) if count else grid)
    order = [found[values].run for values in allowed if values in found]
    if not order:
        raise FileNotFoundError(f"every setting of {row.method} ended in a loss that is not finite")
    return ranked(order, monitor)[0]


def chosen_words(best: Candidate, grid: Grid) -> list[str]:
    """The settings of the winner, in the words of the grid, and how long to train."""
    settings = best.run.settings
    values = tuple(_plain(settings.get(key)) for key in grid)
    return [*grid_words(grid, values), *best.retrain_words]


def superseded(
    row: PlannedRun, best: Candidate, grid: Grid, runs: Sequence[Run], again: Sequence[str] = ()
) -> list[Path]:
    """Folders of final runs with settings that were the best before a search went on.

    Args:
        row: of a table.
        best: the winner of the search.
        grid: the values searched, by setting.
        runs: finished runs.
        again: words with which the best was trained once more, such as ``labels.seed=1``.
    """
    chosen = tuple(_plain(best.run.settings.get(key)) for key in grid)
    once_more = {key: [value] for key, _, value in (word.partition("=") for word in again)}
    final = matching(row, grid, runs, held_out=False)
    final += matching(row, {**grid, **once_more}, runs, held_out=False) if once_more else []
    return sorted({run.folder.parent for values, run in final if values[: len(grid)] != chosen})


def at_an_edge(best: Candidate, grid: Grid) -> list[str]:
    """The settings whose best value is the smallest or largest of three or more.

    A warm-up of no epoch, or of all epochs but one, is no edge: there is nothing beyond.
    """
    last = best.run.config["trainer"].get("epochs", math.inf) - 1
    found = []
    for key, values in widened(grid).items():
        numbers = {value for value in map(_plain, values) if isinstance(value, float)}
        value = _plain(best.run.settings.get(key))
        beyond = key != "trainer.warmup_epochs" or value not in (0, last)
        if len(numbers) > 2 and value in (min(numbers), max(numbers)) and beyond:
            found.append(key)
    return found


def _plain(value: object) -> float | str:
    """A number where it is one; None as the word that a command has for it."""
    if value is None:
        return "null"
    try:
        return float(str(value))
    except ValueError:
        return str(value)
