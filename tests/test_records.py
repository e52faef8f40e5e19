"""Records carry a checksum, and files of different runs are told apart."""

import json

import pytest

from tkpr import records

ONE, OTHER = "1" * 32, "2" * 32


def finished(folder, run=ONE, **files):
    """A folder with the records of a finished run and other files of this content."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.csv").write_text(content)
    sums = {f"{name}.csv": records.file_checksum(folder / f"{name}.csv") for name in files}
    records.write(folder / "run.json", {"run": run})
    records.write(folder / "metrics.json", {"run": run, "files": sums})
    return folder


def test_the_order_of_keys_does_not_matter(tmp_path):
    """A tool that sorts JSON does no damage; one that changes a number does."""
    file = tmp_path / "record.json"
    records.write(file, {"b": 1, "a": {"d": 2, "c": 3}})
    file.write_text(json.dumps(json.loads(file.read_text()), sort_keys=True))
    assert records.read(file) == {"a": {"c": 3, "d": 2}, "b": 1}


@pytest.mark.parametrize("text", ["[]", "{}", "", "{", '{"epochs": 3}', "[" * 100_000])
def test_other_files_are_not_records(text, tmp_path):
    file = tmp_path / "record.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"record\.json is damaged \(.*\): restore it, or delete"):
        records.read(file)


def test_a_folder_without_a_run_has_no_id(tmp_path):
    assert records.run_id(tmp_path) is None
    assert records.run_id(finished(tmp_path / "run")) == ONE


def test_results_of_another_run_are_refused(tmp_path):
    finished(tmp_path)
    assert records.read_results(tmp_path)["run"] == ONE
    records.write(tmp_path / "metrics.json", {"run": OTHER})
    with pytest.raises(ValueError, match=r"metrics\.json and run\.json belong to different runs"):
        records.read_results(tmp_path)
    (tmp_path / "run.json").unlink()
    assert records.read_results(tmp_path)["run"] == OTHER


def test_a_file_is_compared_with_the_results_that_name_it(tmp_path):
    file = finished(tmp_path, table="one") / "table.csv"
    (tmp_path / "notes.csv").write_text("mine")
    records.check_file(file)
    records.check_file(tmp_path / "notes.csv")
    file.write_text("two")
    with pytest.raises(ValueError, match=r"table\.csv is damaged or belongs to another run"):
        records.check_file(file)
    (tmp_path / "metrics.json").unlink()
    records.check_file(file)


@pytest.mark.parametrize(
    ("name", "run", "renewed"),
    [("table.csv", ONE, True), ("table.csv", OTHER, False), ("notes.csv", ONE, False)],
)
def test_only_a_file_of_the_run_gets_a_new_checksum(name, run, renewed, tmp_path):
    finished(tmp_path, table="one")
    before = records.read_results(tmp_path)["files"]
    records.replace_file(tmp_path / name, b"two", run)
    assert (tmp_path / name).read_text() == "two"
    new = {name: records.file_checksum(tmp_path / name)} if renewed else {}
    assert records.read_results(tmp_path)["files"] == before | new


def test_a_run_that_is_not_finished_gets_no_checksum(tmp_path):
    records.replace_file(tmp_path / "table.csv", b"one", ONE)
    assert [file.name for file in tmp_path.iterdir()] == ["table.csv"]


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_a_run_is_whole_wherever_the_replacing_of_a_file_ends(writes, tmp_path, monkeypatch):
    """Killed before the first, second or third write, it can be read and replaced again."""
    file = finished(tmp_path, table="one") / "table.csv"
    left, write = [None] * writes, records.atomic.write

    def killed(path, content):
        if not left:
            raise KeyboardInterrupt
        left.pop()
        write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(records.atomic, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            records.replace_file(file, b"two", ONE)
    assert file.read_text() == ("two" if writes == 2 else "one")
    records.check_file(file)
    records.replace_file(file, b"three", ONE)
    records.check_file(file)
    file.write_text("two")
    with pytest.raises(ValueError, match="is damaged or belongs to another run"):
        records.check_file(file)


def test_the_history_is_read_as_numbers(tmp_path):
    finished(tmp_path, metrics=f"epoch,run,mAP@3\n1,{ONE},0.25\n2,{ONE},0.5\n")
    assert records.read_history(tmp_path) == [
        {"epoch": 1, "mAP@3": 0.25},
        {"epoch": 2, "mAP@3": 0.5},
    ]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("", "is empty"),
        (f"epoch,run\n1,{ONE}\n2,{OTHER}\n", "belong to different runs"),
        (f"epoch,run\nfirst,{ONE}\n", r"is damaged \(could not convert"),
        (f'epoch,run\n1,"{ONE}\n', r"is damaged \(unexpected end of data"),
        (f"epoch,run,loss\n1,{ONE}\n", r"is damaged \(float"),
    ],
)
def test_a_history_that_is_not_one_is_named(text, answer, tmp_path):
    finished(tmp_path, metrics=text)
    with pytest.raises(ValueError, match=rf"metrics\.csv.* {answer}"):
        records.read_history(tmp_path)


def test_a_folder_without_a_history_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"metrics\.csv: .* is not the folder of a run"):
        records.read_history(tmp_path)
