import math

import numpy as np
import pytest
import torch

from tkpr.losses.surrogates import surrogate
from tkpr.losses.tkpr import TKPR
from tkpr.ranking import alpha_weight
from tkpr.theory.consistency import conditional_risk
from tkpr.theory.generalisation import (
    DATA_SETS,
    constant_as_printed,
    contraction_factor,
    fit,
    growth_exponent,
    largest_constant,
    law_factor,
    linear_complexity,
    local_constant,
    measured_ratio,
    order_as_printed,
    row_as_printed,
    shares,
    sharp_constant,
    surrogate_slope,
    training_histogram,
)

SURROGATES = ("square", "exponential", "logistic")


def row_losses(scores, targets, k, alpha, name):
    """Return L_K^{alpha,l} of each row."""
    weights = targets / alpha_weight(targets.sum(1, keepdim=True), alpha=alpha, k=k)
    return conditional_risk(scores, weights, k=k, surrogate=name) / k


def test_row_losses_are_the_loss_of_the_package():
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(6, 8, generator=generator, dtype=torch.float64)
    targets = (torch.rand(6, 8, generator=generator) < 0.4).double()
    for alpha in (1, 2, 3):
        for name in SURROGATES:
            module = TKPR(alpha=alpha, k=3, surrogate=name, scores="raw")
            expected = module(scores, targets).item()
            assert row_losses(scores, targets, 3, alpha, name).mean().item() == pytest.approx(
                expected
            )


def test_alpha_agrees_with_the_package():
    q = np.arange(1, 9)
    for alpha in (1, 2, 3):
        expected = alpha_weight(torch.arange(1.0, 9, dtype=torch.float64), alpha=alpha, k=5)
        assert alpha_weight(q, alpha=alpha, k=5).tolist() == expected.tolist()


@pytest.mark.parametrize("name", SURROGATES)
@pytest.mark.parametrize("alpha", [1, 2, 3])
def test_measured_lipschitz_ratios_stay_below_the_constants(name, alpha):
    for k in (1, 3, 5):
        for q in range(1, k + 1):
            ratio = measured_ratio(q, alpha=alpha, k=k, surrogate=name)
            largest = ratio / surrogate_slope(name)
            sharp = float(sharp_constant(q, alpha=alpha, k=k))
            local = float(local_constant(q, alpha=alpha, k=k))
            assert largest <= sharp <= local <= largest_constant(k, alpha=alpha)
            assert local <= math.sqrt(2) * sharp * (1 + 1e-12)
            assert largest_constant(k, alpha=alpha) <= constant_as_printed(k, alpha=alpha) + 1e-12


def test_measured_ratio_is_that_of_the_loss():
    # the same pairs, through the loss of the package
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand((50, 12), generator=generator, dtype=torch.float64)
    step = torch.randn((50, 12), generator=generator, dtype=torch.float64)
    reach = 10 ** (-4 * torch.rand((50, 1), generator=generator, dtype=torch.float64))
    other = (scores + reach * step).clamp(0, 1)
    targets = torch.zeros(1, 12)
    targets[0, :3] = 1
    loss = TKPR(alpha=3, k=4, surrogate="logistic", scores="raw")
    ratios = [
        abs(loss(s[None], targets) - loss(t[None], targets)).item() / (s - t).norm().item()
        for s, t in zip(scores, other, strict=True)
    ]
    measured = measured_ratio(3, alpha=3, k=4, surrogate="logistic", pairs=50)
    assert measured == pytest.approx(max(ratios))


def test_sharp_constant_is_attained():
    # a surrogate of slope 4 at margin -1: relevant labels at 0, the top K + 1 at 1
    k, q, num_labels = 3, 2, 6
    scores = torch.tensor([[0.0] * q + [1.0] * (k + 1)], dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([[1.0] * q + [0.0] * (num_labels - q)], dtype=torch.float64)
    for alpha in (1, 2, 3):
        loss = row_losses(scores, targets, k, alpha, "square").sum()
        (gradient,) = torch.autograd.grad(loss, scores)
        expected = 4 * sharp_constant(q, alpha=alpha, k=k)
        assert gradient.norm().item() == pytest.approx(float(expected))


def test_surrogate_slopes_are_the_largest_derivatives():
    margins = torch.linspace(-1, 1, 2001, dtype=torch.float64, requires_grad=True)
    for name in SURROGATES:
        (gradient,) = torch.autograd.grad(surrogate(name)(margins).sum(), margins)
        assert gradient.abs().max().item() == pytest.approx(surrogate_slope(name))


def test_constants_as_printed_against_the_largest_local_ones():
    for k in range(1, 60):
        # alpha_1: the same, taken at q = K
        assert constant_as_printed(k, alpha=1) == pytest.approx(largest_constant(k, alpha=1))
        assert largest_constant(k, alpha=1) == pytest.approx(local_constant(k, alpha=1, k=k))
        # alpha_2: taken at q = 1 and below 2 + sqrt(2), where the printed one grows as sqrt(K)
        exact = (k + 1 + math.sqrt(k + 1)) / k
        assert largest_constant(k, alpha=2) == pytest.approx(exact)
        assert exact <= 2 + math.sqrt(2) + 1e-12
        if k > 1:
            assert constant_as_printed(k, alpha=2) > exact
            assert constant_as_printed(k, alpha=3) > largest_constant(k, alpha=3)
    assert constant_as_printed(10_000, alpha=2) == pytest.approx(100, rel=0.01)
    assert largest_constant(10_000, alpha=2) == pytest.approx(1, rel=0.02)


def test_bounds_on_the_loss_as_printed_hold():
    # M_K of proposition 5 with M_l = 1; the largest value is q (K + 1) / (alpha K)
    for k in range(1, 30):
        q = np.arange(1, k + 1)
        largest = {a: (q * (k + 1) / (alpha_weight(q, alpha=a, k=k) * k)).max() for a in (1, 2, 3)}
        assert largest[1] == pytest.approx(k + 1)
        assert largest[2] == pytest.approx((k + 1) / k)  # printed: K + 1
        assert largest[3] == pytest.approx(2 / k)  # printed: (K + 1) / K
        assert largest[3] <= (k + 1) / k


def test_contraction_factor_by_hand():
    histogram = [1, 2, 1]  # one sample without labels, two with one, one with two
    expected = math.sqrt(0.5) * local_constant(1, alpha=2, k=3) + 0.5 * local_constant(
        2, alpha=2, k=3
    )
    assert contraction_factor(histogram, 3, alpha=2) == pytest.approx(float(expected))
    q, pi = shares([4, 0, 4])
    assert (q.tolist(), pi.tolist()) == ([2], [0.5])


@pytest.mark.parametrize("law", ["exponential", "power"])
@pytest.mark.parametrize("rate", [0.3, 1.0, 2.5])
def test_fit_recovers_the_rate_of_an_exact_law(law, rate):
    q = np.arange(1, 15)
    weights = np.exp(-rate * (q if law == "exponential" else np.log(q)))
    histogram = [0, *(1e9 * weights / weights.sum()).round().astype(int).tolist()]
    found = fit(histogram, law)
    assert found.rate == pytest.approx(rate, abs=1e-4)
    assert found.distance < 1e-6
    # the likelihood falls on both sides
    share = np.array(histogram[1:]) / sum(histogram)
    for other in (rate - 0.05, rate + 0.05):
        model = np.exp(-other * (q if law == "exponential" else np.log(q)))
        assert share @ np.log(model / model.sum()) < found.log_likelihood


def test_real_histograms():
    for name in DATA_SETS:
        histogram = training_histogram(name)
        exponential, power = fit(histogram, "exponential"), fit(histogram, "power")
        assert exponential.log_likelihood > power.log_likelihood
        k = len(histogram) - 1
        # against Prop. 5 as printed the factor is smaller for alpha_1 and alpha_2, not for alpha_3
        factors = {alpha: contraction_factor(histogram, k, alpha=alpha) for alpha in (1, 2, 3)}
        assert factors[1] < constant_as_printed(k, alpha=1)
        assert largest_constant(k, alpha=2) < factors[2] < constant_as_printed(k, alpha=2)
        assert factors[3] > constant_as_printed(k, alpha=3)
    assert fit(training_histogram("COCO 2014"), "exponential").rate == pytest.approx(
        0.4145, abs=1e-4
    )


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="unknown law 'cubic': choose one of exponential, power"):
        fit([0, 1, 1], "cubic")
    with pytest.raises(ValueError, match="unknown data set 'MNIST'"):
        training_histogram("MNIST")


@pytest.mark.parametrize("alpha", [1, 2, 3])
@pytest.mark.parametrize("rate", [0.5, 2.0, 3.0, 4.0, 6.0])
def test_power_column_of_table_2_bounds_the_sum(alpha, rate):
    # mu_q <= (2 + sqrt 2) sqrt(q) / alpha(q), and sum q^-p <= K^(1 - p) max(1, 1 / (1 - p)) for
    # p < 1, 1 + ln K for p >= 1, pi^2 / 6 for p >= 2; the normalising constant is at least 1
    slow = 3 if alpha == 1 else 1
    constant = 2 * (2 + math.sqrt(2)) * (max(1, 2 / (slow - rate)) if rate < slow else 2)
    for k in (10, 10**3, 10**5):
        free = law_factor("power", rate, k, alpha=alpha, normalised=False)
        assert free <= constant * order_as_printed("power", rate, k, alpha=alpha)
        assert law_factor("power", rate, k, alpha=alpha) <= free


def test_orders_of_the_power_law_with_its_normalising_constant():
    # slow decay: the constant grows as K^(1 - lambda), so the exponents do not depend on lambda
    for rate in (0.25, 0.5):
        assert growth_exponent("power", rate, alpha=1) == pytest.approx(1, abs=0.02)
        assert growth_exponent("power", rate, alpha=2) == pytest.approx(0, abs=0.02)
        assert growth_exponent("power", rate, alpha=3) == pytest.approx(-1, abs=0.02)
        printed = growth_exponent("power", rate, alpha=1, normalised=False)
        assert printed == pytest.approx((3 - rate) / 2, abs=0.02)
    assert growth_exponent("power", 2, alpha=1) == pytest.approx(0.5, abs=0.02)
    # strictly between the limits Tab. 3 has ln K, where the sum is bounded
    assert growth_exponent("power", 4.9, alpha=1) == pytest.approx(0, abs=0.01)
    assert growth_exponent("power", 2.9, alpha=2) == pytest.approx(0, abs=0.01)


def test_exponential_column_of_table_2_needs_the_normalising_constant():
    k = 50
    for alpha in (1, 2, 3):
        limit = float(local_constant(1, alpha=alpha, k=k))
        for rate in (4.0, 8.0, 16.0):
            # all samples have one label in the limit: the factor tends to mu_1, not to 0
            assert law_factor("exponential", rate, k, alpha=alpha) > limit
        assert law_factor("exponential", 40.0, k, alpha=alpha) == pytest.approx(limit, rel=1e-6)
        assert order_as_printed("exponential", 40.0, k, alpha=alpha) < limit / 1000
    # small lambda, alpha_2: the unnormalised sum grows without bound, exp(-lambda / 2) does not
    sums = [law_factor("exponential", r, 10**5, alpha=2, normalised=False) for r in (0.1, 0.001)]
    assert sums[1] > 5 * sums[0]
    # with the constant the factor is bounded for every lambda
    assert (
        max(law_factor("exponential", r, 10**5, alpha=2) for r in np.geomspace(1e-3, 40, 30)) < 3.2
    )


def test_rows_of_table_2():
    assert (
        row_as_printed("power", 0.5, alpha=3) == "lambda in (0, 1): K^(-(1 + lambda)/2) = K^-0.75"
    )
    assert row_as_printed("power", 3.0, alpha=1) == "lambda in [3, 5): ln K"
    assert row_as_printed("power", 3.0, alpha=2) == "lambda >= 3: 1"
    assert row_as_printed("power", 1.0, alpha=3) == "lambda in [1, 3): ln K/K"
    assert row_as_printed("exponential", 1.0, alpha=2) == "exp(-lambda/2)"
    assert order_as_printed("power", 0.5, 16, alpha=3) == pytest.approx(16**-0.75)
    assert order_as_printed("power", 6.0, 16, alpha=3) == 1 / 16
    assert order_as_printed("exponential", 2.0, 10, alpha=3) == pytest.approx(math.exp(-1) / 10)


def test_proposition_8_where_every_part_is_equally_rich():
    # |x| = 1 everywhere, so the complexity of a part of n samples is about c / sqrt(n)
    inputs = [1.0] * 12
    for first in (2, 4, 6):
        for small, large in ((1.0, 1.0), (0.5, 2.0), (2.0, 0.5)):
            scales = [large] * first + [small] * (12 - first)
            bound = math.sqrt(first / 12) * large + math.sqrt(1 - first / 12) * small
            whole = linear_complexity(inputs, [1.0] * 12)
            assert linear_complexity(inputs, scales) <= bound * whole


def test_smallest_counter_example_to_proposition_8_as_printed():
    # two samples, one label count each; F is rich on the second alone
    inputs, scales = [0.0, 1.0], [0.1, 1.0]
    whole = linear_complexity(inputs, [1.0, 1.0])
    bound = whole * sum(math.sqrt(0.5) * scale for scale in scales)
    assert whole == 0.5
    assert linear_complexity(inputs, scales) == 0.5
    assert bound == pytest.approx(0.389, abs=1e-3)
