"""Runs from stored maps: the same results again, and one network for images at the end."""

import csv
import errno
import json
import logging
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file, save, save_file
from scipy.sparse import csr_array

from tests.data.miniature import draw, make_csv
from tests.short_runs import SMALL, compose, train
from tests.training.test_train import assert_equal, stop_after
from tkpr.losses import TKPR
from tkpr.runs.run import build_data
from tkpr.runs.saved_model import content_checksum, load_model
from tkpr.runs.settle import settle, settle_to_labels, warn_of_small_k
from tkpr.training import state as checkpoint
from tkpr.training.predict import fabric_on, predict

NETWORK = ["model=timm", "model.model_name=test_resnet", "model.cut=layer3"]


@pytest.fixture
def words(tmp_path):
    """Settings for 12 + 6 images, a small network from a file, and a folder for its maps."""
    torch.manual_seed(0)
    save_file(timm.create_model("test_resnet").state_dict(), tmp_path / "w.safetensors")
    photos = make_csv(tmp_path / "data")
    return [
        *("dataset=csv", f"dataset.root={photos}", "budget=finetune", *NETWORK),
        *(f"model.checkpoint={tmp_path / 'w.safetensors'}", "transform.size=64"),
        *(f"map_dir={tmp_path / 'maps'}", "trainer.batch_size=4", "trainer.epochs=3"),
        *("trainer.ks=[1,2]", "trainer.monitor=mAP@1", "loss.k=2", "trainer.accelerator=cpu"),
        *("trainer.precision=32-true", "trainer.warmup_epochs=1"),
    ]


def test_the_row_of_ccd_trains_from_maps(words, tmp_path):
    """In both of its stages; it has no linear classifier for a probe."""
    left_out = ("model=", "model.model_name", "loss.", "trainer.warmup", "trainer.epochs")
    kept = [word for word in words if not word.startswith(left_out)]
    row = ["method=ccd", "model.model_name=test_resnet", "trainer.epochs=3"]
    results = train(*kept, *row, folder=tmp_path / "run")
    assert results["config"]["model"]["context_epochs"] == 1
    assert list((tmp_path / "maps").glob("*.npy"))
    model = load_model(tmp_path / "run").model
    assert model(torch.zeros(1, 3, 64, 64)).shape[0] == 1


@pytest.mark.parametrize("reset", [True, False])
def test_the_scale_of_a_loss_does_not_matter_after_the_warm_up(reset, words, tmp_path):
    """With one label per image alpha_3 is alpha_2 divided by K: the same steps of AdamW."""
    words = [*words, "labels=single_positive", "+optimizer.eps=1e-30"]
    words += [] if reset else ["trainer.reset_optimizer=false"]  # the budget's own is true
    weights = []
    for loss in ("tkpr_a2", "tkpr_a3"):
        train(*words, f"loss={loss}", folder=tmp_path / loss)
        weights.append(load_file(tmp_path / loss / "model.safetensors"))
    differences = [(weights[0][name] - weights[1][name]).abs().max() for name in weights[0]]
    assert (max(differences) < 1e-5) == reset


def test_a_run_resumes_bit_for_bit_and_reads_maps_and_probe_again(words, tmp_path):
    whole = train(*words, folder=tmp_path / "whole")
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "maps").iterdir()}
    assert sorted(path.suffix for path in made if path.suffix != ".lock") == [
        *(".json", ".npy", ".safetensors")
    ]
    stop_after(1, *words, folder=tmp_path / "parts")
    parts = train(*words, folder=tmp_path / "parts")
    assert parts["metrics"] == whole["metrics"]
    one, other = (checkpoint.load(tmp_path / name) for name in ("whole", "parts"))
    assert_equal(one["model"], other["model"])
    kept = {path: path.stat().st_mtime_ns for path in made if path.suffix != ".lock"}
    assert kept == {path: time for path, time in made.items() if path.suffix != ".lock"}


def test_the_result_is_one_network_for_images(words, tmp_path):
    train(*words, folder=tmp_path / "run")
    for file in (tmp_path / "maps").iterdir():
        file.unlink()  # nothing of it is needed any more
    trained = load_model(tmp_path / "run")
    assert trained.input_shape == (3, 64, 64)
    data = build_data(trained.cfg)
    logits = predict(trained.model, data.test, data.finish, fabric_on("cpu"), batch_size=4)
    stored = np.load(tmp_path / "run" / "predictions.npz")["logits"]
    # the maps were stored in half precision
    np.testing.assert_allclose(logits, stored, atol=0.01 * np.abs(stored).max())
    assert not (tmp_path / "maps").exists() or not list((tmp_path / "maps").glob("*.npy"))


def test_maps_of_other_images_are_not_used(words, tmp_path):
    train(*words, folder=tmp_path / "one")
    (file,) = (tmp_path / "maps").glob("*.npy")
    note = file.with_suffix(".json")
    header = json.loads(note.read_text())
    note.write_text(json.dumps(header | {"images": "0123456789abcdef"}))
    with pytest.raises(ValueError, match=r"holds other maps .images is 0123456789abcdef, not"):
        train(*words, folder=tmp_path / "two")
    note.write_text(json.dumps(header))
    (tmp_path / "data" / "photos" / "00.jpg").write_bytes(
        (tmp_path / "data" / "photos" / "01.jpg").read_bytes()
    )
    train(*words, folder=tmp_path / "three")
    assert len(list((tmp_path / "maps").glob("*.npy"))) == 2


def test_an_unreadable_image_is_named_or_left_out(words, tmp_path, caplog):
    (tmp_path / "data" / "photos" / "03.jpg").write_bytes(b"not a picture")
    with pytest.raises(ValueError, match=r"03\.jpg cannot be read"):
        train(*words, folder=tmp_path / "strict")
    assert not list((tmp_path / "maps").glob("*.npy"))
    with caplog.at_level(logging.WARNING, logger="tkpr"):
        results = train(*words, "dataset.on_error=skip", folder=tmp_path / "lenient")
    assert results["counts"]["train_unreadable"] == 1

    with pytest.raises(ValueError, match=r"1 images could not be read .* is photos/03\.jpg: set"):
        train(*words, folder=tmp_path / "strict again")


def test_whichever_process_stores_maps_is_heard(words, tmp_path, caplog, request):
    """Of several, any may be the first; all but rank 0 log errors alone."""
    (tmp_path / "data" / "photos" / "03.jpg").write_bytes(b"not a picture")
    logger = logging.getLogger("tkpr")
    request.addfinalizer(partial(logger.setLevel, logger.level))
    logger.setLevel(logging.ERROR)
    train(*words, "dataset.on_error=skip", folder=tmp_path / "run")
    assert logger.level == logging.ERROR
    said = [record.getMessage() for record in caplog.records]
    assert said[0].startswith("storing the maps of")
    assert said[1] == "left out, because it cannot be read: photos/03.jpg"
    assert said[2].startswith("stored in")
    assert len(said) == 3


@pytest.mark.parametrize("what", ["maps", "header"])
def test_deleted_maps_are_made_again(what, words, tmp_path):
    """As the message about a damaged file says."""
    whole = train(*words, folder=tmp_path / "whole")
    (file,) = (tmp_path / "maps").glob("*.npy" if what == "maps" else "*.json")
    file.unlink()
    assert train(*words, folder=tmp_path / "again")["metrics"] == whole["metrics"]


def test_an_edited_image_of_the_same_length_gets_new_maps(words, tmp_path):
    train(*words, folder=tmp_path / "one")
    image = tmp_path / "data" / "photos" / "00.jpg"
    content = image.read_bytes()
    other = (tmp_path / "data" / "photos" / "01.jpg").read_bytes()
    length = max(len(content), len(other))
    image.write_bytes(content.ljust(length, b"\0"))
    train(*words, folder=tmp_path / "two")
    image.write_bytes(other.ljust(length, b"\0"))
    train(*words, folder=tmp_path / "three")
    assert len(list((tmp_path / "maps").glob("*.npy"))) == 3


def test_maps_can_be_read_where_nothing_can_be_written(words, tmp_path, monkeypatch):
    whole = train(*words, folder=tmp_path / "whole")
    before = sorted((tmp_path / "maps").iterdir())
    opened = Path.open

    def refuse(path, mode="r", *args, **kwargs):
        if path.suffix == ".lock" and "maps" in path.parts:
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return opened(path, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuse)
    again = train(*words, folder=tmp_path / "again")
    assert again["metrics"] == whole["metrics"]
    next((tmp_path / "maps").glob("probe-*.safetensors")).unlink()
    assert train(*words, folder=tmp_path / "probed")["metrics"] == whole["metrics"]
    assert not list((tmp_path / "maps").glob("probe-*.safetensors"))
    assert len(list((tmp_path / "maps").iterdir())) == len(before) - 1
    next((tmp_path / "maps").glob("*.npy")).unlink()
    with pytest.raises(
        OSError, match=r"maps cannot be written to \(Read-only .*map_dir="
    ) as caught:
        train(*words, folder=tmp_path / "refused")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("folder", ["null", "''"])
def test_maps_need_a_folder(folder, words, tmp_path):
    with pytest.raises(ValueError, match="map_dir must name the folder of stored maps"):
        train(*words, f"map_dir={folder}", folder=tmp_path / "run")


def test_a_cut_may_be_a_number(words, tmp_path):
    with pytest.raises(ValueError, match=r"the network has no layer 3; model\.cut can be"):
        train(*words, "model.cut=3", folder=tmp_path / "run")


def test_maps_can_only_be_mirrored(words, tmp_path):
    with pytest.raises(ValueError, match=r"use transform=spml, or model\.cut=null"):
        train(*words, "transform=asl", folder=tmp_path / "run")


def test_losses_see_the_logits_divided_by_the_temperature(words, tmp_path, monkeypatch):
    seen = {1: [], 4: []}
    forward = TKPR.forward
    for temperature, logits in seen.items():

        def record(loss, inputs, targets, index=None, kept=logits):
            kept.append(inputs.detach().clone())
            return forward(loss, inputs, targets, index)

        monkeypatch.setattr(TKPR, "forward", record)
        settings = ["trainer.epochs=1", "trainer.warmup_epochs=0", "optimizer.lr=1e-12"]
        settings += [f"trainer.temperature={temperature}"]
        train(*words, *settings, folder=tmp_path / f"{temperature}")
    for one, four in zip(*seen.values(), strict=True):
        torch.testing.assert_close(one, 4 * four)
    assert max(logits.abs().max() for logits in seen[1]) > 0.1
    with pytest.raises(ValueError, match="temperature must be a number above 0; got 0"):
        train(*words, "trainer.temperature=0", folder=tmp_path / "zero")


@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_a_damaged_probe_is_trained_again(damage, words, tmp_path, caplog):
    whole = train(*words, folder=tmp_path / "whole")
    (file,) = (tmp_path / "maps").glob("probe-*.safetensors")
    content = bytearray(file.read_bytes())
    content[-2] ^= 64
    file.write_bytes(content if damage == "flip" else content[: len(content) // 2])
    again = train(*words, folder=tmp_path / "again")
    assert "is damaged: the probe is trained again" in caplog.text
    assert again["metrics"] == whole["metrics"]
    one, other = (checkpoint.load(tmp_path / name)["model"] for name in ("whole", "again"))
    assert_equal(one, other)


def test_a_probe_of_other_shapes_is_trained_again(words, tmp_path, caplog):
    whole = train(*words, folder=tmp_path / "whole")
    (file,) = (tmp_path / "maps").glob("probe-*.safetensors")
    state = {"weight": torch.ones(2, 3), "bias": torch.ones(2)}
    file.write_bytes(save(state, {"checksum": content_checksum(state, {})}))
    again = train(*words, folder=tmp_path / "again")
    assert "is damaged: the probe is trained again" in caplog.text
    assert again["metrics"] == whole["metrics"]


def test_other_weights_behind_the_cut_get_another_probe(words, tmp_path):
    train(*words, folder=tmp_path / "one")
    weights = load_file(tmp_path / "w.safetensors")
    weights |= {name: 2 * value for name, value in weights.items() if name.startswith("layer4")}
    save_file(weights, tmp_path / "w.safetensors")
    train(*words, folder=tmp_path / "two")
    assert len(list((tmp_path / "maps").glob("*.npy"))) == 1
    assert len(list((tmp_path / "maps").glob("probe-*.safetensors"))) == 2


@pytest.mark.parametrize(
    ("counts", "classes", "k"),
    [
        *(([1] * 39 + [9], 20, 3), ([2] * 18 + [3, 3], 20, 6), ([4] * 5, 4, 3)),
        *(([8] * 9, 20, 10), ([8] * 9, 40, 16), ([1] * 9, 4, 3), ([6] * 9, 8, 6)),
    ],
)
def test_k_follows_the_label_counts(counts, classes, k):
    targets = (np.arange(classes) < np.array(counts)[:, None]).astype(np.uint8)
    trainer = {"epochs": 4, "warmup_epochs": 0}
    for stored in (targets, csr_array(targets)):
        losses = {"loss": {"k": "auto"}, "warmup": {"k": "auto"}, "probe": {"k": 1}}
        cfg = OmegaConf.create({**losses, "trainer": trainer})
        settle_to_labels(cfg, stored)
        assert (cfg.loss.k, cfg.warmup.k) == (k, k)
        assert (cfg.probe.k, cfg.trainer.epochs) == (1, 4)
    named = OmegaConf.create({"loss": {"k": 7}, "warmup": {}, "trainer": trainer})
    settle_to_labels(named, targets)
    assert named.loss.k == 7


# labels of each sample, loss, K: what the warning says
SMALL_KS = {
    "most have more": (
        [2, 6, 6, 7],
        "tkpr_a2",
        5,
        "75 % of the .* than 5 labels; .*k=auto (here 7)",
    ),
    "half have more": ([5, 5, 6, 6], "tkpr_a2", 5, None),
    "few have more": ([5, 5, 5, 6], "tkpr_a2", 5, None),
    "K is auto": ([6, 6, 7, 8], "tkpr_a1", "auto", None),
    "no larger K is possible": ([10, 10, 10, 10], "tkpr_a2", 9, None),
    "another loss": ([8, 8, 8, 8], "bce", None, None),
}


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", SMALL_KS)
def test_k_below_the_usual_number_of_labels_is_warned_of(name, sparse, caplog, tmp_path):
    counts, loss, k, wanted = SMALL_KS[name]
    targets = (np.arange(10) < np.array(counts)[:, None]).astype(np.uint8)
    targets = csr_array(targets) if sparse else targets
    cfg = compose(f"loss={loss}", *([f"loss.k={k}"] if k else []), folder=tmp_path)
    settle_to_labels(cfg, targets)
    warn_of_small_k(cfg, targets)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == bool(wanted)
    assert not wanted or re.search(wanted.replace("(", r"\(").replace(")", r"\)"), warnings[0])


def test_a_run_warns_of_a_small_k_before_it_trains(tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="tkpr"):
        train(*SMALL, "loss.k=1", "trainer.epochs=2", folder=tmp_path / "run")
    assert re.search(r"loss\.k=1 is too small.* \d+ % of the training samples", caplog.text)
    assert caplog.text.index("is too small") < caplog.text.index("epoch 1")


@pytest.mark.parametrize(
    ("words", "epochs"),
    [
        (("dataset=csv", "model=efficientnet_lite0"), [20, 7, 5]),
        (("dataset=csv", "auto_epochs.samples=3000", "auto_epochs.fewest=1"), [20, 2, 1]),
        (("dataset=arff",), [500, 67, 20]),
    ],
)
def test_more_samples_take_fewer_epochs(words, epochs, tmp_path):
    found = []
    for samples in (50, 1500, 100_000):
        cfg = compose(*words, folder=tmp_path)
        settle_to_labels(cfg, np.ones((samples, 4)))
        found.append(cfg.trainer.epochs)
    assert found == epochs


@pytest.mark.parametrize(
    ("words", "warmup"),
    [
        *(((), 5), (("trainer.epochs=20",), 14), (("trainer.epochs=1",), 0)),
        *((("trainer.epochs=20", "trainer.stop_after=3"), 2), (("trainer.warmup_epochs=3",), 3)),
        *((("trainer.epochs=2",), 1), (("trainer.epochs=9",), 6)),
        (("loss=asl",), 0),
    ],
)
def test_bce_has_two_thirds_of_the_epochs_before_tkpr(words, warmup, tmp_path):
    """Whatever the number of epochs; no other loss is warmed up unasked."""
    words = ["dataset=csv", "model=efficientnet_lite0", *words]
    cfg = compose(*words, folder=tmp_path)
    assert cfg.warmup._target_ == "tkpr.losses.single_positive.AssumeNegative"
    settle_to_labels(cfg, np.ones((1500, 8)))
    assert cfg.trainer.warmup_epochs == warmup


@pytest.mark.parametrize(
    ("words", "size", "cut"),
    [
        (["model=efficientnet_lite0"], 224, "blocks.5"),
        (["model=resnet50", "transform.size=96"], 96, "layer3"),
        (["model=timm", "model.model_name=test_convnext"], 160, "stages.2"),
        (["model=timm", "model.model_name=test_vit"], 160, "blocks.4"),
        (["model=efficientnet_lite0", "model.cut=blocks.4"], 224, "blocks.4"),
        (["model=efficientnet_lite0", "model.cut=null"], 224, None),
        (["model=efficientnet_lite0", "transform=asl"], 224, None),  # maps can only be mirrored
        (["model=efficientnet_lite0", "trainer.random_weights=true"], 224, None),
        (["model=timm", "model.model_name=cait_xxs24_224"], 224, None),  # cannot be cut
        (["model=tiny", "transform.size=48"], 48, None),
    ],
)
def test_without_a_gpu_the_last_stage_is_trained(words, size, cut, tmp_path):
    cfg = compose("dataset=csv", "recipe=finetune", *words, folder=tmp_path)
    settle(cfg)
    assert (cfg.transform.size, cfg.model.get("cut")) == (size, cut)


@pytest.mark.parametrize("bf16", [True, False])
def test_with_a_gpu_everything_is_trained(bf16, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bf16)
    for accelerator, cut in (("auto", None), ("gpu", None), ("cpu", "blocks.5")):
        words = ["dataset=csv", "model=efficientnet_lite0", f"trainer.accelerator={accelerator}"]
        cfg = compose(*words, folder=tmp_path)
        settle(cfg)
        assert cfg.model.cut == cut
        if not cut:
            assert cfg.trainer.precision == ("bf16-mixed" if bf16 else "32-true")


@pytest.mark.parametrize(
    ("capabilities", "precision"),
    [
        ({"avx512_bf16": True, "avx512_f": True}, "bf16-mixed"),
        ({"avx512_bf16": False, "avx512_f": True}, "32-true"),
        ({"architecture": "aarch64"}, "32-true"),
        (None, "32-true"),  # before torch told
    ],
)
def test_cpus_with_instructions_for_bfloat16_use_them(
    capabilities, precision, tmp_path, monkeypatch
):
    if capabilities is None:
        monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    else:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    words = ["dataset=csv", "model=efficientnet_lite0", "trainer.accelerator=cpu"]
    cfg = compose(*words, folder=tmp_path)
    settle(cfg)
    assert cfg.trainer.precision == precision
    cfg = compose(*words, "trainer.precision=32-true", folder=tmp_path)
    settle(cfg)
    assert cfg.trainer.precision == "32-true"


# number of training images, of classes, of labels per image
SETS = {"a few": (12, 6, 2), "one label per image": (50, 5, 1), "many classes": (50, 1000, 3)}


@pytest.mark.parametrize("name", SETS)
def test_the_recipe_for_photographs_needs_no_further_word(name, words, tmp_path, caplog):
    samples, classes, labels = SETS[name]
    rng = np.random.default_rng(0)
    rows = []
    for number in range(samples + 6):
        chosen = rng.choice(classes, labels, replace=False)
        draw(tmp_path / "own" / f"{number}.jpg", np.isin(np.arange(4), chosen))
        split = "train" if number < samples else "test"
        rows.append([f"{number}.jpg", ";".join(f"c{label:03d}" for label in chosen), split])
    with (tmp_path / "own" / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["image", "labels", "split"], *rows])
    kept = [word for word in words if word.startswith(("model", "map_dir")) and "cut" not in word]
    names = ",".join(f"c{label:03d}" for label in range(classes))
    settings = [f"dataset.root={tmp_path / 'own'}", f"dataset.class_names=[{names}]"]
    with caplog.at_level(logging.INFO, logger="tkpr"):
        results = train(
            *("dataset=csv", *kept, *settings, "transform.size=64", "trainer.accelerator=cpu"),
            folder=tmp_path / "run",
        )
    cfg = results["config"]
    k = 6 if name == "many classes" else 3  # twice three labels; at least 3
    assert (cfg["loss"]["k"], cfg["trainer"]["epochs"], cfg["model"]["cut"]) == (k, 20, "layer3")
    assert cfg["trainer"]["batch_size"] > samples
    assert f"starts from a linear probe on {samples} samples" in caplog.text
    assert "temperature 4" in caplog.text
    line = f"{samples} training samples with {labels}.0 labels on average, 6 test samples, "
    assert f"{line}{classes:,} classes" in caplog.text
    assert (" of them without a training sample" in caplog.text) == (name == "many classes")
    assert "test_resnet after layer3 from a linear probe (RankingLoss)" in caplog.text


@pytest.mark.parametrize(
    ("classes", "answer"),
    [(2, r"trainer.ks=\[3, 5\] asks for more labels than the 2"), (1, "has one class, 'cat'")],
)
def test_too_few_classes_are_refused_before_maps_are_stored(classes, answer, words, tmp_path):
    rows = [["image", "labels"], ["00.jpg", "cat"], ["01.jpg", ["cat", "dog"][classes - 1]]]
    with (tmp_path / "data" / "photos" / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    kept = [word for word in words if word.startswith(("model", "map_dir"))]
    photos = f"dataset.root={tmp_path / 'data' / 'photos'}"
    with pytest.raises(ValueError, match=answer):
        train("dataset=csv", *kept, photos, "dataset.test_fraction=0.5", folder=tmp_path / "run")
    assert not (tmp_path / "maps").exists()


def test_random_weights_are_not_probed(words, tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="tkpr"):
        train(*words, "trainer.random_weights=true", folder=tmp_path / "run")
    assert "linear probe on" not in caplog.text
