"""`scs_supcon.compare`: a comparison of methods from Python."""

from collections.abc import Sequence
from pathlib import Path

from scs_supcon.benchmark.compare import ComparisonReport, run_comparison
from scs_supcon.benchmark.table import (
    TUNE_RATES,
    Row,
    Table,
    allow_table_code,
    make_table,
    read_table_file,
)
from scs_supcon.data.load import source_name
from scs_supcon.device import compute_per_job
from scs_supcon.plugins import allow_code as allow
from scs_supcon.progress import Display


def compare(  # noqa: PLR0913
    data: str | Path | Table,
    methods: Sequence[str | Row] = ("scs_supcon", "supcon"),
    *,
    out: str | Path | None = None,
    runs: str | Path = "runs/compared",
    seeds: int = 1,
    folds: int | None = None,
    tune: bool | None = None,
    metric: str | None = None,
    readout: str | None = None,
    encoder: str | None = None,
    transform: str | None = None,
    weights: str | Path | None = None,
    from_scratch: bool = False,
    frozen: bool | None = None,
    unfreeze: bool = False,
    epochs: int | None = None,
    batch_size: int | None = None,
    recipe: str | Path | None = None,
    settings: Sequence[str] = (),
    allow_code: Sequence[str | Path] = (),
    device: str = "auto",
    cache: str | Path | None = None,
    offline: bool = False,
    jobs: int = 1,
    dask: str | None = None,
    train: bool = True,
    accept_old: bool = False,
    quiet: bool = False,
) -> ComparisonReport:
    """Train several methods under one protocol and compare them with corrected statistics.

    Cross-entropy and kNN are always included. The same call resumes an interrupted comparison. Runs
    are trained in other processes: call it under `if __name__ == "__main__":` in a script.

    Args:
        data: images as for `train`, a .toml file that describes a comparison, or a `Table`
            (`scs_supcon.benchmark.table`), which may have several columns. A table says everything
            about the runs; options from `methods` to `settings` are then left out.
        methods: names as for `train`, also of your own code, or rows with a display name and
            settings: `Row(method="supcon", name="SupCon, t = 5", settings=[...])`.
        out: folder for tables, figures and comparison.html; default: comparisons/NAME.
        runs: folder of the run directories, which comparisons and machines may share.
        seeds: runs per method.
        folds: folds of a cross-validation.
        tune: train with three learning rates and choose by validation; default: if frozen.
        metric: what the tests compare: "accuracy" (default), "map_at_r", "nll", … (`METRICS`).
        readout: what predicts the class in every row: "linear", "features", "embeddings", "common"
            or "fused"; default: that of each recipe.
        encoder: as for `train`.
        transform: as for `train`.
        weights: as for `train`.
        from_scratch: as for `train`.
        frozen: as for `train`.
        unfreeze: as for `train`.
        epochs: of stage 1.
        batch_size: images per step.
        recipe: TOML file with any part of a recipe for all methods, or "paper".
        settings: assignments such as "pretrain.lr=0.05".
        allow_code: files or modules of yours that a .toml file may import.
        device: "auto", "cpu", "cuda", …
        cache: directory for cached features of frozen encoders.
        offline: never download weights.
        jobs: runs to train in parallel.
        dask: address of the scheduler of a Dask cluster that trains the runs.
        train: False to use the finished runs only.
        accept_old: use runs that were made by other numeric code.
        quiet: show no progress.

    Returns:
        The result: `.comparison` (means and tests), `.results` (of each run), `.text`, `.failed`,
        `.path`, and `.to_pandas()`.
    """
    allow(*allow_code)
    if isinstance(data, Table):
        table = data
        allow_table_code(table)
    elif str(data).endswith(".toml"):
        table = read_table_file(Path(data))
    else:
        table = single_column_table(
            str(data),
            methods,
            seeds=seeds,
            folds=folds,
            tune=tune,
            readout=readout,
            epochs=epochs,
            batch_size=batch_size,
            settings=settings,
            encoder=encoder,
            transform=transform,
            weights=None if weights is None else str(weights),
            from_scratch=from_scratch,
            frozen=frozen,
            unfreeze=unfreeze,
            recipe=None if recipe is None else str(recipe),
        )
    if metric is not None:
        table = make_table(**table.model_dump() | {"metric": metric})
    name = table.columns[0].data if isinstance(data, Table) else str(data)
    return run_comparison(
        table,
        out=Path(out) if out is not None else Path("comparisons") / source_name(name),
        runs=Path(runs),
        compute=compute_per_job(jobs, device, cache, offline),
        jobs=jobs,
        display=Display(quiet),
        train=train,
        accept_old=accept_old,
        dask=dask,
    )


def single_column_table(
    data: str,
    methods: Sequence[str | Row],
    *,
    seeds: int,
    folds: int | None,
    tune: bool | None,
    readout: str | None,
    epochs: int | None,
    batch_size: int | None,
    settings: Sequence[str],
    **column: str | float | bool | None,
) -> Table:
    """Return the table of methods that the user has named, on one dataset.

    Args:
        data: the images.
        methods: names or rows.
        seeds: see `compare`.
        folds: see `compare`.
        tune: see `compare`.
        readout: see `compare`.
        epochs: see `compare`.
        batch_size: see `compare`.
        settings: see `compare`.
        column: further fields of the column; None means that a default is chosen.
    """
    allow(*(row if isinstance(row, str) else row.method for row in methods))
    budget = {"pretrain.epochs": epochs, "pretrain.batch_size": batch_size}
    fields = {key: value for key, value in column.items() if value is not None}
    table = make_table(
        methods=[row if isinstance(row, str) else row.model_dump() for row in methods],
        columns=[{"data": data} | fields],
        seeds=seeds,
        folds=folds,
        readout=readout,
        settings=[f"{k}={v}" for k, v in budget.items() if v is not None] + [*settings],
        tune_rates=None if tune is None else TUNE_RATES if tune else (1.0,),
    )
    allow_table_code(table)
    return table
