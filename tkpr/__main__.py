"""The command ``tkpr``: the scripts of a checkout, from wherever the package is installed.

``tkpr train loss=bce`` is ``python train.py loss=bce``, ``tkpr predict`` is
``python scripts/predict.py``, and so on. A wheel holds train.py, scripts/ and configs/ inside the
package; an editable install uses those of the checkout.
"""

import ast
import difflib
import runpy
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def main() -> None:
    """Run the command that the first word names with the words after it."""
    scripts = commands()
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(overview(scripts))
        return
    name = sys.argv[1]
    if name not in scripts:
        near = difflib.get_close_matches(name, scripts, n=1)
        sys.exit(
            f"error: no command {name!r}: "
            + (f"did you mean {near[0]}?" if near else f"choose one of {', '.join(scripts)}")
        )
    # the path of the script comes first, as for a script: other processes are started by it
    sys.argv = [str(scripts[name]), *sys.argv[2:]]
    runpy.run_path(sys.argv[0], run_name="__main__")


def commands() -> dict[str, Path]:
    """Map each command to its script: ``train`` first, then those of scripts/."""
    root = PACKAGE if (PACKAGE / "train.py").exists() else PACKAGE.parent
    return {path.stem: path for path in [root / "train.py", *sorted(root.glob("scripts/*.py"))]}


def overview(scripts: dict[str, Path]) -> str:
    """List the commands, with the first line of each script's docstring."""
    lines = ["usage: tkpr COMMAND [...]      tkpr COMMAND --help explains one", ""]
    for name, path in scripts.items():
        about = ast.get_docstring(ast.parse(path.read_text())) or ""
        lines.append(f"  {name:<18}{about.splitlines()[0]}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
