"""Several processes compute what one computes, and none waits for the dead."""

import csv
import json
import os
import signal
import textwrap
import time

import pytest
import timm
import torch
from safetensors.torch import save_file

from tests.data.miniature import make_arff, make_csv
from tests.robustness.processes import ROOT, finish, metrics, start
from tests.short_runs import SMALL, train
from tkpr.runs.run import build_data
from tkpr.runs.saved_model import load_model, load_predictions
from tkpr.training import state as checkpoint
from tkpr.training.predict import fabric_on, predict

pytestmark = pytest.mark.slow


def torchrun(processes, *words, options=(), script=ROOT / "train.py"):
    """Start ``torchrun --nproc-per-node=processes train.py words``."""
    agent = ("-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--standalone")
    return start(*words, python=(*agent, *options, str(script)))


def spoilt(file, code):
    """Write a train.py in which something goes wrong in the second process."""
    lines = ["import os, signal, sys", f"sys.path.insert(0, {str(ROOT)!r})", "import train"]
    last = "if __name__ == '__main__':\n    train.main()"  # loader workers import the file
    file.write_text("\n".join([*lines, textwrap.dedent(code), last]))
    return file


def on_features(folder, processes):
    """A table of features (12 rows) and a linear model; 6 samples a step, whoever computes them."""
    if not folder.exists():
        make_arff(folder)
    return [
        *("dataset=arff", f"dataset.root={folder}", "dataset.name=mini", "trainer.accelerator=cpu"),
        *("loss.k=2", "trainer.ks=[1,2]", "trainer.monitor=mAP@1", "trainer.epochs=3"),
        *("trainer.warmup_epochs=1", f"trainer.batch_size={6 // processes}"),
    ]


def assert_trained_by(processes, said):
    assert f"{processes} processes" in said, said


def losses(folder):
    """The training loss of each epoch."""
    with (folder / "metrics.csv").open() as file:
        return [float(row["train_loss"]) for row in csv.DictReader(file)]


@pytest.mark.parametrize("processes", [2, 3])
def test_training_with_the_same_global_batch(processes, tmp_path):
    """Without batch statistics, the steps are the same but for rounding."""
    one = train(*on_features(tmp_path / "data", 1), folder=tmp_path / "one")
    words = on_features(tmp_path / "data", processes)
    code, said = finish(torchrun(processes, *words, f"run_dir={tmp_path / 'many'}"))
    assert code == 0, said
    assert_trained_by(processes, said)
    assert losses(tmp_path / "many") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)
    single, many = (checkpoint.load(tmp_path / name)["model"] for name in ("one", "many"))
    for key, value in single.items():
        torch.testing.assert_close(many[key], value, rtol=1e-4, atol=1e-6)
    assert metrics(tmp_path / "many") == pytest.approx(one["metrics"], rel=1e-6)
    told = json.loads((tmp_path / "many" / "metrics.json").read_text())
    assert (told["processes"], one["processes"]) == (processes, 1)


@pytest.mark.parametrize("processes", [2, 3])
def test_evaluation_to_the_last_digit(processes, tmp_path):
    """23 test images do not divide by 2 or 3; the weights stay as they are."""
    words = [*SMALL, "optimizer.lr=0", "trainer.epochs=1", "trainer.warmup_epochs=0"]
    words += ["model=timm", "model.model_name=vit_tiny_patch16_224", "model.pretrained=false"]
    words = [word for word in words if word != "model.width=8"]  # no batch statistics either
    one = train(*words, folder=tmp_path / "one")
    code, said = finish(torchrun(processes, *words, f"run_dir={tmp_path / 'many'}"))
    assert code == 0, said
    assert_trained_by(processes, said)
    mine, theirs = (load_predictions(tmp_path / name) for name in ("one", "many"))
    assert (mine["ids"] == theirs["ids"]).all()
    assert abs(mine["logits"] - theirs["logits"]).max() < 1e-5
    assert metrics(tmp_path / "many") == one["metrics"]


METHODS = {
    "role": ["loss=role", "labels=single_positive"],
    "ll_cp": ["loss=ll_cp", "labels=single_positive", "loss.delta_rel=0.1"],
    "em_apl": ["loss=em_apl", "labels=single_positive", "loss.warmup_epochs=1"],
    "ccd": [
        *("model=ccd", "model.model_name=resnet18", "model.pretrained=false", "loss=ccd"),
        "model.context_epochs=1",
    ],
}


@pytest.mark.parametrize("method", METHODS)
def test_losses_with_a_state_per_sample(method, tmp_path):
    """Two processes; what they learnt of the samples reaches the checkpoint."""
    small = [word for word in SMALL if method != "ccd" or word != "model.width=8"]
    words = [*small, "trainer.epochs=3", "trainer.warmup_epochs=0", *METHODS[method]]
    code, said = finish(torchrun(2, *words, f"run_dir={tmp_path}"))
    assert code == 0, said
    assert_trained_by(2, said)
    state = checkpoint.load(tmp_path)["losses"][1]
    assert all(value.isfinite().all() for value in state.values())
    if method == "ll_cp":
        assert state["corrections"].any()
    if method == "em_apl":
        assert (state["labels"] < 0).any()


@pytest.mark.parametrize("maps", [True, False])
def test_a_probe_on_features_that_all_processes_compute(maps, tmp_path):
    """As one process trains it, from images and from maps; one of 12 images cannot be read."""
    torch.manual_seed(0)
    save_file(timm.create_model("test_resnet").state_dict(), tmp_path / "w.safetensors")
    root = make_csv(tmp_path / "data")
    (root / "photos/03.jpg").write_bytes(b"")
    words = ["dataset=csv", f"dataset.root={root}", "recipe=finetune", "dataset.on_error=skip"]
    words += ["model=timm", "model.model_name=test_resnet", "transform.size=64", "loss=bce"]
    words += [f"model.checkpoint={tmp_path / 'w.safetensors'}", "trainer.batch_size=2"]
    words += [f"model.cut={'layer3' if maps else 'null'}", "optimizer.lr=0", "trainer.epochs=1"]
    words += ["trainer.accelerator=cpu", "trainer.ks=[1,2]", "trainer.monitor=mAP@1"]
    words += ["trainer.num_workers=1"]
    train(*words, f"map_dir={tmp_path / 'one'}", folder=tmp_path / "run")
    many = [*words, f"map_dir={tmp_path / 'two'}", f"run_dir={tmp_path / 'many'}"]
    code, said = finish(torchrun(2, *many))
    assert code == 0, said
    assert said.count("starts from a linear probe on") == 1, said
    named = said.count("left out, because it cannot be read")
    assert named == 1 + maps, said  # also when the maps are stored
    single, both = (checkpoint.load(tmp_path / name)["model"] for name in ("run", "many"))
    (weight,) = (name for name in single if name.endswith("fc.weight"))
    torch.testing.assert_close(both[weight], single[weight], rtol=1e-3, atol=1e-5)
    assert single[weight].abs().max() > 1e-2


def wait_for(file, agent):
    """Wait until a run has written a file."""
    end = time.monotonic() + 300
    while not file.exists():
        assert agent.poll() is None, finish(agent)
        assert time.monotonic() < end
        time.sleep(0.05)


def children(pid):
    """The processes that a process has started."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def kill_a_rank(agent, folder):
    """Kill one training process after the first checkpoint."""
    wait_for(folder / "last.ckpt", agent)
    os.kill(children(agent.pid)[-1], signal.SIGKILL)


LONG = [word for word in SMALL if "train_size" not in word]
LONG += ["dataset.train_size=600", "trainer.epochs=3", "trainer.checkpoint_minutes=0"]


def test_a_dead_process_ends_the_run_and_a_rerun_goes_on(tmp_path):
    agent = torchrun(2, *LONG, f"run_dir={tmp_path}")
    kill_a_rank(agent, tmp_path)
    begin = time.monotonic()
    code, said = finish(agent)
    assert code != 0
    assert time.monotonic() - begin < 90
    assert "has lost another one" in said, said
    assert not (tmp_path / "metrics.json").exists()
    code, said = finish(start(*LONG, f"run_dir={tmp_path}"))
    assert code == 1
    assert "holds a run of 2 processes, this one has 1: go on with 2" in said, said
    code, said = finish(torchrun(2, *LONG, f"run_dir={tmp_path}"))
    assert code == 0, said
    assert "resuming after epoch" in said


def test_torchrun_restarts_a_dead_process(tmp_path):
    agent = torchrun(2, *LONG, f"run_dir={tmp_path}", options=("--max-restarts=1",))
    kill_a_rank(agent, tmp_path)
    code, said = finish(agent)
    assert code == 0, said
    assert "resuming after epoch" in said
    assert (tmp_path / "metrics.json").exists()


def test_devices_from_the_command_line_share_the_work(tmp_path):
    """Processes that train.py starts itself; one dies, the others do not wait."""
    words = [*LONG, "trainer.devices=2"]
    whole = start(*words, f"run_dir={tmp_path / 'whole'}")
    code, said = finish(whole)
    assert code == 0, said
    assert_trained_by(2, said)
    first = start(*words, f"run_dir={tmp_path / 'cut'}")
    kill_a_rank(first, tmp_path / "cut")
    code, said = finish(first)
    assert code != 0
    code, said = finish(start(*words, f"run_dir={tmp_path / 'cut'}"))
    assert code == 0, said
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")


# 601 samples do not divide by 2: the last batch of an epoch repeats one
MANY = [word for word in LONG if "train_size" not in word] + ["dataset.train_size=601"]
STOPPED = {
    "tkpr": ["trainer.num_workers=1", "trainer.ema_decay=0.9", "trainer.eval_weights=ema"],
    # so many corrections that the repeated sample gets some
    "ll_cp": [*METHODS["ll_cp"][:2], "loss.delta_rel=0.3", "trainer.warmup_epochs=0"],
}


@pytest.mark.parametrize("method", STOPPED)
def test_sigterm_saves_and_the_same_command_goes_on(method, tmp_path):
    """Stopped in mid-epoch, by torchrun, which tells the loader's workers as well."""
    words = [*MANY, *STOPPED[method], "trainer.checkpoint_minutes=30"]
    code, said = finish(torchrun(2, *words, f"run_dir={tmp_path / 'whole'}"))
    assert code == 0, said
    told = """
        from tkpr.training.preemption import Preemption
        from tkpr.training.trainer import Trainer
        Preemption.polls_per_sync = property(lambda _: 4, lambda *_: None)
        update = Trainer.update_weights
        def told_to_stop(trainer):
            update(trainer)
            if (trainer.fabric.global_rank, *trainer.progress.position[:2]) == (1, 1, 5):
                os.kill(os.getppid(), signal.SIGTERM)
                open("DONE", "w").close()
        Trainer.update_weights = told_to_stop
    """.replace("DONE", str(tmp_path / "told"))
    script = spoilt(tmp_path / "told.py", told)
    agent = torchrun(2, *words, f"run_dir={tmp_path / 'run'}", script=script)
    wait_for(tmp_path / "told", agent)
    begin = time.monotonic()
    code, said = finish(agent)
    assert code != 0
    assert time.monotonic() - begin < 28, said  # of itself: torchrun kills after 30 seconds
    assert said.count("stopped by SIGTERM: the same command resumes from here") == 1, said
    assert "error: " not in said
    assert not (tmp_path / "run" / "metrics.json").exists()
    assert checkpoint.load(tmp_path / "run")["step"] > 0
    code, said = finish(torchrun(2, *words, f"run_dir={tmp_path / 'run'}"))
    assert code == 0, said
    assert said.count("resuming after epoch") == 1, said
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    one, other = (checkpoint.load(tmp_path / name) for name in ("whole", "run"))
    for key, value in (one["model"] | one["losses"][1]).items():
        assert torch.equal(value, (other["model"] | other["losses"][1])[key]), key
    if method == "ll_cp":
        assert one["losses"][1]["corrections"].any()


def test_sigterm_in_an_evaluation(tmp_path):
    """One process is told, which has 200 of 401 batches; both stop in the test after epoch 2.

    They sync after every 50 batches.
    """
    words = [word for word in SMALL if "batch_size" not in word and "test_size" not in word]
    words += ["dataset.test_size=401", "trainer.batch_size=1", "trainer.epochs=3", "loss=em_apl"]
    words += ["loss.warmup_epochs=1", "trainer.warmup_epochs=0", "labels=single_positive"]
    code, said = finish(torchrun(2, *words, f"run_dir={tmp_path / 'whole'}"))
    assert code == 0, said
    told = """
        from tkpr.training.preemption import Preemption
        from tkpr.training.trainer import Trainer
        Preemption.polls_per_sync = property(lambda _: 50, lambda *_: None)
        predict, calls = Trainer.predict, []
        def told_to_stop(trainer, dataset, **options):
            calls.append(1)
            if (trainer.fabric.global_rank, len(calls)) == (1, 4):
                os.kill(os.getpid(), signal.SIGTERM)
            return predict(trainer, dataset, **options)
        Trainer.predict = told_to_stop
    """
    script = spoilt(tmp_path / "told.py", told)
    code, said = finish(torchrun(2, *words, f"run_dir={tmp_path / 'run'}", script=script))
    assert code != 0
    assert said.count("stopped by SIGTERM: the same command resumes from here") == 1, said
    assert "error: " not in said
    state = checkpoint.load(tmp_path / "run")
    assert (state["epoch"], state["step"]) == (1, 20)
    code, said = finish(torchrun(2, *words, f"run_dir={tmp_path / 'run'}"))
    assert code == 0, said
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
    one, other = (checkpoint.load(tmp_path / name) for name in ("whole", "run"))
    for key, value in (one["model"] | one["losses"][1]).items():
        assert torch.equal(value, (other["model"] | other["losses"][1])[key]), key


def test_a_loss_of_one_process_that_is_not_finite(tmp_path):
    """That process says so and leaves its batch; the other ends too; no state is harmed."""
    overflow = """
        from tkpr.losses import TKPR
        forward, calls = TKPR.forward, []
        def spoil(self, *batch):
            calls.append(self.training)
            bad = os.environ["RANK"] == "1" and sum(calls) == 5
            return forward(self, *batch) / (0.0 if bad else 1.0)
        TKPR.forward = spoil
    """
    words = [*SMALL, "trainer.epochs=3", "trainer.warmup_epochs=0", f"run_dir={tmp_path}"]
    begin = time.monotonic()
    agent = torchrun(2, *words, script=spoilt(tmp_path / "spoilt.py", overflow))
    code, said = finish(agent)
    assert code != 0
    assert time.monotonic() - begin < 200
    assert "error: the loss is inf in epoch 2, step 2, on the samples train-" in said, said
    kept = torch.load(tmp_path / "bad_batch_rank1.pt", weights_only=True)
    assert len(kept["ids"]) == 8
    assert all(value.isfinite().all() for value in kept["model"].values())
    state = checkpoint.load(tmp_path)
    assert (state["epoch"], state["step"]) == (1, 0)
    assert all(value.isfinite().all() for value in state["model"].values())
    code, said = finish(torchrun(2, *words))  # without the cause
    assert code == 0, said


def test_averaged_weights_are_tested_as_they_are_saved(tmp_path):
    """Batch statistics differ between processes; the averaged model has those of the first."""
    words = [*SMALL, "trainer.epochs=2", "trainer.ema_decay=0.5", "trainer.eval_weights=ema"]
    code, said = finish(torchrun(2, *words, f"run_dir={tmp_path}"))
    assert code == 0, said
    trained = load_model(tmp_path)
    data = build_data(trained.cfg)
    logits = predict(trained.model, data.test, data.finish, fabric_on("cpu"), batch_size=8).numpy()
    assert abs(logits - load_predictions(tmp_path)["logits"]).max() < 1e-5


def test_a_silent_process_is_not_waited_for(tmp_path):
    """One of two is halted: it neither dies nor answers."""
    words = [*LONG, "trainer.timeout_minutes=0.25"]
    agent = torchrun(2, *words, f"run_dir={tmp_path}")
    wait_for(tmp_path / "last.ckpt", agent)
    halted = children(agent.pid)[-1]
    os.kill(halted, signal.SIGSTOP)
    begin = time.monotonic()
    code, said = finish(agent)
    assert code != 0
    assert time.monotonic() - begin < 15 + 30 + 30  # the time-out, torchrun's patience, a margin
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, said
    assert "process 0 of 2 has lost another one" in errors[0]
    assert "the same command resumes from the last checkpoint" in errors[0]
    assert not (tmp_path / "metrics.json").exists()


def test_a_sweep_by_torchrun(tmp_path):
    """The same processes train one run after the other; train.py alone cannot, and says so."""
    words = [
        "-m",
        "loss=bce,tkpr_a2",
        *SMALL,
        "trainer.epochs=1",
        "trainer.warmup_epochs=0",
        f"hydra.sweep.dir={tmp_path}",
    ]
    words += [f"run_dir={tmp_path}/${{hydra:runtime.choices.loss}}"]
    code, said = finish(start(*words, "trainer.devices=2"))
    assert code == 1
    assert "must be started by torchrun: torchrun --standalone --nproc-per-node=2" in said
    code, said = finish(torchrun(2, *words))
    assert code == 0, said
    assert said.count("2 processes share the work") == 2, said
    assert all((tmp_path / name / "metrics.json").exists() for name in ("bce", "tkpr_a2"))


@pytest.mark.parametrize("batch", [3, 1])
def test_an_unreadable_image_is_named_and_counted_once(batch, tmp_path):
    """One process finds it, all leave it out, one says so; alone in a batch, all skip the step."""
    make_csv(tmp_path / "data")
    (tmp_path / "data" / "photos" / "03.jpg").write_bytes(b"not a picture")
    words = ["dataset=csv", f"dataset.root={tmp_path / 'data'}", "dataset.on_error=skip"]
    words += ["model=tiny", "model.width=8", "transform=shift48", "transform.size=32", "loss.k=2"]
    words += ["trainer.ks=[1,2]", "trainer.monitor=mAP@1", f"trainer.batch_size={batch}"]
    words += ["trainer.epochs=2", "trainer.warmup_epochs=0", "trainer.accelerator=cpu"]
    code, said = finish(torchrun(2, *words, f"run_dir={tmp_path / 'run'}"))
    assert code == 0, said
    assert said.count("left out, because it cannot be read: photos/03.jpg") == 1, said
    counts = json.loads((tmp_path / "run" / "metrics.json").read_text())["counts"]
    assert (counts["train_unreadable"], counts["test_unreadable"]) == (1, 0)


# every collective of a process, in order, in a file of its own
RECORDED = """
    import atexit, json, torch.distributed as dist
    calls = []
    def recorded(name, original):
        def call(*arguments, **options):
            calls.append(name)
            return original(*arguments, **options)
        return call
    for name in ("all_reduce", "broadcast", "barrier", "all_gather_object"):
        setattr(dist, name, recorded(name, getattr(dist, name)))
    file = os.path.join(os.path.dirname(__file__), "calls" + os.environ["RANK"] + ".json")
    atexit.register(lambda: open(file, "w").write(json.dumps(calls)))
"""
SHARES = {
    # the second and third of three processes have nothing to predict
    "one test image": (3, ["dataset.test_size=1"]),
    # not one image of the second process can be read: neither in training nor in the test
    "an unreadable share": (2, ["dataset.on_error=skip", "trainer.batch_size=2"]),
}


@pytest.mark.parametrize("share", SHARES)
def test_no_collective_depends_on_the_share_of_a_process(share, tmp_path):
    processes, words = SHARES[share]
    if share == "one test image":
        words = [*(word for word in SMALL if "test_size" not in word), *words]
    else:
        make_csv(tmp_path / "data")
        for number in range(13, 18, 2):
            (tmp_path / "data" / "photos" / f"{number:02d}.jpg").write_bytes(b"not a picture")
        words += ["dataset=csv", f"dataset.root={tmp_path / 'data'}", "model=tiny", "loss.k=2"]
        words += ["model.width=8", "transform=shift48", "transform.size=32", "trainer.ks=[1,2]"]
        words += ["trainer.monitor=mAP@1", "trainer.accelerator=cpu"]
    words += ["trainer.epochs=2", "trainer.warmup_epochs=1", "trainer.timeout_minutes=1"]
    script = spoilt(tmp_path / "recorded.py", RECORDED)
    code, said = finish(torchrun(processes, *words, f"run_dir={tmp_path / 'run'}", script=script))
    assert code == 0, said
    calls = [json.loads((tmp_path / f"calls{rank}.json").read_text()) for rank in range(processes)]
    assert len(calls[0]) > 10
    assert all(other == calls[0] for other in calls)
    rows = len(load_predictions(tmp_path / "run")["logits"])
    assert rows == (1 if share == "one test image" else 3)
