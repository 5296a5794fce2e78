"""`scs tune`: a search from its first trial to its best recipe."""

import csv
import io
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from scs_supcon.data.splits import NO_TEST_SPLIT, SPLIT_TITLES
from scs_supcon.errors import UserError
from scs_supcon.io.atomic import write_text
from scs_supcon.io.lock import InUse, is_held
from scs_supcon.progress import Display
from scs_supcon.recipe import from_toml
from scs_supcon.training.result import RunResult
from scs_supcon.training.train import train
from scs_supcon.training.workers import WorkerPool
from scs_supcon.tuning.figure import draw_search
from scs_supcon.tuning.study import Search, Trial, best, completed, open_study, prepare, work


@dataclass(frozen=True)
class Found:
    """What a search came to.

    Attributes:
        trials: all that were completed.
        best: the one with the least loss on validation.
        accuracies: of the best recipe trained again with other seeds.
        judged_on: the part that these are of, "test" or "val".
    """

    trials: tuple[Trial, ...]
    best: Trial
    accuracies: tuple[float, ...]
    judged_on: str = "test"


def tune(
    search: Search, *, jobs: int, retrain: int, display: Display, accept_old: bool = False
) -> Found:
    """Search, or go on; then write trials.csv, best.toml and images.

    Args:
        search: what to vary and how often.
        jobs: trials at a time, in processes of their own.
        retrain: how many times to train the best recipe with other seeds.
        display: shows the progress.
        accept_old: continue a search that was started by other numeric code.
    """
    prepare(search, accept_old)
    study = open_study(search)
    display.line("varying   " + ", ".join(search.over))
    messages = _search(search, study, jobs, display)
    trials = completed(study)
    if len(trials) < search.trials:
        reason = f": {messages[0]}" if messages else ""
        raise UserError(
            f"{len(trials)} of {search.trials} trials are complete and no worker is left{reason}. "
            "Run the same command again to resume"
        )
    found = best(trials)
    _keep(search, trials, found)
    draw_search(trials, search.axes, search.out)
    again = _retrained(search, retrain, display)
    accuracies = tuple(result.accuracy for result in again)
    judged_on = again[0].summary.split if again else "test"
    return Found(tuple(trials), found, accuracies, judged_on)


def _search(search: Search, study: Any, jobs: int, display: Display) -> list[str]:
    """Run the workers until all have ended; return the errors of those that failed."""
    messages: list[str] = []
    shown = -1
    with display.progress("trials") as progress, WorkerPool(jobs, [work.__module__]) as pool:
        for number in range(jobs):
            pool.start(str(number), work, search)
        while pool.workers:
            reports = pool.wait(0.5).values()
            messages += [report.message for report in reports if report.message]
            count = len(completed(study))
            if count > shown:
                shown = count
                progress(count, search.trials)
    return messages


def describe(search: Search, found: Found) -> str:
    """The result for a person."""
    first, winner = found.trials[0], found.best
    lines = [
        f"best of {len(found.trials)} trials on the validation images: trial {winner.number}, "
        f"loss {winner.loss:.4f}, {winner.accuracy:.2%} right "
        f"(the first trial: {first.loss:.4f}, {first.accuracy:.2%})",
        "",
        *(f"  {key:<32} {_short(value)}" for key, value in winner.params.items()),
        "",
    ]
    if found.accuracies:
        spread = f" ± {stdev(found.accuracies):.2%}" if len(found.accuracies) > 1 else ""
        lines.append(
            f"trained again with {len(found.accuracies)} other seeds: "
            f"{mean(found.accuracies):.2%}{spread} of the {SPLIT_TITLES[found.judged_on]} images "
            "right"
            f"{', which no trial saw' if found.judged_on == 'test' else ''}"
        )
        if found.judged_on == "val":
            lines.append(f"caution: {NO_TEST_SPLIT} They chose the recipe, too.")
    out = search.out
    source, recipe = (shlex.quote(str(path)) for path in (search.source, out / "best.toml"))
    lines += [
        f"recipe    {out / 'best.toml'}",
        f"images  {out / 'search.png'}",
        f"use it    scs train {source} --recipe {recipe} --out runs/best",
    ]
    return "\n".join(lines)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _keep(search: Search, trials: Sequence[Trial], found: Trial) -> None:
    """Write trials.csv and best.toml."""
    keys = [axis.key for axis in search.axes]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["trial", "val_loss", "val_accuracy", *keys, "run"])
    for t in trials:
        chosen = [t.params[key] for key in keys]
        writer.writerow([t.number, repr(t.loss), repr(t.accuracy), *chosen, t.run])
    write_text(search.out / "trials.csv", text.getvalue())
    recipe = (search.out / found.run / "recipe.toml").read_text(encoding="utf-8")
    write_text(search.out / "best.toml", recipe)


def _retrained(search: Search, times: int, display: Display) -> list[RunResult]:
    """Train the best recipe with other seeds, judged on images that no trial saw.

    The split stays that of the search: another one would test on images that trials learned from.
    """
    summaries = []
    recipe = search.out / "best.toml"
    split = from_toml(recipe.read_text(encoding="utf-8")).split_seed
    # What a recipe file cannot bring along.
    kept: dict[str, Any] = {key: search.options.get(key) for key in ("method", "weights")}
    for number in range(1, times + 1):
        seed = search.seed + number
        display.line(f"training the best recipe with seed {seed}")
        wanted = {"recipe": recipe, "seed": seed, "settings": [f"data.split_seed={split}"]}
        out = search.out / f"best-seed{seed}"
        summaries.append(_trained(search.source, out, **wanted, **kept, **search.place))
    return summaries


def _trained(source: str, out: Path, **options: Any) -> RunResult:
    """Train, or wait for another worker of the search that does, and return the result."""
    while True:
        try:
            return train(source, out=out, quiet=True, **options)
        except InUse:
            while is_held(out / ".lock"):  # should it die, we go on with its run
                time.sleep(0.5)
