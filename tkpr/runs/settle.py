"""Settings that the configuration leaves open: filled in from the network."""

from omegaconf import DictConfig

from tkpr.models.preprocessing import preprocessing


def settle(cfg: DictConfig) -> None:
    """Fill in, in place, what depends on the network: how its images are prepared.

    >>> from omegaconf import OmegaConf
    >>> transform = {"mean": None, "std": 1, "interpolation": None}
    >>> model = {"_target_": "tkpr.models.efficientnet_lite0.create"}
    >>> cfg = OmegaConf.create({"transform": transform, "model": model})
    >>> settle(cfg)
    >>> cfg.transform
    {'mean': [0.5, 0.5, 0.5], 'std': 1, 'interpolation': 'bicubic'}
    """
    if "mean" in cfg.transform:
        for key, value in preprocessing(cfg.model).items():
            if cfg.transform[key] is None:
                cfg.transform[key] = value
