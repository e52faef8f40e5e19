"""Check what the paper proves: print a table per subject and draw it.

python scripts/theory.py                    all subjects
python scripts/theory.py consistency        one of them
python scripts/theory.py comparison         the paper's Tab. 2
python scripts/theory.py generalisation --histogram 0 700 200 80 20

Figures go to --out as PDF and PNG. What holds, what holds under a condition and what looks like a
slip in the text is written up in docs/theory.md.
"""

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from tkpr.runs.script import Parser, script
from tkpr.theory import bayes, bounds, consistency, discriminancy, generalisation
from tkpr.theory.orders import preserves_ranking

mpl.use("Agg")
plt.rcParams |= {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}

Distribution = bayes.Distribution
Measure = Callable[[Sequence[int], tuple[int, ...], int], Fraction]
Values = Callable[[Distribution, int], list[Fraction]]

SURROGATES = ("square", "exponential", "logistic")
# distinct in greyscale: shade, marker and line style
STYLES = (
    {"color": "0.0", "marker": "o", "linestyle": "-"},
    {"color": "0.45", "marker": "s", "linestyle": "--"},
    {"color": "0.65", "marker": "^", "linestyle": ":"},
    {"color": "0.25", "marker": "x", "linestyle": "-."},
)


def show(title: str, rows: list[dict[str, Any]] | pd.DataFrame) -> None:
    """Print a table."""
    print(f"\n{title}\n{pd.DataFrame(rows).to_string(index=False)}")


def save(figure: Figure, out: Path, name: str) -> None:
    """Write a figure as PDF and PNG."""
    out.mkdir(parents=True, exist_ok=True)
    for suffix in ("pdf", "png"):
        figure.savefig(out / f"{name}.{suffix}", dpi=160, bbox_inches="tight")
    plt.close(figure)
    print(f"\n-> {out / name}.pdf, .png")


def draw_discriminancy(args: argparse.Namespace) -> None:
    """Thm. 1: P, S and their ratio, K = 2..30; the printed closed form of pn_K(a)."""
    ks = range(2, 31)
    counts = {k: discriminancy.discriminancy(k) for k in ks}
    rows = []
    for k in ks:
        sums = range(k * (k + 1) // 2 + 1)
        printed = [discriminancy.closed_form_as_printed(k, a) for a in sums]
        exact = [discriminancy.sum_count(k, a) for a in sums]
        right = [a for a in sums if printed[a] == exact[a]]
        rows.append(
            {
                "K": k,
                "|P|": counts[k].finer,
                "|S|": counts[k].coarser,
                "Dis": f"{float(counts[k].degree):.2f}",
                "(II) printed": sum(p**2 for p in printed),
                "(II) exact": sum(e**2 for e in exact),
                "pn_K(a) right at": f"{len(right)} of {len(sums)} a",
            }
        )
    show("Thm. 1: pairs that TKPR tells apart and P@K does not (P), and the reverse (S)", rows)

    figure, (left, right_panel) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    finite = [k for k in ks if counts[k].coarser]
    left.plot(finite, [float(counts[k].degree) for k in finite], "ko", ms=3.5, label="exact count")
    smooth = np.arange(5, 31)
    limit = [discriminancy.degree_for_large_k(int(k)) for k in smooth]
    left.plot(smooth, limit, color="0.5", label="local limit theorem")
    left.plot(smooth, smooth / math.sqrt(3), color="0.5", ls=":", label=r"$K/\sqrt{3}$")
    left.axhline(1, color="0", lw=0.8, ls="--")
    left.text(30, 1.4, "equally discriminating", ha="right", fontsize=8)
    left.set(xlabel="K", ylabel="Dis(TKPR, P@K) = |P| / |S|", ylim=(0, None))
    left.set_title("Degree of discriminancy (infinite at K = 2)", fontsize=9)
    left.legend(frameon=False)
    k = 6
    totals = range(k * (k + 1) // 2 + 1)
    exact = [discriminancy.sum_count(k, a) for a in totals]
    printed = [discriminancy.closed_form_as_printed(k, a) for a in totals]
    right_panel.bar(totals, exact, color="0.75", label=r"exact $pn_K(a)$")
    right_panel.plot(totals, printed, "kx", ms=5, label="closed form as printed")
    right_panel.set(xlabel="a = K · TKPR", ylabel="number of placements")
    right_panel.set_title(f"Placements by the value of TKPR, K = {k}", fontsize=9)
    right_panel.legend(frameon=False)
    save(figure, args.out, "discriminancy")


def draw_bounds(args: argparse.Namespace) -> None:
    """Prop. 3 and Thm. 2: AP@K against TKPR, and when the ranking loss is bounded."""
    rows = []
    for k in range(1, 15):
        factors = [bounds.rho_factors(p, k) for p in bounds.placements(k)]
        products = [float(first * second) for first, second in factors]
        ratios = [bounds.ap_over_tkpr(p, k) for p in bounds.placements(k)]
        if (min(ratios), max(ratios)) != bounds.ap_over_tkpr_range(k):
            raise AssertionError(f"the range of AP@K / TKPR is wrong for K = {k}")
        low, high = bounds.rho_range_as_printed(k)
        rows.append(
            {"K": k, "placements": len(ratios), "printed low": low, "U1 U2 low": min(products)}
            | {"AP/TKPR low": float(min(ratios)), "AP/TKPR high": float(max(ratios))}
            | {"U1 U2 high": max(products), "printed high": high}
        )
    table = pd.DataFrame(rows)
    show("Thm. 2: AP@K / TKPR^a2, its lower bound U1 U2, and the printed range", table.round(3))
    failing = [
        {"C": c, "N": n, "N_-": c - n, "K": k, "K + 1 <= C": k + 1 <= c}
        for c in range(2, 7)
        for n in range(1, c)
        for k in range(1, c + 1)
        if not bounds.ranking_bound_holds(k, n, c - n)
    ]
    show(
        "Prop. 3: where L_rank <= alpha/N L_K^alpha fails for some scores, C <= 6; it holds if and"
        "\nonly if N >= d (d + 1) / 2, d = max(0, K - N_-)",
        failing,
    )

    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    for name, shade, label in (
        ("printed", "0.92", "range printed"),
        ("U1 U2", "0.75", "$U_1 U_2$"),
    ):
        low, high = table[f"{name} low"], table[f"{name} high"]
        left.fill_between(table["K"], low, high, color=shade, label=label)
    for end, style, label in (("high", "k-s", "largest"), ("low", "k-o", "least")):
        label = rf"AP@K / TKPR$^{{\alpha_2}}$, {label}"
        left.plot(table["K"], table[f"AP/TKPR {end}"], style, ms=3, lw=0.8, label=label)
    left.set(xlabel="K", ylabel=r"$\rho$ (a ratio)", yscale="log", xticks=range(1, 15, 2))
    left.set_title(r"How large $\rho$ of Thm. 2 can be", fontsize=9)
    left.legend(frameon=False, fontsize=8, loc="upper left")
    excess, number = np.meshgrid(np.arange(-1, 7), np.arange(1, 23))
    fails = number < np.maximum(excess, 0) * (np.maximum(excess, 0) + 1) // 2
    right.pcolormesh(excess, number, fails, cmap="Greys", vmin=0, vmax=1.6)
    right.text(0.6, 15, "holds for all scores", fontsize=9)
    right.text(2.75, 2.4, "fails for some scores", color="w", fontsize=9)
    right.set(xlabel=r"$K - N_-$ (K minus irrelevant labels)", ylabel="N, relevant labels")
    right.set(xticks=range(-1, 7), yticks=[1, 3, 6, 10, 15, 21])
    right.set_title(r"$L_{rank} \leq \frac{\alpha}{N} L_K^\alpha$ (Prop. 3)", fontsize=9)
    save(figure, args.out, "bounds")


def draw_bayes(args: argparse.Namespace) -> None:
    """Prop. 4 and 14: best rankings by exhaustive search, and where P@K and R@K disagree."""
    rng = np.random.default_rng(args.seed)
    count, searched, rows, shares = 500, 25, [], {}
    for num_labels in (3, 4, 5):
        draws = [bayes.random_distribution(num_labels, rng) for _ in range(count)]
        for k in range(1, num_labels):
            differ = 0
            for d in draws:
                sets = [
                    bayes.best_top_sets(f(d, num_labels), k) for f in (bayes.eta, bayes.eta_prime)
                ]
                differ += not sets[0] & sets[1]
            shares[num_labels, k] = differ / count
            row: dict[str, Any] = {"C": num_labels, "K": k}
            if num_labels < 5:  # the search goes through C! rankings
                row |= {
                    name: f"{sum(f(d, num_labels, k) for d in draws[:searched])}/{searched}"
                    for name, f in SEARCHES.items()
                }
            rows.append(row | {"P@K and R@K differ": f"{differ / count:.0%}"})
    show(
        "Prop. 4, 14: random distributions on which the search over all rankings finds the stated\n"
        "optimum, and those on which no top-K set is best for both P@K and R@K",
        pd.DataFrame(rows).fillna("-"),
    )
    example = bayes.differing_optima(3, 1, 5)
    if example is None:
        raise AssertionError("the counter-example no longer holds")
    print(f"\nSmallest disagreement, C = 3, K = 1: {example} (label set: samples of five)")

    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    place = np.arange(3)
    for shift, values, colour, name in (
        (-0.2, bayes.eta(example, 3), "0.35", r"$\eta$: P@1 takes the largest"),
        (0.2, bayes.eta_prime(example, 3), "0.8", r"$\eta'$: R@1 takes the largest"),
    ):
        heights = np.array(values, dtype=float) / sum(example.values())
        left.bar(place + shift, heights, 0.38, color=colour, edgecolor="k", label=name)
        for label in np.flatnonzero(heights == heights.max()):
            left.text(label + shift, heights[label] + 0.01, "best", ha="center", fontsize=8)
    left.set_xticks(place, ["label 0", "label 1", "label 2"])
    left.set(ylabel="value (1 = in every sample)", ylim=(0, 0.9))
    text = ", ".join(f"{{{', '.join(map(str, y))}}} in {n} of 5" for y, n in example.items())
    left.set_title(f"Label sets: {text}", fontsize=9)
    left.legend(frameon=False, loc="upper left", fontsize=8)
    for style, num_labels in zip(STYLES, (3, 4, 5), strict=False):
        ks = range(1, num_labels)
        right.plot(
            ks, [100 * shares[num_labels, k] for k in ks], label=f"C = {num_labels}", **style
        )
    right.set(xlabel="K", ylabel="random distributions (%)", xticks=range(1, 5), ylim=(0, None))
    right.set_title("No top-K set is best for both P@K and R@K", fontsize=9)
    right.legend(frameon=False)
    save(figure, args.out, "bayes")


def _search_sets(measure: Measure, values: Values, d: Distribution, c: int, k: int) -> bool:
    """Whether the top K of the best rankings are the sets that Prop. 14 names."""
    best = bayes.best_orders(d, c, lambda order, labels: measure(order, labels, k))
    return {frozenset(order[:k]) for order in best} == bayes.best_top_sets(values(d, c), k)


def _search_order(alpha: int, d: Distribution, c: int, k: int) -> bool:
    """Whether the best rankings for TKPR satisfy RPT_K with respect to Delta (Prop. 4)."""
    best = bayes.best_orders(d, c, lambda order, labels: bayes.tkpr(order, labels, k, alpha=alpha))
    values = bayes.delta(d, c, alpha=alpha, k=k)
    return all(preserves_ranking([-o.index(i) for i in range(c)], values, k) for o in best)


SEARCHES = {
    "P@K": partial(_search_sets, bayes.precision, bayes.eta),
    "R@K": partial(_search_sets, bayes.recall, bayes.eta_prime),
} | {f"TKPR^a{alpha}": partial(_search_order, alpha) for alpha in (1, 2, 3)}


def draw_consistency(args: argparse.Namespace) -> None:
    """Thm. 3 and Cor. 3: which share of random distributions each surrogate recovers."""
    rng = np.random.default_rng(args.seed)
    num_labels, count, ks = 5, 60, range(1, 5)
    rows, pair_rows, shares, pairs = [], [], {}, {}
    for name, concentration in (("spread", 1.0), ("sparse", 0.05)):
        draws = [
            bayes.random_distribution(num_labels, rng, concentration=concentration)
            for _ in range(count)
        ]
        for k in ks:
            deltas = np.array(
                [bayes.delta(d, num_labels, alpha=2, k=k) for d in draws], dtype=float
            )
            deltas /= deltas.sum(1, keepdims=True)
            light = [consistency.tail_is_lighter(d, k) for d in deltas]
            row = {"distributions": name, "K": k, "Delta_K > tail": f"{np.mean(light):.0%}"}
            for surrogate in SURROGATES:
                scores = [consistency.minimiser(d, k=k, surrogate=surrogate) for d in deltas]
                shares[name, k, surrogate], pairs[name, k, surrogate] = _outcome(scores, deltas, k)
                row[surrogate] = f"{shares[name, k, surrogate]:.0%}"
            total = sum((pairs[name, k, s] for s in SURROGATES), start=consistency.Pairs(0, 0, 0))
            row |= {"pairs inverted": total.inverted, "tied": f"{total.tied / total.total:.0%}"}
            trained = consistency.train(
                torch.tensor(deltas), k=k, surrogate="square", activation="sigmoid", steps=400
            )
            same = trained.argsort(1, descending=True)[:, :k].numpy() == np.argsort(-deltas)[:, :k]
            rows.append(row | {"square, trained": f"{same.all(1).mean():.0%}"})
        weights = [consistency.ranking_weights(d, num_labels) for d in draws]
        values = [v for _, v in weights]
        for surrogate in SURROGATES:
            scores = [consistency.pairwise_minimiser(m, surrogate=surrogate) for m, _ in weights]
            row = {"distributions": name, "surrogate": surrogate}
            for k in ks:
                key = name, k, f"pairwise {surrogate}"
                shares[key], pairs[key] = _outcome(scores, values, k)
                row[f"RPT_{k}"] = f"{shares[key]:.0%}"
            row["pairs inverted"] = f"{pairs[key].inverted} of {pairs[key].total}"
            pair_rows.append(row)
    show(
        f"Cor. 3: RPT_K at the minimiser of the TKPR surrogate, scores in [0, 1]; C = {num_labels},"
        f"\nalpha_2, {count} random distributions each; pairs: those with a label of the top K, all"
        "\nlosses; trained: the top K are in order after 400 Adam steps behind a sigmoid",
        rows,
    )
    show(
        "The ranking loss: the minimiser of its pairwise surrogate against its own order", pair_rows
    )

    figure, axes = plt.subplots(1, 3, figsize=(9.5, 2.9), layout="constrained")
    first = np.linspace(1 / 3, 0.95, 60)
    for style, surrogate in zip(STYLES, SURROGATES, strict=False):
        problems = ([d, (1 - d) / 2, (1 - d) / 2] for d in first)
        gaps = [consistency.minimiser(p, k=1, surrogate=surrogate)[0] for p in problems]
        axes[0].plot(first, gaps, label=surrogate, **(style | {"marker": ""}))
    axes[0].axvspan(1 / 3, 0.5, color="0.93")
    axes[0].text(0.345, 0.55, "all scores\nequal", fontsize=8)
    axes[0].set(xlabel=r"$\Delta_1$; $\Delta_2 = \Delta_3 = (1 - \Delta_1)/2$")
    axes[0].set(ylabel=r"$s_1 - s_2$ at the minimum, scores in [0, 1]")
    axes[0].set_title("TKPR surrogates, C = 3, K = 1", fontsize=9)
    axes[0].legend(frameon=False, fontsize=8)
    kinds = [(s, f"TKPR, {s}") for s in SURROGATES]
    kinds.append(("pairwise exponential", "ranking loss, exp."))
    for number, (style, (kind, label)) in enumerate(zip(STYLES, kinds, strict=True)):
        axes[1].plot(ks, [100 * shares["sparse", k, kind] for k in ks], label=label, **style)
        place = np.array(ks) + 0.2 * number - 0.3
        counts = [pairs["sparse", k, kind] for k in ks]
        tied = np.array([100 * c.tied / c.total for c in counts])
        inverted = np.array([100 * c.inverted / c.total for c in counts])
        look = {"edgecolor": style["color"], "hatch": ("", "//", "..", "xx")[number]}
        if tied.any():
            look["label"] = f"tied: {label}"
        axes[2].bar(place, tied, 0.18, color="w", **look)
        axes[2].bar(place, inverted, 0.18, bottom=tied, color="k")
    axes[2].bar([1], [0], color="k", label="inverted: ranking loss, exp.")
    axes[1].set(xlabel="K", xticks=list(ks), ylim=(-4, 104), ylabel=r"RPT$_K$ recovered (%)")
    axes[1].set_title(f"C = {num_labels}, sparse random distributions", fontsize=9)
    axes[1].legend(frameon=False, fontsize=7)
    axes[2].set(xlabel="K", xticks=list(ks), ylabel="pairs with a top-K label (%)", ylim=(0, 125))
    axes[2].set_title("What is wrong where it is not recovered", fontsize=9)
    axes[2].legend(frameon=False, fontsize=7, loc="upper right")
    save(figure, args.out, "consistency")


def _outcome(
    scores: Sequence[np.ndarray], values: Iterable[np.ndarray], k: int
) -> tuple[float, consistency.Pairs]:
    """Return the share of score vectors with RPT_K, and what they make of the pairs."""
    both = [(s.tolist(), v.tolist()) for s, v in zip(scores, values, strict=True)]
    kept = [preserves_ranking(s, v, k, tolerance=consistency.TIE) for s, v in both]
    pairs = (consistency.compare(s, v, k=k) for s, v in both)
    return float(np.mean(kept)), sum(pairs, start=consistency.Pairs(0, 0, 0))


def draw_generalisation(args: argparse.Namespace) -> None:
    """Prop. 5 to 9, Thm. 4: constants, factors and fitted laws for real label counts."""
    histograms = {
        name: generalisation.training_histogram(name) for name in generalisation.DATA_SETS
    }
    if args.histogram:
        histograms = {"given": tuple(args.histogram)}
    fits, factors, ratios = [], [], []
    for name, histogram in histograms.items():
        laws = [generalisation.fit(histogram, law) for law in ("exponential", "power")]
        better = max(laws, key=lambda law: law.log_likelihood)
        for law in laws:
            row: dict[str, Any] = {"data": name, "law": law.law + (" *" if law is better else "")}
            row |= {"lambda": f"{law.rate:.2f}", "TV distance": f"{law.distance:.2f}"}
            for alpha in (1, 2, 3):
                row[f"Tab. 3, alpha_{alpha}"] = generalisation.row_as_printed(
                    law.law, law.rate, alpha=alpha
                )
            fits.append(row)
        k = len(histogram) - 1
        for alpha in (1, 2, 3):
            row = {"data": name, "K = max N": k, "alpha": alpha}
            row["sum sqrt(pi) mu_q"] = generalisation.contraction_factor(histogram, k, alpha=alpha)
            row["mu_K printed"] = generalisation.constant_as_printed(k, alpha=alpha)
            factors.append(row | {"largest mu_q": generalisation.largest_constant(k, alpha=alpha)})
    for k, q in ((3, 1), (3, 3), (5, 2), (5, 5)):
        row = {"K": k, "N": q}
        for name in SURROGATES:
            ratio = generalisation.measured_ratio(
                q, alpha=2, k=k, surrogate=name, num_labels=20, pairs=20_000, seed=args.seed
            )
            row[f"{name} / mu_l"] = ratio / generalisation.surrogate_slope(name)
        row["sharp mu_q"] = generalisation.sharp_constant(q, alpha=2, k=k)
        ratios.append(row | {"mu_q": generalisation.local_constant(q, alpha=2, k=k)})
    show("Laws of Tab. 3 fitted by maximum likelihood (* the likelier one), and their rows", fits)
    show("Prop. 8, 9 against Prop. 5, in units of mu_l", pd.DataFrame(factors).round(3))
    show(
        "Largest Lipschitz ratio of 20,000 random pairs of scores in [0, 1], C = 20, alpha_2",
        pd.DataFrame(ratios).round(3),
    )

    figure, axes = plt.subplots(1, 3, figsize=(9.5, 3.1), layout="constrained")
    ks = range(1, 41)
    for alpha, axis in zip((1, 2, 3), axes, strict=True):
        for style, (name, histogram) in zip(STYLES, histograms.items(), strict=False):
            values = [generalisation.contraction_factor(histogram, k, alpha=alpha) for k in ks]
            start = min(len(histogram) - 2, 39)
            axis.plot(ks[: start + 1], values[: start + 1], color=style["color"], lw=0.6)
            axis.plot(ks[start:], values[start:], label=name, markevery=6, ms=4, **style)
        printed = [generalisation.constant_as_printed(k, alpha=alpha) for k in ks]
        exact = [generalisation.largest_constant(k, alpha=alpha) for k in ks]
        axis.plot(ks, printed, color="0", lw=2.4, label=r"$\mu_K$ as printed")
        axis.plot(
            ks, exact, color="0.6", lw=2.4, ls=(0, (1, 1)), label=r"largest $\mu_q$, $q \leq K$"
        )
        axis.plot([], [], color="0.4", lw=0.6, label="K below max N")
        axis.set(xlabel="K", yscale="log", ylabel=r"factor before the complexity / $\mu_\ell$")
        axis.set_title(rf"$\alpha_{alpha}$", fontsize=9)
        axis.yaxis.set_major_locator(mpl.ticker.LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(mpl.ticker.FormatStrFormatter("%g"))
        axis.yaxis.set_minor_formatter(mpl.ticker.NullFormatter())
    axes[2].legend(frameon=False, fontsize=7)
    save(figure, args.out, "generalisation")


def show_comparison(args: argparse.Namespace) -> None:
    """Tab. 2: the losses as the paper compares them, and the terms that each one sums."""
    classes, labels, k = 80, 3, 10
    pairs, points, top = labels * (classes - labels), classes, labels * (k + 1)
    rows = [
        # loss, generalisation, consistent, complexity, usable with missing labels, terms
        ("L_rank", "sqrt(C / N)", "no", "C^2", "no", "|P| (C - |P|)", pairs),
        ("L_u1", "sqrt(C^2 / N)", "no", "C", "no", "C", points),
        ("L_u2", "sqrt(C^2 / N)", "yes", "C", "no", "C", points),
        ("L_u3", "sqrt(C / N)", "no", "C", "no", "C", points),
        ("L_u4", "sqrt(C^2 / N)", "no", "C", "no", "C", points),
        ("TKPR", "sqrt(C / (N e^lambda))", "yes", "C K", "yes", "|P| (K + 1)", top),
    ]
    heads = ["loss", "generalisation", "consistent", "complexity", "missing labels"]
    heads += ["terms per image", f"C = {classes}, |P| = {labels}, K = {k}"]
    show(
        "As printed in the paper, O(.) left out; counted here: the last two columns",
        [dict(zip(heads, row, strict=True)) for row in rows],
    )
    print("\nUnder which conditions this holds: docs/theory.md; computed by the other subjects.")


SUBJECTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "discriminancy": draw_discriminancy,
    "bounds": draw_bounds,
    "bayes": draw_bayes,
    "consistency": draw_consistency,
    "generalisation": draw_generalisation,
    "comparison": show_comparison,
}


def main() -> None:
    """Read the command line and run the subjects."""
    parser = Parser(__doc__)
    parser.add_argument("name", nargs="?", choices=SUBJECTS, help="the subject; all without it")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/theory"), help="folder of the figures"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random distributions")
    parser.add_argument(
        "--histogram",
        type=int,
        nargs="+",
        metavar="COUNT",
        help="samples with 0, 1, 2, ... labels, instead of the data sets of the paper",
    )
    args = parser.parse_args()
    for name, run in SUBJECTS.items():
        if args.name in (None, name):
            print(f"\n== {name}: {run.__doc__}")
            run(args)


if __name__ == "__main__":
    script(main)
