"""Every experiment composes at every budget, and every row of every table can be built."""

from functools import cache
from pathlib import Path

import hydra
import pytest
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from tkpr.config import build
from tkpr.plan import plan
from tkpr.results import paper_table, table_names

CONFIGS = Path(__file__).parents[1] / "configs"
EXPERIMENTS = sorted(file.stem for file in (CONFIGS / "experiment").glob("*.yaml"))
METHODS = sorted(file.stem for file in (CONFIGS / "method").glob("*.yaml"))
BUDGETS = sorted(file.stem for file in (CONFIGS / "budget").glob("*.yaml"))
FACTS = {
    "num_samples": 40,
    "num_classes": 20,
    "class_counts": torch.arange(1, 21),
    "expected_positives": 1.5,
    "train_targets": torch.eye(20, dtype=torch.uint8).repeat(2, 1),
    "num_epochs": 10,
}


@cache
def compose(*overrides):
    """Compose a configuration, ``hydra`` included; nobody may change it."""
    with hydra.initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return hydra.compose("train", list(overrides), return_hydra_config=True)


def settings(cfg):
    """All but hydra's own settings, resolved."""
    HydraConfig.instance().set_config(cfg)
    plain = OmegaConf.masked_copy(cfg, [key for key in cfg if key != "hydra"])
    return OmegaConf.create(OmegaConf.to_container(plain, resolve=True))


def build_row(cfg):
    """Build the losses, optimizer and schedule of a row; the model's arguments are checked."""
    for node in (cfg.warmup, cfg.loss):
        loss = build(node, facts=FACTS)
        logits = torch.randn(3, 20, requires_grad=True)
        targets = FACTS["train_targets"][:3].float()
        assert loss(logits, targets, torch.arange(3)).isfinite()
    optimizer = build(cfg.optimizer)([torch.zeros(2, requires_grad=True)])
    build(cfg.scheduler)(optimizer, 10)
    build(cfg.transform)
    assert 0 <= cfg.trainer.warmup_epochs < cfg.trainer.epochs


def test_the_ten_tables_have_experiments():
    assert set(table_names()) <= set(EXPERIMENTS)


@pytest.mark.parametrize("table", table_names())
def test_a_table_runs_the_rows_of_the_paper(table):
    """Each row once; the run folder names table, budget, method and seed."""
    cfg = compose(f"experiment={table}", "method=tkpr_a2", "seed=3")
    methods = cfg.hydra.sweeper.params.method.split(",")
    rows = [OmegaConf.load(CONFIGS / "method" / f"{method}.yaml").row for method in methods]
    assert sorted(rows) == sorted(paper_table(table).index)
    folder = Path(settings(cfg).run_dir)
    assert folder == Path("runs", table, "paper", "tkpr_a2", "seed=3")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_can_be_built(method):
    """Also without a table: ``python train.py method=asl dataset=csv``."""
    cfg = settings(compose(f"method={method}", "run_dir=here"))
    build_row(cfg)
    assert cfg.row


@pytest.mark.slow
@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("table", table_names())
def test_every_row_at_every_budget(table, budget):
    planned = plan(CONFIGS, table, [f"budget={budget}"])
    rows = {run.row for run in planned}
    expected = set(paper_table(table).index) - ({"CCD"} if budget == "features" else set())
    assert rows == expected
    for run in planned:
        words = [f"experiment={table}", f"budget={budget}", f"method={run.method}"]
        cfg = settings(compose(*words))
        build_row(cfg)
        assert (cfg.table, cfg.budget) == (table, budget)
        assert Path(cfg.run_dir) == Path("runs", table, budget, run.method, "seed=0")


@pytest.mark.parametrize(
    ("table", "warmup", "epochs", "optimizer", "size", "batch"),
    [
        ("coco_mlc_ranking_resnet101", "RankingLoss", 200, "SGD", 448, 64),
        ("coco_mlc_sota_resnet101", "DistributionBalancedLoss", 200, "SGD", 448, 64),
        ("coco_mlml_ranking_resnet50", "RankingLoss", 80, "Adam", 448, 64),
        ("coco_mlml_sota_resnet50", "SPLC", 80, "Adam", 448, 64),
        ("voc2007_mlc_ranking_resnet101", "RankingLoss", 100, "SGD", 448, 64),
        ("voc2007_mlc_sota_resnet101", "DistributionBalancedLoss", 100, "SGD", 448, 64),
        ("coco_mlc_sota_swin", "AsymmetricLoss", 80, "Adam", 384, 32),
        ("nuswide_mlc_sota_swin", "AsymmetricLoss", 80, "Adam", 384, 32),
        ("voc2012_mlml_ranking_resnet50", "RankingLoss", 80, "Adam", 448, 64),
        ("voc2012_mlml_sota_resnet50", "SPLC", 80, "Adam", 448, 64),
    ],
)
def test_tkpr_is_trained_as_the_paper_says(table, warmup, epochs, optimizer, size, batch):
    cfg = compose(f"experiment={table}", "method=tkpr_a2", "seed=3")
    assert cfg.warmup._target_.endswith(f".{warmup}")
    assert cfg.trainer.epochs == epochs
    assert cfg.optimizer._target_ == f"torch.optim.{optimizer}"
    assert cfg.optimizer.weight_decay == 1e-4
    assert cfg.scheduler._target_ == "tkpr.schedules.onecycle"
    assert cfg.transform.size == size
    assert cfg.trainer.batch_size == batch
    labels = "single_positive" if "mlml" in table else "full"
    assert cfg.hydra.runtime.choices.labels == labels
    assert cfg.hydra.runtime.choices.dataset == table.split("_")[0]
    spaces = {200: range(10, 70, 10), 100: range(10, 70, 10), 80: range(2, 12, 2)}
    swin = range(5, 30, 5) if "swin" in table else spaces[epochs]
    assert cfg.trainer.warmup_epochs in swin


@pytest.mark.parametrize(
    ("method", "expected"),
    [  # what the authors publish
        ("asl", ("Adam", 1e-4, 1e-4, "onecycle", 80, 128, 0.9997)),
        ("asl_swin", ("Adam", 5e-5, 1e-4, "onecycle", 80, 32, 0.9997)),
        ("ccd", ("Adam", 1e-4, 1e-4, "onecycle", 86, 128, 0.9997)),
        ("hill", ("Adam", 1e-4, 1e-4, "onecycle", 80, 128, 0.9997)),
        ("role", ("Adam", 1e-5, 0, "constant", 10, 16, None)),
        ("em_apl", ("Adam", 1e-5, 0, "constant", 10, 16, None)),
        ("em_apl_voc", ("Adam", 1e-5, 0, "constant", 10, 8, None)),
        ("ll_ct", ("Adam", 1e-5, 0, "constant", 10, 16, None)),
    ],
)
def test_competitors_keep_their_own_recipe(method, expected):
    cfg = compose(f"method={method}", "run_dir=here")
    told = (
        cfg.optimizer._target_.rpartition(".")[2],
        cfg.optimizer.lr,
        cfg.optimizer.weight_decay,
        cfg.scheduler._target_.rpartition(".")[2],
        cfg.trainer.epochs,
        cfg.trainer.batch_size,
        cfg.trainer.ema_decay,
    )
    assert told == expected
    assert cfg.trainer.warmup_epochs == 0
    assert cfg.trainer.head_lr_multiplier == (10 if method.startswith("ll_") else 1)


def test_a_budget_treats_all_methods_alike():
    """Under a small budget the recipes differ in nothing but the loss and the warm-up."""
    for budget in ("small", "features", "smoke"):
        words = ["experiment=coco_mlml_sota_resnet50", f"budget={budget}"]
        parts = []
        for method in ("role", "ll_r", "tkpr_a2"):
            cfg = OmegaConf.to_container(settings(compose(*words, f"method={method}")))
            for key in ("loss", "row", "run_dir"):
                cfg.pop(key)
            warms_up = cfg["trainer"].pop("warmup_epochs") > 0
            assert warms_up == (method == "tkpr_a2")
            parts.append(cfg)
        assert all(part == parts[0] for part in parts)


def test_command_line_beats_every_file():
    cfg = compose(
        *("experiment=voc2007_mlc_sota_resnet101", "budget=smoke", "method=asl"),
        *("optimizer=sgd", "optimizer.lr=0.5", "trainer.epochs=3", "model=mlp"),
    )
    assert cfg.optimizer._target_ == "torch.optim.SGD"
    assert (cfg.optimizer.lr, cfg.trainer.epochs) == (0.5, 3)
    assert cfg.hydra.runtime.choices.model == "mlp"


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name.startswith("search_")])
def test_searches_hold_out_a_fifth_and_stop_early(name):
    cfg = compose(f"experiment={name}", "loss=tkpr_a2", "dataset=voc2012")
    assert cfg.split.holdout == 0.2
    assert cfg.trainer.patience == 5
    ((key, values),) = cfg.hydra.sweeper.params.items()
    compose(f"experiment={name}", f"{key}={values.split(',')[-1]}")
    assert OmegaConf.select(cfg, key) is not None
    assert len(values.split(",")) > 2


def test_all_searches_are_there():
    searched = {name for name in EXPERIMENTS if name.startswith("search_")}
    assert searched == {f"search_{what}" for what in ("lr", "batch", "k", "warmup", "surrogate")}


@pytest.mark.parametrize("name", ["voc2012_mlml_sensitivity", "voc2007_mlc_sensitivity"])
@pytest.mark.parametrize("budget", ["paper", "smoke"])
def test_sensitivity_sweeps_fit_the_budget(name, budget):
    cfg = compose(f"experiment={name}", f"budget={budget}", "method=tkpr_a1")
    params = {key: str(value).split(",") for key, value in cfg.hydra.sweeper.params.items()}
    assert params["method"] == ["tkpr_a1", "tkpr_a2", "tkpr_a3"]
    num_classes = 10 if budget == "smoke" else 20
    assert max(map(int, params["loss.k"])) + 1 <= num_classes
    warmups = params.get("trainer.warmup_epochs", ["0"])
    assert max(map(int, warmups)) < cfg.trainer.epochs


def test_features_of_another_file(monkeypatch):
    monkeypatch.setenv("TKPR_FEATURES", "/elsewhere/mine.npz")
    cfg = compose("experiment=voc2012_mlml_ranking_resnet50", "budget=features", "method=rank")
    assert cfg.dataset.file == "/elsewhere/mine.npz"
    monkeypatch.delenv("TKPR_FEATURES")
    cfg = compose("experiment=voc2012_mlml_ranking_resnet50", "budget=features", "method=rank")
    assert cfg.dataset.file == "data/features/voc2012.npz"


def test_the_settings_of_a_run_are_in_its_folders_name():
    words = ["experiment=voc2007_mlc_ranking_resnet101", "method=tkpr_a2", "seed=1", "loss.k=4"]
    machine = ["trainer.num_workers=4", "dataset.root=/data/voc"]
    folder = Path(settings(compose(*words, *machine)).run_dir)
    assert folder.parts[3:] == ("tkpr_a2", "loss.k=4", "seed=1")


def test_plan_counts_epochs_and_images():
    planned = plan(CONFIGS, "voc2007_mlc_sensitivity", ["split.holdout=0.2"])
    assert [run.method for run in planned] == ["tkpr_a1", "tkpr_a2", "tkpr_a3"]
    assert {(run.epochs, run.images) for run in planned} == {(100, 5011 - 1002)}
