"""One look for all figures, readable without colour: by line, marker and hatch."""

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from tkpr.reporting.escape import for_figure

# Okabe and Ito's palette, which the colour-blind can tell apart, in an order of falling contrast
COLOURS = ["#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F"]
LINES = ["-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (7, 2))]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]
HATCHES = ["", "////", "....", "xxxx", "\\\\\\\\", "++", "oo", "--", "||", "**"]

mpl.rc("font", size=9)
mpl.rc("axes", titlesize=9, grid=True, axisbelow=True)
mpl.rc("axes.spines", top=False, right=False)
mpl.rc("grid", color="#DDDDDD", linewidth=0.6)
mpl.rc("legend", frameon=False)
mpl.rc("lines", linewidth=1.4, markersize=4)
mpl.rc("hatch", linewidth=0.6)
mpl.rc("pdf", fonttype=42)  # letters stay letters: can be searched and copied

NAMES = {
    "L_rank": r"$L_{\mathrm{rank}}$",
    **{f"L_u{i}": rf"$L_{{u_{i}}}$" for i in range(1, 5)},
    **{f"TKPR_a{i}": rf"TKPR $\alpha_{i}$" for i in range(1, 4)},
}


def shown(name: str) -> str:
    r"""Write the name of a row as the paper does.

    >>> shown("L_u4"), shown("ASL"), shown("TKPR_a2")
    ('$L_{u_4}$', 'ASL', 'TKPR $\\alpha_2$')
    """
    return NAMES.get(name) or for_figure(name)


def save(figure: Figure, path: Path) -> list[Path]:
    """Write a figure as PDF and PNG and return the two files.

    Args:
        figure: what to write.
        path: the file without ending; its folder is made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_name(f"{path.name}.{ending}") for ending in ("pdf", "png")]
    figure.savefig(files[0], metadata={"CreationDate": None})
    figure.savefig(files[1], dpi=200)
    return files
