"""`scs tune`: search for a better recipe."""

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from scs_supcon.cluster.tasks import TaskPool, task_pool
from scs_supcon.data.splits import NO_TEST_SPLIT, SPLIT_TITLES
from scs_supcon.errors import UserError
from scs_supcon.io.atomic import write_text
from scs_supcon.io.csv import csv_text
from scs_supcon.io.file_systems import lock_caution
from scs_supcon.io.frames import data_frame
from scs_supcon.io.lock import InUse, is_held
from scs_supcon.io.records import RecordError, read_text
from scs_supcon.plugins import is_plugin
from scs_supcon.progress import Display
from scs_supcon.recipe import from_toml
from scs_supcon.training.result import RunResult
from scs_supcon.training.train import train
from scs_supcon.tuning.figure import draw_search
from scs_supcon.tuning.space import Range
from scs_supcon.tuning.study import (
    Search,
    Trial,
    best,
    completed,
    objective_of,
    open_study,
    prepare,
    work,
    work_on,
)


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Attributes:
        trials: the completed trials.
        best: the best trial by the objective of the search.
        accuracies: accuracies of the best recipe trained again with other seeds.
        split: the split of these accuracies, "test" or "val".
    """

    trials: tuple[Trial, ...]
    best: Trial
    accuracies: tuple[float, ...]
    split: str = "test"

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame with one row per trial, as in trials.csv."""
        return data_frame(
            [
                {"trial": t.number, "val_loss": t.loss, "val_accuracy": t.accuracy}
                | t.params
                | {"run": t.run}
                for t in self.trials
            ]
        )


def run_search(
    search: Search,
    *,
    jobs: int,
    retrain: int,
    display: Display,
    accept_old: bool = False,
    dask: str | None = None,
) -> SearchResult:
    """Run or resume a search; write trials.csv, best.toml, search.png and search.svg.

    Args:
        search: what to train and what to vary.
        jobs: number of trials at a time.
        retrain: number of other seeds to train the best recipe with.
        display: shows progress.
        accept_old: continue a search that was started by other numeric code.
        dask: address of the scheduler of a Dask cluster that computes the trials.
    """
    prepare(search, accept_old)
    study = open_study(search)
    display.line("varying   " + ", ".join(search.over))
    if caution := lock_caution(search.out):
        display.line(f"caution   {caution}")
    messages = _search(search, study, task_pool(jobs, dask, [work.__module__]), display)
    trials = completed(study)
    if len(trials) < search.trials:
        reason = f": {messages[0]}" if messages else ""
        raise UserError(
            f"{len(trials)} of {search.trials} trials are complete and no worker is left{reason}. "
            "Run the same command again to resume"
        )
    _check_parameters(search, trials)
    objective = objective_of(search)
    winner = best(trials, objective)
    _write_results(search, trials, winner)
    draw_search(trials, search.axes, search.out, objective)
    runs = _retrain(search, retrain, display)
    accuracies = tuple(run.accuracy for run in runs)
    split = runs[0].summary.split if runs else "test"
    return SearchResult(tuple(trials), winner, accuracies, split)


def _check_parameters(search: Search, trials: Sequence[Trial]) -> None:
    """Raise an error if a trial of the study lacks a varied key or has a value of another kind."""
    for trial in trials:
        for axis in search.axes:
            value = trial.params.get(axis.key)
            expected = (int, float) if isinstance(axis, Range) else (str,)
            if not isinstance(value, expected) or isinstance(value, bool):
                raise UserError(
                    f"trial {trial.number} of the study has {axis.key} = {value!r}: the study is "
                    "damaged or was written by another program; choose another --out"
                )


def _search(search: Search, study: Any, workers: TaskPool, display: Display) -> list[str]:
    """Run the workers until all have ended; return the errors of those that failed."""
    messages: list[str] = []
    shown = -1
    with display.progress("trials") as progress, workers as pool:
        for number in range(pool.jobs):
            pool.start(str(number), work_on, search.as_text())
        while pool.workers:
            reports = pool.wait(0.5).values()
            messages += [report.message for report in reports if report.message]
            count = len(completed(study))
            if count > shown:
                shown = count
                progress(count, search.trials)
    return messages


def describe(search: Search, result: SearchResult) -> str:
    """Return the result as text for the terminal."""
    first, winner = result.trials[0], result.best
    lines = [
        f"best of {len(result.trials)} trials on the validation images: trial {winner.number}, "
        f"accuracy {winner.accuracy:.2%}, loss {winner.loss:.4f} "
        f"(first trial: accuracy {first.accuracy:.2%}, loss {first.loss:.4f})",
        "",
        *(f"  {key:<32} {_short(value)}" for key, value in winner.params.items()),
        "",
    ]
    if result.accuracies:
        spread = f" ± {stdev(result.accuracies):.2%}" if len(result.accuracies) > 1 else ""
        unused = ", which no trial used" if result.split == "test" else ""
        seeds = (
            "1 other seed"
            if len(result.accuracies) == 1
            else f"{len(result.accuracies)} other seeds"
        )
        lines.append(
            f"trained again with {seeds}: accuracy "
            f"{mean(result.accuracies):.2%}{spread} on the {SPLIT_TITLES[result.split]} images"
            f"{unused}"
        )
        if result.split == "val":
            lines.append(f"caution: {NO_TEST_SPLIT} They were also used to choose the recipe.")
    out = search.out
    lines += [
        f"recipe    {out / 'best.toml'}",
        f"figure    {out / 'search.png'}",
        f"use it    {_train_command(search)}",
    ]
    return "\n".join(lines)


def _train_command(search: Search) -> str:
    """Return the command that trains the best recipe, with the files and code it needs."""
    arguments: dict[str, Any] = {"recipe": search.out / "best.toml"}
    for kind in ("method", "encoder", "transform"):
        name = search.options.get(kind)
        if name is not None and is_plugin(name):  # code is imported only if the user names it
            arguments[kind] = name
    arguments |= {name: search.options.get(name) for name in ("weights", "init_from")}
    arguments["out"] = f"runs/{search.out.name}-best"
    flags = [
        f"--{name.replace('_', '-')} {shlex.quote(str(value))}"
        for name, value in arguments.items()
        if value is not None
    ]
    return " ".join(["scs train", shlex.quote(search.source), *flags])


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _write_results(search: Search, trials: Sequence[Trial], winner: Trial) -> None:
    """Write trials.csv and best.toml."""
    keys = [axis.key for axis in search.axes]
    rows: list[list[object]] = [["trial", "val_loss", "val_accuracy", *keys, "run"]]
    for t in trials:
        values = [t.params[key] for key in keys]
        rows.append([t.number, repr(t.loss), repr(t.accuracy), *values, t.run])
    write_text(search.out / "trials.csv", csv_text(rows))
    try:
        recipe = read_text(search.out / winner.run / "recipe.toml")
    except RecordError as error:
        raise UserError(
            f"the run of the best trial is missing ({error}): restore it, or choose another --out"
        ) from error
    write_text(search.out / "best.toml", recipe)


def _retrain(search: Search, times: int, display: Display) -> list[RunResult]:
    """Train the best recipe with other seeds and return the runs.

    The split is that of the search: a new one would test on images that trials were trained on.
    """
    runs = []
    recipe = search.out / "best.toml"
    split = from_toml(read_text(recipe)).split_seed
    # A recipe file holds neither code nor the path of weights.
    keys = ("method", "encoder", "transform", "weights")
    inputs: dict[str, Any] = {key: search.options.get(key) for key in keys}
    for number in range(1, times + 1):
        seed = search.seed + number
        display.line(f"training the best recipe with seed {seed}")
        options = {"recipe": recipe, "seed": seed, "settings": [f"data.split_seed={split}"]}
        out = search.out / f"best-seed{seed}"
        runs.append(_train_or_wait(search.source, out, **options, **inputs, **search.compute))
    return runs


def _train_or_wait(source: str, out: Path, **options: Any) -> RunResult:
    """Train, or wait while another command trains the same run."""
    while True:
        try:
            return train(source, out=out, quiet=True, **options)
        except InUse:
            while is_held(out / ".lock"):  # resume the run if the other command crashes
                time.sleep(0.5)
