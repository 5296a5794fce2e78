"""The page of a comparison: one file that needs nothing else."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scs_supcon.benchmark.comparison import Comparison
from scs_supcon.benchmark.results import BASELINES, Outcome
from scs_supcon.benchmark.table import NEIGHBOURS, Table, write_table_file
from scs_supcon.benchmark.tables import number
from scs_supcon.recipe import Recipe

EXTRAS = ("knn_on_readout", "nearest_class_mean", "linear_probe")


@dataclass(frozen=True)
class Content:
    """Everything the page shows.

    Attributes:
        legend: what the marks in the table mean.
        figures: captions and SVG files.
        failed: cells that could not be trained, and why.
        left_out: images that cannot be used, and why.
    """

    table: Table
    comparison: Comparison
    outcomes: Sequence[Outcome]
    legend: str
    figures: Sequence[tuple[str, Path]]
    adapted: Collection[str]
    failed: Mapping[str, str]
    left_out: Sequence[str] = ()


def make_page(content: Content) -> str:
    """Return the page as HTML; names from outside are escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("scs_supcon.benchmark", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    figures = [(caption, Markup(_svg(path))) for caption, path in content.figures]
    done = [outcome for outcome in content.outcomes if outcome.summary]
    recipes = {
        outcome.cell.row: outcome.cell.recipe
        for outcome in content.outcomes
        if outcome.cell.column == content.table.columns[0].name
    }
    return environment.get_template("comparison.html.j2").render(
        comparison=content.comparison,
        headers=[column.name for column in content.comparison.columns],
        rows=_rows(content),
        extras=_extra_titles(content),
        outcomes=content.outcomes,
        done=len(done),
        legend=content.legend,
        figures=figures,
        failed=content.failed,
        left_out=content.left_out,
        facts=_protocol(next(iter(recipes.values()))),
        differences=differences(recipes),
        table_file=write_table_file(content.table),
        control=content.table.against,
    )


def differences(recipes: Mapping[str, Recipe]) -> list[tuple[str, list[tuple[str, str]]]]:
    """What is not the same for all methods, beside the method: key, then methods by value."""
    flat = {row: _flat(recipe.model_dump()) for row, recipe in recipes.items()}
    keys = dict.fromkeys(key for values in flat.values() for key in values)
    found = []
    for key in keys:
        by_value: dict[str, list[str]] = {}
        for row, values in flat.items():
            by_value.setdefault(str(values.get(key, "left out")), []).append(row)
        if len(by_value) > 1 and not key.startswith(("method.", "seed", "data.fold")):
            found.append((key, [(value, ", ".join(rows)) for value, rows in by_value.items()]))
    return found


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        flat |= _flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat


def _rows(content: Content) -> list[dict[str, Any]]:
    comparison = content.comparison
    rows = []
    for row in comparison.rows:
        cells = [
            {
                "text": number(column, row),
                "sort": column.means[row].mean if row in column.means else -1.0,
                "best": row == column.best,
                "level": row in column.level,
            }
            for column in comparison.columns
        ]
        rows.append(
            {
                "name": row,
                "adapted": row in content.adapted,
                "control": row == content.table.against,
                "cells": cells,
                "extras": _extras(content, row),
            }
        )
    return rows


def _extra_titles(content: Content) -> list[str]:
    if len(content.comparison.columns) > 1:
        return []
    return ["macro F1", *(BASELINES[name] for name in EXTRAS), "seconds for a run"]


def _extras(content: Content, row: str) -> list[dict[str, Any]]:
    """Means over a method's runs of what else its runs say, for a table of one column."""
    if len(content.comparison.columns) > 1:
        return []
    summaries = [o.summary for o in content.outcomes if o.cell.row == row and o.summary]
    values: list[list[float]] = [[100 * s["metrics"]["macro_f1"] for s in summaries]]
    values += [[100 * s["baselines"][BASELINES[name]] for s in summaries] for name in EXTRAS]
    values.append([s["seconds"] for s in summaries if "seconds" in s])
    digits = [2] * (len(values) - 1) + [0]
    return [_extra(many, places) for many, places in zip(values, digits, strict=True)]


def _extra(values: Sequence[float], places: int) -> dict[str, Any]:
    if not values:
        return {"text": "–", "sort": -1.0}
    mean = sum(values) / len(values)
    return {"text": f"{mean:.{places}f}", "sort": mean}


def _protocol(recipe: Recipe) -> list[tuple[str, str]]:
    how, encoder = recipe.pretrain, recipe.encoder
    start = encoder.weights if len(encoder.weights) < 20 else f"{encoder.weights[:19]}…"
    kept = f"frozen, {encoder.frozen_views} cached views" if encoder.frozen else "trained"
    return [
        ("encoder", f"{encoder.name}, {start}, {kept}"),
        ("stage 1", f"{how.epochs} epochs, batches of {how.batch_size}, {how.optimizer}"),
        ("", f"learning rate {how.lr:g}, weight decay {how.weight_decay:g}"),
        ("stage 2", f"{recipe.probe.epochs} epochs, the best of a bank of heads on validation"),
        (NEIGHBOURS, "10 nearest training images by the encoder's features"),
    ]


def _svg(path: Path) -> str:
    """The drawing without the prologue of a file, its ids made its own, as wide as the page."""
    text = path.read_text(encoding="utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    mark = re.sub(r"\W", "", path.stem)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{mark}-", text)
    return re.sub(r'(<svg[^>]*?) width="[^"]*pt"| height="[^"]*pt"', r"\1", text, count=2)
