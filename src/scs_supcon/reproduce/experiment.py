"""The experiments of the paper: one TOML file per table or figure, published numbers beside it.

The files lie in `experiments/` of this package. `defaults.toml` holds the paper's datasets and
hyper-parameters and the rows that every table gets, `scales.toml` the scales.
"""

import csv
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from scs_supcon.errors import UserError, did_you_mean
from scs_supcon.recipe import Count, Section

FOLDER = Path(__file__).parent / "experiments"
NOT_EXPERIMENTS = ("defaults", "scales")
Kind = Literal["comparison", "efficiency", "search", "boundary", "beta", "tsne", "sigmoid", "ranks"]
COMPARED = ("comparison", "boundary", "beta", "tsne")  # kinds that train the cells of one table


class ExperimentRow(Section):
    """A method of an experiment.

    Attributes:
        name: as in the published numbers.
        method: such as "supcon" or "scs_supcon@paper".
        settings: settings of the recipe.
        epochs_factor: times the epochs of the scale; 0: the initial encoder.
    """

    name: str
    method: str
    settings: tuple[str, ...] = ()
    epochs_factor: Annotated[int, Field(ge=0)] = 1


class ExperimentColumn(Section):
    """A dataset with an encoder, as in the paper."""

    name: str
    dataset: str
    encoder: str
    from_scratch: bool = False


class Experiment(Section):
    """A table or a figure of the paper.

    Attributes:
        title: one line.
        kind: what is computed.
        rows: the methods; a comparison gets those of defaults.toml as well.
        columns: the datasets and encoders of the paper.
        published: file with the published numbers.
        folds: whether the runs are cross-validation folds of the training images.
        control: the row that the others are compared with; default: the first one.
        over: search space of a search.
        table: the experiment whose runs are ranked.
    """

    title: str
    kind: Kind
    rows: tuple[ExperimentRow, ...] = ()
    columns: tuple[ExperimentColumn, ...] = ()
    published: str | None = None
    folds: bool = False
    control: str = ""
    over: tuple[str, ...] = ()
    table: str | None = None


class Scale(Section):
    """The size of an experiment.

    Attributes:
        seeds: runs per method.
        epochs: of stage 1.
        folds: of experiments with folds.
        trials: of a search.
        search_epochs: epochs of stage 1 in a search.
        encoder: instead of the paper's encoders; None keeps them.
        large_encoder: the same for images of more than 64 pixels.
        images_per_class: for training and validation; None: all.
        settings: settings of every recipe.
    """

    seeds: Count
    epochs: Count
    folds: Annotated[int, Field(ge=2)]
    trials: Count
    search_epochs: Count
    encoder: str | None = None
    large_encoder: str | None = None
    images_per_class: Annotated[int, Field(ge=2)] | None = None
    settings: tuple[str, ...] = ()


class PaperDataset(Section):
    """A dataset of the paper: its Table 1, and its line of Table 2 as settings."""

    title: str
    image_size: Count
    classes: Count
    train: Count
    test: Count
    settings: tuple[str, ...] = ()


class PaperDefaults(Section):
    """The paper's hyper-parameters and datasets, and the rows that every table gets."""

    datasets: dict[str, PaperDataset]
    rows: tuple[ExperimentRow, ...]


def experiment_names() -> tuple[str, ...]:
    """Return the names of all experiments, tables first."""
    names = [file.stem for file in FOLDER.glob("*.toml") if file.stem not in NOT_EXPERIMENTS]
    return tuple(sorted(names, key=lambda name: (not name.startswith("table"), name)))


def find_experiment(name: str) -> str:
    """Return the full name for a name or its beginning, such as "table8".

    Raises:
        UserError: no experiment, or more than one, has this name.
    """
    names = experiment_names()
    matches = [name] if name in names else [n for n in names if n.startswith(name) and name]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UserError(f"{name!r} is the beginning of {' and '.join(matches)}: give the full name")
    raise UserError(
        f"there is no experiment {name!r}: `scs reproduce` lists them{did_you_mean(name, names)}"
    )


def read_experiment(name: str) -> Experiment:
    """Return an experiment by its full name."""
    return Experiment.model_validate(_read_toml(name))


@cache
def read_defaults() -> PaperDefaults:
    """Return the paper's datasets and hyper-parameters."""
    return PaperDefaults.model_validate(_read_toml("defaults"))


def read_scale(name: str) -> Scale:
    """Return a scale by its name."""
    scales = _read_toml("scales")
    if name not in scales:
        hint = did_you_mean(name, scales)
        raise UserError(f"unknown scale {name!r}: use {', '.join(scales)}{hint}")
    return Scale.model_validate(scales[name])


def published_numbers(experiment: Experiment) -> dict[tuple[str, str], float]:
    """Return the published numbers by row and column; empty cells are left out."""
    if experiment.published is None:
        return {}
    with (FOLDER / experiment.published).open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    return {
        (row[0], column): float(value)
        for row in rows
        for column, value in zip(header[1:], row[1:], strict=True)
        if value
    }


def published_columns(experiment: Experiment) -> Mapping[str, dict[str, float]]:
    """Return the published numbers of each row by column, in the order of the file."""
    table: dict[str, dict[str, float]] = {}
    for (row, column), value in published_numbers(experiment).items():
        table.setdefault(row, {})[column] = value
    return table


def _read_toml(name: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
