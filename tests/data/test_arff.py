import gzip

import numpy as np
import pytest
from scipy.io import arff as scipy_arff

from tests.data.miniature import TEST, TRAIN, labels, load, make_arff

COLOURS = ["red", "green", "light blue"]


@pytest.fixture
def root(tmp_path):
    return make_arff(tmp_path / "arff")


def rows_by_hand(path):
    """Return the cells of a dense file as text."""
    text = path.read_text().partition("@data\n")[2]
    return [line.replace("'", "").split(",") for line in text.splitlines()]


@pytest.mark.parametrize("sparse", [False, True])
def test_features_and_labels(tmp_path, sparse):
    root = make_arff(tmp_path / "arff", sparse=sparse)
    data = load("arff", root, name="mini")
    dense = make_arff(tmp_path / "dense")
    assert data.class_names == ["happy", "sad song", "calm"]
    for split, part, count in ((data.train, "train", TRAIN), (data.test, "test", TEST)):
        expected = [
            [float(row[0]), float(row[1]), *(row[2] == c for c in COLOURS), row[3] == "yes"]
            for row in rows_by_hand(dense / f"mini-{part}.arff")
        ]
        assert split.inputs.dtype == np.float32
        np.testing.assert_array_equal(split.inputs, np.array(expected, dtype=np.float32))
        np.testing.assert_array_equal(split.targets, labels(count, 3, seed=count))
        assert split.ids[:2] == [f"mini-{part}:0", f"mini-{part}:1"]


def test_nominal_as_index(root):
    data = load("arff", root, name="mini", nominal="index")
    expected = [COLOURS.index(row[2]) for row in rows_by_hand(root / "mini-train.arff")]
    assert data.train.inputs.shape == (TRAIN, 4)
    assert data.train.inputs[:, 2].tolist() == expected
    with pytest.raises(ValueError, match="onehot or index; got 'both'"):
        load("arff", root, name="mini", nominal="both")


def test_excluded_attributes(root):
    data = load("arff", root, name="mini", exclude=["colour", "the width"])
    assert data.train.inputs.shape == (TRAIN, 2)
    with pytest.raises(ValueError, match=r"mini-train.arff has no attribute 'color'"):
        load("arff", root, name="mini", exclude=["color"])


def test_one_file_is_split_by_the_seed(tmp_path):
    root = make_arff(tmp_path / "arff", split=False)
    one, two, other = (load("arff", root, name="mini", seed=seed) for seed in (0, 0, 1))
    assert len(one.test) == round(0.3 * 18)
    assert one.test.ids == two.test.ids != other.test.ids
    assert sorted(one.train.ids + one.test.ids) == sorted(f"mini:{row}" for row in range(18))


def test_packed_file(root):
    for part in ("train", "test"):
        path = root / f"mini-{part}.arff"
        (root / f"mini-{part}-sparse.arff.gz").write_bytes(gzip.compress(path.read_bytes()))
    plain = load("arff", root, name="mini")
    for part in ("train", "test"):
        (root / f"mini-{part}.arff").unlink()
    packed = load("arff", root, name="mini")
    np.testing.assert_array_equal(plain.train.inputs, packed.train.inputs)


HEADER = "@relation r\n@attribute a numeric\n@attribute b {x,'y z'}\n@attribute one {0,1}\n@data\n"


def write(folder, text, labels='<labels><label name="one"/></labels>'):
    (folder / "tiny.xml").write_text(labels)
    (folder / "tiny.arff").write_text(text)
    return folder


def test_quotes_comments_and_empty_sparse_rows(tmp_path):
    text = HEADER + "% note\n1,'y z',1\n -2.5e3 , \"y z\" , 0 \n{}\n{1 'y z', 2 1}\n"
    write(tmp_path, text)
    data = load("arff", tmp_path, name="tiny", test_fraction=0.5)
    rows = {
        name: (features.tolist(), row.tolist())
        for split in (data.train, data.test)
        for name, features, row in zip(split.ids, split.inputs, split.targets, strict=True)
    }
    assert [rows[f"tiny:{number}"] for number in range(4)] == [
        ([1, 1], [1]),
        ([-2500, 1], [0]),
        ([0, 0], [0]),
        ([0, 1], [1]),
    ]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", r"tiny.arff is empty"),
        (HEADER, r"tiny.arff has 3 attributes and 0 rows of data"),
        ("@relation r\n@attribute a string\n", r"tiny.arff, line 2: 'a' has the unknown type 'str"),
        ("@attribute a date 'yyyy'\n", r"line 1: 'a' has the unknown type .date 'yyyy'"),
        ("@attribute a\n", r"line 1: expected '@attribute name type'"),
        ("@attribute a real\n@attribute a real\n", r"line 2: there is already an attribute 'a'"),
        ("@attribute a {x,y,x}\n", r"line 1: a value of 'a' is declared twice"),
        ("1,2,3\n", r"line 1: expected @attribute or @data; got '1,2,3'"),
        (HEADER + "1,x,0\n1,x\n", r"tiny.arff, line 7: 2 values for 3 attributes"),
        (HEADER + "1,x,0,0\n", r"tiny.arff, line 6: 4 values for 3 attributes"),
        (HEADER + "one,x,0\n", r"line 6: 'a' cannot be 'one'"),
        (HEADER + "?,x,0\n", r"line 6: 'a' cannot be a missing value"),
        (HEADER + "nan,x,0\n", r"line 6: 'a' is not a finite number"),
        (HEADER + "1,z,0\n", r"line 6: 'b' cannot be 'z'"),
        (HEADER + "1,x,2\n", r"line 6: 'one' cannot be '2'"),
        (HEADER + "1,'y z,0\n", r"line 6: unclosed quote"),
        (HEADER + "{3 1}\n", r"line 6: expected 'column value' with a column below 3; got '3 1'"),
        (HEADER + "{a 1}\n", r"line 6: expected 'column value'"),
        (HEADER + "{\u0661 1}\n", r"line 6: expected 'column value'"),
        (HEADER + f"{{{'9' * 5000} 1}}\n", r"line 6: expected 'column value'"),
        (HEADER + "{0 1, 0 2}\n", r"line 6: a column occurs twice"),
        (HEADER.replace("{0,1}", "{no,yes}") + "1,x,no\n", r"the label 'one' has the values"),
        (HEADER.replace("{0,1}", "real") + "1,x,0.5\n", r"line 6: the label 'one' must be 0 or 1"),
    ],
)
def test_bad_arff(tmp_path, text, match):
    with pytest.raises(ValueError, match=match):
        load("arff", write(tmp_path, text), name="tiny")


@pytest.mark.parametrize(
    ("labels", "match"),
    [
        (
            "<labels>\n<label name='two'/></labels>",
            r"tiny.xml, line 2: the label 'two' is not an attr",
        ),
        ("<labels></labels>", r"tiny.xml lists no labels"),
        ("<labels>\n<label></labels>", r"tiny.xml, line 2: broken XML"),
        ("<labels><label/></labels>", r"tiny.xml, line 1: each label needs a name"),
    ],
)
def test_bad_xml(tmp_path, labels, match):
    write(tmp_path, HEADER + "1,x,0\n2,x,1\n", labels)
    with pytest.raises(ValueError, match=match):
        load("arff", tmp_path, name="tiny")


def test_train_and_test_must_agree(root):
    path = root / "mini-test.arff"
    path.write_text(path.read_text().replace("'the width'", "depth"))
    with pytest.raises(ValueError, match=r"mini-train.arff and .*mini-test.arff declare different"):
        load("arff", root, name="mini")


def test_missing_files(root, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no folder .*nowhere"):
        load("arff", tmp_path / "nowhere", name="mini")
    with pytest.raises(FileNotFoundError, match=r"no file .*yeast.xml"):
        load("arff", root, name="yeast")
    for path in root.glob("*.arff"):
        path.unlink()
    with pytest.raises(FileNotFoundError, match=r"no file .*mini.arff\[.gz\] or .*mini-sparse"):
        load("arff", root, name="mini")


# rows of train and test, attributes that are no label, labels: the published figures
REAL = {
    "emotions": (391, 202, 72, 6),
    "scene": (1211, 1196, 294, 6),
    "yeast": (1500, 917, 103, 14),
    "birds": (322, 323, 260, 19),
    "flags": (136, 58, 19, 7),
    "cal500": (351, 151, 68, 174),
    "medical": (685, 293, 1449, 45),
    "genbase": (463, 199, 1186, 27),
    "enron": (1191, 511, 1001, 53),
    "Corel5k": (4500, 500, 499, 374),
    "bibtex": (4880, 2515, 1836, 159),
    "delicious": (12920, 3185, 500, 983),
}


LARGE = ("bibtex", "delicious")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in LARGE)) for n in REAL]
)
def test_real_shapes(real_data, name):
    data = load("arff", real_data / "classic-mulan", name=name, nominal="index")
    shape = (len(data.train), len(data.test), data.train.inputs.shape[1], len(data.class_names))
    assert shape == REAL[name]


@pytest.mark.parametrize("name", ["emotions-train", "flags"])
def test_real_dense_values_are_those_scipy_reads(real_data, name):
    folder = real_data / "classic-mulan"
    with gzip.open(folder / f"{name}.arff.gz", "rt") as file:
        table, meta = scipy_arff.loadarff(file)
    data = load(
        "arff", folder, name=name.removesuffix("-train"), nominal="index", test_fraction=0.5
    )
    columns = {}
    for column, kind in zip(meta.names(), meta.types(), strict=True):
        if kind == "numeric":
            columns[column] = table[column]
        else:
            values = meta[column][1]
            columns[column] = np.array([values.index(cell.decode()) for cell in table[column]])
    features = [column for column in meta.names() if column not in data.class_names]
    for split in (data.train, data.test):
        rows = [int(i.partition(":")[2]) for i in split.ids if i.startswith(f"{name}:")]
        if not rows:  # the test file of a set that has one
            continue
        expected = np.stack([columns[column][rows] for column in features], axis=1)
        np.testing.assert_array_equal(split.inputs, expected.astype(np.float32))
        expected = np.stack([columns[column][rows] for column in data.class_names], axis=1)
        np.testing.assert_array_equal(split.targets, expected)
