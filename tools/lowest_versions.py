"""Print the lowest version of each dependency that pyproject.toml allows, as pip constraints.

Arguments are extras, such as `dev`; default: all. The floor of an extra replaces that of the base.
"""

import re
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def main() -> None:
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    groups = [project["dependencies"], *(extras[name] for name in sys.argv[1:] or extras)]
    lowest: dict[str, str] = {}
    for requirement in (text for group in groups for text in group):
        match = re.match(r"([\w.-]+)(?:\[.*?\])?>=([\w.]+)", requirement)
        if match:
            lowest[match.group(1).lower()] = match.group(2)
    for name, version in sorted(lowest.items()):
        print(f"{name}=={version}")


if __name__ == "__main__":
    main()
