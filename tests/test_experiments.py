"""Every experiment composes at every budget, and every row of every table can be built."""

import inspect
from functools import cache
from pathlib import Path

import pytest
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.utils import get_object
from omegaconf import OmegaConf

from tests.expected_recipes import K, expected
from tkpr.config import build, epochs_to_train, experiment_settings, model_facts
from tkpr.reporting.paper_numbers import paper_table, table_names
from tkpr.runs.compose import compose as compose_words
from tkpr.runs.plan import find_budget, plan, split_sweep
from tkpr.runs.settle import settle
from tkpr.training.checks import check_settings

CONFIGS = Path(__file__).parents[1] / "configs"
EXPERIMENTS = sorted(file.stem for file in (CONFIGS / "experiment").glob("*.yaml"))
SEARCHES = sorted(
    file.stem
    for file in (CONFIGS / "experiment" / "search").glob("*.yaml")
    if file.stem != "shared"
)
METHODS = sorted(file.stem for file in (CONFIGS / "method").glob("*.yaml"))
BUDGETS = sorted(file.stem for file in (CONFIGS / "budget").glob("*.yaml"))
LOSSES = {method: method.removesuffix("_swin") for method in METHODS} | {
    "ccd_swin": "ccd_half_asl",
    "em_apl_voc": "em_apl",
}
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
    return compose_words(CONFIGS, list(overrides), hydra_config=True)


def settings(cfg):
    """All but hydra's own settings, resolved."""
    HydraConfig.instance().set_config(cfg)
    plain = OmegaConf.masked_copy(cfg, [key for key in cfg if key != "hydra"])
    return OmegaConf.create(OmegaConf.to_container(plain, resolve=True))


def build_row(cfg):
    """Build the losses, optimizer and schedule of a row; the model's arguments are bound only."""
    for node in (cfg.warmup, cfg.loss):
        loss = build(node, facts=FACTS)
        logits = torch.randn(3, 20, requires_grad=True)
        targets = FACTS["train_targets"][:3].float()
        assert loss(logits, targets, torch.arange(3)).isfinite()
    optimizer = build(cfg.optimizer)([torch.zeros(2, requires_grad=True)])
    build(cfg.scheduler)(optimizer, 10)
    settle(cfg)
    build(cfg.transform)
    model = get_object(cfg.model._target_)
    told = {key: value for key, value in cfg.model.items() if key != "_target_"}
    wanted = inspect.signature(model).parameters
    features = cfg.transform._target_.endswith(".none")
    facts = model_facts((1280,) if features else (3, 64, 64), 20)
    inspect.signature(model).bind(**{k: v for k, v in facts.items() if k in wanted} | told)
    check_settings(cfg)


def test_the_ten_tables_have_experiments():
    assert set(table_names()) <= set(EXPERIMENTS)


@pytest.mark.parametrize("table", table_names())
def test_a_table_runs_the_rows_of_the_paper(table):
    """Each row once, the TKPR ones as the paper says; the folder names table, method and seed."""
    cfg = compose(f"experiment={table}", "method=tkpr_a2", "seed=3")
    methods = cfg.hydra.sweeper.params.method.split(",")
    rows = [OmegaConf.load(CONFIGS / "method" / f"{method}.yaml").row for method in methods]
    assert sorted(rows) == sorted(paper_table(table).index)
    assert_as_expected(table, "tkpr_a2", cfg)
    folder = Path(settings(cfg).run_dir)
    assert folder == Path("runs", table, "paper", "tkpr_a2", "seed=3")


@pytest.mark.parametrize(
    ("table", "methods"),
    [
        ("coco_mlc_ranking_resnet101", ["rank", "u1", "u2", "u3", "u4", "lsep", "tkml"]),
        ("coco_mlc_sota_resnet101", ["asl", "db", "hill", "splc", "tkpr_a1", "ccd"]),
        ("voc2007_mlc_sota_resnet101", ["db", "tkpr_a3"]),
        ("nuswide_mlc_sota_swin", ["asl_swin", "hill_swin", "splc_swin", "ccd_swin", "db"]),
        ("coco_mlml_sota_resnet50", ["role", "em_apl", "ll_r", "ll_ct", "ll_cp", "splc"]),
        ("voc2012_mlml_sota_resnet50", ["em_apl_voc"]),
    ],
)
def test_every_method_in_a_table_is_trained_as_published(table, methods):
    """A table for each method; the slow test below has them all."""
    for method in methods:
        cfg = compose(f"experiment={table}", f"method={method}")
        assert_as_expected(table, method, cfg)


def assert_as_expected(table, method, cfg):
    """All settings that a recipe consists of; nothing is compared with the files that set them."""
    told = experiment_settings(OmegaConf.to_container(settings(cfg)))
    recipe = expected(table, method)
    assert {key: told.get(key) for key in recipe} == recipe
    assert cfg.hydra.runtime.choices.dataset == table.split("_")[0]
    file = CONFIGS / "loss" / f"{LOSSES[method]}.yaml"
    loss = OmegaConf.to_container(OmegaConf.load(file), resolve=True)  # its constants for COCO
    if method == "lsep":
        loss |= {"max_pairs": 1000}  # its negative sampling
    if method == "em_apl_voc":
        loss |= {"alpha": 0.2, "beta": 0.02}
    if method.startswith("tkpr"):
        loss["k"] = K[table]
    db = {"neg_scale": 2.0, "map_gamma": 0.2}
    if "voc" in table:
        db = {"neg_scale": 5.0, "map_gamma": 0.3}
    if method == "db":
        loss |= db
    if cfg.warmup._target_.endswith("DistributionBalancedLoss"):
        assert db.items() <= cfg.warmup.items()
    assert OmegaConf.to_container(cfg.loss, resolve=True) == loss


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
    assert sorted(run.row for run in planned) == sorted(paper_table(table).index)
    cannot = {"CCD"} & set(paper_table(table).index) if budget == "features" else set()
    assert {run.row for run in planned if run.why_not} == cannot
    for run in (run for run in planned if not run.why_not):
        words = [f"experiment={table}", f"budget={budget}", f"method={run.method}"]
        composed = compose(*words)
        cfg = settings(composed)
        build_row(cfg)
        told = {key: value for key, value in OmegaConf.to_container(cfg).items() if key != "plan"}
        assert run.settings == experiment_settings(told)
        if budget == "paper":
            assert_as_expected(table, run.method, composed)
        assert (cfg.table, cfg.budget) == (table, budget)
        assert Path(cfg.run_dir) == Path("runs", table, budget, run.method, "seed=0")


def test_the_momentum_is_cycled_as_in_the_script_that_the_paper_builds_on():
    cfg = compose("experiment=coco_mlc_ranking_resnet101", "method=tkpr_a2", "seed=3")
    optimizer = build(cfg.optimizer)([torch.zeros(2, requires_grad=True)])
    schedule = build(cfg.scheduler)(optimizer, 100)
    momenta = [optimizer.param_groups[0]["momentum"]]
    for _ in range(99):
        optimizer.step()
        schedule.step()
        momenta.append(optimizer.param_groups[0]["momentum"])
    assert (momenta[0], momenta[-1]) == pytest.approx((0.95, 0.95))
    assert min(momenta) == pytest.approx(0.85)
    assert momenta.index(min(momenta)) == 19  # where the learning rate has its peak
    assert optimizer.param_groups[0]["nesterov"]


def test_a_budget_treats_all_methods_alike():
    """Under a small budget the recipes differ in nothing but the loss and the warm-up."""
    for budget in ("small", "features", "smoke"):
        words = ["experiment=coco_mlml_sota_resnet50", f"budget={budget}"]
        parts = []
        for method in ("role", "ll_r", "tkpr_a2"):
            cfg = OmegaConf.to_container(settings(compose(*words, f"method={method}")))
            for key in ("loss", "row", "run_dir", "plan", "recipe"):  # all else is the budget's
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


@pytest.mark.parametrize("name", SEARCHES)
def test_searches_hold_out_a_fifth_and_stop_early(name):
    cfg = compose(f"experiment=search/{name}", "loss=tkpr_a2", "dataset=voc2012")
    assert cfg.split.holdout == 0.2
    assert cfg.trainer.patience == 5
    for key, values in cfg.hydra.sweeper.params.items():
        compose(f"experiment=search/{name}", f"{key}={values.split(',')[-1]}")
        assert OmegaConf.select(cfg, key) is not None
        assert len(values.split(",")) > 1


def test_searches_cover_the_papers_spaces():
    """What plan.search of a recipe holds is there as a sweep, and in the single searches."""
    single = {}
    for name in ("lr", "batch", "k"):
        single |= compose(f"experiment=search/{name}").hydra.sweeper.params
    single = {key: set(map(float, str(values).split(","))) for key, values in single.items()}
    for recipe in ("paper_cnn", "paper_swin", "paper_mlml"):
        space = dict(OmegaConf.load(CONFIGS / "recipe" / f"{recipe}.yaml").plan.search)
        for key, values in space.items():
            if key == "trainer.warmup_epochs":
                continue
            assert set(map(float, str(values).split(","))) <= single[key]
        space.pop("loss.k")
        assert compose(f"experiment=search/{recipe}").hydra.sweeper.params == space


@pytest.mark.parametrize("name", ["voc2012_mlml_sensitivity", "voc2007_mlc_sensitivity"])
@pytest.mark.parametrize("budget", BUDGETS)
def test_sensitivity_sweeps_fit_the_budget(name, budget):
    """No run of the sweep is refused: K fits the classes, the loss gets its turn after E_w."""
    cfg = compose(f"experiment={name}", f"budget={budget}", "method=tkpr_a1")
    params = {key: str(value).split(",") for key, value in cfg.hydra.sweeper.params.items()}
    assert params["method"] == ["tkpr_a1", "tkpr_a2", "tkpr_a3"]
    num_classes = 10 if budget == "smoke" else 20
    assert max(map(int, params["loss.k"])) + 1 <= num_classes
    warmups = params.get("trainer.warmup_epochs", ["0"])
    assert max(map(int, warmups)) < epochs_to_train(cfg.trainer)
    assert len(params["loss.k"]) >= 3
    assert len(warmups) >= 2 or name == "voc2007_mlc_sensitivity"


@pytest.mark.parametrize("budget", BUDGETS)
def test_k_of_a_table_fits_the_budget(budget):
    """All data sets have more classes, but the mosaic has ten; the command line decides."""
    words = ["experiment=coco_mlc_ranking_resnet101", f"budget={budget}", "method=tkpr_a2"]
    assert compose(*words).loss.k == (6 if budget == "smoke" else 10)
    assert compose(*words, "loss.k=3").loss.k == 3


def test_without_a_table_k_is_that_of_the_data_set():
    for method in ("tkpr_a1", "tkpr_a2", "tkpr_a3"):
        assert compose(f"method={method}", "run_dir=here").loss.k == 6
        assert compose(f"method={method}", "dataset=voc2007", "run_dir=here").loss.k == 4


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


def test_plan_counts_runs_epochs_and_images():
    planned = plan(CONFIGS, "voc2007_mlc_sensitivity", ["split.holdout=0.2"])
    assert [run.method for run in planned] == ["tkpr_a1", "tkpr_a2", "tkpr_a3"]
    # six values of K, five seeds
    assert {(run.runs, run.epochs, run.images) for run in planned} == {(30, 100, 5011 - 1002)}
    words = ["method=hill,tkpr_a2", "seed=0,1,2"]
    some = plan(CONFIGS, "voc2012_mlml_sota_resnet50", words)
    assert [(run.method, run.runs, run.epochs) for run in some] == [
        ("hill", 3, 31),
        ("tkpr_a2", 3, 80),
    ]


def test_plan_names_rows_that_a_budget_cannot_have():
    words = ["budget=features", "method=asl"]
    assert [run.method for run in plan(CONFIGS, "coco_mlc_sota_resnet101", words)] == ["asl"]
    planned = plan(CONFIGS, "coco_mlc_sota_resnet101", words[:1])
    assert {run.row: run.why_not for run in planned if run.why_not} == {"CCD": "needs feature maps"}


def test_a_budget_is_one_file(tmp_path):
    (tmp_path / "budget").mkdir()
    (tmp_path / "budget" / "tiny.yaml").write_text(
        "budget: tiny\nplan: {about: one image, unsupported_rows: {CCD: is too large}}\n"
    )
    budget = find_budget(tmp_path, "tiny")
    assert (budget.about, budget.unsupported_rows) == ("one image", {"CCD": "is too large"})
    with pytest.raises(ValueError, match="no budget 'large': choose one of tiny"):
        find_budget(tmp_path, "large")
    for name in BUDGETS:
        assert find_budget(CONFIGS, name).about, name


def test_a_plan_is_no_setting_of_a_run():
    (row,) = plan(CONFIGS, "voc2012_mlml_ranking_resnet50", ["budget=smoke", "method=tkpr_a2"])
    assert row.search["loss.k"] == ["3", "5", "8"]
    assert not [key for key in row.settings if key.startswith("plan")]


def test_plan_refuses_what_it_cannot_count():
    with pytest.raises(ValueError, match="no experiment 'voc': choose one of beyond_coco"):
        plan(CONFIGS, "voc")
    with pytest.raises(ValueError, match="no experiment 'search/k'"):
        plan(CONFIGS, "search/k")
    with pytest.raises(ValueError, match=r"several trainer\.epochs differ in cost"):
        plan(CONFIGS, "voc2012_mlml_sota_resnet50", ["trainer.epochs=1,2"])
    with pytest.raises(ValueError, match=r"Could not override 'seeds'"):
        plan(CONFIGS, "voc2012_mlml_sota_resnet50", ["seeds=0,1"])
    assert split_sweep(["loss.k=range(2,5)"]) == (["loss.k=2"], {"loss.k": ["2", "3", "4"]})


@pytest.mark.parametrize("budget", ["finetune", "small"])
@pytest.mark.parametrize("method", ["ccd", "boostlu_ll_r", "boostlu_ll_ct", "boostlu_ll_cp"])
def test_heads_of_their_own_stand_on_the_network_of_the_budget(method, budget):
    """So that the rows of a table differ by the method, and share stored maps."""
    words = ("experiment=beyond_voc2012_mlml", f"budget={budget}")
    row, plain = (settings(compose(*words, f"method={name}")).model for name in (method, "bce"))
    assert (row.model_name, row.cut) == (plain.model_name, plain.cut)
