"""Ranking and other full-label losses as plain double loops, one function per file of configs/loss.

Each takes logits and targets as lists of rows, the samples' index, and the built loss, from which
it reads the constants. Epoch 0.
"""

import math


def _sigmoid(t: float) -> float:
    return 1 / (1 + math.exp(-t)) if t >= 0 else math.exp(t) / (1 + math.exp(t))


def _log_sigmoid(t: float) -> float:
    return -math.log1p(math.exp(-t)) if t >= 0 else t - math.log1p(math.exp(t))


def _pairs(scores, labels):
    """List (score of a relevant label, score of an irrelevant label) of one row."""
    return [
        (scores[i], scores[j])
        for i in range(len(scores))
        for j in range(len(scores))
        if labels[i] == 1 and labels[j] == 0
    ]


def _mean(values):
    return sum(values) / len(values)


def _reduce(rows, loss):
    entries = [entry for row in rows for entry in row]
    return {"sum": sum, "mean": _mean}[loss.reduction.__name__](entries)


def rank(logits, targets, index, loss):
    total = 0.0
    for scores, labels in zip(logits, targets, strict=True):
        pairs = _pairs(scores, labels)
        for relevant, irrelevant in pairs:
            total += -math.atan(relevant - irrelevant) / len(pairs)
    return total / len(logits)


def _univariate(logits, targets, weight, base):
    """Mean over rows of the sum of weight(N, M, label) * base(margin)."""
    total = 0.0
    for scores, labels in zip(logits, targets, strict=True):
        n = sum(labels)
        m = len(labels) - n
        for score, label in zip(scores, labels, strict=True):
            total += weight(n, m, label) * base(score if label == 1 else -score)
    return total / len(logits)


def u1(logits, targets, index, loss):
    return _univariate(logits, targets, lambda n, m, label: 1 / (n + m), lambda t: -_log_sigmoid(t))


def u2(logits, targets, index, loss):
    return _univariate(
        logits, targets, lambda n, m, label: 1 / (n * m) if n * m else 0, lambda t: math.exp(-t)
    )


def u3(logits, targets, index, loss):
    def weight(n, m, label):
        if n == 0 or m == 0:
            return 0
        return 1 / n if label == 1 else 1 / m

    return _univariate(logits, targets, weight, lambda t: -_log_sigmoid(t))


def u4(logits, targets, index, loss):
    return _univariate(
        logits,
        targets,
        lambda n, m, label: 1 / min(n, m) if n * m else 0,
        lambda t: -_log_sigmoid(t),
    )


def lsep(logits, targets, index, loss):
    rows = []
    for scores, labels in zip(logits, targets, strict=True):
        gaps = [irrelevant - relevant for relevant, irrelevant in _pairs(scores, labels)]
        largest = max([0.0, *gaps])
        total = math.exp(-largest) + sum(math.exp(gap - largest) for gap in gaps)
        rows.append(largest + math.log(total))
    return _mean(rows)


def tkml(logits, targets, index, loss):
    rows = []
    for scores, labels in zip(logits, targets, strict=True):
        relevant = [score for score, label in zip(scores, labels, strict=True) if label == 1]
        if not relevant:
            rows.append(0.0)
            continue
        next_score = sorted(scores, reverse=True)[loss.k]
        rows.append(max(0.0, loss.margin + next_score - min(relevant)))
    return _mean(rows)


def multilabel_margin(logits, targets, index, loss):
    rows = []
    for scores, labels in zip(logits, targets, strict=True):
        pairs = _pairs(scores, labels)
        hinges = [max(0.0, 1 - (relevant - irrelevant)) for relevant, irrelevant in pairs]
        rows.append(sum(hinges) / len(scores))
    return _mean(rows)


def db(logits, targets, index, loss):
    counts = [float(count) for count in loss.class_counts]
    rows = []
    for scores, labels in zip(logits, targets, strict=True):
        shares = sum(label / count for label, count in zip(labels, counts, strict=True))
        entries = []
        for score, label, count in zip(scores, labels, counts, strict=True):
            ratio = 1 / count / shares if shares else math.inf
            steep = loss.map_beta * (ratio - loss.map_gamma)
            weight = loss.map_alpha + (_sigmoid(steep) if steep < math.inf else 1)
            shifted = score - loss.init_bias / loss.neg_scale * math.log(
                loss.num_samples / count - 1
            )
            margin = shifted if label == 1 else -loss.neg_scale * shifted
            factor = loss.focal_balance / (1 if label == 1 else loss.neg_scale)
            focus = _sigmoid(-margin) ** loss.focal_gamma
            entries.append(-factor * weight * focus * _log_sigmoid(margin))
        rows.append(entries)
    return _reduce(rows, loss)


def asl(logits, targets, index, loss):
    rows = []
    for scores, labels in zip(logits, targets, strict=True):
        entries = []
        for score, label in zip(scores, labels, strict=True):
            p = _sigmoid(score)
            if label == 1:
                entries.append(-(_sigmoid(-score) ** loss.gamma_pos) * math.log(max(p, loss.eps)))
            else:
                shifted = max(p - loss.clip, 0.0)
                rest = _sigmoid(-score) if loss.clip == 0 else 1 - shifted
                entries.append(-(shifted**loss.gamma_neg) * math.log(max(rest, loss.eps)))
        rows.append(entries)
    return _reduce(rows, loss)


ccd = asl
ccd_half_asl = asl


def hill(logits, targets, index, loss):
    rows = []
    for scores, labels in zip(logits, targets, strict=True):
        entries = []
        for score, label in zip(scores, labels, strict=True):
            if label == 1:
                shifted = score - loss.margin
                entries.append(-(_sigmoid(-shifted) ** loss.gamma) * _log_sigmoid(shifted))
            else:
                p = _sigmoid(score)
                entries.append((loss.lamb - p) * p**2)
        rows.append(entries)
    return _reduce(rows, loss)


def splc(logits, targets, index, loss):
    rows = []
    for scores, labels in zip(logits, targets, strict=True):
        entries = []
        for score, label in zip(scores, labels, strict=True):
            shifted = score - loss.margin if label == 1 else score
            corrected = loss.change_epoch <= 0 and _sigmoid(shifted) > loss.tau
            margin = shifted if label == 1 or corrected else -shifted
            entries.append(-(_sigmoid(-margin) ** loss.gamma) * _log_sigmoid(margin))
        rows.append(entries)
    return _reduce(rows, loss)
