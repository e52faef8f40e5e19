"""Settings for all tests."""

import os

import torch
from hypothesis import settings

# as train.py does, before the first operation: see tkpr/runs/cli.py
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# several test processes share the cores
torch.set_num_threads(1)

# the same examples on every run, however slow the machine
settings.register_profile("default", deadline=None, derandomize=True)
settings.load_profile("default")
