"""What differs between two runs or recipes: settings and results side by side."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scs_supcon.data.load import load_images
from scs_supcon.data.named.registry import NAMED
from scs_supcon.errors import UserError
from scs_supcon.evaluation.format import BASELINE_TITLES, SCORE_TITLES
from scs_supcon.evaluation.record import Evaluation
from scs_supcon.io.records import csv_rows
from scs_supcon.recipe import Recipe, make_recipe, paper
from scs_supcon.recipe.defaults import complete_values
from scs_supcon.recipe.resolve import DatasetFacts, InputFiles, TrainOptions, resolve_recipe
from scs_supcon.recipe.toml import read_recipe
from scs_supcon.runs.layout import FINISHED, RECIPE

RECOMMENDED = "recommended"
NAMED_RECIPES = (paper.NAME, RECOMMENDED)
ABSENT = "-"
# Where the data are, and what follows from them, is no setting.
IGNORED = ("data.source", "data.content")
RowsByPath = dict[str, dict[str, str]]


@dataclass(frozen=True)
class DiffSide:
    """One side of a comparison: a title, all settings, and the results of a finished run."""

    title: str
    settings: Mapping[str, Any]
    results: Mapping[str, str]


@dataclass(frozen=True)
class Difference:
    """A setting or result that differs; None if one side does not have it."""

    name: str
    first: Any
    second: Any


@dataclass(frozen=True)
class DifferenceReport:
    """Everything that differs, the number of equal settings, and numbers of differing images."""

    titles: tuple[str, str]
    settings: tuple[Difference, ...]
    results: tuple[Difference, ...]
    equal_settings: int
    data: Mapping[str, int] | None = None

    def to_json(self) -> str:
        """Return the report as JSON."""
        content = {
            "titles": self.titles,
            "settings": {row.name: [row.first, row.second] for row in self.settings},
            "results": {row.name: [row.first, row.second] for row in self.results},
            "equal_settings": self.equal_settings,
            "data": self.data,
        }
        return json.dumps(content, indent=1)


def find_differences(first: str, second: str, data: str = "cub200") -> DifferenceReport:
    """Compare two runs or recipes.

    Args:
        first: a run directory, a recipe file, "paper" or "recommended".
        second: the same.
        data: dataset for which "paper" and "recommended" are completed.

    Raises:
        UserError: one of them cannot be read.
    """
    sides = _read_side(first, data), _read_side(second, data)
    names = list(dict.fromkeys([*sides[0].settings, *sides[1].settings]))
    rows = [Difference(name, *(side.settings.get(name) for side in sides)) for name in names]
    settings = tuple(row for row in rows if row.first != row.second)
    titles = dict.fromkeys([*sides[0].results, *sides[1].results])
    results = tuple(
        Difference(name, *(side.results.get(name) for side in sides)) for name in titles
    )
    pair, equal = (sides[0].title, sides[1].title), len(names) - len(settings)
    data_differences = _data_differences(_images(Path(first)), _images(Path(second)))
    return DifferenceReport(pair, settings, results, equal, data_differences)


def describe_differences(report: DifferenceReport) -> str:
    """Return the report as a table."""
    rows = [
        (row.name, _text(row.first), _text(row.second))
        for row in (*report.settings, *report.results)
    ]
    width = max([len(name) for name, _, _ in rows] + [0])
    middle = max([len(a) for _, a, _ in rows] + [len(report.titles[0])])
    lines = [f"{'':<{width}}  {report.titles[0]:<{middle}}  {report.titles[1]}"]
    for number, (name, a, b) in enumerate(rows):
        if number == len(report.settings) and report.settings:
            lines.append("")
        lines.append(f"{name:<{width}}  {a:<{middle}}  {b}")
    if not report.settings:
        lines.insert(1, "no setting differs")
    lines += ["", f"{report.equal_settings} settings are equal"]
    if report.data is not None:
        differing = [f"{count:,} {way}" for way, count in report.data.items() if count]
        lines.append(f"images: {', '.join(differing) or 'all are equal'}")
    return "\n".join(line.rstrip() for line in lines)


def _read_side(text: str, data: str) -> DiffSide:
    path = Path(text)
    if (path / RECIPE).is_file():
        return DiffSide(text, _settings(_read_file(path / RECIPE)), _results(path))
    if path.is_file():
        return DiffSide(text, _settings(_read_file(path)), {})
    if text in NAMED_RECIPES:
        recipe = _named_recipe(text, data)
        return DiffSide(f"{text} ({data})", _settings(recipe), {})
    raise UserError(
        f"{text!r} is neither a run directory nor a recipe file, and not one of the recipes "
        f"{' and '.join(NAMED_RECIPES)}"
    )


def _images(run: Path) -> RowsByPath:
    """Return the rows of a run's splits.csv by the path of the image; empty if there are none."""
    if not (run / "splits.csv").is_file():
        return {}
    source = Path(_read_file(run / RECIPE).data.source)
    root = source.parent if source.suffix.lower() in (".csv", ".parquet") else source
    rows = csv_rows(run / "splits.csv", ("name", "label", "split", "sha256"))
    return {os.path.abspath(root / row["name"]): row for row in rows}  # noqa: PTH100 - keeps links


def _data_differences(first: RowsByPath, second: RowsByPath) -> dict[str, int] | None:
    if not first or not second:
        return None
    if not first.keys() & second.keys():  # a copy in another place
        first, second = ({row["sha256"]: row for row in side.values()} for side in (first, second))
    both = [(first[key], second[key]) for key in first.keys() & second.keys()]
    ways = {"label": "with another label", "split": "in another split", "sha256": "changed"}
    differences = {way: sum(a[key] != b[key] for a, b in both) for key, way in ways.items()}
    only = {"only in the first run": first, "only in the second run": second}
    return differences | {way: len(side) - len(both) for way, side in only.items()}


def _read_file(file: Path) -> Recipe:
    values = read_recipe(file)
    try:
        return make_recipe(complete_values(values, values))
    except UserError as error:
        raise UserError(f"{file}: {error}") from error


def _named_recipe(name: str, data: str) -> Recipe:
    options = TrainOptions(source=data)
    files = InputFiles(named_recipe=name if name == paper.NAME else "")
    facts = _nominal_facts(data) if data in NAMED else DatasetFacts.of(load_images(data))
    return resolve_recipe(options, facts, files, has_gpu=True)


def _nominal_facts(name: str) -> DatasetFacts:
    """Return the facts about a named dataset whose images need not be on this machine."""
    dataset = NAMED[name]
    train, test = dataset.train or 1000, dataset.test or 500
    splits = np.where(np.arange(train) % 10 == 9, "val", "train")
    return DatasetFacts(
        native_size=dataset.native_size,
        labels=np.concatenate([np.arange(train) // 10, np.arange(test)]) % dataset.classes,
        classes=tuple(str(number) for number in range(dataset.classes)),
        splits=np.concatenate([splits, np.full(test, "test")]),
    )


def _settings(recipe: Recipe) -> dict[str, Any]:
    """Return all values of a recipe by their keys, such as "pretrain.lr"."""
    settings: dict[str, Any] = {}
    for section, values in recipe.model_dump(mode="json", exclude_none=True).items():
        for key, value in values.items() if isinstance(values, dict) else [("", values)]:
            name = f"{section}.{key}".rstrip(".")
            nested = value if isinstance(value, dict) else {"": value}
            settings |= {f"{name}.{inner}".rstrip("."): item for inner, item in nested.items()}
    return {name: value for name, value in settings.items() if name not in IGNORED}


def _results(run: Path) -> dict[str, str]:
    """Return the results of a run as text; empty if it is not finished."""
    if not (run / FINISHED).is_file() or not (run / "evaluation.json").is_file():
        return {}
    evaluation = Evaluation.read(run / "evaluation.json")
    results = {"evaluated on": f"{evaluation.split}, {evaluation.images:,} images"}
    for name, title in SCORE_TITLES.items():
        score = getattr(evaluation.scores, name)
        results[title] = f"{score.value:.2%} ({score.low:.1%} to {score.high:.1%})"
    results["calibration error"] = f"{evaluation.calibration.after.ece:.2%}"
    for name, value in evaluation.baselines.measured().items():
        results[BASELINE_TITLES[name]] = f"{value:.2%}"
    if evaluation.retrieval.map_at_r is not None:
        results["MAP@R"] = f"{evaluation.retrieval.map_at_r:.2%}"
    if evaluation.pairs.auc is not None:
        results["pair AUC"] = f"{evaluation.pairs.auc:.4f}"
    results["rejected as unknown"] = f"{evaluation.rejection.known_rejected:.2%}"
    if evaluation.leakage is not None:
        results["class from style"] = f"{evaluation.leakage.class_from_style:.2%}"
    return results


def _text(value: Any) -> str:
    if value is None:
        return ABSENT
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(_text, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)
