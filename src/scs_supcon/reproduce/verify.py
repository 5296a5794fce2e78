"""Run one cell of a results folder again, and say whether its predictions agree."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scs_supcon.benchmark.pairwise import ALPHA
from scs_supcon.benchmark.statistics import mcnemar
from scs_supcon.data.builtin import BUILT_IN
from scs_supcon.data.dataset import ImageDataset, Problem, content_digest
from scs_supcon.data.load import load_dataset
from scs_supcon.device import Compute
from scs_supcon.errors import UserError
from scs_supcon.io.records import csv_rows, read_parquet, read_text
from scs_supcon.progress import Display
from scs_supcon.recipe import Recipe, from_toml, make_recipe, merge
from scs_supcon.reproduce.plan import data_source
from scs_supcon.training.pipeline import run


@dataclass(frozen=True)
class Verification:
    """The comparison of a stored run with its repetition.

    Attributes:
        run: the run that was repeated.
        images: number of test images.
        equal: images with the same prediction.
        stored: stored accuracy; `repeated` that of the repetition.
        p: of McNemar's test; 1 if all predictions are equal.
        agrees: whether the difference may be chance.
    """

    run: str
    images: int
    equal: int
    stored: float
    repeated: float
    p: float

    @property
    def agrees(self) -> bool:
        """Whether the predictions are equal, or the accuracies do not differ significantly."""
        return self.p >= ALPHA

    @property
    def sentence(self) -> str:
        """The result in words."""
        accuracies = f"accuracy {self.stored:.2%} stored, {self.repeated:.2%} now"
        if self.equal == self.images:
            return f"{self.run} agrees: all {self.images} predictions are equal, {accuracies}."
        share = (
            f"{self.equal} of {self.images} predictions are equal, {accuracies}, p = {self.p:.2g}"
        )
        if self.agrees:
            return f"{self.run} agrees up to chance: {share} (McNemar)."
        return f"{self.run} does not agree: {share} (McNemar)."


def verify(
    folder: Path,
    *,
    data: Mapping[str, str],
    compute: Compute,
    display: Display,
    address: str | None = None,
    weights: Path | None = None,
) -> Verification:
    """Train one run of a results folder again and compare its predictions with the stored ones.

    Args:
        folder: a folder that `scs reproduce` has written.
        data: the location of the paper's datasets, by name.
        compute: device, data loading and cache.
        display: shows progress.
        address: the run; default: the quickest one.
        weights: the encoder's weights, if the recipe names a file by its digest.
    """
    chosen = address or _quickest(folder)
    file = folder / "recipes" / f"{chosen}.toml"
    if not file.is_file():
        raise UserError(f"{folder} has no run {chosen!r}: see the column `run` of rows.csv")
    recipe, images, problems = _open(from_toml(read_text(file)), data, display)
    display.line(f"training {chosen} again")
    with tempfile.TemporaryDirectory(prefix="scs-verify-") as temporary:
        out = Path(temporary) / "run"
        run(recipe, images, out, compute, display, problems=problems, weights=weights)
        repeated = _predictions(out / "predictions.parquet", split=True)
    stored = _predictions(folder / "predictions" / f"{chosen}.parquet")
    return compare_predictions(chosen, stored, repeated)


def compare_predictions(
    name: str,
    stored: Mapping[str, tuple[str, str]],
    repeated: Mapping[str, tuple[str, str]],
) -> Verification:
    """Compare (label, prediction) of the same images, by the name of the image."""
    names = sorted(stored)
    if names != sorted(set(repeated) & set(stored)):
        missing = len(set(stored) - set(repeated))
        raise UserError(f"{missing} of {len(stored)} test images of {name} were not tested again")
    correct = [
        np.array([table[image][0] == table[image][1] for image in names])
        for table in (stored, repeated)
    ]
    equal = sum(stored[image][1] == repeated[image][1] for image in names)
    changed = bool((correct[0] != correct[1]).any())
    p = mcnemar(*correct, names=("stored", "now")).p if changed else 1.0
    return Verification(
        name, len(names), equal, float(correct[0].mean()), float(correct[1].mean()), p
    )


def _open(
    recipe: Recipe, data: Mapping[str, str], display: Display
) -> tuple[Recipe, ImageDataset, Sequence[Problem]]:
    """Return the recipe with the location of its data, and the data."""
    name = recipe.data.source
    if name not in BUILT_IN and name not in data:
        raise UserError(f"this run needs the images of {name}: add --data {name}=PATH")
    source = name if name in BUILT_IN else data_source(name, data[name])
    with display.progress(f"checking {source}") as progress:
        images, problems = load_dataset(source, 1, progress)
    if recipe.data.content not in (None, content_digest(images)):
        raise UserError(
            f"{source} does not contain the images that this run was made with: their digest "
            "differs. Use the same images"
        )
    values = merge(recipe.model_dump(exclude_none=True), {"data": {"source": source}})
    return make_recipe(values), images, problems


def _quickest(folder: Path) -> str:
    """Return the address of the finished run with the shortest duration."""
    try:
        rows = csv_rows(folder / "rows.csv", ("status", "seconds", "run"))
        finished = [row for row in rows if row["status"] == "done"]
        done = {row["run"]: float(row["seconds"] or "inf") for row in finished}
    except ValueError as error:  # also a RecordError
        raise UserError(f"{folder} is not a results folder of `scs reproduce`: {error}") from error
    if not done:
        raise UserError(f"{folder} has no finished run to verify")
    return min(done, key=done.__getitem__)


def _predictions(path: Path, *, split: bool = False) -> dict[str, tuple[str, str]]:
    """Return label and prediction by image; of a run, its test images or those of validation."""
    types = dict.fromkeys(("name", "label", "prediction", *(["split"] if split else [])), str)
    rows = read_parquet(path, types).to_pylist()
    if split:
        kind = "test" if any(row["split"] == "test" for row in rows) else "val"
        rows = [row for row in rows if row["split"] == kind]
    return {row["name"]: (row["label"], row["prediction"]) for row in rows}
