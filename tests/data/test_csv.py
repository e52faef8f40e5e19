import shutil

import numpy as np
import pytest

from tests.data.miniature import TEST, TRAIN, labels, load, make_csv

CLASSES = ["cat", "dog", "old car", "tree"]


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return make_csv(tmp_path_factory.mktemp("csv"))


@pytest.fixture
def root(original, tmp_path):
    return shutil.copytree(original, tmp_path / "csv")


def write(root, text):
    (root / "labels.csv").write_text(text)
    return root


@pytest.mark.parametrize("per_class", [False, True])
def test_names_in_one_column_or_a_column_per_class(tmp_path, per_class):
    root = make_csv(tmp_path / "csv", per_class=per_class)
    data = load("csv", root)
    assert data.class_names == CLASSES
    targets = labels(TRAIN + TEST, 4, seed=0)
    np.testing.assert_array_equal(data.train.targets, targets[:TRAIN])
    np.testing.assert_array_equal(data.test.targets, targets[TRAIN:])
    assert data.train.ids[0] == "photos/00.jpg"
    assert data.train.inputs[0] == root / "photos" / "00.jpg"
    assert data.train.inputs[0].is_file()


def test_seeded_split_where_there_is_no_split_column(tmp_path):
    root = make_csv(tmp_path / "csv", split=False)
    one, two = load("csv", root, test_fraction=0.25), load("csv", root, test_fraction=0.25)
    assert (one.train.ids, one.test.ids) == (two.train.ids, two.test.ids)
    assert len(one.test) == round(0.25 * 18)
    assert len(set(one.train.ids) | set(one.test.ids)) == 18
    assert one.train.ids == sorted(one.train.ids)
    other = load("csv", root, test_fraction=0.25, seed=1)
    assert other.test.ids != one.test.ids
    for row, image in zip(one.test.targets, one.test.ids, strict=True):
        np.testing.assert_array_equal(row, labels(18, 4, seed=0)[int(image[7:9])])


def test_columns_by_other_names(root):
    write(root, "tags,file,part\ncat|dog,photos/01.jpg,val\n,photos/02.jpg,train\n")
    data = load(
        "csv",
        root,
        image_column="file",
        label_column="tags",
        split_column="part",
        test_name="val",
        separator="|",
        class_names=["dog", "cow", "cat"],
    )
    assert data.class_names == ["dog", "cow", "cat"]
    assert data.test.targets.tolist() == [[1, 0, 1]]
    assert data.train.targets.tolist() == [[0, 0, 0]]  # an empty cell: no label


def test_lists_quotes_and_image_folder(root):
    write(root, "image,labels,split\n01.jpg,\"['cat', 'dog']\",train\n02.jpg,\"cat, wild\",test\n")
    data = load("csv", root, image_folder="photos", class_names=["cat", "cat, wild", "dog"])
    assert data.test.targets.tolist() == [[0, 1, 0]]
    assert data.train.inputs == [root / "photos" / "01.jpg"]


def test_class_columns_can_be_chosen(root):
    write(root, "image,cat,note,dog,split\nphotos/01.jpg,1,x,0,train\nphotos/02.jpg,0,y,1,test\n")
    assert load("csv", root, class_names=["dog", "cat"]).train.targets.tolist() == [[0, 1]]
    with pytest.raises(
        ValueError, match=r"line 2: the column 'note' must hold 0 or 1, or .*; got 'x'"
    ):
        load("csv", root)


HEADER = "image,labels,split\n"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", r"labels.csv is empty"),
        (HEADER, r"labels.csv has a header but no rows"),
        ("path,labels\na.jpg,cat\n", r"line 1: there is no column 'image'; .* 'path', 'labels'"),
        ("image,cat,cat\na.jpg,1,0\n", r"line 1: every column needs a name of its own"),
        ("image,split\na.jpg,train\n", r"line 1: there is neither a label column nor a column"),
        (HEADER + "\na.jpg,cat,train,x\n", r"line 3: 4 values for 3 columns"),
        (HEADER + "a.jpg,cat,train\na.jpg,dog,test\n", r"line 3: a.jpg is already in line 2"),
        (HEADER + ",cat,train\n", r"line 2: the column 'image' is empty"),
        (HEADER + "a.jpg,cat,dev\n", r"line 2: the split must be train or test; got 'dev'"),
        (HEADER + "a.jpg,cat,train\n", r"no row has the split test"),
        (HEADER + "/etc/a.jpg,cat,train\n", r"line 2: '/etc/a.jpg' leads out of"),
        (HEADER + "C:\\a.jpg,cat,train\n", r"line 2: 'C:\\\\a.jpg' leads out of"),
        (HEADER + "x/../../a.jpg,cat,train\n", r"line 2: 'x/../../a.jpg' leads out of"),
        (HEADER + 'a.jpg,"cat,train\n', r"labels.csv, line 2: broken CSV"),
        (HEADER + 'a.jpg,"ca\nt",train\n', r"line 3: broken CSV: a quoted value spans several"),
        (HEADER + "a.jpg,[cat,train\n", r"line 2: '\[cat' is not a list of names"),
        (HEADER + "a.jpg,[1],train\n", r"line 2: '\[1\]' is not a list of names"),
        (HEADER + "a.jpg,\"['a'],'b'\",train\n", r"line 2: .* is not a list of names"),
        ("image,cat\na.jpg,1\nb.jpg,yes\n", r"line 3: the column 'cat' must hold 0 or 1"),
    ],
)
def test_bad_file(root, text, match):
    with pytest.raises(ValueError, match=match):
        load("csv", write(root, text), check_files=False)


def test_unknown_class(original):
    with pytest.raises(ValueError, match=r"labels.csv, line \d+: unknown class 'old car'"):
        load("csv", original, class_names=["cat", "dog", "tree"])


def test_named_columns_must_exist(original):
    for option in ("label_column", "split_column"):
        with pytest.raises(ValueError, match=r"line 1: there is no column 'which'"):
            load("csv", original, **{option: "which"})


def test_missing_files(root, tmp_path):
    (root / "photos" / "05.jpg").unlink()
    with pytest.raises(FileNotFoundError, match=r"1 of 18 image files .* the first is .*05.jpg"):
        load("csv", root)
    with pytest.raises(FileNotFoundError, match=r"no file .*other.csv\[.gz\]"):
        load("csv", root, file="other.csv")
    with pytest.raises(FileNotFoundError, match=r"no folder .*nowhere"):
        load("csv", tmp_path / "nowhere")


def test_not_text(root):
    (root / "labels.csv").write_bytes(b"image,labels\n\xff\xfe,cat\n")
    with pytest.raises(ValueError, match=r"labels.csv cannot be read: 'utf-8' codec"):
        load("csv", root)


def test_outside_is_an_option(root, tmp_path):
    shutil.copy(root / "photos" / "01.jpg", tmp_path / "a.jpg")
    write(root, HEADER + f"{tmp_path}/a.jpg,cat,train\n../a.jpg,cat,test\n")
    data = load("csv", root, allow_outside=True)
    assert data.train.inputs[0].samefile(data.test.inputs[0])


def test_relative_root_starts_where_the_user_started(original, monkeypatch):
    monkeypatch.chdir(original.parent)
    assert load("csv", original.name).train.inputs[0] == original / "photos" / "00.jpg"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("a.jpg,,train\nb.jpg,,test\n", r"labels.csv: not one row has a label"),
        ("a.jpg,Cat,train\nb.jpg,cat,test\n", r"the labels 'Cat' and 'cat' differ only in case"),
        ("a.jpg,caf\u00e9,train\nb.jpg,cafe\u0301,test\n", r"differ only in case or invisible"),
        ("a.jpg,cat\u200b,train\nb.jpg,cat,test\n", r"'cat' and 'cat\\u200b' differ only"),
        ('a.jpg,"cat,dog",train\nb.jpg,dog,test\n', r"'cat,dog' seems .* dataset.separator=','"),
        ("a.jpg,cat|dog,train\nb.jpg,dog,test\n", r"'cat\|dog' seems .* dataset.separator='\|'"),
        ("a.jpg,ca\0t,train\nb.jpg,cat,test\n", r"line 2: a value contains a zero byte"),
        ("a.jpg,cat,train\n./a.jpg,dog,test\n", r"line 3: a.jpg is already in line 2"),
        ("x/a.jpg,cat,train\nx//./a.jpg,dog,test\n", r"line 3: x/a.jpg is already in line 2"),
    ],
)
def test_slips_are_refused(root, text, match):
    """Each of them would otherwise train on labels or splits that nobody meant."""
    write(root, HEADER + text)
    with pytest.raises(ValueError, match=match):
        load("csv", root, check_files=False)


def test_unusual_names_are_accepted_when_listed(root):
    write(root, HEADER + 'a.jpg,"cat,dog;Cat",train\nb.jpg,cat,test\n')
    data = load("csv", root, check_files=False, class_names=["cat", "Cat", "cat,dog"])
    assert data.train.targets.tolist() == [[0, 1, 1]]


@pytest.mark.parametrize("text", ["image;labels;split\na;b;train\n", "image\tlabels\na\tb\n"])
def test_other_separators_of_columns(root, text):
    write(root, text)
    with pytest.raises(ValueError, match=r"no column 'image'.*separated by commas"):
        load("csv", root)


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_other_encodings(root, encoding):
    (root / "labels.csv").write_bytes((HEADER + "a.jpg,\u00e4,train\n").encode(encoding))
    with pytest.raises(ValueError, match=r"labels.csv cannot be read: .*save it as UTF-8"):
        load("csv", root)


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_other_line_ends_and_a_byte_order_mark(root, end):
    text = (HEADER + "a.jpg,cat;dog,train\nb.jpg,dog,test\n").replace("\n", end)
    (root / "labels.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    data = load("csv", root, check_files=False)
    assert (data.train.targets.tolist(), data.test.targets.tolist()) == ([[1, 1]], [[0, 1]])


def test_windows_paths_are_explained(root):
    write(root, HEADER + "photos\\01.jpg,cat,train\nphotos\\02.jpg,cat,test\n")
    with pytest.raises(FileNotFoundError, match=r"2 of 2 .*write paths with / instead of"):
        load("csv", root)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"separator": ""}, r"dataset.separator must be a text"),
        ({"separator": None}, r"dataset.separator must be a text"),
        ({"test_name": "train"}, r"dataset.test_name must not be train"),
        ({"class_names": "cat"}, r"dataset.class_names must be a list of texts; got 'cat'"),
        ({"class_names": [1, 2]}, r"dataset.class_names must be a list of texts"),
        ({"class_names": ["cat", "dog", "tree", "old car", "cat"]}, r"two classes .* 'cat'"),
        ({"label_column": "image"}, r"three different columns"),
        ({"split_column": "labels"}, r"three different columns"),
        ({"image_column": "split"}, r"three different columns"),
    ],
)
def test_bad_options(root, options, match):
    with pytest.raises(ValueError, match=match):
        load("csv", root, **options)


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 2, "half", None, float("nan")])
def test_bad_fractions(root, fraction):
    write(root, "image,labels\na.jpg,cat\nb.jpg,dog\n")
    with pytest.raises(ValueError, match=r"must be a number between 0 and 1"):
        load("csv", root, check_files=False, test_fraction=fraction)


@pytest.mark.parametrize("seed", [-1, 1.5, "one", None, 2**32])
def test_bad_seeds(root, seed):
    write(root, "image,labels\na.jpg,cat\nb.jpg,dog\n")
    with pytest.raises(ValueError, match=r"seed of a split must be an integer"):
        load("csv", root, check_files=False, seed=seed)
