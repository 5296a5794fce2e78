"""What a table will cost, before it is run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scs_supcon.benchmark.expand import Cell, Source
from scs_supcon.benchmark.results import read_outcomes
from scs_supcon.progress import spell_seconds
from scs_supcon.recipe import Recipe


@dataclass(frozen=True)
class Cost:
    """Seconds of one cell, and where the number comes from."""

    seconds: float
    how: str


def costs(
    cells: Sequence[Cell], runs: Path, sources: Mapping[str, Source]
) -> dict[str, Cost | None]:
    """What each unfinished cell will take, by address; None for a finished one.

    A finished run of the same method in the same column tells best, then one of another method in
    that column; without any, a step of stage 1 is timed, which leaves out the rest of the run.
    """
    done: dict[tuple[str, str], list[float]] = {}
    outcomes = read_outcomes(cells, runs, {})
    for outcome in outcomes:
        if outcome.summary and "seconds" in outcome.summary:
            key = outcome.cell.column, outcome.cell.row
            done.setdefault(key, []).append(outcome.summary["seconds"])
    timed: dict[tuple[str, str], float] = {}
    found: dict[str, Cost | None] = {}
    for outcome in outcomes:
        cell = outcome.cell
        key = cell.column, cell.row
        in_column = [s for (column, _), many in done.items() if column == cell.column for s in many]
        if outcome.summary:
            found[cell.address] = None
        elif key in done:
            found[cell.address] = Cost(_mean(done[key]), "as its finished runs")
        elif in_column:
            found[cell.address] = Cost(_mean(in_column), "as finished runs of other methods")
        else:
            if key not in timed:
                timed[key] = stage_1_seconds(cell.recipe, sources[cell.recipe.data.source])
            found[cell.address] = Cost(timed[key], "stage 1 alone, from timing a step")
    return found


def describe(cells: Sequence[Cell], costs: Mapping[str, Cost | None], jobs: int) -> str:
    """A line for each cell, and the sum."""
    names = [str(cell) for cell in cells]
    width = max(map(len, names))
    lines = []
    for cell, name in zip(cells, names, strict=True):
        cost = costs[cell.address]
        left = "finished" if cost is None else f"about {spell_seconds(cost.seconds)}, {cost.how}"
        lines.append(f"{cell.address}  {name:<{width}}  {left}")
    todo = [cost for cost in costs.values() if cost is not None]
    total = sum(cost.seconds for cost in todo) / jobs
    hints = {cost.how for cost in todo}
    ending = f": about {spell_seconds(total)} with {jobs} job{'s' * (jobs > 1)}" if todo else ""
    if any(how.startswith("stage 1") for how in hints):
        ending += ", and the features and stage 2 on top"
    return "\n".join([*lines, f"{len(costs)} runs, {len(todo)} to do{ending}"])


def stage_1_seconds(recipe: Recipe, source: Source) -> float:
    """Time one step of stage 1 on random numbers; the weights do not matter."""
    import numpy as np
    import torch
    from torch import nn

    from scs_supcon.methods import Batch, Network
    from scs_supcon.nn.encoder import build_encoder
    from scs_supcon.nn.head import Projection
    from scs_supcon.recipe.resolve import split_dataset
    from scs_supcon.training import estimate as forecast
    from scs_supcon.training.pipeline import make_method
    from scs_supcon.training.pretrain import task_of

    size, how = recipe.data.image_size, recipe.pretrain
    encoder = build_encoder(recipe.encoder.name, small_stem=recipe.encoder.small_stem, in_size=size)
    head, width = recipe.head, encoder.num_features
    projection = Projection(width, head.dim, head.hidden, head.centre)
    network = Network(nn.Identity() if recipe.encoder.frozen else encoder, projection)
    method = make_method(recipe)
    labels = source.images.labels[split_dataset(source.images, recipe) == "train"]
    method.setup(task_of(network, labels, len(source.images.classes), width, recipe))
    few = np.unique(labels, return_index=True)[1][: forecast.FEW]
    shape = (width,) if recipe.encoder.frozen else (3, size, size)
    views = torch.randn(method.views * len(few), *shape)
    batch = Batch(views, torch.from_numpy(labels[few]), torch.from_numpy(few))
    in_batch = min(how.batch_size, len(labels))
    steps = how.epochs * -(-len(labels) // in_batch)
    return forecast.estimate(network, method, batch, in_batch, steps, torch.device("cpu")).seconds


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
