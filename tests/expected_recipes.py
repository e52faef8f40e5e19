"""How each row of each table is trained, from the paper and the competitors' scripts."""

# optimizer, learning rate, weight decay, schedule, epochs planned and run, batch, averaged weights,
# transform, size, whether incomplete batches are dropped, how much faster the classifier learns
RECIPES = {
    "paper_cnn": ("SGD", 1e-2, 1e-4, "onecycle", 200, None, 64, 0.9997, "asl", 448, False, 1),
    "paper_cnn_voc": ("SGD", 1e-2, 1e-4, "onecycle", 100, None, 64, 0.9997, "asl", 448, False, 1),
    "paper_swin": ("Adam", 5e-5, 1e-4, "onecycle", 80, None, 32, 0.9997, "asl", 384, False, 1),
    "paper_mlml": ("Adam", 1e-4, 1e-4, "onecycle", 80, None, 64, 0.9997, "asl", 448, False, 1),
    "asl": ("Adam", 1e-4, 1e-4, "onecycle", 80, 41, 128, 0.9997, "asl", 448, False, 1),
    "asl_swin": ("Adam", 5e-5, 1e-4, "onecycle", 80, 41, 32, 0.9997, "asl", 384, False, 1),
    "hill": ("Adam", 1e-4, 1e-4, "onecycle", 80, 31, 128, 0.9997, "asl", 448, False, 1),
    "hill_swin": ("Adam", 5e-5, 1e-4, "onecycle", 80, 31, 32, 0.9997, "asl", 384, False, 1),
    "ccd": ("Adam", 1e-4, 1e-4, "onecycle", 86, None, 128, 0.9997, "asl", 448, False, 1),
    "ccd_swin": ("Adam", 5e-5, 1e-4, "onecycle", 83, None, 32, 0.9997, "asl", 384, False, 1),
    "role": ("Adam", 1e-5, 0, "constant", 10, None, 16, None, "spml", 448, True, 1),
    "em_apl": ("Adam", 1e-5, 0, "constant", 10, None, 16, None, "spml", 448, False, 1),
    "em_apl_voc": ("Adam", 1e-5, 0, "constant", 10, None, 8, None, "spml", 448, False, 1),
    "ll": ("Adam", 1e-5, 0, "constant", 10, None, 16, None, "spml", 448, False, 10),
}
# methods with a recipe of their authors; the others are trained as TKPR
OWN = {name: name for name in RECIPES} | {
    **{f"ll_{name}": "ll" for name in ("r", "ct", "cp")},
    "splc": "hill",
    "splc_swin": "hill_swin",
}
# data set, labels, network, warm-up loss, recipe of TKPR, E_w
RESNET101, RESNET50 = "resnet101.tv_in1k", "resnet50.tv_in1k"
SWIN = "swin_base_patch4_window12_384.ms_in22k"
RANK, DB = "pairwise.RankingLoss", "balanced.DistributionBalancedLoss"
ASL, SPLC = "asymmetric.AsymmetricLoss", "robust.SPLC"
TABLES = {
    "coco_mlc_ranking_resnet101": ("coco", "full", RESNET101, RANK, "paper_cnn", 30),
    "coco_mlc_sota_resnet101": ("coco", "full", RESNET101, DB, "paper_cnn", 30),
    "coco_mlml_ranking_resnet50": ("coco", "single_positive", RESNET50, RANK, "paper_mlml", 6),
    "coco_mlml_sota_resnet50": ("coco", "single_positive", RESNET50, SPLC, "paper_mlml", 6),
    "voc2007_mlc_ranking_resnet101": ("voc", "full", RESNET101, RANK, "paper_cnn_voc", 50),
    "voc2007_mlc_sota_resnet101": ("voc", "full", RESNET101, DB, "paper_cnn_voc", 50),
    "coco_mlc_sota_swin": ("coco", "full", SWIN, ASL, "paper_swin", 15),
    "nuswide_mlc_sota_swin": ("nuswide", "full", SWIN, ASL, "paper_swin", 15),
    "voc2012_mlml_ranking_resnet50": ("voc", "single_positive", RESNET50, RANK, "paper_mlml", 6),
    "voc2012_mlml_sota_resnet50": ("voc", "single_positive", RESNET50, SPLC, "paper_mlml", 6),
}
# of TKPR: of those that the paper finds best where it looks (VOC), else as held-out images say
K = {
    **{name: 10 for name in TABLES if name.startswith(("coco", "nuswide"))},
    **{name: 4 for name in TABLES if name.startswith("voc2007")},
    **{name: 6 for name in TABLES if name.startswith("voc2012")},
}


def expected(table: str, method: str) -> dict:
    """The settings of a row by their dotted keys; None where one is not set."""
    dataset, labels, network, warmup, recipe, warmup_epochs = TABLES[table]
    recipe = OWN.get(method, recipe)
    if method in OWN:
        warmup_epochs = 0
    optimizer, lr, decay, schedule, epochs, stop, batch, ema, transform, size, drop, head = RECIPES[
        recipe
    ]
    ccd = method.startswith("ccd")
    return {
        "dataset._target_": f"tkpr.data.{dataset}.load_{dataset}",
        "labels._target_": f"tkpr.data.labels.{labels}",
        "model._target_": "tkpr.models.ccd.ccd" if ccd else "tkpr.models.backbone.create",
        "model.model_name": network,
        "model.pretrained": True,
        "model.context_epochs": {"ccd": 6, "ccd_swin": 3}.get(method),
        "warmup._target_": f"tkpr.losses.{warmup}",
        "optimizer._target_": f"torch.optim.{optimizer}",
        "optimizer.lr": lr,
        "optimizer.weight_decay": decay,
        "optimizer.momentum": 0.9 if optimizer == "SGD" else None,
        "optimizer.nesterov": True if optimizer == "SGD" else None,
        "scheduler._target_": f"tkpr.training.schedules.{schedule}",
        "scheduler.pct_start": 0.2 if schedule == "onecycle" else None,
        "scheduler.cycle_momentum": True if schedule == "onecycle" else None,
        "transform._target_": f"tkpr.data.transforms.{transform}",
        "transform.size": size,
        "transform.mean": None,  # the network's
        "transform.cutout": 0.5 if transform == "asl" else None,
        "trainer.epochs": epochs,
        "trainer.stop_after": stop,
        "trainer.warmup_epochs": warmup_epochs,
        "trainer.batch_size": batch,
        "trainer.drop_last": drop,
        "trainer.head_lr_multiplier": head,
        "trainer.ema_decay": ema,
        "trainer.eval_weights": "ema" if ema else "raw",
        "trainer.precision": "16-mixed" if ema else "32-true",
        "trainer.accumulate": 1,
        "trainer.clip_norm": None,
        "trainer.patience": None,
    }
