"""Losses over pairs of a relevant and an irrelevant label of the same image.

Notation: P and N- are the relevant and the irrelevant labels of a row, N and M their numbers, s the
raw logits.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tkpr.losses.inputs import Relevant, find_relevant, prepare, relevant_labels
from tkpr.losses.label_lists import LabelLists
from tkpr.losses.partial_labels import PartialLabels, split
from tkpr.losses.surrogates import logistic
from tkpr.losses.surrogates import surrogate as find_surrogate
from tkpr.ranking import is_transformed


class RankingLoss(nn.Module):
    r"""L_rank, the surrogate of the ranking loss (Sec. 3; Gao & Zhou, Artif. Intell. 2013).

    .. math::
        L_{rank}^\ell(f, y) = \frac{1}{N M} \sum_{i \in P} \sum_{j \in N_-} \ell(s_i - s_j)

    With l = -arctan, which is consistent with the ranking loss (App. E), the value is between
    -pi/2 and pi/2 and is *negative* where the ranking is right. Unknown labels (`PartialLabels`)
    are in no pair.

    Args:
        surrogate: l: "arctan" (the paper's), "exponential", "logistic", "square" or "hinge".
        rows: what the mean runs over. "all": rows without a pair add 0 and stay in the mean;
            "valid": only rows with both relevant and irrelevant labels.

    >>> logits = torch.tensor([[2.0, 1.0, 1.0]])
    >>> RankingLoss()(logits, torch.tensor([[1, 0, 0]]))
    tensor(-0.7854)
    >>> RankingLoss()(logits, torch.tensor([[0, 1, 1]]))
    tensor(0.7854)
    """

    def __init__(self, surrogate: str = "arctan", rows: str = "all") -> None:
        super().__init__()
        if rows not in ("all", "valid"):
            raise ValueError(f"unknown rows {rows!r}: choose one of all, valid")
        self.surrogate = find_surrogate(surrogate)
        self.rows = rows

    def forward(
        self,
        logits: Tensor,
        targets: Tensor | LabelLists | PartialLabels,
        index: Tensor | None = None,
    ) -> Tensor:
        """Return the mean over the rows of the loss of each row."""
        if isinstance(targets, PartialLabels):
            logits, *known = split(logits, targets)
            labels, irrelevant = (part.to(logits.dtype) for part in known)
            num_pairs = labels.sum(1, keepdim=True) * irrelevant.sum(1, keepdim=True)
            total = self._of_dense(logits, labels, irrelevant, 1 / num_pairs.clamp(min=1))
        else:
            total, num_pairs = self._of_all(*find_relevant(logits, targets))
        if self.rows == "valid":
            return total / (num_pairs > 0).sum().clamp(min=1)
        return total / len(logits)

    def _of_all(self, logits: Tensor, labels: Relevant | Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum over the rows and their numbers of pairs, every label being known."""
        counts = labels.counts if isinstance(labels, Relevant) else labels.sum(1, keepdim=True)
        num_pairs = counts * (logits.shape[1] - counts)
        weights = 1 / num_pairs.clamp(min=1)
        if isinstance(labels, Relevant):
            return self._of_lists(logits, labels, weights), num_pairs
        return self._of_dense(logits, labels, 1 - labels, weights), num_pairs

    def _of_lists(self, logits: Tensor, labels: Relevant, weights: Tensor) -> Tensor:
        """Return the sum over the rows: one line of C margins for each relevant label."""
        entries, rows, _ = labels
        irrelevant = torch.ones_like(logits, dtype=torch.bool).flatten()
        irrelevant = irrelevant.index_fill(0, entries, False).view_as(logits)
        margins = logits.flatten().index_select(0, entries).unsqueeze(1) - logits.index_select(
            0, rows
        )
        pairs = self.surrogate(margins).where(irrelevant.index_select(0, rows), 0)
        return (pairs.sum(1, keepdim=True) * weights.index_select(0, rows)).sum()

    def _of_dense(
        self, logits: Tensor, labels: Tensor, irrelevant: Tensor, weights: Tensor
    ) -> Tensor:
        """Return the sum over the rows: one line of C margins for each label, relevant or not."""
        parts = list(zip(_slices(logits), _slices(labels * weights), strict=True))
        total = logits.new_zeros(())
        for own in parts:
            # several slices are recomputed in the backward pass instead of stored
            if len(parts) == 1 or not torch.is_grad_enabled() or is_transformed():
                total = total + self._slice(*own, logits, irrelevant)
            else:
                total = total + checkpoint(
                    self._slice,
                    *own,
                    logits,
                    irrelevant,
                    use_reentrant=False,
                    preserve_rng_state=False,
                )
        return total

    def _slice(self, own: Tensor, weights: Tensor, logits: Tensor, irrelevant: Tensor) -> Tensor:
        """Return the sum of the pairs of some labels ``[B, G]`` with all irrelevant ones."""
        pairs = self.surrogate(own.unsqueeze(2) - logits.unsqueeze(1))
        # products, not choices: NaN is not hidden, not even in a row without relevant labels
        return ((pairs * irrelevant.unsqueeze(1)).sum(2) * weights).sum()


class LSEP(nn.Module):
    r"""Log-sum-exp pairwise loss (Li et al., CVPR 2017).

    .. math::
        L(f, y) = \log\Big(1 + \sum_{i \in P} \sum_{j \in N_-} \exp(s_j - s_i)\Big)

    The double sum is a product of two single ones, so all pairs cost no more than 2 C terms. Each
    is taken as a log-sum-exp: the loss stays finite for any gap. A row without a pair gives 0; the
    batch is averaged. Unknown labels (`PartialLabels`) are in no pair.

    Args:
        max_pairs: the paper's negative sampling: draw at most that many pairs per image, uniformly
            and without replacement, at every call. None takes all pairs.

    >>> loss = LSEP()(torch.tensor([[0.0, 0.0, 0.0]]), torch.tensor([[1, 0, 0]]))
    >>> loss.exp()  # 1 + two pairs
    tensor(3.)
    """

    def __init__(self, max_pairs: int | None = None) -> None:
        super().__init__()
        if max_pairs is not None and (not isinstance(max_pairs, int) or max_pairs < 1):
            raise ValueError(
                f"max_pairs must be an integer of at least 1, or None; got {max_pairs!r}"
            )
        self.max_pairs = max_pairs

    def forward(
        self,
        logits: Tensor,
        targets: Tensor | LabelLists | PartialLabels,
        index: Tensor | None = None,
    ) -> Tensor:
        """Return the mean over the batch of the loss of each row."""
        logits, is_relevant, irrelevant = split(logits, targets)
        if self.max_pairs is not None:
            return self._sampled(logits, is_relevant, irrelevant, self.max_pairs)
        columns = relevant_labels(is_relevant)
        # not -inf: log-sum-exp over -inf alone has no gradient
        lowest = torch.finfo(logits.dtype).min
        irrelevant_side = logits.masked_fill(~irrelevant, lowest).logsumexp(1)
        relevant = logits.gather(1, columns.clamp(min=0))
        relevant_side = (-relevant).masked_fill(columns < 0, lowest).logsumexp(1)
        return logistic(-(irrelevant_side + relevant_side)).mean()

    @staticmethod
    def _sampled(logits: Tensor, is_relevant: Tensor, irrelevant: Tensor, max_pairs: int) -> Tensor:
        """Return the loss over pairs drawn at random."""
        keys = logits.new_empty(len(logits), 0)
        gaps = torch.empty_like(keys)
        for columns in _slices(relevant_labels(is_relevant), logits.shape[1]):
            pairs = (columns >= 0).unsqueeze(2) & irrelevant.unsqueeze(1)
            own = logits.gather(1, columns.clamp(min=0))
            new_gaps = (logits.unsqueeze(1) - own.unsqueeze(2)).flatten(1)
            # the pairs with the largest random keys are a uniform draw without replacement
            new_keys = torch.rand_like(new_gaps).masked_fill(~pairs.flatten(1), -1)
            keys, gaps = torch.cat([keys, new_keys], 1), torch.cat([gaps, new_gaps], 1)
            keys, chosen = keys.topk(min(max_pairs, keys.shape[1]), dim=1)
            gaps = gaps.gather(1, chosen)
        gaps = gaps.masked_fill(keys < 0, torch.finfo(logits.dtype).min)
        return F.pad(gaps, (1, 0)).logsumexp(1).mean()


class TKML(nn.Module):
    r"""Top-k multi-label loss (Hu et al., NeurIPS 2020).

    .. math::
        L(f, y) = \max\big(0,\; m + s_{[k+1]} - \min_{i \in P} s_i\big)

    where s_[k+1] is the (k+1)-th largest score over *all* labels, relevant ones included: a row
    with more than k relevant labels has at least the loss m. A row without relevant labels gives 0;
    the batch is averaged. Unknown labels (`PartialLabels`) are not ranked; a row with k known
    labels or fewer gives 0.

    Args:
        k: number of labels that may be on top; k + 1 may not exceed the number of classes.
        margin: m, 1 in the original.

    >>> TKML(k=1)(torch.tensor([[3.0, 2.5, 0.0]]), torch.tensor([[1, 0, 0]]))
    tensor(0.5000)
    """

    def __init__(self, k: int, margin: float = 1.0) -> None:
        super().__init__()
        if not isinstance(k, int) or k < 1:
            raise ValueError(f"k must be an integer of at least 1; got {k!r}")
        self.k = k
        self.margin = margin

    def forward(
        self,
        logits: Tensor,
        targets: Tensor | LabelLists | PartialLabels,
        index: Tensor | None = None,
    ) -> Tensor:
        """Return the mean over the batch of the loss of each row."""
        logits, relevant, irrelevant = split(logits, targets)
        if self.k + 1 > logits.shape[1]:
            raise ValueError(
                f"k + 1 may not exceed the number of classes, {logits.shape[1]}; got k = {self.k}"
            )
        ranked = logits
        if isinstance(targets, PartialLabels):
            ranked = logits.masked_fill(~(relevant | irrelevant), -torch.inf)
        next_score = ranked.topk(self.k + 1, dim=1).values[:, -1]
        lowest_relevant = logits.masked_fill(~relevant, torch.inf).amin(1)
        loss = F.relu(self.margin + next_score - lowest_relevant).mean()
        return _nan_if_not_finite(loss, logits)  # topk takes NaN for the largest score


class MultilabelMargin(nn.Module):
    r"""Hinge loss over all pairs as torch computes it, "torch.ml" in the paper's timing table.

    .. math::
        L(f, y) = \frac{1}{C} \sum_{i \in P} \sum_{j \in N_-} \max(0, 1 - (s_i - s_j))

    A row without a pair gives 0; the batch is averaged.

    >>> MultilabelMargin()(torch.tensor([[1.0, 0.5, 0.0, -1.0]]), torch.tensor([[1, 0, 0, 0]]))
    tensor(0.1250)
    """

    def forward(self, logits: Tensor, targets: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the mean over the batch of the loss of each row."""
        logits, targets = prepare(logits, targets)
        # torch expects the columns of the relevant labels, padded with -1 to C entries
        columns = relevant_labels(targets)
        columns = F.pad(columns, (0, logits.shape[1] - columns.shape[1]), value=-1)
        loss = F.multilabel_margin_loss(logits, columns)
        return _nan_if_not_finite(loss, logits)  # torch counts a margin of NaN as 0


def _slices(columns: Tensor, num_classes: int | None = None) -> tuple[Tensor, ...]:
    """Cut columns ``[B, Y]`` so that Y' C is at most 2^16: one slice for 256 classes or fewer."""
    width = max(1, 2**16 // (num_classes or columns.shape[1]))
    return columns.split(width, dim=1)


def _nan_if_not_finite(loss: Tensor, logits: Tensor) -> Tensor:
    """Return NaN where a loss would hide that the logits are not finite."""
    return loss.masked_fill(~logits.isfinite().all(), torch.nan)
