"""The losses of the TKPR paper and of its competitors."""

from tkpr.losses.asymmetric import AsymmetricLoss
from tkpr.losses.autkc import AUTKC
from tkpr.losses.balanced import DistributionBalancedLoss
from tkpr.losses.entropy import EMAPL, EntropyMaximisation
from tkpr.losses.label_lists import LabelLists
from tkpr.losses.large_loss import LargeLoss
from tkpr.losses.pairwise import LSEP, TKML, MultilabelMargin, RankingLoss
from tkpr.losses.robust import SPLC, Hill
from tkpr.losses.single_positive import (
    ROLE,
    AssumeNegative,
    ExpectedPositiveRegularisation,
    PairwiseRanking,
)
from tkpr.losses.tkpr import TKPR
from tkpr.losses.univariate import Univariate

__all__ = [
    "AUTKC",
    "EMAPL",
    "LSEP",
    "ROLE",
    "SPLC",
    "TKML",
    "TKPR",
    "AssumeNegative",
    "AsymmetricLoss",
    "DistributionBalancedLoss",
    "EntropyMaximisation",
    "ExpectedPositiveRegularisation",
    "Hill",
    "LabelLists",
    "LargeLoss",
    "MultilabelMargin",
    "PairwiseRanking",
    "RankingLoss",
    "Univariate",
]
