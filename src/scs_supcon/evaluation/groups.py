"""Accuracy, calibration and rejection of groups of images, such as cameras, sites or persons."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from scs_supcon.data.table import read_column
from scs_supcon.errors import UserError
from scs_supcon.evaluation import metrics
from scs_supcon.evaluation.dataset import EvaluationSet
from scs_supcon.evaluation.record import Evaluation, GroupAnalysis, GroupScores, Score
from scs_supcon.evaluation.stored import stored_evaluation
from scs_supcon.inference.decision import Decision
from scs_supcon.io.records import read_parquet

SMALL_GROUP = 30  # images; below it, the interval of an accuracy of 90% is wider than 20 points
DRAWS = 500
NO_GROUP = "(none)"


def groups_of_images(table: str, column: str, names: Sequence[str]) -> list[str]:
    """Return the group of each image.

    Args:
        table: the .csv or .parquet table that the images are listed in.
        column: column with the group of each image; an empty cell is a group of its own.
        names: names of the images in the table.

    Raises:
        UserError: the data is not a table, or does not have the column or an image.
    """
    path = Path(table)
    if path.suffix.lower() not in (".csv", ".parquet") or not path.is_file():
        raise UserError(
            f"--group {column} needs a .csv or .parquet table with this column, but the data is "
            f"{table}: write a table with the columns image_path, label and {column}"
        )
    values = read_column(path, column)
    missing = [name for name in names if name not in values]
    if missing:
        raise UserError(f"{path} does not list {missing[0]!r}: give the table of these images")
    return [values[name] or NO_GROUP for name in names]


def analyse_groups(
    column: str,
    groups: Sequence[str],
    labels: Tensor,
    probabilities: Tensor,
    rejected: Tensor,
    seed: int = 0,
) -> GroupAnalysis:
    """Return the scores of each group, and the group with the lowest accuracy.

    Args:
        column: what the groups are.
        groups: group of each image.
        labels: (n,) classes.
        probabilities: (n, classes), calibrated.
        rejected: (n,) whether the image was rejected as unknown.
        seed: of the bootstrap of the calibration error.
    """
    correct = probabilities.argmax(1) == labels
    keys = np.array(groups)
    rows = []
    for name in sorted(set(groups)):
        members = torch.from_numpy(np.flatnonzero(keys == name))
        rows.append(
            GroupScores(
                name=name,
                images=len(members),
                accuracy=_share(correct[members]),
                calibration_error=_calibration_error(probabilities[members], labels[members], seed),
                rejected=_share(rejected[members]),
                small=len(members) < SMALL_GROUP,
            )
        )
    large = [row for row in rows if not row.small]
    worst = min(large, key=lambda row: row.accuracy.value) if large else None
    return GroupAnalysis(
        column=column,
        groups=tuple(rows),
        worst=None if worst is None else worst.name,
        p_value=_p_value(large),
        small_images=SMALL_GROUP,
    )


def groups_of_decisions(column: str, images: EvaluationSet, decision: Decision) -> GroupAnalysis:
    """Return the scores by group of the images of known classes."""
    known = images.labels >= 0
    groups = groups_of_images(images.data, column, images.names)
    return analyse_groups(
        column,
        [group for group, is_known in zip(groups, known.tolist(), strict=True) if is_known],
        images.labels[known],
        decision.probabilities[known],
        decision.unknown[known],
    )


def stored_groups(run: Path, column: str) -> Evaluation:
    """Return the stored evaluation of a run with the scores by group of its predictions."""
    import pyarrow.compute as pc

    evaluation = stored_evaluation(run)
    types = {"name": str, "split": str, "label": str, "unknown": bool, "probabilities": list}
    table = read_parquet(run / "predictions.parquet", types)
    table = table.filter(pc.equal(table["split"], evaluation.split))
    index = {name: number for number, name in enumerate(evaluation.classes)}
    analysis = analyse_groups(
        column,
        groups_of_images(evaluation.data, column, table["name"].to_pylist()),
        torch.tensor([index[label] for label in table["label"].to_pylist()]),
        torch.tensor(table["probabilities"].to_pylist()),
        torch.tensor(table["unknown"].to_pylist()),
    )
    return evaluation.model_copy(update={"groups": analysis})


def _share(flags: Tensor) -> Score:
    low, high = metrics.accuracy_interval(flags)
    return Score(value=float(flags.double().mean()), low=low, high=high)


def _calibration_error(probabilities: Tensor, labels: Tensor, seed: int) -> Score:
    """Return the expected calibration error with a percentile interval of the bootstrap."""
    value = metrics.reliability(probabilities, labels).ece
    generator = torch.Generator().manual_seed(seed)
    confidence, predicted = probabilities.double().max(1)
    correct = (predicted == labels).double()
    draws = torch.randint(len(labels), (DRAWS, len(labels)), generator=generator)
    edges = torch.linspace(0, 1, 16, dtype=torch.float64)
    bins = torch.bucketize(confidence, edges[1:-1])
    gaps = torch.zeros(DRAWS, 15, dtype=torch.float64)
    gaps.scatter_add_(1, bins[draws], (correct - confidence)[draws])
    values = gaps.abs().sum(1) / len(labels)
    low, high = torch.quantile(values, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Score(value=value, low=low, high=high)


def _p_value(groups: Sequence[GroupScores]) -> float | None:
    """Return the p-value of a χ² test of equal accuracies; None if there is nothing to test."""
    from scipy.stats import chi2_contingency

    right = [round(row.accuracy.value * row.images) for row in groups]
    wrong = [row.images - count for row, count in zip(groups, right, strict=True)]
    if len(groups) < 2 or not sum(right) or not sum(wrong):
        return None
    return float(chi2_contingency([right, wrong], correction=False).pvalue)
