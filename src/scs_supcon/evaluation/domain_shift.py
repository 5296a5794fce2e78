"""How a model does on shifted copies of the same images: blur, noise, brightness, rotation."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from scs_supcon.data.load import load_images, source_name
from scs_supcon.data.remote import recorded_source
from scs_supcon.data.shift import LEVELS, SHIFTS, shifted
from scs_supcon.device import Compute, find_compute, torch_device
from scs_supcon.errors import UserError
from scs_supcon.evaluation import metrics
from scs_supcon.evaluation.dataset import EvaluationSet, load_evaluation_set, selected_images
from scs_supcon.evaluation.evaluate import encode_images
from scs_supcon.evaluation.record import Score, ShiftRow, ShiftTable
from scs_supcon.evaluation.stored import run_directory
from scs_supcon.inference import Model, load
from scs_supcon.io.atomic import write_text
from scs_supcon.io.records import csv_rows
from scs_supcon.kernels.layout import evenly_spaced
from scs_supcon.progress import Display

MAX_IMAGES = 500  # every shift encodes all of them again


def evaluate_shifts(
    run: str | Path,
    data: str | None = None,
    *,
    device: str = "auto",
    workers: int | None = None,
    max_images: int = MAX_IMAGES,
    quiet: bool = False,
) -> ShiftTable:
    """Evaluate a model on images and on shifted copies of them.

    Args:
        run: a run directory, or its model directory.
        data: as for `evaluate`; default: the test images of the run.
        device: "auto", "cpu", "cuda", …
        workers: processes that load images; default: one per core.
        max_images: number of images at most, evenly spaced.
        quiet: do not show progress.

    Returns:
        The table; it is also written to RUN/evaluations if `run` is a run directory.
    """
    compute, display = find_compute(device, workers), Display(quiet)
    model = load(run, torch_device(device))
    folder = run_directory(Path(run))
    if data is None:
        images = _images_of_run(folder, model, compute, display)
    else:
        images = load_evaluation_set(data, model.classes, compute.workers, display)
    known = torch.nonzero(images.labels >= 0)[:, 0]
    if not len(known):
        raise UserError(f"{images.data} has no images of the classes of the model")
    subset = known[evenly_spaced(len(known), max_images)]
    images = replace(images, indices=images.indices[subset.numpy()], labels=images.labels[subset])
    original = _row(model, images, "none", "", compute, display)
    rows = [original]
    for name in SHIFTS:
        for number, level in enumerate(LEVELS):
            changed = replace(images, images=shifted(images.images, name, number))
            rows.append(_row(model, changed, name, level, compute, display))
    table = ShiftTable(data=images.data, images=len(images.labels), rows=tuple(rows))
    if (folder / "recipe.toml").exists():
        file = folder / "evaluations" / f"{source_name(images.data)}-shift.json"
        write_text(file, table.model_dump_json(indent=1) + "\n")
        table = table.model_copy(update={"saved_to": str(file)})
    return table


def describe_shifts(table: ShiftTable) -> str:
    """Return the table as text."""
    lines = [
        f"{table.data}: {table.images:,} images and shifted copies of them",
        "",
        f"{'shift':<18} {'accuracy':>8}  {'95% interval':<16} {'change':>7} {'calibration':>11} "
        f"{'confidence':>10} {'rejected':>8}",
    ]
    original = table.rows[0].accuracy.value
    for row in table.rows:
        title = f"{row.shift}, {row.level}" if row.level else "as they are"
        interval = f"{row.accuracy.low:.1%} to {row.accuracy.high:.1%}"
        change = f"{100 * (row.accuracy.value - original):+.1f}" if row.level else ""
        lines.append(
            f"{title:<18} {row.accuracy.value:>8.1%}  {interval:<16} {change:>7} "
            f"{row.calibration_error:>11.1%} {row.confidence:>10.1%} {row.rejected:>8.1%}"
        )
    lines += ["", "change: in points of accuracy; calibration: expected calibration error"]
    for name, shift in SHIFTS.items():
        strengths = ", ".join(f"{strength:g}" for strength in shift.strengths)
        lines.append(f"{name}: {strengths} ({shift.unit})")
    if table.saved_to:
        lines += ["", f"saved to  {table.saved_to}"]
    return "\n".join(lines)


def _row(
    model: Model, images: EvaluationSet, name: str, level: str, compute: Compute, display: Display
) -> ShiftRow:
    with tempfile.TemporaryDirectory(prefix="scs-shift-") as cache:
        once = replace(compute, cache=Path(cache))  # shifted copies are not worth keeping
        features = encode_images(model, images, images.indices, "eval", once, display)[:, 0]
    decision = model.decide(features)
    probabilities, labels = decision.probabilities, images.labels
    correct = probabilities.argmax(1) == labels
    low, high = metrics.accuracy_interval(correct)
    return ShiftRow(
        shift=name,
        level=level,
        accuracy=Score(value=float(correct.double().mean()), low=low, high=high),
        calibration_error=metrics.reliability(probabilities, labels).ece,
        confidence=float(probabilities.double().amax(1).mean()),
        rejected=float(decision.unknown.double().mean()),
    )


def _images_of_run(run: Path, model: Model, compute: Compute, display: Display) -> EvaluationSet:
    """Return the test images of a run, or its validation images if it has no test images."""
    file = run / "splits.csv"
    if not file.is_file():
        raise UserError(f"{run} has no splits.csv: give the images as DATA")
    split_of = {row["name"]: row["split"] for row in csv_rows(file, ("name", "split"))}
    split: Literal["test", "val"] = "test" if "test" in split_of.values() else "val"
    source = model.info.recipe.data.source
    images = load_images(recorded_source(source, advice="to read them from there, give it as DATA"))
    chosen = [k for k, name in enumerate(images.names) if split_of.get(name) == split]
    expected = sum(value == split for value in split_of.values())
    if len(chosen) != expected:
        raise UserError(
            f"{source} has {len(chosen):,} of the {expected:,} {split} images of {run}: restore "
            "the data, or give other images as DATA"
        )
    return selected_images(source, images, split, chosen, model.classes, compute.workers, display)
