"""Write the features of a data set's images by a frozen network, to try many losses on them.

python scripts/extract_features.py dataset=voc2012 transform=spml transform.size=224 \
    model=efficientnet_lite0 output=data/voc2012-features.npz
python train.py dataset=features dataset.file=data/voc2012-features.npz loss=tkpr_a2
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

CONFIGS = Path(__file__).resolve().parents[1] / "configs"


def main() -> None:
    """Compose the configuration and extract."""
    from tkpr.runs.cli import run_main

    run_main(CONFIGS, "extract_features", extract)


def extract(cfg: Any) -> None:
    """Run every image, without augmentation, through the network without its classifier."""
    import numpy as np

    from tkpr.config import build, build_dataset, model_facts
    from tkpr.data.assemble import assemble
    from tkpr.data.features import save_features
    from tkpr.data.labels import full
    from tkpr.runs.settle import settle
    from tkpr.training.predict import fabric_on, predict

    settle(cfg)
    data, recipe = build_dataset(cfg.dataset), build(cfg.transform)
    if recipe.size is None:
        raise ValueError("the data set must hold images, and transform=none is not for images")
    if cfg.split.limit:
        data = data.limit(cfg.split.limit)
    plain = replace(recipe, augment=None)
    ready = assemble(data, labels=full, pipeline=plain, cache_dir=cfg.cache_dir)
    facts = model_facts((3, recipe.size, recipe.size), 0)
    model = build(cfg.model, facts=facts).eval()
    parts, fabric = (ready.train, ready.test), fabric_on(cfg.device)
    features = [
        predict(model, part, ready.finish, fabric, batch_size=cfg.batch_size).numpy()
        for part in parts
    ]
    save_features(
        cfg.output,
        np.concatenate(features),
        labels=np.concatenate([data.train.targets, data.test.targets]),
        ids=[*data.train.ids, *data.test.ids],
        split=["train"] * len(data.train) + ["test"] * len(data.test),
        class_names=data.class_names,
    )
    print(f"{len(parts[0]):,} + {len(parts[1]):,} images: {cfg.output}")


if __name__ == "__main__":
    main()
