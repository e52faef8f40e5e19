"""The losses that came after the paper's competitors, one number at a time.

Each public function has the name of a file in configs/loss. A target of -1 is unknown, where the
loss knows of unknown labels.
"""

import math


def _sigmoid(score: float) -> float:
    if score < 0:
        return math.exp(score) / (1 + math.exp(score))
    return 1 / (1 + math.exp(-score))


def _entries(logits, targets):
    for scores, labels in zip(logits, targets, strict=True):
        yield from zip(scores, labels, strict=True)


def _two_way_group(scores, labels, tp, tn) -> float:
    negatives = [math.exp(s / tn) for s, y in zip(scores, labels, strict=True) if y == 0]
    positives = [math.exp(-s / tp) for s, y in zip(scores, labels, strict=True) if y == 1]
    if not negatives:
        return 0.0
    return math.log1p(math.fsum(negatives) ** tn * math.fsum(positives) ** tp)


def two_way(logits, targets, index, loss) -> float:
    temperatures = loss.positive_temperature, loss.negative_temperature
    total = 0.0
    for one, other in ((logits, targets), (zip(*logits, strict=True), zip(*targets, strict=True))):
        values = [
            _two_way_group(scores, labels, *temperatures)
            for scores, labels in zip(one, other, strict=True)
            if 1 in labels
        ]
        total += sum(values) / len(values)
    return total


def zlpr(logits, targets, index, loss) -> float:
    total = 0.0
    for scores, labels in zip(logits, targets, strict=True):
        above = below = 1.0
        for score, label in zip(scores, labels, strict=True):
            if label == 0:
                above += math.exp(score)
            elif label == 1:
                below += math.exp(-score)
        total += math.log(above) + math.log(below)
    return total / len(logits)


def gr(logits, targets, index, loss) -> float:
    w, b, mu, sigma = loss.schedule.tolist()
    values = []
    for score, label in _entries(logits, targets):
        p = _sigmoid(score)
        if label == 1:
            values.append(-math.log(p + loss.eps))
            continue
        k = _sigmoid(w * p + b)
        v = math.exp(-(((p - mu) / sigma) ** 2) / 2)
        positive = (1 - p**loss.q2) / loss.q2
        negative = (1 - (1 - p) ** loss.q3) / loss.q3
        values.append(v * (k * positive + (1 - k) * negative))
    return math.fsum(values) / len(values)


def _partial_asymmetric(logits, targets, loss) -> float:
    """P-ASL with weights: "ignore", or "selective" without priors."""
    unknown = sorted((s for s, y in _entries(logits, targets) if y == -1), reverse=True)
    removed = loss.likelihood_top * len(logits)
    total = 0.0
    for score, label in _entries(logits, targets):
        p = _sigmoid(score)
        q = min(1 - p + loss.clip, 1)
        if label == 1:
            total -= loss.alpha_pos * (1 - p) ** loss.gamma_pos * math.log(p)
        elif label == 0:
            total -= loss.alpha_neg * (1 - q) ** loss.gamma_neg * math.log(q)
        elif loss.unknown == "selective" and score not in unknown[:removed]:
            total -= loss.alpha_unknown * (1 - q) ** loss.gamma_unknown * math.log(q)
    return total


def csl(logits, targets, index, loss) -> float:
    return _partial_asymmetric(logits, targets, loss)


def p_asl(logits, targets, index, loss) -> float:
    return _partial_asymmetric(logits, targets, loss)


def sigmoid_f1(logits, targets, index, loss) -> float:
    costs = []
    for scores, labels in zip(zip(*logits, strict=True), zip(*targets, strict=True), strict=True):
        tp = fp = fn = 0.0
        for score, label in zip(scores, labels, strict=True):
            h = 1 / (1 + math.exp(-loss.beta * (_sigmoid(score) + loss.eta)))
            if label == 1:
                tp, fn = tp + h, fn + 1 - h
            elif label == 0:
                fp += h
        costs.append(1 - 2 * tp / (2 * tp + fp + fn + 1e-16))
    return sum(costs) / len(costs)


def ral(logits, targets, index, loss) -> float:
    total = 0.0
    for score, label in _entries(logits, targets):
        p = _sigmoid(score)
        if label == 1:
            polynomial = loss.poly_pos * (1 - p) + loss.poly_pos_square / 2 * (1 - p) ** 2
            total -= (1 - p) ** loss.gamma_pos * (math.log(p) + polynomial)
        else:
            q = min(1 - p + loss.clip, 1)
            hill = (loss.lamb - p) * p**2 * (loss.lamb - q)
            total -= (1 - q) ** loss.gamma_neg * (math.log(q) + loss.poly_neg * q) * hill
    return total
