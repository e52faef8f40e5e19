"""The numbers printed in the paper, and what is odd about them."""

from importlib.resources import files

import pandas as pd

from tkpr.metrics import measure_names

PAPER = files("tkpr.reporting") / "paper"


def table_names() -> list[str]:
    """The paper's ten result tables, in its order."""
    return [
        "coco_mlc_ranking_resnet101",
        "coco_mlc_sota_resnet101",
        "coco_mlml_ranking_resnet50",
        "coco_mlml_sota_resnet50",
        "voc2007_mlc_ranking_resnet101",
        "voc2007_mlc_sota_resnet101",
        "coco_mlc_sota_swin",
        "nuswide_mlc_sota_swin",
        "voc2012_mlml_ranking_resnet50",
        "voc2012_mlml_sota_resnet50",
    ]


def table_number(name: str) -> str:
    """What the paper calls a table; a table of our own keeps its name.

    >>> table_number("voc2012_mlml_ranking_resnet50"), table_number("xmc_bibtex")
    ('Tab. 13', 'xmc_bibtex')
    """
    names = table_names()
    return f"Tab. {5 + names.index(name)}" if name in names else name


def paper_table(name: str) -> pd.DataFrame:
    """The paper's numbers of a table: a line per method, a column per measure, NaN if not printed.

    A table that the paper does not have, such as ``beyond_coco_mlml``, has no line.

    >>> paper_table("coco_mlc_ranking_resnet101").loc["TKPR_a2", "mAP@3"]
    np.float64(0.752)
    """
    if name not in table_names():
        return pd.DataFrame(columns=measure_names(scopes=["image"]))
    with (PAPER / f"{name}.csv").open() as file:
        printed = pd.read_csv(file, index_col="method")
    return printed.reindex(columns=measure_names(scopes=["image"]))


def paper_digits(name: str) -> dict[str, int]:
    """With how many digits after the point the paper prints each measure of a table.

    >>> paper_digits("coco_mlc_ranking_resnet101")["ranking_loss"]
    3
    """
    if name not in table_names():
        return {}
    with (PAPER / f"{name}.csv").open() as file:
        printed = pd.read_csv(file, index_col="method", dtype=str)
    return {m: int(printed[m].str.partition(".")[2].str.len().max()) for m in printed.columns}


def paper_efficiency() -> pd.DataFrame:
    """The paper's timing table, seconds on an A100: backbone, num_classes, loss and four times."""
    with (PAPER / "efficiency_a100.csv").open() as file:
        return pd.read_csv(file)


def oddities(table: str) -> list[str]:
    """What cannot be right, or is not what it says, in the paper's numbers of a table."""
    with (PAPER / "oddities.csv").open() as file:
        notes = pd.read_csv(file)
    return notes.loc[notes.table == table, "note"].tolist()
