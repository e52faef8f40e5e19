"""Text from data (class names, image ids, settings) shown as it is, whatever it contains."""

import re

LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "°": r"$^{\circ}$",
    "–": "--",
}


def one_line(text: str) -> str:
    r"""Replace line breaks and other control characters by spaces.

    >>> one_line("traffic\nlight")
    'traffic light'
    """
    return re.sub(r"[\x00-\x1f\x7f\x85\u2028\u2029]+", " ", text)


def for_latex(text: str) -> str:
    r"""Escape text for LaTeX.

    >>> print(for_latex("a_b $5 50% \\x"))
    a\_b \$5 50\% \textbackslash{}x
    """
    return "".join(LATEX.get(letter, letter) for letter in one_line(text))


def for_markdown(text: str) -> str:
    r"""Escape text for a cell of a Markdown table; underscores inside words need none.

    >>> print(for_markdown("L_rank a|b <b> *x*"))
    L_rank a\|b &lt;b&gt; \*x\*
    """
    text = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*|$~\[\]#])", r"\\\1", text)
    return re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", text)


def for_figure(text: str) -> str:
    r"""Escape text for matplotlib, which reads formulas between dollars.

    >>> print(for_figure("$5 to $10"))
    \$5 to \$10
    """
    return one_line(text).replace("$", r"\$")


def for_spreadsheet(text: str) -> str:
    """Protect text that a spreadsheet would take for a formula, by an apostrophe before it.

    >>> for_spreadsheet("=1+1"), for_spreadsheet("L_rank")
    ("'=1+1", 'L_rank')
    """
    return f"'{text}" if text.lstrip()[:1] in tuple("=+-@") else text
