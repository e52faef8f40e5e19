"""Settings for all tests."""

import torch
from hypothesis import settings

# several test processes share the cores
torch.set_num_threads(1)

# the same examples on every run, however slow the machine
settings.register_profile("default", deadline=None, derandomize=True)
settings.load_profile("default")
