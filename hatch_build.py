"""Put train.py, scripts/ and configs/ inside the package, in wheels only."""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Wheel(BuildHookInterface):  # type: ignore[type-arg]
    """What a checkout has beside the package is inside it in a wheel: see tkpr/__main__.py."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files to what is packed; ``version`` is "standard" or "editable"."""
        if version != "editable":
            for name in ("train.py", "scripts", "configs"):
                build_data["force_include"][name] = f"tkpr/{name}"
