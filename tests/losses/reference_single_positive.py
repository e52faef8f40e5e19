"""The single-positive, entropy and large-loss formulas, one number at a time.

Each public function has the name of a file in configs/loss. It reads constants and state from the
loss, and computes with loops and `math` alone.
"""

import math


def _sigmoid(score: float) -> float:
    if score < 0:
        return math.exp(score) / (1 + math.exp(score))
    return 1 / (1 + math.exp(-score))


def _softplus(score: float) -> float:
    return max(score, 0.0) + math.log1p(math.exp(-abs(score)))


def _n(score: float, relevant: bool, eps: float) -> float:
    """Loss of one entry as a positive or a negative label."""
    if eps == 0:
        return _softplus(-score) if relevant else _softplus(score)
    probability = _sigmoid(score)
    return -math.log((probability if relevant else 1 - probability) + eps)


def _mean(rows: list[list[float]]) -> float:
    return math.fsum(value for row in rows for value in row) / sum(len(row) for row in rows)


def _penalty(logits: list[list[float]], expected: float) -> float:
    counts = [math.fsum(_sigmoid(score) for score in row) for row in logits]
    return ((sum(counts) / len(counts) - expected) / len(logits[0])) ** 2


def _cross_entropy(logits, targets, index, loss) -> float:
    values = []
    for scores, labels in zip(logits, targets, strict=True):
        row = []
        for score, label in zip(scores, labels, strict=True):
            own, other = _n(score, label == 1, loss.eps), _n(score, label == 0, loss.eps)
            entry = (1 - loss.label_smoothing) * own + loss.label_smoothing * other
            if loss.weak_negatives and label == 0:
                entry /= max(len(scores) - 1, 1)
            row.append(entry)
        values.append(row)
    return _mean(values)


def bce(logits, targets, index, loss) -> float:
    return _cross_entropy(logits, targets, index, loss)


def an(logits, targets, index, loss) -> float:
    return _cross_entropy(logits, targets, index, loss)


def an_ls(logits, targets, index, loss) -> float:
    return _cross_entropy(logits, targets, index, loss)


def wan(logits, targets, index, loss) -> float:
    return _cross_entropy(logits, targets, index, loss)


def epr(logits, targets, index, loss) -> float:
    values = [
        [_n(score, True, loss.eps) if label else 0.0 for score, label in zip(*pair, strict=True)]
        for pair in zip(logits, targets, strict=True)
    ]
    return _mean(values) + _penalty(logits, loss.expected_positives)


def pr(logits, targets, index, loss) -> float:
    total = 0.0
    for scores, labels in zip(logits, targets, strict=True):
        for i, observed in enumerate(labels):
            for j, other in enumerate(labels):
                if observed == 1 and other == 0:
                    total += max(0.0, 1 - _sigmoid(scores[i]) + _sigmoid(scores[j]))
    return total / (len(logits) * len(logits[0]))


def role(logits, targets, index, loss) -> float:
    theta = loss.theta.tolist()
    estimates = [theta[i] for i in index]
    total = 0.0
    for one, other in ((logits, estimates), (estimates, logits)):
        values = []
        for scores, others, labels in zip(one, other, targets, strict=True):
            row = []
            for score, soft_score, label in zip(scores, others, labels, strict=True):
                soft = _sigmoid(soft_score)
                entry = soft * _n(score, True, loss.eps) + (1 - soft) * _n(score, False, loss.eps)
                if label == 1:
                    entry += _n(score, True, loss.eps)
                row.append(entry)
            values.append(row)
        total += 0.5 * (_mean(values) + _penalty(one, loss.expected_positives))
    return total


def em(logits, targets, index, loss) -> float:
    return _em_entries(logits, targets, [[0.0] * len(row) for row in logits], loss)


def em_apl(logits, targets, index, loss) -> float:
    labels = loss.labels.tolist()
    return _em_entries(logits, targets, [labels[i] for i in index], loss)


def _em_entries(logits, targets, pseudo, loss) -> float:
    values = []
    for scores, labels, softs in zip(logits, targets, pseudo, strict=True):
        row = []
        for score, label, soft in zip(scores, labels, softs, strict=True):
            positive, negative = _n(score, True, loss.eps), _n(score, False, loss.eps)
            if label == 1:
                row.append(positive)
            elif soft < 0:
                row.append(loss.beta * (-soft * positive + (1 + soft) * negative))
            else:
                p = _sigmoid(score)
                row.append(-loss.alpha * (p * positive + (1 - p) * negative))
        values.append(row)
    return _mean(values)


def _large_loss(logits, targets, index, loss, *, scheme: str) -> float:
    observed = [[label == 1 for label in row] for row in targets]
    if scheme == "LL-Cp":
        kept = loss.corrections.tolist()
        observed = [
            [a or b for a, b in zip(row, kept[i], strict=True)]
            for row, i in zip(observed, index, strict=True)
        ]
    entries = [
        pair for rows in zip(logits, observed, strict=True) for pair in zip(*rows, strict=True)
    ]
    suspicion = [0.0 if seen else _softplus(score) for score, seen in entries]
    rate = loss.delta_rel if scheme == "LL-Cp" else 1 - loss.clean_rate
    k = 0 if loss.clean_rate == 1 else math.ceil(len(entries) * rate)
    threshold = sorted(suspicion, reverse=True)[k - 1] if k else math.inf
    total = []
    for (score, seen), u in zip(entries, suspicion, strict=True):
        if u < threshold:
            total.append(_n(score, seen, 0))
        elif scheme != "LL-R":
            total.append(_n(score, not seen, 0))
    return math.fsum(total) / len(entries)


def ll_r(logits, targets, index, loss) -> float:
    return _large_loss(logits, targets, index, loss, scheme="LL-R")


def ll_ct(logits, targets, index, loss) -> float:
    return _large_loss(logits, targets, index, loss, scheme="LL-Ct")


def ll_cp(logits, targets, index, loss) -> float:
    return _large_loss(logits, targets, index, loss, scheme="LL-Cp")
