"""An override of evaluate.py changes what it names and nothing else, or is refused."""

import runpy
from pathlib import Path

import pytest

from tests.data.miniature import make_csv
from tests.robustness.test_untrusted import write_model
from tests.short_runs import CONFIGS, SMALL, train
from tkpr.config import flat
from tkpr.models.tiny import tiny
from tkpr.runs.evaluation import evaluation_data, reconfigure
from tkpr.runs.run import load_data
from tkpr.runs.saved_model import load_model

ROOT = Path(__file__).parents[2]
WORDS = [
    *(word for word in SMALL if not word.startswith("dataset.")),
    *("transform=spml", "split.holdout=0.25", "split.limit=16", "trainer.epochs=1", "loss=bce"),
    *("trainer.warmup_epochs=0", "trainer.ks=[1,2]", "trainer.monitor=mAP@1", "model=tiny"),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model trained on photographs with transform=spml; a quarter was held out."""
    folder = tmp_path_factory.mktemp("run")
    make_csv(folder / "data")
    train("dataset=csv", f"dataset.root={folder / 'data'}", *WORDS, folder=folder / "run")
    return load_model(folder / "run")


def changed(trained, *words):
    """The settings that overrides change, with their new values."""
    before = flat(trained.cfg)
    after = flat(reconfigure(trained.cfg, CONFIGS, list(words)))
    return {k: after.get(k) for k in {*before, *after} if before.get(k) != after.get(k)}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["transform.size=32"], {}),
        (["transform.size=24"], {"transform.size": 24}),
        (["split.limit=8"], {"split.limit": 8}),
        (["dataset.root=/X"], {"dataset.root": "/X"}),
        (["cache_dir=/tmp/mine"], {"cache_dir": "/tmp/mine"}),
        (["+dataset.file=other.csv"], {"dataset.file": "other.csv"}),
        ([], {}),
    ],
)
def test_an_override_changes_what_it_names(words, expected, trained):
    assert changed(trained, *words) == expected


def test_another_data_set_is_taken_whole_and_leaves_the_transform(trained):
    found = changed(trained, "dataset=mosaic", "dataset.seed=3")
    assert found["dataset._target_"] == "tkpr.data.mosaic.load_mosaic"
    assert found["dataset.seed"] == 3
    assert found["split.holdout"] == 0  # it was held out of another set
    assert {key.partition(".")[0] for key in found} == {"dataset", "split"}


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("seed=1", "seed=1 does not change how a model is evaluated: choose among dataset="),
        ("trainer.ks=[1]", "--ks sets the K of the measures"),
        ("labels=full", "does not change how a model is evaluated"),
        ("split.holdout=0.5", "does not change how a model is evaluated"),
        ("run_dir=/tmp", "does not change how a model is evaluated"),
        ("transform.sise=3", "no setting 'transform.sise': did you mean transform.size"),
        ("transform.size=24,32", "one value of each setting"),
        ("~transform.size", "one value of each setting"),
        ("transform=azl", "no option 'azl' in transform=: did you mean asl"),
        ("nonsense", "nonsense"),
    ],
)
def test_or_is_refused(word, answer, trained):
    with pytest.raises(ValueError, match=answer.replace("(", r"\(").replace("[", r"\[")):
        reconfigure(trained.cfg, CONFIGS, [word])


def test_splits(trained):
    """12 training images, of which 3 are held out, and 6 of the test set."""
    loaded = load_data(trained.cfg)
    ids = {
        name: set(evaluation_data(trained.cfg, loaded, name).test.ids)
        for name in ("test", "holdout", "train", None)
    }
    assert ids["test"] == set(loaded.test.ids)
    assert ids["holdout"] == ids[None]
    assert len(ids["holdout"]) == 3
    assert ids["train"] | ids["holdout"] == set(loaded.train.ids)
    assert not ids["train"] & ids["holdout"]
    trained.cfg.split.holdout = 0
    assert set(evaluation_data(trained.cfg, loaded, None).test.ids) == ids["test"]
    with pytest.raises(ValueError, match="the run has held out nothing"):
        evaluation_data(trained.cfg, loaded, "holdout")
    trained.cfg.split.holdout = 0.25


def test_a_stored_file_does_not_choose_where_to_write(tmp_path, monkeypatch, capsys):
    """Neither the cache of images nor that of annotations."""
    make_csv(tmp_path / "data", classes=("a", "b"))
    config = f"""
        model: {{_target_: tkpr.models.tiny.tiny, width: 8}}
        transform: {{_target_: tkpr.data.transforms.spml, size: 32, mean: 0, std: 1,
                     interpolation: bilinear}}
        dataset: {{_target_: tkpr.data.csv.load_csv, root: {tmp_path / "data"}, file: labels.csv,
                  image_folder: ., image_column: image, label_column: null, split_column: null,
                  test_name: test, separator: ";", class_names: null, test_fraction: 0.2, seed: 0,
                  allow_outside: false, check_files: true}}
        split: {{holdout: 0, limit: null}}
        labels: {{_target_: tkpr.data.labels.full, _partial_: true}}
        cache_dir: {tmp_path / "chosen"}
    """
    file = tmp_path / "model.safetensors"
    write_model(file, config, tiny(2, width=8).state_dict())
    words = ["evaluate.py", "--ks", "1", "--batch-size", "4", str(file)]
    monkeypatch.setattr("sys.argv", words)
    main = runpy.run_path(str(ROOT / "scripts" / "evaluate.py"))["main"]
    main()
    assert "mAP" in capsys.readouterr().out
    assert not (tmp_path / "chosen").exists()
    monkeypatch.setattr("sys.argv", [*words, f"cache_dir={tmp_path / 'mine'}"])
    main()
    assert (tmp_path / "mine").exists()

    config = config.replace("csv.load_csv", "coco.load_coco").replace(
        "root:", "cache_dir: /x, root:"
    )
    write_model(file, config, tiny(2, width=8).state_dict())
    assert load_model(file).cfg.dataset.cache_dir is None
