"""Run folders as train.py leaves them, with made-up predictions."""

import numpy as np
import pandas as pd

from tkpr import records
from tkpr.metrics import evaluate


def labels(num_images=60, num_classes=8, seed=0):
    """A 0/1 matrix with one to three labels in each row."""
    rng = np.random.default_rng(seed)
    targets = np.zeros((num_images, num_classes), np.uint8)
    for row in targets:
        row[rng.choice(num_classes, rng.integers(1, 4), replace=False)] = 1
    return targets


def predictions(targets, skill, seed=0):
    """Logits that know more of the labels the higher the skill is; none have a tie."""
    noise = np.random.default_rng(seed).normal(size=targets.shape)
    return (skill * targets + noise).astype(np.float32)


def write_run(root, row, *, skill, seed=0, targets=None, table="", budget="smoke", **settings):
    """Write the folder of a finished run and return what metrics.json holds."""
    targets = labels() if targets is None else targets
    config = {
        "table": table,
        "budget": budget,
        "row": row,
        "seed": seed,
        "split": {"holdout": 0.0, "limit": None},
        "trainer": {"epochs": 5, "warmup_epochs": 2},
        "loss": {"k": 5},
        "warmup": {},
        "dataset": {"_target_": "tkpr.data.features.load_features", "train_split": "train"},
    }
    for key, value in settings.items():
        node, _, name = key.partition("__")
        if name:
            config[node][name] = value
        else:
            config[node] = value
    words = "_".join(f"{key}={value}" for key, value in settings.items() if key != "dataset")
    folder = root / table / budget / row / words / f"seed={seed}"
    folder.mkdir(parents=True)
    # the model learns from epoch to epoch, but not evenly
    epochs = []
    for epoch in range(1, 6):
        part = predictions(targets, skill * epoch / 5, seed=[seed, epoch])
        epochs.append({"epoch": epoch, "train_loss": 1 / epoch} | evaluate(part, targets))
    metrics = {
        key: value for key, value in epochs[-1].items() if key not in ("epoch", "train_loss")
    }
    pd.DataFrame(epochs).to_csv(folder / "metrics.csv", index=False)
    np.savez_compressed(
        folder / "predictions.npz",
        logits=part,
        targets=targets,
        ids=np.array([f"image-{i:03}" for i in range(len(targets))]),
        class_names=np.array([f"class {i}" for i in range(targets.shape[1])]),
    )
    record = {"metrics": metrics, "config": config, "seconds": 1.5, "seed": seed}
    records.write(folder / "metrics.json", record)
    return record | {"folder": folder, "logits": part, "targets": targets}
