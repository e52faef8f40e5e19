"""The versions of constraints.txt are those that the project may be installed with."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
GROUPS = {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}


def pins():
    """The version of each package that is named."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    told = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in told}


@pytest.mark.parametrize("extra", GROUPS)
def test_every_dependency_is_pinned_to_a_version_that_will_do(extra):
    for text in GROUPS[extra]:
        wanted = Requirement(text)
        pinned = pins().get(canonicalize_name(wanted.name))
        assert pinned, f"constraints.txt lacks {wanted.name}"
        assert wanted.specifier.contains(pinned), f"{wanted}, but {pinned} is pinned"


def test_no_build_for_one_machine_is_pinned():
    """A local version, such as torch's +cpu, is not on PyPI."""
    assert not [version for version in pins().values() if "+" in version]
