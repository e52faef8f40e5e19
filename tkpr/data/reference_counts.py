"""Known counts of the standard data sets, to tell whether a folder on disk is complete."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

COCO = "tkpr.data.coco.load_coco"
VOC = "tkpr.data.voc.load_voc"
NUSWIDE = "tkpr.data.nuswide.load_nuswide"
ARFF = "tkpr.data.arff.load_arff"


@dataclass(frozen=True)
class Expected:
    """One split: the checksum of its label matrix; how many samples have 0, 1, 2, ... labels."""

    checksum: str
    counts: str

    @property
    def histogram(self) -> tuple[int, ...]:
        """The counts as numbers."""
        return tuple(map(int, self.counts.split()))

    @property
    def images(self) -> int:
        """The number of samples."""
        return sum(self.histogram)

    @property
    def labels(self) -> int:
        """The number of labels of all samples."""
        return sum(number * count for number, count in enumerate(self.histogram))


@dataclass(frozen=True)
class Known:
    """A data set as a loader returns it.

    Attributes:
        target: the loader.
        options: the arguments of the loader on which the counts depend.
        train: what the training split holds.
        test: what the test split holds.
        order: the arguments on which, besides, the order of rows and columns depends; with others
            the checksum does not apply.
    """

    target: str
    options: Mapping[str, Any]
    train: Expected
    test: Expected
    order: Mapping[str, Any] = field(default_factory=dict)


def reference_counts(target: str, options: Mapping[str, Any]) -> Known | None:
    """Return what is known of the data set that ``target`` reads with ``options``, if anything.

    >>> known = reference_counts("tkpr.data.voc.load_voc", {"year": 2012, "difficult": "negative"})
    >>> known.train.images, known.test.images
    (5717, 5823)
    >>> reference_counts("tkpr.data.csv.load_csv", {"root": "mine"}) is None
    True
    """
    for known in KNOWN:
        if known.target == target and known.options.items() <= options.items():
            return known
    return None


KNOWN = [
    Known(
        COCO,
        {"year": 2014, "drop_unlabelled": True},
        Expected(
            "79f34aba2808a9a1",
            "0 16813 25053 16837 9830 5910 3364 1988 1076 598 315 164 75 36 12 7 2 0 1",
        ),
        Expected(
            "4f2b4d1679412335", "0 8398 12327 8312 4734 2717 1630 922 531 286 146 71 42 14 5 2"
        ),
        order={"order": "id_string"},
    ),
    Known(
        VOC,
        {"year": 2007, "difficult": "negative"},
        Expected("7f88081287831f2f", "0 3103 1568 301 33 4 2"),
        Expected("5378406488f0dbbc", "0 3192 1497 227 34 2"),
        order={"class_order": "alphabetical"},
    ),
    Known(
        VOC,
        {"year": 2007, "difficult": "positive"},
        Expected("d992cdac4182240d", "0 2808 1644 443 98 13 4 1"),
        Expected("bd1f8548a3629af7", "0 2841 1636 391 75 8 1"),
        order={"class_order": "alphabetical"},
    ),
    Known(
        VOC,
        {"year": 2007, "difficult": "ignore_image"},
        Expected("1c82957bcd99bf07", "0 2808 1372 254 27 3 2"),
        Expected("88d4734f3187a1d7", "0 2841 1328 200 30 2"),
        order={"class_order": "alphabetical"},
    ),
    Known(
        VOC,
        {"year": 2012, "difficult": "negative"},
        Expected("1b18d2fed8a0e6ad", "0 3730 1475 414 81 17"),
        Expected("f6bb0f176211694b", "0 3837 1532 378 64 12"),
        order={"class_order": "alphabetical"},
    ),
    Known(
        VOC,
        {"year": 2012, "difficult": "positive"},
        Expected("d75f99f91762c754", "0 3437 1600 530 117 30 3"),
        Expected("9884e81a93f1a36d", "0 3539 1677 484 105 17 1"),
        order={"class_order": "alphabetical"},
    ),
    Known(
        VOC,
        {"year": 2012, "difficult": "ignore_image"},
        Expected("86f6a7ad02c10035", "0 3437 1337 371 68 16"),
        Expected("fa9a6782c08b3941", "0 3539 1417 340 59 12"),
        order={"class_order": "alphabetical"},
    ),
    Known(
        NUSWIDE,
        {
            "version": "lists",
            "train_list": "nus_train_full.txt",
            "test_list": "nus_val.txt",
            "index_order": "published",
        },
        Expected("ab7618b32fa8aa5a", "0 45133 29998 18740 11716 6912 3801 1870 700 184 45 3 1"),
        Expected("57d7bc574553d6cf", "0 19122 12761 8053 4957 2998 1654 774 292 88 18 3"),
    ),
    Known(
        ARFF,
        {"name": "emotions"},
        Expected("205ea7e99c41cf2e", "0 131 202 58"),
        Expected("ced5836163fe6439", "0 47 113 42"),
    ),
    Known(
        ARFF,
        {"name": "scene"},
        Expected("b78e6424cab20561", "0 1137 73 1"),
        Expected("16cda0077876b091", "0 1093 103"),
    ),
    Known(
        ARFF,
        {"name": "yeast"},
        Expected("af09458394d91aaf", "0 24 254 68 684 114 248 64 36 5 2 1"),
        Expected("f9c837b592817876", "0 8 158 44 418 59 167 38 19 4 2"),
    ),
    Known(
        ARFF,
        {"name": "birds"},
        Expected("5a88bf7bae15f1a2", "143 82 50 33 11 2 1"),
        Expected("21da74b10d43d81c", "151 80 51 34 6 1"),
    ),
    Known(
        ARFF,
        {"name": "Corel5k"},
        Expected("f7d071633658daf2", "0 25 340 1414 2705 16"),
        Expected("f11140c591be719e", "0 7 36 145 311 1"),
    ),
    Known(
        ARFF,
        {"name": "bibtex"},
        Expected(
            "c71e048f78e53f24",
            "0 1849 1230 885 427 256 120 58 27 7 5 5 7 2 0 0 1 0 0 0 0 0 0 0 0 0 0 0 1",
        ),
        Expected("07ffed26401560b8", "0 962 610 424 242 143 59 28 19 11 2 7 4 1 0 0 1 2"),
    ),
    Known(
        ARFF,
        {"name": "delicious"},
        Expected(
            "007a4911d41d8a14",
            "10 15 23 52 72 120 127 123 172 183 221 216 239 260 338 371 532 647 749 928 1169 1273 "
            "1428 1463 1322 867",
        ),
        Expected(
            "fa9b646e3fc34743",
            "4 6 7 14 27 27 33 36 31 48 57 55 56 86 91 90 143 152 193 186 277 316 362 341 333 214",
        ),
    ),
]
