"""Print the lowest version of each dependency that pyproject.toml allows, as pip constraints."""

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def main() -> None:
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    lowest: dict[str, str] = {}
    for requirement in (text for group in groups for text in group):
        match = re.match(r"([\w.-]+)(?:\[.*?\])?>=([\w.]+)", requirement)
        if match:
            lowest[match.group(1).lower()] = match.group(2)
    for name, version in sorted(lowest.items()):
        print(f"{name}=={version}")


if __name__ == "__main__":
    main()
