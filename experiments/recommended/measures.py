"""Collect the measures of rejection and style of finished runs for the tables of the study.

    python experiments/recommended/measures.py NAME=RUN [NAME=RUN ...] --out results/style

NAME is the group of a run in the table, such as "digits"; several runs may have the same. The
numbers are those of evaluation.json, measured on the test images of each run.
"""

import argparse
import csv
import tomllib
from pathlib import Path

from scs_supcon.evaluation.record import Evaluation


def method_of(run: Path) -> str:
    """Return "recommended", "linear probe" (no stage 1), or the method with its preset."""
    recipe = tomllib.loads((run / "recipe.toml").read_text(encoding="utf-8"))
    if recipe.get("fusion", {}).get("whitened"):
        return "recommended"
    if recipe["encoder"]["frozen"] and not recipe["pretrain"]["epochs"]:
        return "linear probe"
    name, preset = recipe["method"]["name"], recipe["method"].get("preset")
    return f"{name}@{preset}" if preset else name


def measures_of(run: Path) -> dict[str, float | str]:
    """Return the measures of a run; empty where a method has no style field."""
    evaluation = Evaluation.read(run / "evaluation.json")
    values: dict[str, float | str] = {"known rejected": evaluation.rejection.known_rejected}
    leakage = evaluation.leakage
    columns = {
        "class in style": leakage.excess if leakage else None,
        "purity": leakage.style_purity if leakage else None,
        "view gap": leakage.view_gap if leakage else None,
        "variance explained": leakage.variance_explained if leakage else None,
    }
    return values | {name: "" if value is None else value for name, value in columns.items()}


def main() -> None:
    """Write measures.csv."""
    parser = argparse.ArgumentParser(description="Collect measures of finished runs.")
    parser.add_argument("runs", nargs="+", help="NAME=RUN")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    rows = []
    for argument in arguments.runs:
        name, _, folder = argument.partition("=")
        run = Path(folder)
        rows.append({"set": name, "method": method_of(run), "run": run.name} | measures_of(run))
    arguments.out.mkdir(parents=True, exist_ok=True)
    with (arguments.out / "measures.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
