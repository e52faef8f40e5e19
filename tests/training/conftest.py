"""What several tests of the training share."""

import time
from types import SimpleNamespace

import pytest


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand."""
    now = SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr(time, "monotonic", lambda: now.seconds)
    return now
