"""The images of a run, their corrected labels, and the runs that were trained from them."""

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from scs_supcon.data.image_io import ImageError, open_image
from scs_supcon.data.load import find_images, load_images
from scs_supcon.data.remote import recorded_source
from scs_supcon.errors import UserError
from scs_supcon.io.atomic import replacing, write_json, write_text
from scs_supcon.io.csv import csv_text, quoted_cell
from scs_supcon.io.lock import Lock
from scs_supcon.io.records import RecordError, csv_rows, read_json, read_json_object, read_text
from scs_supcon.io.typed import validate
from scs_supcon.recipe import Recipe, from_toml
from scs_supcon.runs.corrections import FILE, NOT_USED, Corrections

CURRENT = "current.json"
TABLES = "corrected"  # folder of the run directory
JPEG_QUALITY = 85
CACHED_IMAGES = 4000
UNLABELLED = "unlabelled/"  # prefix of the names of unlabelled images


@dataclass(frozen=True)
class RunImage:
    """An image of a run: its name, label and split; unlabelled images have no label."""

    name: str
    label: str
    split: str
    group: str = ""


class Workspace:
    """A run that is served: `KnownImages` of the server, corrections, and runs beside it.

    Args:
        run: the run directory.
        data: where its images are now; default: where they were when it was trained.
        unlabelled: folder with images that have no label.

    Attributes:
        run: the run directory.
        recipe: its recipe.
        classes: names of the classes.
        images: images with a label, in the order of splits.csv, then the unlabelled ones.
        labelled: number of images with a label.
        corrections: corrected labels.
    """

    def __init__(self, run: Path, data: str | None = None, unlabelled: Path | None = None) -> None:
        self.run = run.absolute()
        if not (run / "finished.json").exists():
            raise UserError(f"{run} is not a finished run: finish it with its training command")
        self._lock = Lock(self.run / ".serve.lock")
        self.recipe: Recipe = from_toml(read_text(run / "recipe.toml"))
        names = run / "classes.json"
        self.classes = tuple(validate(list[str], read_json(names), names))
        labelled = _read_splits(run / "splits.csv")
        self.labelled = len(labelled)
        self._source = load_images(recorded_source(self.recipe.data.source, data))
        self._index = {name: index for index, name in enumerate(self._source.names)}
        missing = [image.name for image in labelled if image.name not in self._index]
        if missing:
            where = data or self.recipe.data.source
            raise UserError(
                f"{where} has no {missing[0]!r} (images missing: {len(missing)}): give the "
                "folder or table of the run's images with --data"
            )
        self._unlabelled = [] if unlabelled is None else find_images([str(unlabelled)])
        root = unlabelled.absolute() if unlabelled is not None else Path()
        extra = [
            RunImage(UNLABELLED + file.absolute().relative_to(root).as_posix(), "", "")
            for file in self._unlabelled
        ]
        self.images: list[RunImage] = [*labelled, *extra]
        self.names: Sequence[str] = [image.name for image in self.images]
        self._number = {name: number for number, name in enumerate(self.names)}
        self.corrections = Corrections(
            self.run / FILE, {image.name: image.label for image in self.images}
        )
        self._cached_jpeg = lru_cache(CACHED_IMAGES)(self._encode_jpeg)

    def number(self, name: str) -> int | None:
        """Return the number of an image."""
        return self._number.get(name)

    def open(self, number: int, at_least: int = 0) -> Image.Image:
        """Return an image as RGB.

        Raises:
            ImageError: it cannot be read.
        """
        if number >= self.labelled:
            return open_image(self._unlabelled[number - self.labelled], at_least)
        return self._source.open(self._index[self.names[number]], at_least)

    def jpeg(self, number: int, side: int) -> bytes | None:
        """Return an image as a JPEG of at most this side; None if it cannot be read."""
        return self._cached_jpeg(number, side)

    def labels(self) -> NDArray[np.int64]:
        """Return the current labels of all images; −1 for images that are not used."""
        index = {name: number for number, name in enumerate(self.classes)}
        current = (self.corrections.label(image.name) for image in self.images)
        return np.array([index.get(label, -1) for label in current], dtype=np.int64)

    def relabel(self, numbers: Sequence[int], label: str) -> list[int]:
        """Give images a label, or `NOT_USED`, and return the numbers of the changed ones."""
        if label != NOT_USED and label not in self.classes:
            raise UserError(f"there is no class {label!r}")
        if not all(0 <= number < len(self.images) for number in numbers):
            raise UserError(f"images have numbers from 0 to {len(self.images) - 1}")
        rows = self.corrections.relabel([self.names[number] for number in numbers], label)
        return [self._number[row.image] for row in rows]

    def undo(self) -> list[int]:
        """Undo the last action and return the numbers of the changed images.

        Corrected images may be missing now, such as those of a folder of unlabelled ones.
        """
        images = [row.image for row in self.corrections.undo()]
        return [self._number[image] for image in images if image in self._number]

    def edited_test_images(self) -> set[str]:
        """Return the test images whose label was corrected or that are not used any more."""
        changes = self.corrections.changes()
        return {i.name for i in self.images if i.split == "test" and i.name in changes}

    # Runs beside the served one.

    def runs(self) -> list[str]:
        """Return the names of the finished runs: the served one, then those trained from it."""
        tables = (self.run / TABLES).glob("*.csv")  # run-2.csv, run-3.csv, …
        names = sorted((table.stem for table in tables), key=lambda name: (len(name), name))
        return [self.run.name, *(n for n in names if (self.path_of(n) / "finished.json").exists())]

    def path_of(self, name: str) -> Path:
        """Return the directory of a run beside the served one."""
        return self.run.parent / name

    @property
    def current(self) -> str:
        """Name of the promoted run; the served run if none was promoted."""
        try:
            name = read_json_object(self.run / CURRENT)["run"]
        except (RecordError, KeyError):
            return self.run.name
        return str(name) if name in self.runs() else self.run.name

    def promote(self, name: str) -> None:
        """Make a run the current one.

        Raises:
            UserError: there is no such run.
        """
        if name not in self.runs():
            raise UserError(f"there is no finished run {name!r}: {', '.join(self.runs())}")
        write_json(self.run / CURRENT, {"run": name})

    def names_in(self, run: str) -> dict[str, str]:
        """Return the names of the images in a run that was trained from a table -> names here."""
        if run == self.run.name:
            return {}
        folder = self.run / TABLES
        return {self.table_name(number, folder): name for name, number in self._number.items()}

    def table_name(self, number: int, folder: Path) -> str:
        """Return the path of an image relative to the folder of a table."""
        return Path(os.path.relpath(self._path(number), folder)).as_posix()

    def write_table(self, name: str) -> Path:
        """Write the images with their current labels and splits as a table for `scs train`.

        The paths are relative to the table, which stays in the run directory. Images of built-in
        datasets are not files; they are written beside the table first.
        """
        folder = self.run / TABLES
        if self._source.paths is None:
            self._write_images(folder / "images")
        grouped = any(image.group for image in self.images)
        rows = [["image_path", "label", "split", *(["group"] if grouped else [])]]
        for number, image in enumerate(self.images):
            label = self.corrections.label(image.name)
            if label != NOT_USED:
                cells = [self.table_name(number, folder), label, image.split or "train"]
                cells += [image.group] if grouped else []
                rows.append([*map(quoted_cell, cells)])
        file = folder / f"{name}.csv"
        write_text(file, csv_text(rows))
        return file

    def check_present(self) -> None:
        """Raise an error if the run directory was moved or deleted while it is served."""
        if not (self.run / "finished.json").exists():
            raise UserError(f"{self.run} was moved or deleted: serve it where it is now")

    def close(self) -> None:
        """Release the lock."""
        self._lock.release()

    def _path(self, number: int) -> Path:
        if number >= self.labelled:
            return self._unlabelled[number - self.labelled].absolute()
        index = self._index[self.names[number]]
        if self._source.paths is None:
            return self.run / TABLES / "images" / f"{index:06d}.png"
        return self._source.paths[index].absolute()

    def _write_images(self, folder: Path) -> None:
        for number in range(self.labelled):
            if not (file := self._path(number)).exists():
                with replacing(file) as temporary:
                    self.open(number).save(temporary, "PNG")

    def _encode_jpeg(self, number: int, side: int) -> bytes | None:
        try:
            image = self.open(number, side)
        except ImageError:
            return None
        image.thumbnail((side, side))
        file = io.BytesIO()
        image.save(file, "JPEG", quality=JPEG_QUALITY)
        return file.getvalue()


def _read_splits(file: Path) -> list[RunImage]:
    return [
        RunImage(row["name"], row["label"], row["split"], row.get("group") or "")
        for row in csv_rows(file, ("name", "label", "split"))
    ]
