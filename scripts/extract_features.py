"""Store what a frozen network makes of a data set's images, to try many losses on it.

Pooled features of the whole network, for a linear classifier:

python scripts/extract_features.py dataset=voc2012 transform=spml transform.size=224 \
    model=efficientnet_lite0 output=data/voc2012-features.npz
python train.py dataset=features dataset.file=data/voc2012-features.npz loss=tkpr_a2

Or the maps of its first layers, up to model.cut, from which train.py trains the rest; it also makes
them itself where they are missing:

python scripts/extract_features.py dataset=voc2012 budget=finetune
python train.py dataset=voc2012 budget=finetune loss=tkpr_a2
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
    import torch
    from tqdm import tqdm

    from tkpr.config import build, build_dataset, model_facts
    from tkpr.data.assemble import assemble
    from tkpr.data.features import label_codes, save_features
    from tkpr.data.labels import ignore
    from tkpr.runs.maps import is_cut, stored_maps
    from tkpr.runs.settle import settle
    from tkpr.training.predict import fabric_on, predict

    if cfg.model.get("cut") == "auto":  # maps are for those who name a cut
        cfg.model.cut = None
    settle(cfg)
    data, recipe = build_dataset(cfg.dataset), build(cfg.transform)
    if recipe.size is None:
        raise ValueError("the data set must hold images, and transform=none is not for images")
    if cfg.split.limit:
        data = data.limit(cfg.split.limit)
    if is_cut(cfg):
        maps = stored_maps(cfg, data, batch_size=cfg.batch_size)
        print(f"{maps.num_train:,} + {len(data.test):,} images: {maps.array.filename}")
        return
    plain = replace(recipe, augment=None)
    ready = assemble(data, labels=ignore, pipeline=plain, cache_dir=cfg.cache_dir)
    facts = model_facts((3, recipe.size, recipe.size), 0)
    model = build(cfg.model, facts=facts).eval().to(memory_format=torch.channels_last)
    parts, fabric = (ready.train, ready.test), fabric_on(cfg.device, cfg.trainer.precision)
    batches = sum(-(-len(part) // cfg.batch_size) for part in parts)
    with tqdm(total=batches, unit=" batches", disable=None) as bar:
        features = [
            predict(
                *(model, part, ready.finish, fabric),
                batch_size=cfg.batch_size,
                num_workers=cfg.trainer.num_workers,
                channels_last=True,
                after_batch=bar.update,
            ).numpy()
            for part in parts
        ]
    save_features(
        cfg.output,
        np.concatenate(features),
        labels=np.concatenate([label_codes(data.train), label_codes(data.test)]),
        ids=[*data.train.ids, *data.test.ids],
        split=["train"] * len(data.train) + ["test"] * len(data.test),
        class_names=data.class_names,
    )
    print(f"{len(parts[0]):,} + {len(parts[1]):,} images: {cfg.output}")


if __name__ == "__main__":
    main()
