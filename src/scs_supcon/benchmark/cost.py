"""Estimate the cost of a table before it is run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from scs_supcon.benchmark.expand import Cell, Source
from scs_supcon.benchmark.results import read_results
from scs_supcon.progress import format_estimate
from scs_supcon.recipe import Recipe

FROM_TIMING = "stage 1 only, from timing a step"


@dataclass(frozen=True)
class CellCost:
    """The estimated seconds of one cell, and what the estimate is based on."""

    seconds: float
    basis: str


def estimate_costs(
    cells: Sequence[Cell], runs: Path, sources: Mapping[str, Source]
) -> dict[str, CellCost | None]:
    """Return the cost of each unfinished cell by address; None for a finished one.

    The estimate is the mean of the finished runs of the same method in the same column, otherwise
    of other methods in that column; otherwise a step of stage 1 is timed, and feature extraction
    and stage 2 are not included.
    """
    seconds: dict[tuple[str, str], list[float]] = {}
    results = read_results(cells, runs, {})
    for result in results:
        if result.seconds is not None:
            key = result.cell.column, result.cell.row
            seconds.setdefault(key, []).append(result.seconds)
    timed: dict[tuple[str, str], float] = {}
    costs: dict[str, CellCost | None] = {}
    for result in results:
        cell = result.cell
        key = cell.column, cell.row
        in_column = [s for (column, _), v in seconds.items() if column == cell.column for s in v]
        if result.status == "done":
            costs[cell.address] = None
        elif key in seconds:
            costs[cell.address] = CellCost(mean(seconds[key]), "from its finished runs")
        elif in_column:
            basis = "from finished runs of other methods"
            costs[cell.address] = CellCost(mean(in_column), basis)
        else:
            if key not in timed:
                timed[key] = stage_1_seconds(cell.recipe, sources[cell.recipe.data.source])
            costs[cell.address] = CellCost(timed[key], FROM_TIMING)
    return costs


def describe_costs(cells: Sequence[Cell], costs: Mapping[str, CellCost | None], jobs: int) -> str:
    """Return a line for each cell, and the total."""
    width = max(len(str(cell)) for cell in cells)
    lines = []
    for cell in cells:
        cost = costs[cell.address]
        text = f"{format_estimate(cost.seconds)}, {cost.basis}" if cost else "finished"
        lines.append(f"{cell.address}  {cell!s:<{width}}  {text}")
    remaining = [cost for cost in costs.values() if cost is not None]
    total = sum(cost.seconds for cost in remaining) / jobs
    ending = f": {format_estimate(total)} with {jobs} job{'s' * (jobs > 1)}"
    if any(cost.basis == FROM_TIMING for cost in remaining):
        ending += ", plus feature extraction and stage 2"
    return "\n".join(
        [*lines, f"{len(costs)} runs, {len(remaining)} to do{ending if remaining else ''}"]
    )


def stage_1_seconds(recipe: Recipe, source: Source) -> float:
    """Return the estimated seconds of stage 1 and its folds, from timing steps of random inputs."""
    import numpy as np
    import torch

    from scs_supcon.methods import Batch
    from scs_supcon.nn.build import build_network, split_frozen
    from scs_supcon.recipe.encoders import SMALL_IMAGE
    from scs_supcon.recipe.resolve import split_dataset
    from scs_supcon.training.estimate import SAMPLE, estimate_stage_1
    from scs_supcon.training.pretrain import make_method, set_up_method
    from scs_supcon.training.unfreeze import head_phase

    side, settings = recipe.data.image_size, recipe.pretrain
    network, method = build_network(recipe), make_method(recipe)
    shape: tuple[int, ...] = (3, side, side)
    if recipe.encoder.frozen:
        cached, network = split_frozen(network, method.uses_taps)
        shape = (cached.num_features,)
    labels = source.images.labels[split_dataset(source.images, recipe) == "train"]
    set_up_method(method, network, labels, len(source.images.classes), recipe)
    size = min(settings.batch_size, len(labels))
    # As in the estimate of a run: a step with few rows of features takes as long as a whole one.
    is_cheap = recipe.encoder.frozen or side <= SMALL_IMAGE
    count = size if is_cheap else min(SAMPLE, size)
    sample = np.linspace(0, len(labels) - 1, count).astype(np.int64)
    views = torch.randn(method.views * len(sample), *shape)
    batch = Batch(views, torch.from_numpy(labels[sample]), torch.from_numpy(sample))
    steps = settings.epochs * -(-len(labels) // size)
    device = torch.device("cpu")
    seconds = estimate_stage_1(network, method, batch, size, steps, device).seconds
    if recipe.encoder.frozen and recipe.fusion.out_of_fold:
        seconds *= recipe.fusion.folds  # once with all images, then with all but one fold each
    return seconds + (stage_1_seconds(head_phase(recipe), source) if settings.head_epochs else 0)
