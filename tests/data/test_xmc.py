"""The text format of the Extreme Classification Repository, read without a dense matrix."""

import gzip
import tracemalloc

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from sklearn.datasets import load_svmlight_file

from tests.data.miniature import TEST, TRAIN, make_xmc
from tkpr.data import transforms
from tkpr.data.assemble import assemble, loader
from tkpr.data.dataset import Split, checksum
from tkpr.data.labels import full
from tkpr.data.sparse import SparseDataset
from tkpr.data.xmc import load_xmc, read_samples, read_split, write_samples
from tkpr.losses import TKPR, LabelLists
from tkpr.metrics import evaluate_top
from tkpr.models.sparse_linear import SparseLinear

PLAIN = {"split": 0, "normalise": False, "a": 0.55, "b": 1.5}
PARTS = {"train": TRAIN, "test": TEST}


def by_scikit_learn(path, folder):
    """The same file without its header, read by another library."""
    lines = path.read_text().splitlines()[1:]
    (folder / "body.svm").write_text("\n".join(lines) + "\n")
    features, labels = load_svmlight_file(
        folder / "body.svm", n_features=9, multilabel=True, zero_based=True
    )
    targets = np.zeros((len(lines), 5), dtype=np.uint8)
    for row, names in enumerate(labels):
        targets[row, [int(name) for name in names]] = 1
    return features.toarray(), targets


@pytest.mark.parametrize("packed", [False, True])
def test_features_and_labels(tmp_path, packed):
    root = make_xmc(tmp_path / "xmc")
    expected = {part: by_scikit_learn(root / f"mini_{part}.txt", tmp_path) for part in PARTS}
    if packed:
        for path in list(root.iterdir()):
            (root / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    data = load_xmc(root, name="mini", **PLAIN)
    assert data.class_names == ["0", "1", "2", "3", "4"]
    for part, count in PARTS.items():
        split = getattr(data, part)
        assert len(split) == count
        assert isinstance(split.inputs, csr_array)
        assert isinstance(split.targets, csr_array)
        assert (split.inputs.dtype, split.targets.dtype) == (np.float32, np.uint8)
        np.testing.assert_allclose(split.inputs.toarray(), expected[part][0], rtol=1e-6)
        np.testing.assert_array_equal(split.targets.toarray(), expected[part][1])
        assert split.ids[1] == f"mini_{part}:1"
    assert not data.train.targets.toarray()[1].any()


@pytest.mark.parametrize("split", [0, 1])
def test_split_files(tmp_path, split):
    root = make_xmc(tmp_path / "xmc", split_files=True)
    data = load_xmc(root, name="mini", **PLAIN | {"split": split})
    features, targets = by_scikit_learn(root / "mini_data.txt", tmp_path)
    for part, found in (("tr", data.train), ("tst", data.test)):
        lines = (root / f"mini_{part}Split.txt").read_text().splitlines()
        rows = [int(line.split()[split]) - 1 for line in lines]
        np.testing.assert_allclose(found.inputs.toarray(), features[rows], rtol=1e-6)
        np.testing.assert_array_equal(found.targets.toarray(), targets[rows])
        assert found.ids == [f"mini_data:{row}" for row in rows]


GOOD = "2 4 3\n0,2 1:0.5 3:2\n1 0:1\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", " is empty"),
        ("2 4\n0 1:1\n1 0:1\n", r", line 1: expected the numbers of samples, features and labels"),
        ("2 4 x\n0 1:1\n1 0:1\n", r", line 1: expected the numbers .* got '2 4 x'"),
        ("0 4 3\n", r", line 1: expected the numbers"),
        (f"1 4 {10**17}\n0 1:1\n", r", line 1: at most 100,000,000 features or labels .* got 1000"),
        (f"1 {10**17} 3\n0 1:1\n", r", line 1: at most 100,000,000 features or labels .* got 1000"),
        (GOOD + "2 1:1\n", r", line 4: more samples than the 2 that the first line announces"),
        (GOOD.replace("2 4 3", "3 4 3"), r", line 3: the file ends after 2 of the 3 samples"),
        (GOOD.replace("0,2", "0,3"), r", line 2: labels must be from 0 to 2; got 3"),
        (GOOD.replace("0,2", "0,-2"), r", line 2: labels must be from 0 to 2; got -2"),
        (GOOD.replace(" 0:1", " 4:1"), r", line 3: features must be from 0 to 3; got 4"),
        (GOOD.replace("0,2", "2,2"), r", line 2: label 2 stands there twice"),
        (GOOD.replace("3:2", "1:2"), r", line 2: feature 1 stands there twice"),
        ("2 4 3\n\n1 0:1\n", r", line 2: it is empty; a sample without labels starts with a sp"),
        ("2 4 3\n \n1 0:1\n", r", line 2: it is empty"),
        (GOOD.replace("0,2", "0,,2"), r", line 2: expected labels as 3,17; got ''"),
        (GOOD.replace("0,2", "0,b"), r", line 2: expected labels as 3,17; got 'b'"),
        (GOOD.replace("0,2", "0,1_0"), r", line 2: expected labels as 3,17; got '1_0'"),
        (GOOD.replace("0,2", "٢"), r", line 2: expected labels as 3,17"),
        (GOOD.replace("3:2", "3:"), r", line 2: expected a number after 3:; got ''"),
        (GOOD.replace("3:2", "3"), r", line 2: expected a number after 3:; got ''"),
        (GOOD.replace("3:2", "x:2"), r", line 2: expected a feature as id:value; got 'x:2'"),
        (GOOD.replace("3:2", "3:x"), r", line 2: expected a number after 3:; got 'x'"),
        (GOOD.replace("3:2", "3:2:1"), r", line 2: expected a number after 3:; got '2:1'"),
        (GOOD.replace("3:2", "2 3:"), r", line 2: expected a number after 2:; got ''"),
        (GOOD.replace("3:2", "2:3:1 1"), r", line 2: expected a number after 2:; got '3:1'"),
        (GOOD.replace("3:2", "3: 2"), r", line 2: expected a number after 3:; got ''"),
        (GOOD.replace("3:2", "3:nan"), r", line 2: feature 3 must be a finite number"),
        (GOOD.replace("3:2", "3:1e60"), r", line 2: feature 3 must be a finite number"),
        (GOOD.replace("3:2", f"{10**30}:2"), r", line 2: expected a feature as id:value"),
        ("2 4 3\n0:1 1:1\n1 0:1\n", r", line 2: expected labels as 3,17; got '0:1'"),
    ],
)
def test_bad_files_get_file_and_line(tmp_path, text, message):
    path = tmp_path / "bad_train.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"^{path}{message}") as caught:
        read_samples(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [GOOD, GOOD + "\n\n", GOOD.replace("\n", "\r\n"), GOOD.rstrip(), GOOD.replace(":2", ":2 ")],
)
def test_harmless_variants_are_the_same(tmp_path, text):
    path = tmp_path / "good_train.txt"
    path.write_bytes(text.encode())
    split = read_samples(path)
    assert split.inputs.toarray().tolist() == [[0, 0.5, 0, 2], [1, 0, 0, 0]]
    assert split.targets.toarray().tolist() == [[1, 0, 1], [0, 1, 0]]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("trSplit", "1 2\n3\n", r", line 2: no split 1; the line has 1, from 0"),
        ("trSplit", "1 2\n\n", r", line 2: no split 1; the line has 0, from 0"),
        ("trSplit", "1 0\n", r", line 1: expected the number of a sample from 1 to 9; got '0'"),
        ("trSplit", "1 99\n", r", line 1: expected the number of a sample from 1 to 9; got '99'"),
        ("trSplit", "1 2\n2 2\n", r", line 2: sample 2 stands there twice"),
        ("tstSplit", "", " is empty"),
    ],
)
def test_bad_split_files(tmp_path, name, text, message):
    root = make_xmc(tmp_path, split_files=True)
    (root / f"mini_{name}.txt").write_text(text)
    number = TRAIN + TEST
    with pytest.raises(ValueError, match=message.replace("to 9", f"to {number}")):
        load_xmc(root, name="mini", **PLAIN | {"split": 1})


def test_a_sample_twice_is_found_in_a_long_split_file(tmp_path):
    """In a time that does not grow with the square of its length."""
    count = 200_000
    (tmp_path / "long.txt").write_text("".join(f"{row}\n" for row in [*range(1, count), 7]))
    with pytest.raises(ValueError, match=rf"long\.txt, line {count}: sample 7 stands there twice"):
        read_split(tmp_path / "long.txt", 0, count)


@pytest.mark.parametrize("missing", ["train", "test"])
def test_one_part_without_the_other_is_named(tmp_path, missing):
    root = make_xmc(tmp_path)
    make_xmc(tmp_path, split_files=True)  # the other form is not taken instead
    (root / f"mini_{missing}.txt").unlink()
    with pytest.raises(FileNotFoundError, match=rf"there is no file .*mini_{missing}\.txt"):
        load_xmc(root, name="mini", **PLAIN)


def test_features_of_length_one(tmp_path):
    root = make_xmc(tmp_path)
    raw, unit = (
        load_xmc(root, name="mini", **PLAIN | {"normalise": choice}).test.inputs.toarray()
        for choice in (False, True)
    )
    np.testing.assert_allclose(unit, raw / np.linalg.norm(raw, axis=1, keepdims=True), rtol=1e-6)


def test_what_is_written_is_read(tmp_path):
    split = load_xmc(make_xmc(tmp_path), name="mini", **PLAIN).train
    dense = Split(split.inputs.toarray(), split.targets.toarray(), split.ids)
    for number, part in enumerate((split, dense)):
        write_samples(tmp_path / f"{number}.txt", part)
        again = read_samples(tmp_path / f"{number}.txt")
        assert (again.inputs != split.inputs).nnz == 0
        assert checksum(again.targets) == checksum(split.targets)


def test_a_sample_in_both_parts_is_refused(tmp_path):
    root = make_xmc(tmp_path, split_files=True)
    (root / "mini_trSplit.txt").write_text("1\n2\n")
    (root / "mini_tstSplit.txt").write_text("3\n2\n")
    with pytest.raises(ValueError, match=r"tstSplit.txt, line 2: sample 2 is in .*trSplit.txt too"):
        load_xmc(root, name="mini", **PLAIN)


def test_parts_of_different_sizes_are_refused(tmp_path):
    root = make_xmc(tmp_path)
    path = root / "mini_test.txt"
    for size, what in (("8 5", "8 features"), ("9 4", "4 labels")):
        body = "".join(f"0 {row}:1\n" for row in range(TEST))
        path.write_text(f"{TEST} {size}\n{body}")
        with pytest.raises(ValueError, match=rf"mini_test.txt, line 1: {what}, .*train.txt has"):
            load_xmc(root, name="mini", **PLAIN)
    with pytest.raises(FileNotFoundError, match=r"there is no file .*other_data.txt"):
        load_xmc(root, name="other", **PLAIN)


def test_batches(tmp_path):
    """Bags and lists of a batch are the rows of the matrices, also for rows without labels."""
    split = load_xmc(make_xmc(tmp_path), name="mini", **PLAIN).train
    rows = [3, 1, 0]
    bags, lists, index = SparseDataset(split).__getitems__(rows)
    assert index.tolist() == rows
    assert isinstance(lists, LabelLists)
    assert torch.equal(lists.dense(5), torch.from_numpy(split.targets.toarray()[rows] == 1))
    for hidden in (None, 4):
        model = SparseLinear(9, 5, hidden=hidden, head="dense")
        dense = torch.from_numpy(split.inputs.toarray()[rows]) @ model.weight
        expected = model.output(dense) + model.bias
        torch.testing.assert_close(model(bags), expected)
        TKPR(k=3)(model(bags), lists).backward()
        assert model.weight.grad.any()


def test_a_row_without_features_has_the_bias_as_logits():
    split = Split(
        csr_array(np.zeros((2, 3), dtype=np.float32)),
        csr_array(np.eye(2, 4, dtype=np.uint8)),
        ["a", "b"],
    )
    bags, _, _ = SparseDataset(split).__getitems__([0, 1])
    model = SparseLinear(3, 4, hidden=None, head="dense")
    assert torch.equal(model(bags), model.bias.expand(2, 4))


def test_checksums_tell_sparse_labels_apart(tmp_path):
    targets = load_xmc(make_xmc(tmp_path), name="mini", **PLAIN).train.targets
    assert checksum(targets) == checksum(targets.copy())
    assert checksum(targets) != checksum(targets[::-1])
    assert checksum(targets) != checksum(targets[:, ::-1].tocsr())


def write_large(path, samples, classes, present=3):
    """Samples of a few labels and twenty features."""
    generator = np.random.RandomState(0)
    features = " ".join(f"{at}:1" for at in range(0, 50000, 2500))
    with path.open("w") as file:
        file.write(f"{samples} 50000 {classes}\n")
        for _ in range(samples):
            drawn = generator.randint(classes // present, size=present)
            labels = ",".join(str(present * at + place) for place, at in enumerate(drawn))
            file.write(f"{labels} {features}\n")


def peak_of(function, *arguments, **options):
    tracemalloc.start()
    try:
        result = function(*arguments, **options)
        return result, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_grows_with_the_labels_present(tmp_path):
    """2,000 samples of 3 labels out of 100,000: a dense matrix would take 200 MB."""
    path = tmp_path / "large_train.txt"
    write_large(path, 2000, 100000)
    split, peak = peak_of(read_samples, path)
    assert split.targets.shape == (2000, 100000)
    assert split.targets.nnz == 6000
    assert peak < 2**23


def test_a_run_holds_no_matrix_of_samples_and_classes(tmp_path):
    """From the files to batches and measures: 100 times the classes, the same memory per sample."""
    peaks = []
    for classes in (1000, 100000):
        for part, samples in (("train", 2000), ("test", 500)):
            write_large(tmp_path / f"large_{part}.txt", samples, classes)

        def through():
            data = load_xmc(tmp_path, name="large", **PLAIN)
            ready = assemble(data, labels=full, pipeline=transforms.none(), holdout=0.2)
            for part in (ready.train, ready.test):
                for _ in loader(part, batch_size=100):
                    pass
            best = torch.zeros(len(ready.test), 3, dtype=torch.long) + torch.arange(3)
            weights = ready.inverse_propensities
            return evaluate_top(best, ready.test.targets, [1, 3], inverse_propensities=weights)

        measured, peak = peak_of(through)
        assert 0 <= measured["PSP@3"] <= 1
        peaks.append(peak)
    # what is kept per class: its name, its number of samples, its propensity
    assert peaks[1] - peaks[0] < 500 * 99000
    assert peaks[1] < 2**26  # the dense matrix of the training samples alone has 160 MB
