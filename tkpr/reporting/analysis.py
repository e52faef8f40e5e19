"""What decides a table: the loss, its settings, or chance; and what choosing epochs would add."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tkpr.metrics import lower_is_better
from tkpr.reporting.rows import Run, is_ours, variants
from tkpr.training.selection import best_epoch, first_main_epoch


@dataclass(frozen=True)
class Shares:
    """Variances of a measure, and how many runs they come from.

    Attributes:
        loss: between the means of the rows, less what the seeds leave in them.
        setting: within a row, between the settings of its search.
        seed: within a row and setting, between seeds.
        rows: rows with final runs.
        searched: runs of the searches.
    """

    loss: float
    setting: float
    seed: float
    rows: int
    searched: int

    def share(self, part: str) -> float:
        """The share of one of the three variances in their sum."""
        total = self.loss + self.setting + self.seed
        return getattr(self, part) / total if total else float("nan")


def variance_shares(runs: Sequence[Run], measure: str = "mAP@3", *, best: float = 1.0) -> Shares:
    r"""Split the variance of a measure into loss, setting and seed.

    The final runs give two of them, the runs of the search on held-out images the third:

    .. math::
        \sigma^2_{seed} = \overline{s_r^2}, \quad
        \sigma^2_{loss} = \max(0, s^2(\bar m_r) - \sigma^2_{seed} / n), \quad
        \sigma^2_{setting} = \overline{s^2_{search, r}}

    with r the rows, s^2 a variance divided by n - 1, and n the harmonic mean of the seeds per row.

    Args:
        runs: of one table at one budget, final ones with two seeds or more, and searches.
        measure: which measure.
        best: the share of each search that counts; a wide search has settings nobody would keep.
    """
    final = _by_row([run for run in runs if not run.held_out], measure)
    search = _by_row([run for run in runs if run.held_out], measure)
    for row, values in search.items():
        ordered = sorted(values, reverse=not lower_is_better(measure))
        search[row] = ordered[: max(2, round(best * len(values)))]
    repeated = [values for values in final.values() if len(values) > 1]
    searched = [values for values in search.values() if len(values) > 1]
    if len(final) < 2 or not repeated or not searched:
        raise ValueError(
            "an analysis of variance needs two rows with two seeds each, and a search with two "
            "settings or more: see scripts/tune.py"
        )
    seed = float(np.mean([np.var(values, ddof=1) for values in repeated]))
    seeds = len(final) / sum(1 / len(values) for values in final.values())
    between = float(np.var([np.mean(values) for values in final.values()], ddof=1))
    setting = float(np.mean([np.var(values, ddof=1) for values in searched]))
    count = sum(len(values) for values in searched)
    return Shares(max(0.0, between - seed / seeds), setting, seed, len(final), count)


def searches(runs: Sequence[Run], measure: str = "mAP@3") -> pd.DataFrame:
    """What the searches of a table found on held-out images, the best row first.

    Args:
        runs: of one table at one budget.
        measure: the one that decides.

    Returns:
        A line per row: how many settings were tried, the best value and the median, the settings of
        the best run (of equals the one with final runs), and the seconds that the row took,
        searched and final runs together.
    """
    lower = lower_is_better(measure)
    found: dict[str, list[Run]] = {}
    for run in runs:
        if run.held_out:
            found.setdefault(run.row or "", []).append(run)
    lines = []
    for row, group in found.items():
        values = [run.metrics[measure] for run in group]
        best = min(values) if lower else max(values)
        ties = [run for run in group if run.metrics[measure] == best]
        final = [run for run in runs if run.row == row and not run.held_out]
        winner = next(
            (run for run in ties if any(_same_but_split(run, one) for one in final)), ties[0]
        )
        lines.append(
            {
                "row": row,
                "settings tried": len(group),
                "best held out": winner.metrics[measure],
                "median": float(np.median(values)),
                **searched_settings(winner.overrides),
                "seconds": round(sum(run.seconds for run in runs if run.row == winner.row)),
            }
        )
    return pd.DataFrame(lines).sort_values("best held out", ascending=lower, ignore_index=True)


DECAY = {"Adam": "L2", "AdamW": "decoupled"}


def searched_settings(overrides: Sequence[str]) -> dict[str, str]:
    """Those words of a run that a search chooses: rate, decay, T, E_w, and the loss's own settings.

    >>> found = searched_settings(["optimizer._target_=torch.optim.Adam", "loss.k=5", "seed=1"])
    >>> found["decay"], found["own"]
    ('L2', 'k 5')
    """
    words = dict(word.split("=", 1) for word in overrides)
    optimizer = words.get("optimizer._target_", "").rpartition(".")[2]
    decay = f"{DECAY.get(optimizer, optimizer)} {words.get('optimizer.weight_decay', '')}"
    own = [f"{key[5:]} {value}" for key, value in words.items() if key.startswith("loss.")]
    return {
        "learning rate": words.get("optimizer.lr", ""),
        "decay": decay.strip(),
        "T": words.get("trainer.temperature", ""),
        "E_w": words.get("trainer.warmup_epochs", ""),
        "own": ", ".join(own),
    }


def _by_row(runs: Sequence[Run], measure: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for run in runs:
        found.setdefault(run.row or "", []).append(run.metrics[measure])
    return found


def epoch_choice(runs: Sequence[Run], measures: Sequence[str] = ("mAP@3",)) -> pd.DataFrame:
    """What it would add to report the best epoch of each measure instead of the last one.

    An analysis, never a result: choosing on the test set is not allowed, and choosing per measure
    reports several models as one.

    Args:
        runs: of one table at one budget, final and searched ones.
        measures: which measures.

    Returns:
        A line per row and measure: the value after the last epoch, and the gains (positive is
        better) by the epoch that is best on the held-out images, NaN without a run on them, and by
        the one that is best on the test set; averaged over the seeds.
    """
    lines = []
    for group in variants(run for run in runs if not run.held_out):
        searched = [run for run in runs if run.held_out and _same_but_split(run, group[0])]
        for measure in measures:
            sign = -1 if lower_is_better(measure) else 1
            last, on_test, on_held_out = [], [], []
            for run in group:
                history, skip = run.history(), first_main_epoch(run.config)
                values = [row[measure] for row in history]
                last.append(values[-1])
                best = best_epoch(history, measure, skip=skip)
                on_test.append(sign * (values[best - 1] - values[-1]))
                for other in searched[:1]:
                    chosen = best_epoch(other.history(), measure, skip=skip)
                    chosen = min(chosen, len(values))
                    on_held_out.append(sign * (values[chosen - 1] - values[-1]))
            lines.append(
                {
                    "row": group[0].row,
                    "measure": measure,
                    "last epoch": np.mean(last),
                    "chosen on held-out images adds": np.mean(on_held_out or [np.nan]),
                    "chosen on the test set adds": np.mean(on_test),
                }
            )
    return pd.DataFrame(lines)


def epoch_gains(found: pd.DataFrame) -> pd.DataFrame:
    """What choosing epochs would add to TKPR and to the other rows, on average.

    Args:
        found: what :func:`epoch_choice` returns.

    Returns:
        A line per measure: the mean gains of both groups, and the row that would gain most on the
        test set.
    """
    lines = []
    for measure, part in found.groupby("measure", sort=False):
        line: dict[str, object] = {"measure": measure}
        ours = np.array([is_ours(row) for row in part["row"]])
        for name, rows in (("TKPR", part[ours]), ("others", part[~ours])):
            for where in ("held-out images", "the test set"):
                line[f"{name}, on {where}"] = rows[f"chosen on {where} adds"].mean()
        most = part.loc[part["chosen on the test set adds"].idxmax()]
        line |= {"most, on the test set": most["chosen on the test set adds"], "by": most["row"]}
        lines.append(line)
    return pd.DataFrame(lines)


def by_settings(runs: Sequence[Run], keys: Sequence[str], measure: str = "mAP@3") -> pd.DataFrame:
    """Final values of a sweep over some settings, averaged over the seeds.

    Args:
        runs: of a sweep; those on held-out images are left out.
        keys: the settings, such as ``optimizer.weight_decay``.
        measure: which measure.

    Returns:
        A line per row and value of the settings: the mean, the deviation, the lowest and the
        highest value, and the number of runs.
    """
    table = pd.DataFrame(
        [
            {
                "row": run.row,
                **{key: run.settings.get(key) for key in keys},
                measure: run.metrics[measure],
            }
            for run in runs
            if not run.held_out
        ],
        columns=["row", *keys, measure],
    )
    grouped = table.groupby(["row", *keys], sort=True)[measure]
    names = {"mean": "mean", "std": "deviation", "min": "lowest", "max": "highest", "count": "runs"}
    return grouped.agg(list(names)).rename(columns=names).reset_index()


def side_by_side(found: pd.DataFrame, key: str) -> pd.DataFrame:
    """Values of a sweep (:func:`by_settings`) with a column for each value of one setting.

    Args:
        found: the values, line by line.
        key: the setting whose values stand side by side.
    """
    texts = [
        f"{mean:.4f}" if np.isnan(std) else f"{mean:.4f} ± {std:.4f}"
        for mean, std in zip(found["mean"], found["deviation"], strict=True)
    ]
    known = ("mean", "deviation", "lowest", "highest", "runs", key)
    index = [name for name in found.columns if name not in known]
    wide = found.assign(text=texts).pivot(index=index, columns=key, values="text")
    wide.columns = [f"{key}={value}" for value in wide.columns]
    return wide.reset_index()


def _same_but_split(run: Run, other: Run) -> bool:
    """Whether two runs differ in the held-out part only."""
    one, two = (
        {key: value for key, value in each.settings.items() if key != "split.holdout"}
        for each in (run, other)
    )
    return one == two
