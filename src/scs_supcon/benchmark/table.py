"""The table of a comparison: rows are methods, columns are a dataset with an encoder.

```toml
methods = [
  "scs_supcon",
  { method = "scs_supcon", name = "SCS, t = 5", settings = ["method.options.t0=5"] },
]
seeds = 3                      # or folds = 5, or both: every seed has its own folds
metric = "accuracy"            # what the tests compare; see `METRICS`
readout = "linear"             # of all rows, see `READOUTS`; by default that of each recipe
tune_rates = [0.3, 1, 3]       # learning rates to try, as factors of the recipe's; [1] tries none
settings = ["pretrain.epochs=60"]

[[columns]]
data = "birds"
encoder = "tf_efficientnet_lite0"
weights = "tf_efficientnet_lite0.safetensors"
frozen = true
images_per_class = 10          # for training and validation; all if it is left out
imbalance = 100                # a long-tailed training set; all images if it is left out
```

Cross-entropy is always added as a row. Methods, encoders and transforms may be your own code, such
as `losses.py:SoftCircle`, if it is allowed with --allow-code. A table that a comparison has written
holds the SHA-256 of such files under `[code]`; with other code it is not run.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import tomli_w
from pydantic import Field, ValidationError, field_validator, model_validator

from scs_supcon.benchmark.metrics import find_metric
from scs_supcon.data.named.registry import NAMED, named_source, split_source
from scs_supcon.data.remote import recorded_source
from scs_supcon.errors import UserError, did_you_mean
from scs_supcon.io.records import RecordError, read_toml
from scs_supcon.io.values import ValueTree
from scs_supcon.methods import available, method_class, parse
from scs_supcon.nn.model_folder import weights_and_encoder
from scs_supcon.plugins import (
    allow_code,
    check_allowed,
    code_digest,
    import_plugin,
    is_plugin,
)
from scs_supcon.recipe import Count, Recipe, Section
from scs_supcon.recipe.schema import Digest, Positive

CROSS_ENTROPY = "baseline"
KNN = "kNN"
TUNE_RATES = (1 / 3, 1.0, 3.0)
MOST_RUNS = 5_000
TuneRates: TypeAlias = Annotated[tuple[Positive, ...], Field(min_length=1)]


# What predicts the class; without a readout, each method has that of its recipe.
READOUTS = {
    "linear": ("fusion.whitened=false",),
    "features": ("fusion.whitened=false", "probe.input=features"),
    "embeddings": ("fusion.whitened=false", "probe.input=embeddings"),
    "common": ("fusion.whitened=false", "probe.input=common"),
    "fused": ("fusion.whitened=true", "fusion.classifier=means"),
}


class Row(Section):
    """A method of the table."""

    method: str
    name: str = ""
    readout: str | None = None
    settings: tuple[str, ...] = ()
    tune_rates: TuneRates | None = None

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        values = {"method": value} if isinstance(value, str) else value
        if isinstance(values, dict) and "method" in values:
            return {"name": values["method"], **values}
        return values


class Column(Section):
    """A dataset with an encoder."""

    data: str
    name: str = ""
    encoder: str | None = None
    transform: str | None = None
    weights: str | None = None
    from_scratch: bool = False
    frozen: bool | None = None
    unfreeze: bool = False
    recipe: str | None = None
    images_per_class: Annotated[int, Field(ge=2)] | None = None
    imbalance: Annotated[float, Field(ge=1)] | None = None
    settings: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        if isinstance(value, dict) and "data" in value:
            names = [_short_name(str(value["data"])), value.get("encoder")]
            if count := value.get("images_per_class"):
                names.append(f"{count} per class")
            if ratio := value.get("imbalance"):
                names.append(f"imbalance {ratio}")
            return {"name": ", ".join(str(name) for name in names if name), **value}
        return value

    @property
    def weights_and_encoder(self) -> tuple[Path | None, str | None]:
        """The file of the weights and the encoder, also if `weights` is a model folder."""
        return weights_and_encoder(Path(self.weights) if self.weights else None, self.encoder)


def _short_name(data: str) -> str:
    named = split_source(data)
    return named[0] if named else Path(data).stem


class Table(Section):
    """What to compare, and how many runs per method."""

    methods: Annotated[tuple[Row, ...], Field(min_length=1)]
    columns: Annotated[tuple[Column, ...], Field(min_length=1)]
    seeds: Count = 1
    folds: Annotated[int, Field(ge=2)] | None = None
    settings: tuple[str, ...] = ()
    tune_rates: TuneRates | None = None
    control: str = ""
    metric: str = "accuracy"
    readout: str | None = None
    code: dict[str, Digest] = Field(default_factory=dict)

    @field_validator("methods")
    @classmethod
    def _with_cross_entropy(cls, rows: tuple[Row, ...]) -> tuple[Row, ...]:
        if any(parse(row.method)[0] == CROSS_ENTROPY for row in rows):
            return rows
        return (*rows, Row(method=CROSS_ENTROPY))

    @model_validator(mode="after")
    def _check_names(self) -> "Table":
        for kind, entries in (("rows", self.methods), ("columns", self.columns)):
            counts = Counter(entry.name for entry in entries)
            duplicates = [name for name, count in counts.items() if count > 1]
            if duplicates:
                raise ValueError(f"two {kind} are called {duplicates[0]!r}: give them other names")
        if KNN in self.rows:
            raise ValueError(f"{KNN} is part of every comparison: leave it out")
        if self.control and self.control not in self.rows:
            hint = did_you_mean(self.control, self.rows)
            raise ValueError(f"the control {self.control!r} is not a row of the table{hint}")
        for row in self.methods:
            method_class(parse(row.method)[0])
        return self

    @model_validator(mode="after")
    def _check_size(self) -> "Table":
        runs = len(self.methods) * len(self.columns) * self.seeds * (self.folds or 1)
        if runs > MOST_RUNS:
            raise ValueError(
                f"the table has {runs:,} runs (rows × columns × seeds × folds); at most "
                f"{MOST_RUNS:,} are supported: reduce seeds or folds"
            )
        return self

    @model_validator(mode="after")
    def _check_choices(self) -> "Table":
        find_metric(self.metric)
        for readout in (self.readout, *(row.readout for row in self.methods)):
            if readout is not None and readout not in READOUTS:
                hint = did_you_mean(readout, READOUTS) or "."
                raise ValueError(
                    f"unknown readout {readout!r}{hint} Available: {', '.join(READOUTS)}"
                )
        return self

    @field_validator("tune_rates")
    @classmethod
    def _check_tune_rates(cls, factors: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if factors is not None and len(set(factors)) < len(factors):
            raise ValueError(f"the factors must differ, got {', '.join(map(str, factors))}")
        return factors

    def rate_factors(self, recipe: Recipe, row: Row | None = None) -> tuple[float, ...]:
        """The factors of the learning rate that are tried in a cell.

        By default, three with a frozen encoder and one otherwise, where a run is expensive. A row
        can have factors of its own.
        """
        if row is not None and row.tune_rates:
            return row.tune_rates
        return self.tune_rates or (TUNE_RATES if recipe.encoder.frozen else (1.0,))

    @property
    def rows(self) -> tuple[str, ...]:
        """The names of the rows."""
        return tuple(row.name for row in self.methods)

    @property
    def control_row(self) -> str:
        """The row that is compared with all others, chosen before any result is known."""
        return self.control or self.rows[0]


def make_table(**values: Any) -> Table:
    """Return a table of these values.

    Raises:
        UserError: an unknown key, a missing or an invalid value.
    """
    try:
        return Table.model_validate(values)
    except ValidationError as error:
        raise UserError("; ".join(dict.fromkeys(map(_sentence, error.errors())))) from error


def read_table_file(path: Path, addresses: Sequence[str] = ()) -> Table:
    """Read a table from a TOML file. Its data may be at those addresses that the user has typed."""
    try:
        values = read_toml(path, links=True)
    except RecordError as error:
        raise UserError(f"cannot read the table: {error}") from error
    try:
        _check_code_allowed(values)
        table = make_table(**values)
        for column in table.columns:
            recorded_source(column.data, column.data if column.data in addresses else None)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    return table


def _check_code_allowed(values: ValueTree) -> None:
    """Raise a UserError if a file names code that the user has not allowed."""
    rows, columns = values.get("methods"), values.get("columns")
    names = [
        ("method", row.get("method") if isinstance(row, dict) else row)
        for row in (rows if isinstance(rows, list) else ())
    ]
    names += [
        (kind, column.get(kind))
        for column in (columns if isinstance(columns, list) else ())
        if isinstance(column, dict)
        for kind in ("encoder", "transform")
    ]
    for kind, name in names:
        if isinstance(name, str):
            check_allowed(kind, parse(name)[0], "")


def allow_table_code(table: Table) -> None:
    """Allow the code that a table names; call it only if the user has made the table."""
    allow_code(*_code_names(table))


def code_digests(table: Table) -> dict[str, str]:
    """Return the SHA-256 of the file of each name of own code in a table."""
    return {name: code_digest(import_plugin(name)) for name in _code_names(table)}


def _code_names(table: Table) -> list[str]:
    names = [parse(row.method)[0] for row in table.methods]
    names += [name or "" for column in table.columns for name in (column.encoder, column.transform)]
    return [name for name in names if is_plugin(name)]


def check_code_digests(table: Table) -> None:
    """Raise an error if own code has changed since a table was written."""
    for name, digest in code_digests(table).items():
        if table.code.get(name, digest) != digest:
            raise UserError(
                f"the code of {name} has changed since this table was written: restore the old "
                "code, or remove its line from [code] to use the new code"
            )


def write_table_file(table: Table) -> str:
    """Return the table as TOML, with the digests of own code."""
    digests = code_digests(table)
    values = table.model_dump(mode="json", exclude_none=True, exclude={"code"})
    return tomli_w.dumps(values | ({"code": digests} if digests else {}))


def with_folders(table: Table, folders: Sequence[str]) -> Table:
    """Return the table with the folders of named datasets, as given with --data."""
    columns = tuple(
        column.model_copy(update={"data": named_source(column.data, folders)})
        if column.data in NAMED
        else column
        for column in table.columns
    )
    return table.model_copy(update={"columns": columns})


def method_names(text: str) -> Sequence[str]:
    """Parse `a,b@preset` or `all`; duplicates are removed."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UserError("--methods is empty: give for example --methods scs_supcon,supcon, or all")
    expanded = [m for name in names for m in (available() if name == "all" else [name])]
    return tuple(dict.fromkeys(expanded))


def _sentence(problem: Any) -> str:
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        sections: dict[str, type[Section]] = {"columns": Column, "methods": Row}
        section = sections.get(str(problem["loc"][0]), Table)
        hint = did_you_mean(str(problem["loc"][-1]), section.model_fields)
        return f"unknown key {where!r}{hint}"
    if problem["type"] == "missing":
        return f"{where} is missing"
    message = str(problem["msg"]).removeprefix("Value error, ").replace("Input should", "it should")
    return f"{where}: {message}" if where else message
