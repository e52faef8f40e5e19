"""The losses of the TKPR paper, of its competitors, and of what came after."""

from tkpr.losses.asymmetric import AsymmetricLoss
from tkpr.losses.autkc import AUTKC
from tkpr.losses.balanced import DistributionBalancedLoss
from tkpr.losses.chunked import ChunkedLogits
from tkpr.losses.entropy import EMAPL, EntropyMaximisation
from tkpr.losses.generalized_robust import GeneralizedRobust
from tkpr.losses.label_lists import LabelLists
from tkpr.losses.large_loss import LargeLoss
from tkpr.losses.pairwise import LSEP, TKML, MultilabelMargin, RankingLoss
from tkpr.losses.partial_asymmetric import PartialAsymmetricLoss
from tkpr.losses.partial_labels import PartialLabels
from tkpr.losses.robust import SPLC, Hill
from tkpr.losses.robust_asymmetric import RobustAsymmetricLoss
from tkpr.losses.sigmoid_f1 import SigmoidF1
from tkpr.losses.single_positive import (
    ROLE,
    AssumeNegative,
    ExpectedPositiveRegularisation,
    PairwiseRanking,
)
from tkpr.losses.tkpr import TKPR
from tkpr.losses.two_way import TwoWay
from tkpr.losses.univariate import Univariate
from tkpr.losses.zlpr import ZLPR

__all__ = [
    "AUTKC",
    "EMAPL",
    "LSEP",
    "ROLE",
    "SPLC",
    "TKML",
    "TKPR",
    "ZLPR",
    "AssumeNegative",
    "AsymmetricLoss",
    "ChunkedLogits",
    "DistributionBalancedLoss",
    "EntropyMaximisation",
    "ExpectedPositiveRegularisation",
    "GeneralizedRobust",
    "Hill",
    "LabelLists",
    "LargeLoss",
    "MultilabelMargin",
    "PairwiseRanking",
    "PartialAsymmetricLoss",
    "PartialLabels",
    "RankingLoss",
    "RobustAsymmetricLoss",
    "SigmoidF1",
    "TwoWay",
    "Univariate",
]
