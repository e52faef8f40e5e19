"""The answer to --help: every group with its options, a line each, read from the YAML files."""

import re
from pathlib import Path

USAGE = """\
python train.py [group=option ...] [key=value ...]      one run
python train.py -m loss=tkpr_a1,tkpr_a2 loss.k=3,5      a sweep: all combinations
python train.py --cfg job [...]                         show the settings, run nothing
python train.py --explain [...]                         the same, with the file that set each
"""


def overview(configs: Path) -> str:
    """Describe what can be chosen and what can be set.

    Args:
        configs: the folder of the configuration.
    """
    sections = [USAGE, "Groups, the default marked with *"]
    chosen = defaults((configs / "train.yaml").read_text())
    for folder in sorted(path for path in configs.iterdir() if path.is_dir()):
        options = [
            *sorted(folder.glob("*.yaml")),
            *(file for file in sorted(folder.glob("*/*.yaml")) if file.parent.name != "shared"),
        ]
        if not options:
            continue
        sections.append(f"\n{folder.name}=")
        for option in options:
            name = option.relative_to(folder).with_suffix("").as_posix()
            mark = "*" if chosen.get(folder.name) == name else " "
            sections.append(f"  {mark} {name:<32}{first_comment(option)}")
    sections.append("\nloss@warmup= takes the same options as loss=, the loss of the first epochs.")
    sections.append("\nSettings (trainer=default)\n")
    sections += indented(configs / "trainer" / "default.yaml", "trainer.")
    sections.append("\nSettings of a run\n")
    sections += indented(configs / "train.yaml", "")
    return "\n".join(sections)


def first_comment(file: Path) -> str:
    """Return the text of the first comment line of a YAML file."""
    lines = (line[1:].strip() for line in file.read_text().splitlines() if line.startswith("#"))
    return next((line for line in lines if not line.startswith("@package")), "")


def defaults(text: str) -> dict[str, str]:
    r"""Return the group choices of a primary configuration.

    >>> defaults("defaults:\n  - loss: tkpr_a2\n  - _self_\n  - model: tiny  # a comment\n")
    {'loss': 'tkpr_a2', 'model': 'tiny'}
    """
    return dict(re.findall(r"^  - (\S+): (\S+)", text, flags=re.MULTILINE))


def indented(file: Path, prefix: str) -> list[str]:
    """List the ``key: value  # meaning`` lines of a YAML file."""
    listed, parent = [], ""
    for line in file.read_text().splitlines():
        key, _, rest = line.partition(":")
        if line.startswith("hydra:"):
            break
        if not line.strip() or line.lstrip().startswith(("#", "- ")) or key in ("defaults",):
            continue
        if not rest.strip():
            parent = f"{key}."
            continue
        inside = parent if line.startswith("  ") else ""
        value, _, meaning = rest.partition("#")
        name = f"{prefix}{inside}{key.strip()}={value.strip()}"
        listed.append(f"    {name:<32}{meaning.strip()}" if meaning else f"    {name}")
    return listed
