"""From an experiment and a scale to the table of a comparison on the data at hand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scs_supcon.benchmark.table import CROSS_ENTROPY, Column, Row, Table, make_table
from scs_supcon.data.builtin import BUILT_IN
from scs_supcon.data.load import source_name
from scs_supcon.data.named.registry import default_folder, find_named, load_named
from scs_supcon.errors import UserError, did_you_mean
from scs_supcon.recipe import override
from scs_supcon.recipe.encoders import SMALL_IMAGE
from scs_supcon.recipe.recommended import METHOD
from scs_supcon.recipe.toml import section
from scs_supcon.reproduce.experiment import (
    COMPARED,
    Experiment,
    ExperimentColumn,
    ExperimentRow,
    Scale,
    read_defaults,
    read_experiment,
    read_scale,
)

EPOCHS = "pretrain.epochs="
PAPER = "paper"  # the scale, and the recipe of that name


@dataclass(frozen=True)
class ReproduceOptions:
    """What the user asks for.

    Attributes:
        scale: "smoke", "small" or "paper".
        data: folder, table or built-in dataset for the paper's datasets, by name.
        rows: names of the rows to run; empty: all of them.
        seeds: runs per method; None: those of the scale.
        images_per_class: numbers of images per class, one column each; None: all images. Empty:
            that of the scale.
        weights: file with the weights of the scale's encoder for large images.
        settings: settings of every recipe, which override all others.
        unfreeze: fine-tune the scale's encoder for large images instead of freezing it.
    """

    scale: str = "smoke"
    data: Mapping[str, str] = field(default_factory=dict)
    rows: tuple[str, ...] = ()
    seeds: int | None = None
    images_per_class: tuple[int | None, ...] = ()
    weights: Path | None = None
    settings: tuple[str, ...] = ()
    unfreeze: bool = False


@dataclass(frozen=True)
class PlannedColumn:
    """A column of the comparison.

    Attributes:
        name: its name in the comparison.
        paper: the column of the paper that it stands for.
        dataset: the dataset of the paper.
        column: the column of the comparison's table.
    """

    name: str
    paper: ExperimentColumn
    dataset: str
    column: Column


@dataclass(frozen=True)
class Plan:
    """An experiment at a scale, on the data at hand.

    Attributes:
        name: of the experiment.
        experiment: the table or figure.
        scale: the scale.
        columns: what is run; empty if the experiment trains nothing, or if there is no data.
        rows: the methods.
        options: what the user asked for.
        notes: what differs from the paper, in sentences.
    """

    name: str
    experiment: Experiment
    scale: Scale
    columns: tuple[PlannedColumn, ...]
    rows: tuple[ExperimentRow, ...]
    options: ReproduceOptions
    notes: tuple[str, ...]

    def table(self, columns: Sequence[PlannedColumn] | None = None, **values: Any) -> Table:
        """Return the table of the comparison; `values` replace its values."""
        chosen = self.columns if columns is None else columns
        control = self.experiment.control
        folds = self.scale.folds if self.experiment.folds else None
        seeds = 1 if folds else self.scale.seeds
        content: dict[str, Any] = {
            "methods": [table_row(self, row) for row in self.rows],
            "columns": [column.column for column in chosen],
            "seeds": self.options.seeds or seeds,
            "folds": folds,
            "settings": _table_settings(self),
            "tune_rates": (1.0,),
            "control": control if control in [row.name for row in self.rows] else "",
        }
        return make_table(**content | values)


def make_plan(name: str, options: ReproduceOptions) -> Plan:
    """Return the plan of an experiment, given by its full name.

    Raises:
        UserError: there is no data for any of its columns, or a row is unknown.
    """
    experiment = read_experiment(name)
    scale, options = _with_epochs(read_scale(options.scale), options)
    columns, notes = _columns(experiment, scale, options)
    if experiment.columns and not columns:
        datasets = dict.fromkeys(column.dataset for column in experiment.columns)
        raise UserError(
            f"{name} needs images at the scale {options.scale}: give --data NAME=PATH for at least "
            f"one of {', '.join(datasets)}, or set SCS_DATA to a folder that contains them"
        )
    return Plan(name, experiment, scale, columns, _rows(experiment, options), options, notes)


def ranked_plan(plan: Plan) -> Plan:
    """Return the plan of the table whose runs an experiment ranks, with the same epochs."""
    assert plan.experiment.table is not None
    settings = (f"{EPOCHS}{plan.scale.epochs}", *plan.options.settings)
    return make_plan(plan.experiment.table, replace(plan.options, settings=settings))


def _with_epochs(scale: Scale, options: ReproduceOptions) -> tuple[Scale, ReproduceOptions]:
    """Return the scale with the epochs of the settings, which rows may multiply.

    The trials of a search keep their share of the epochs.
    """
    epochs = [s for s in options.settings if s.startswith(EPOCHS)]
    if not epochs:
        return scale, options
    others = tuple(setting for setting in options.settings if setting not in epochs)
    count = section(override({}, epochs), "pretrain")["epochs"]
    assert isinstance(count, int)  # `override` has checked it
    trial = max(1, round(scale.search_epochs * count / scale.epochs))
    changed = {"epochs": count, "search_epochs": trial}
    return scale.model_copy(update=changed), replace(options, settings=others)


def table_row(plan: Plan, row: ExperimentRow) -> Row:
    """Return a row of the experiment as a row of a `Table`."""
    epochs = plan.scale.epochs * row.epochs_factor
    settings = (f"pretrain.epochs={epochs}", *row.settings, *plan.options.settings)
    if row.epochs_factor == 0:
        settings = (*settings, "pretrain.epochs=0", "pretrain.warmup_epochs=0")
    return Row(method=row.method, name=row.name, settings=settings)


def parse_data(given: Sequence[str]) -> dict[str, str]:
    """Return the location of each dataset: those of --data, then the folders in $SCS_DATA."""
    names = tuple(read_defaults().datasets)
    locations: dict[str, str] = {}
    for text in given:
        name, equals, path = (part.strip() for part in text.partition("="))
        if not equals or not path:
            raise UserError(f"--data {text} has no path: write for example --data cifar100=DIR")
        if name not in names:
            hint = did_you_mean(name, names)
            raise UserError(
                f"--data {text}: the paper has no dataset {name!r}, but {', '.join(names)}{hint}"
            )
        if path not in BUILT_IN and not Path(path).exists():
            raise UserError(f"--data {text}: {path} does not exist")
        locations[name] = path
    for name in names:
        folder = default_folder(name)
        if name not in locations and folder is not None and folder.exists():
            locations[name] = str(folder)
    return locations


def data_source(name: str, path: str) -> str:
    """Return the source of images that stand for a dataset of the paper.

    It is `NAME=PATH` if the folder holds the dataset, complete and with its official split;
    otherwise the path of other images.
    """
    folder = Path(path)
    if path in BUILT_IN or not folder.is_dir():
        return path
    dataset = find_named(name)
    try:
        load_named(name, folder)
    except UserError:
        roots = (folder, folder / dataset.folder)
        if any((root / file).exists() for root in roots for file in dataset.files):
            raise  # the publisher's layout, but not complete
        return path
    return f"{name}={path}"


def _rows(experiment: Experiment, options: ReproduceOptions) -> tuple[ExperimentRow, ...]:
    rows = experiment.rows
    if experiment.kind == "comparison":
        rows = with_default_rows(rows)
    if options.scale == PAPER:  # its schedule is long, and its recipe replaces the recommended one
        rows = tuple(row for row in rows if row.epochs_factor <= 1 and row.method != METHOD)
    if options.rows:
        rows = tuple(row for row in rows if row.name in options.rows) or rows[:1]
    return _with_cross_entropy(rows) if experiment.kind in COMPARED else rows


def _with_cross_entropy(rows: tuple[ExperimentRow, ...]) -> tuple[ExperimentRow, ...]:
    """Return the rows with cross-entropy, which every comparison has, at the same budget."""
    if any(row.method == CROSS_ENTROPY for row in rows):
        return rows
    return (*rows, *(row for row in read_defaults().rows if row.method == CROSS_ENTROPY))


def with_default_rows(rows: Sequence[ExperimentRow]) -> tuple[ExperimentRow, ...]:
    """Return the rows of a table with those that every table gets."""
    names = {row.name for row in rows}
    return (*rows, *(row for row in read_defaults().rows if row.name not in names))


def _columns(
    experiment: Experiment, scale: Scale, options: ReproduceOptions
) -> tuple[tuple[PlannedColumn, ...], tuple[str, ...]]:
    """Return the columns, and notes on what differs from the paper."""
    columns: dict[tuple[Any, ...], PlannedColumn] = {}
    notes: list[str] = []
    missing: dict[str, None] = {}
    for column in experiment.columns:
        data = _data(column, options)
        if data is None:
            missing[column.dataset] = None
            continue
        for count in options.images_per_class or (scale.images_per_class,):
            planned = _column(column, data, count, scale, options)
            key = (planned.column.data, planned.name, planned.column.settings)
            if key in columns:
                notes.append(f"{column.name}: the same runs as {columns[key].paper.name}.")
            columns.setdefault(key, planned)
    if missing and columns:
        notes.append(f"Not run, because there is no data: {', '.join(missing)}.")
    return tuple(columns.values()), tuple(notes)


def _data(column: ExperimentColumn, options: ReproduceOptions) -> str | None:
    """Return the data of a column; without any data, built-in images at the scale "smoke"."""
    if column.dataset in options.data:
        return data_source(column.dataset, options.data[column.dataset])
    if options.data or options.scale != "smoke":
        return None
    return "digits" if _is_small(column) else "shapes"


def _is_small(column: ExperimentColumn) -> bool:
    return read_defaults().datasets[column.dataset].image_size <= SMALL_IMAGE


def _column(
    column: ExperimentColumn,
    data: str,
    count: int | None,
    scale: Scale,
    options: ReproduceOptions,
) -> PlannedColumn:
    encoder = scale.encoder if _is_small(column) else scale.large_encoder
    settings: tuple[str, ...] = ()
    recipe = None
    if encoder is None:
        recipe = PAPER
        settings = read_defaults().datasets[column.dataset].settings
    scratch = column.from_scratch if encoder is None else encoder == "tiny"
    pretrained = encoder is not None and not scratch
    tuned = pretrained and options.unfreeze
    parts = [
        source_name(data),
        encoder or column.encoder,
        "fine-tuned" if tuned else None,
        f"{count} per class" if count else None,
    ]
    planned = Column(
        data=data,
        name=", ".join(part for part in parts if part),
        encoder=encoder or column.encoder,
        weights=str(options.weights) if options.weights is not None and pretrained else None,
        from_scratch=scratch,
        frozen=None if tuned else pretrained,
        unfreeze=tuned,
        recipe=recipe,
        images_per_class=count,
        settings=settings,
    )
    return PlannedColumn(planned.name, column, column.dataset, planned)


def _table_settings(plan: Plan) -> tuple[str, ...]:
    folds = ("data.fold_from=train",) if plan.experiment.folds else ()
    return (*plan.scale.settings, *folds)
