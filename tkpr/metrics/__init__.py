"""Ranking measures of the paper (Sec. 3.2, Sec. 4) and the usual ones beside them.

Every measure is a function of ``(scores, targets)`` or ``(scores, targets, k)``: torch tensors or
NumPy arrays of shape ``[B, C]``; scores of any scale (only their order counts, but for the F1
scores' threshold), targets 0 or 1. Keyword arguments that most of them share:

* ``ties``: "worst" breaks ties against the relevant label (Asm. 2, the default); "average" takes
  the mean over the orders of a tie.
* ``empty``: what becomes of rows on which the measure says nothing, because they have no relevant
  label (for the ranking loss: or no irrelevant one): "skip" leaves them out of the mean (the
  default; :func:`count_empty` counts them), "zero" lets them count as 0.
* ``reduction``: "mean" returns a float; "none" one value per row, NaN where "skip" applies.
* ``unknown``: True where it is not known whether a label is relevant, ``[B, C]``, with targets of
  0: such entries are left out of the ranking, as if they had no score. None (the default): all are
  known.

:data:`MEASURES`, in table.py, lists what :func:`evaluate` computes. A new measure is one entry
there: metrics.json, early stopping, searches, tables, comparisons and figures read it.
"""

from tkpr.metrics.functions import (
    average_precision_at_k,
    class_f1,
    count_empty,
    coverage_error,
    label_ranking_average_precision,
    mean_average_precision,
    ndcg_at_k,
    overall_f1,
    precision_at_k,
    rank_distribution,
    ranking_loss,
    recall_at_k,
    tkpr_at_k,
)
from tkpr.metrics.propensity import inverse_propensities
from tkpr.metrics.table import (
    MEASURES,
    Measure,
    evaluate,
    evaluate_one,
    find_measure,
    lower_is_better,
    measure_names,
    per_image,
    title,
)
from tkpr.metrics.top_k import evaluate_top

__all__ = [
    "MEASURES",
    "Measure",
    "average_precision_at_k",
    "class_f1",
    "count_empty",
    "coverage_error",
    "evaluate",
    "evaluate_one",
    "evaluate_top",
    "find_measure",
    "inverse_propensities",
    "label_ranking_average_precision",
    "lower_is_better",
    "mean_average_precision",
    "measure_names",
    "ndcg_at_k",
    "overall_f1",
    "per_image",
    "precision_at_k",
    "rank_distribution",
    "ranking_loss",
    "recall_at_k",
    "title",
    "tkpr_at_k",
]
