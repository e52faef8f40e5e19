"""Run every test of a loss twice: as on the CPU, and as on an accelerator."""

import pytest

DECIDE = ("tkpr.ranking", "tkpr.losses.inputs", "tkpr.losses.chunked", "tkpr.losses.tkpr")


def pytest_generate_tests(metafunc):
    if metafunc.definition.get_closest_marker("host_only") is None:
        metafunc.parametrize("branch", ["host", "device"], indirect=True)


@pytest.fixture(autouse=True)
def branch(request, monkeypatch):
    """Force the branch without host sync on the CPU, where its numbers can be looked at."""
    chosen = getattr(request, "param", "host")
    if chosen == "device":
        as_on_device(monkeypatch)
    return chosen


def as_on_device(monkeypatch):
    for module in DECIDE:
        monkeypatch.setattr(f"{module}.on_host", lambda tensor: False)
