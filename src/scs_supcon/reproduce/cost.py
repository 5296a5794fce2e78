"""What experiments cost: hours on the device at hand, and GPU hours for the paper's scale.

GPU hours are extrapolated from the only timing that the paper gives: 17.5 s per epoch for SupCon
with ResNet-18 on the 50,000 images of CIFAR-100, two views each, on an RTX 4090. Time is assumed to
be proportional to the multiplications of the encoder, the images, the views and the epochs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from scs_supcon.benchmark.compare import plan as plan_cells
from scs_supcon.benchmark.cost import CellCost, estimate_costs
from scs_supcon.methods import method_class, parse
from scs_supcon.progress import format_estimate
from scs_supcon.recipe.encoders import SMALL_IMAGE
from scs_supcon.recipe.recommended import METHOD
from scs_supcon.reproduce.efficiency import EPOCHS
from scs_supcon.reproduce.experiment import (
    COMPARED,
    Experiment,
    ExperimentColumn,
    read_defaults,
    read_experiment,
    read_scale,
)
from scs_supcon.reproduce.plan import Plan, ReproduceOptions, make_plan, with_default_rows
from scs_supcon.reproduce.resources import Resources

SECONDS_PER_EPOCH = 17.5  # of the reference: SupCon, ResNet-18, 50,000 images of 32 pixels
REFERENCE = ("resnet18", 32, 50_000)
ASSUMPTION = (
    f"GPU hours of one RTX 4090, extrapolated from the paper's {SECONDS_PER_EPOCH} s per epoch of "
    "SupCon (ResNet-18, CIFAR-100) by multiplications, images, views and epochs; stage 1 only."
)


@dataclass(frozen=True)
class ExperimentCost:
    """Runs of an experiment and their estimated duration.

    Attributes:
        name: of the experiment.
        runs: number of runs; `missing` of those that are not finished.
        seconds: of the missing runs on this device; None if it was not estimated.
        gpu_hours: at the paper's scale; None at the others.
    """

    name: str
    runs: int
    missing: int
    seconds: float | None
    gpu_hours: float | None = None


class PaperRun(NamedTuple):
    """What distinguishes the runs of the paper's scale, apart from seed and fold."""

    dataset: str
    encoder: str
    method: str
    settings: tuple[str, ...]
    kind: str


def estimate(names: Sequence[str], options: ReproduceOptions, resources: Resources) -> str:
    """Return a text with the cost of experiments; nothing is trained."""
    if options.scale == "paper" and not options.data:  # nothing can be timed without images
        kinds: set[PaperRun] = set()
        costs = [_paper_cost(name, options, kinds) for name in names]
    else:
        counted: set[str] = set()
        costs = [_cost(name, options, resources, counted) for name in names]
    return describe(costs, resources.jobs)


def describe(costs: Iterable[ExperimentCost], jobs: int) -> str:
    """Return one line per experiment, and the total."""
    listed = list(costs)
    width = max(len(cost.name) for cost in listed)
    lines = []
    for cost in listed:
        text = f"{cost.name:<{width}}  {cost.runs:>4} runs, {cost.missing:>4} to do"
        if cost.seconds is not None:
            text += f": {format_estimate(cost.seconds / jobs)}" if cost.missing else ""
        if cost.gpu_hours is not None:
            text += f"; {cost.gpu_hours:,.0f} GPU hours"
        lines.append(text)
    known = [cost.seconds for cost in listed if cost.seconds is not None]
    if known:
        lines.append(
            f"total on this device with {jobs} job{'s' * (jobs > 1)}: "
            f"{format_estimate(sum(known) / jobs)}. Runs that experiments share are counted once. "
            "Without finished runs the estimate is from timing a step: stage 1 only."
        )
    hours = [cost.gpu_hours for cost in listed if cost.gpu_hours is not None]
    if hours:
        shared = "Runs that experiments share are counted once."
        lines.append(f"total: {sum(hours):,.0f} GPU hours. {shared} {ASSUMPTION}")
    return "\n".join(lines)


def _cost(
    name: str, options: ReproduceOptions, resources: Resources, counted: set[str]
) -> ExperimentCost:
    """Return the cost of an experiment; runs in `counted` are not counted again."""
    plan = make_plan(name, options)
    hours = None
    if options.scale == "paper":
        hours = sum(hours for _, hours in _paper_runs(plan.experiment, options).values())
    if plan.experiment.kind not in (*COMPARED, "search", "efficiency"):
        return ExperimentCost(name, 0, 0, 0.0, hours)
    table = plan.table()
    compute, runs = resources.compute, resources.runs
    cells, sources = plan_cells(
        table, runs, compute, resources.jobs, resources.display, accept_old=resources.accept_old
    )
    costs = estimate_costs(cells, runs, sources)
    missing = {a: cost for a, cost in costs.items() if cost is not None and a not in counted}
    counted |= set(costs)
    if plan.experiment.kind == "search":
        return _search_cost(plan, costs, hours)
    seconds = sum(cost.seconds for cost in missing.values())
    if plan.experiment.kind == "efficiency":
        seconds *= EPOCHS / plan.scale.epochs
    return ExperimentCost(name, len(costs), len(missing), seconds, hours)


def _search_cost(
    plan: Plan, costs: dict[str, CellCost | None], hours: float | None
) -> ExperimentCost:
    """Return the cost of the trials, and of the final runs from two starts."""
    known = [cost.seconds for cost in costs.values() if cost is not None]
    full = sum(known) / len(known) if known else 0.0
    trials = plan.scale.trials * len(plan.columns)
    final = 2 * (plan.options.seeds or plan.scale.seeds) * len(plan.columns)
    seconds = full * (final + trials * plan.scale.search_epochs / plan.scale.epochs)
    return ExperimentCost(plan.name, trials + final, trials + final, seconds, hours)


def _paper_cost(name: str, options: ReproduceOptions, counted: set[PaperRun]) -> ExperimentCost:
    """Return runs and GPU hours of an experiment from the paper's facts about its datasets."""
    runs = _paper_runs(read_experiment(name), options)
    count = sum(repeats for repeats, _ in runs.values())
    new = {key: value for key, value in runs.items() if key not in counted}
    counted |= set(runs)
    missing = sum(repeats for repeats, _ in new.values())
    return ExperimentCost(name, count, missing, None, sum(hours for _, hours in new.values()))


def _paper_runs(
    experiment: Experiment, options: ReproduceOptions
) -> dict[PaperRun, tuple[int, float]]:
    """Return the number of runs and the GPU hours of each kind of run."""
    scale, rows = read_scale("paper"), experiment.rows
    if experiment.kind == "comparison":
        rows = with_default_rows(rows)
    repeats, epochs = options.seeds or scale.seeds, float(scale.epochs)
    kind = "folds" if experiment.folds else ""
    if experiment.folds:
        repeats = scale.folds
    if experiment.kind == "efficiency":
        repeats, epochs, kind = 1, EPOCHS, "efficiency"
    runs = {}
    for column in experiment.columns:
        seconds = _epoch_seconds(column)
        for row in rows:
            if row.epochs_factor == 1 and row.method != METHOD:  # as in `plan`
                hours = repeats * epochs * seconds * _views(row.method) / 2 / 3600
                key = PaperRun(column.dataset, column.encoder, row.method, row.settings, kind)
                runs[key] = repeats, hours
        if experiment.kind == "search":
            key = PaperRun(column.dataset, column.encoder, experiment.rows[0].method, (), "search")
            total = scale.trials * scale.search_epochs + repeats * epochs
            runs[key] = scale.trials + repeats, total * seconds / 3600
    return runs


def _views(method: str) -> int:
    return method_class(parse(method)[0]).views


def _epoch_seconds(column: ExperimentColumn) -> float:
    dataset = read_defaults().datasets[column.dataset]
    name, side, images = REFERENCE
    work = multiplications(column.encoder, dataset.image_size) / multiplications(name, side)
    return SECONDS_PER_EPOCH * work * dataset.train / images


@cache
def multiplications(encoder: str, side: int) -> int:
    """Return the floating-point operations of an encoder for one image."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from scs_supcon.nn.encoder import build_encoder
    from scs_supcon.nn.timm_models import has_small_stem

    small = side <= SMALL_IMAGE and has_small_stem(encoder)
    body = build_encoder(encoder, small_stem=small, in_size=side).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        body(torch.zeros(1, 3, side, side))
    return int(counter.get_total_flops())
