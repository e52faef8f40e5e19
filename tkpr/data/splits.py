"""Hold out a part of the training set, to choose hyper-parameters on."""

import numpy as np


def holdout(num_samples: int, share: float, *, seed: int = 1200) -> tuple[np.ndarray, np.ndarray]:
    """Split the rows 0 to ``num_samples - 1`` at random, exactly as the single-positive papers do.

    Args:
        num_samples: number of training samples.
        share: the share of them to hold out.
        seed: of the permutation whose first part is kept; by default that of the papers.

    Returns:
        The rows that stay and the rows that are held out, each in ascending order.

    Example:
        >>> holdout(10, 0.2)
        (array([0, 1, 2, 4, 5, 6, 8, 9]), array([3, 7]))
    """
    if not isinstance(share, int | float) or not 0 < share < 1:
        raise ValueError(f"the share to hold out must be a number between 0 and 1; got {share!r}")
    if not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise ValueError(
            f"the seed of a split must be an integer from 0 to 2**32 - 1; got {seed!r}"
        )
    size = int(np.round(share * num_samples))
    if not 0 < size < num_samples:
        raise ValueError(
            f"holding out a share of {share} of {num_samples} samples leaves one part empty; "
            "choose another share"
        )
    rows = np.random.RandomState(seed).permutation(num_samples)
    return np.sort(rows[:-size]), np.sort(rows[-size:])
