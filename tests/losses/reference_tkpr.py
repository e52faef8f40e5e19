"""The TKPR family as plain loops over lists."""

import math

SURROGATES = {
    "square": lambda t: (1 - t) ** 2,
    "exponential": lambda t: math.exp(-t),
    "logistic": lambda t: math.log1p(math.exp(-t)),
}


def sigmoid(row):
    return [1 / (1 + math.exp(-s)) for s in row]


def softmax(row):
    total = sum(math.exp(s) for s in row)
    return [math.exp(s) / total for s in row]


def tkpr(logits, targets, alpha, loss):
    surrogate, k, total = SURROGATES[loss.surrogate], loss.k, 0.0
    for row, labels in zip(logits, targets, strict=True):
        scores = sigmoid(row)
        relevant = [s for s, y in zip(scores, labels, strict=True) if y]
        for s in relevant:
            for other in sorted(scores, reverse=True)[: k + 1]:
                total += surrogate(s - other) / (alpha(min(k, len(relevant)), k) * k)
    return total / len(logits)


def tkpr_a1(logits, targets, index, loss):
    return tkpr(logits, targets, lambda n, k: 1, loss)


def tkpr_a2(logits, targets, index, loss):
    return tkpr(logits, targets, lambda n, k: n, loss)


def tkpr_a3(logits, targets, index, loss):
    return tkpr(logits, targets, lambda n, k: n * (2 * k + 1 - n) / 2, loss)


def autkc(logits, targets, index, loss):
    surrogate, total = SURROGATES[loss.surrogate.__name__], 0.0
    for row, labels in zip(logits, targets, strict=True):
        scores = softmax(row)
        relevant = [i for i, y in enumerate(labels) if y]
        for i in relevant:
            others = sorted((s for j, s in enumerate(scores) if j != i), reverse=True)
            for other in others[: loss.k + 1]:
                total += surrogate(scores[i] - other) / (loss.k * len(relevant))
    return total / len(logits)
