"""What people type does what the paper, or the authors of a loss, did."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.data.miniature import make_arff, make_csv
from tests.expected_recipes import OWN, RECIPES, TABLES, expected
from tkpr.runs.compose import AUTHORS, compose, run_name
from tkpr.runs.explain import explain, sources, summary

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
LOSSES = sorted(file.stem for file in (CONFIGS / "loss").glob("*.yaml"))

# data set, labels: the recipe of TKPR and of every loss without one of its own, E_w, K, network
DEFAULTS = {
    ("coco", "full"): ("paper_cnn", 30, 10, "resnet101.tv_in1k"),
    ("coco", "single_positive"): ("paper_mlml", 6, 10, "resnet50.tv_in1k"),
    ("coco", "partial"): ("paper_mlml", 6, 10, "resnet50.tv_in1k"),
    ("voc2007", "full"): ("paper_cnn_voc2007", 50, 4, "resnet101.tv_in1k"),
    ("voc2007", "single_positive"): ("paper_mlml", 6, 4, "resnet50.tv_in1k"),
    ("voc2012", "full"): ("paper_cnn_voc2007", 50, 6, "resnet101.tv_in1k"),
    ("voc2012", "single_positive"): ("paper_mlml", 6, 6, "resnet50.tv_in1k"),
    ("nuswide", "full"): ("paper_swin", 15, 10, "swin_base_patch4_window12_384.ms_in22k"),
    ("nuswide", "single_positive"): (
        "paper_swin",
        15,
        10,
        "swin_base_patch4_window12_384.ms_in22k",
    ),
    ("mosaic", "full"): ("mosaic", 1, 6, None),
    ("mosaic", "single_positive"): ("mosaic", 1, 6, None),
    ("features", "single_positive"): ("tabular", "auto", "auto", None),
    ("arff", "full"): ("tabular", "auto", "auto", None),
    ("xmc", "full"): ("sparse", 10, 5, None),
    ("csv", "full"): ("finetune", "auto", "auto", "resnet50.tv_in1k"),
    ("csv", "single_positive"): ("finetune", "auto", "auto", "resnet50.tv_in1k"),
}


@pytest.mark.parametrize(("dataset", "labels"), DEFAULTS)
def test_a_data_set_is_trained_as_in_the_paper(dataset, labels):
    recipe, warmup_epochs, k, network = DEFAULTS[dataset, labels]
    words = [f"dataset={dataset}", f"labels={labels}"]
    cfg = compose(CONFIGS, [*words, "loss=tkpr_a2"])
    assert (cfg.recipe, cfg.trainer.warmup_epochs, cfg.loss.k) == (recipe, warmup_epochs, k)
    assert cfg.model.get("model_name") == network
    alone = compose(CONFIGS, [*words, "loss=bce"])
    assert alone.trainer.warmup_epochs == 0, "no loss is warmed up unless a user says so"
    assert (alone.recipe, alone.optimizer, alone.transform) == (
        recipe,
        cfg.optimizer,
        cfg.transform,
    )


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("dataset", "labels"), [("coco", "full"), ("voc2012", "single_positive")])
def test_a_loss_brings_its_authors_recipe(dataset, labels, loss):
    cfg = compose(CONFIGS, [f"dataset={dataset}", f"labels={labels}", f"loss={loss}"])
    wanted = AUTHORS.get(loss, DEFAULTS[dataset, labels][0])
    if (dataset, loss) == ("voc2012", "em_apl"):
        wanted = "em_apl_voc"
    assert cfg.recipe == wanted
    assert (cfg.trainer.warmup_epochs > 0) == loss.startswith("tkpr")


def test_only_on_the_papers_data():
    for dataset in ("mosaic", "features", "csv"):
        cfg = compose(CONFIGS, [f"dataset={dataset}", "loss=asl"])
        assert cfg.recipe == compose(CONFIGS, [f"dataset={dataset}", "loss=tkpr_a2"]).recipe


@pytest.mark.parametrize("table", [name for name in TABLES if "ranking" in name])
def test_the_words_give_the_numbers_of_the_tables(table):
    """``dataset=coco loss=tkpr_a2`` is the row of ``experiment=coco_...``, setting by setting."""
    dataset, labels = table.split("_")[0], TABLES[table][1]
    cfg = compose(CONFIGS, [f"dataset={dataset}", f"labels={labels}", "loss=tkpr_a2"])
    flat = {key: _select(cfg, key) for key in expected(table, "tkpr_a2")}
    assert flat == expected(table, "tkpr_a2")
    row = compose(CONFIGS, [f"experiment={table}", "method=tkpr_a2", "run_dir=x"])
    assert row.loss == cfg.loss


# words: the row of a table that has the same loss, warm-up loss and recipe
ROWS = {
    "dataset=coco loss=db": ("coco_mlc_ranking_resnet101", "db"),
    "dataset=coco loss=lsep": ("coco_mlc_ranking_resnet101", "lsep"),
    "dataset=coco loss=ccd": ("coco_mlc_sota_resnet101", "ccd"),
    "dataset=coco loss=asl": ("coco_mlc_sota_resnet101", "asl"),
    "dataset=coco model=swin_base loss=tkpr_a2": ("coco_mlc_sota_swin", "tkpr_a2"),
    "dataset=nuswide loss=tkpr_a1": ("nuswide_mlc_sota_swin", "tkpr_a1"),
    "dataset=nuswide loss=ccd": ("nuswide_mlc_sota_swin", "ccd_swin"),
    "dataset=nuswide loss=splc": ("nuswide_mlc_sota_swin", "splc_swin"),
    "dataset=voc2007 loss=db": ("voc2007_mlc_sota_resnet101", "db"),
    "dataset=voc2012 labels=single_positive loss=em_apl": (
        "voc2012_mlml_sota_resnet50",
        "em_apl_voc",
    ),
    "dataset=voc2012 labels=single_positive loss=role": ("voc2012_mlml_sota_resnet50", "role"),
    "dataset=coco labels=single_positive loss=ll_cp": ("coco_mlml_sota_resnet50", "ll_cp"),
}


@pytest.mark.parametrize("words", ROWS)
def test_the_words_give_the_constants_of_the_tables(words):
    """Not the recipe alone: also the constants of the loss, and the loss of a warm-up."""
    table, method = ROWS[words]
    cfg = compose(CONFIGS, words.split())
    row = compose(CONFIGS, [f"experiment={table}", f"method={method}", "run_dir=x"])
    assert cfg.loss == row.loss
    assert (cfg.optimizer, cfg.scheduler, cfg.model) == (row.optimizer, row.scheduler, row.model)
    if cfg.trainer.warmup_epochs:
        assert (cfg.warmup, cfg.trainer.warmup_epochs) == (row.warmup, row.trainer.warmup_epochs)


@pytest.mark.parametrize("dataset", ["csv", "mosaic"])
def test_ccd_has_no_classifier_to_start_from_a_probe(dataset):
    cfg = compose(CONFIGS, [f"dataset={dataset}", "model=ccd", "loss=ccd"])
    assert cfg.recipe == "ccd"
    assert (cfg.trainer.head_lr_multiplier, cfg.get("probe")) == (1, None)


@pytest.mark.parametrize("model", ["efficientnet_lite0", "resnet101", "swin_base", "vit_small"])
@pytest.mark.parametrize("dataset", ["csv", "mosaic"])
def test_a_pretrained_network_is_fine_tuned(dataset, model):
    cfg = compose(CONFIGS, [f"dataset={dataset}", f"model={model}"])
    assert cfg.recipe == "finetune"
    assert (cfg.optimizer._target_, cfg.scheduler._target_) == (
        "torch.optim.AdamW",
        "tkpr.training.schedules.onecycle",
    )
    assert (cfg.trainer.epochs, cfg.loss.k, cfg.model.cut) == ("auto",) * 3
    assert cfg.transform._target_ == "tkpr.data.transforms.spml"
    assert cfg.transform.size is None
    assert cfg.probe._target_ == "tkpr.losses.pairwise.RankingLoss"
    assert cfg.trainer.head_lr_multiplier > 1


def test_a_network_from_scratch_or_on_the_papers_data_is_not_fine_tuned():
    assert compose(CONFIGS, ["dataset=mosaic", "model=tiny"]).recipe == "mosaic"
    assert compose(CONFIGS, ["dataset=features", "model=mlp"]).recipe == "tabular"
    cfg = compose(CONFIGS, ["dataset=coco", "model=convnext_tiny"])
    assert (cfg.recipe, cfg.model.cut) == ("paper_cnn", None)


def test_swin_has_recipes_of_its_own():
    words = ["dataset=coco", "model=swin_base"]
    assert compose(CONFIGS, [*words, "loss=tkpr_a1"]).recipe == "paper_swin"
    assert compose(CONFIGS, [*words, "loss=asl"]).recipe == "asl_swin"
    assert compose(CONFIGS, [*words, "loss=splc"]).recipe == "hill_swin"
    ccd = compose(CONFIGS, [*words, "loss=ccd_half_asl"])
    assert ccd.recipe == "ccd_swin"
    assert set(OWN.values()) <= set(RECIPES)


def test_what_the_user_names_wins():
    words = ["dataset=coco", "optimizer=adamw", "trainer.epochs=7", "model=convnext_tiny"]
    cfg = compose(CONFIGS, [*words, "trainer.warmup_epochs=2", "loss=hill"])
    assert cfg.optimizer._target_ == "torch.optim.AdamW"
    assert (cfg.trainer.epochs, cfg.trainer.warmup_epochs) == (7, 2)
    assert cfg.model.model_name.startswith("convnext_tiny")
    assert compose(CONFIGS, ["dataset=coco", "recipe=spml"]).optimizer.lr == 1e-5
    # a key that only the recipe's optimizer has
    assert compose(CONFIGS, ["dataset=coco", "optimizer.momentum=0.8"]).optimizer.momentum == 0.8


def test_explain_names_the_file_of_each_setting():
    words = ["dataset=coco", "trainer.epochs=3"]
    origin = sources(CONFIGS, words)
    assert origin["trainer.epochs"] == "command line"
    assert origin["optimizer.lr"] == "configs/recipe/paper_cnn.yaml"
    assert origin["dataset.year"] == "configs/dataset/coco.yaml"
    lines = explain(CONFIGS, words).splitlines()
    assert any(
        line.split() == ["optimizer.lr", "=", "0.01", origin["optimizer.lr"]] for line in lines
    )
    assert origin["recipe"] == "recipe=auto"


def test_explain_fills_in_what_the_network_and_the_labels_decide(tmp_path):
    words = ["dataset=csv", "model=efficientnet_lite0", "trainer.accelerator=cpu"]
    without = {line.split()[0]: line.split() for line in explain(CONFIGS, words).splitlines()}
    assert without["transform.size"][2:] == ["224", "configs/recipe/finetune.yaml", "(auto)"]
    assert without["model.cut"][2] == "blocks.5"
    assert without["trainer.epochs"][2:] == ["auto", "configs/recipe/finetune.yaml"]
    words += [f"dataset.root={make_csv(tmp_path)}"]
    lines = {line.split()[0]: line.split() for line in explain(CONFIGS, words).splitlines()}
    assert lines["trainer.epochs"][2:] == ["20", "configs/recipe/finetune.yaml", "(auto)"]
    assert lines["loss.k"][2] == "3"


@pytest.mark.parametrize(
    ("budget", "network"),
    [
        ("finetune", "tf_efficientnet_lite0.in1k"),
        ("small", "tf_efficientnet_lite0.in1k"),
        ("paper", "resnet101.tv_in1k"),
        ("smoke", None),
    ],
)
def test_a_budget_keeps_its_network(budget, network):
    """Also where no table is named, whose recipe would replace ``recipe=auto``."""
    for words in (["dataset=voc2012"], ["dataset=coco", "loss=bce"]):
        cfg = compose(CONFIGS, [*words, f"budget={budget}"])
        assert cfg.model.get("model_name") == network
        assert bool(cfg.model.get("cut")) == (budget == "finetune")
    named = compose(CONFIGS, ["dataset=coco", f"budget={budget}", "model=resnet50"])
    assert named.model.model_name == "resnet50.tv_in1k"


def test_a_run_begins_with_five_lines():
    cfg = compose(CONFIGS, ["dataset=coco"], hydra_config=True)
    lines = summary(cfg, cfg.hydra.runtime.choices).splitlines()
    assert len(lines) == 5
    assert lines[0] == "recipe paper_cnn (recipe=auto): SGD 0.01, weight decay 0.0001, onecycle"
    assert "k 10" in lines[1]
    assert lines[1].startswith("loss tkpr_a2 (")
    assert lines[1].endswith(") after 30 epochs of rank")
    assert lines[2].startswith("200 epochs, batch 64, 16-mixed, averaged weights (0.9997)")
    assert lines[4] == "data coco, labels full, seed 0"


def test_the_recipe_does_not_name_the_folder_unless_the_user_does():
    chosen = ["recipe=paper_cnn", "model=resnet101", "auto_recipe=true"]
    assert run_name("coco", "tkpr_a2", [*chosen, "dataset=coco"]) == "coco/tkpr_a2/default"
    assert run_name("coco", "tkpr_a2", ["recipe=spml"]) == "coco/tkpr_a2/recipe=spml"
    both = [*chosen[:1], *chosen[2:], "model=resnet50"]
    assert run_name("coco", "tkpr_a2", both) == "coco/tkpr_a2/model=resnet50"


@pytest.mark.slow
def test_sweeps_over_losses_resolve_each_job(tmp_path):
    """And say so: the recipe has BCE as the warm-up loss, configs/train.yaml L_rank."""
    words = ["dataset=arff", f"dataset.root={make_arff(tmp_path / 'data')}", "dataset.name=mini"]
    words += ["loss=bce,tkpr_a2", "trainer.epochs=3", "trainer.ks=[1]", "trainer.monitor=mAP@1"]
    words += ["trainer.accelerator=cpu"]
    done = subprocess.run(
        [sys.executable, ROOT / "train.py", "-m", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.count("recipe tabular (recipe=auto): AdamW 0.001") == 2
    assert done.stdout.count("after 2 epochs of bce") == 1
    assert sorted(path.name for path in (tmp_path / "runs/arff").iterdir()) == ["bce", "tkpr_a2"]


def _select(cfg, key):
    """Return a value by its dotted key, None where it is not set."""
    for part in key.split("."):
        cfg = cfg.get(part) if cfg is not None else None
    return cfg
