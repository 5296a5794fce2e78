"""Correct the labels of a run by a table: list suspected labels, apply the corrections.

Image files are never changed: the result is a table to train on, with the splits of the run.
"""

import csv
import io
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scs_supcon.data.load import load_images
from scs_supcon.data.remote import recorded_source
from scs_supcon.errors import UserError, did_you_mean
from scs_supcon.io.csv import csv_text, text_cell
from scs_supcon.io.records import RecordError, csv_rows, read_json, read_parquet, read_text
from scs_supcon.io.typed import validate
from scs_supcon.recipe.toml import read_stored_values, section
from scs_supcon.runs.corrections import FILE as JOURNAL
from scs_supcon.runs.corrections import Corrections
from scs_supcon.runs.layout import RECIPE, check_run

LEAVE_OUT = "-"
COLUMNS = ("image", "split", "label", "suggested", "suspicion", "new_label")
SPLIT_COLUMNS = ("name", "label", "split")


@dataclass(frozen=True)
class LabelledFile:
    """An image of a run with its label and split; paths are absolute."""

    name: str
    path: Path
    label: str
    split: str


@dataclass(frozen=True)
class CorrectedTable:
    """The result of `corrected_table`.

    Attributes:
        text: CSV with the columns image_path, label and split.
        changed: number of images with another label.
        left_out: number of images that are left out.
        test_images: how many of both are test images.
    """

    text: str
    changed: int
    left_out: int
    test_images: int


def suspected_labels_csv(run: Path) -> tuple[str, int]:
    """Return the suspected labels of all splits as CSV, most suspicious first, and their number.

    The column `new_label` is empty: a class in it corrects the label, "-" leaves the image out.
    """

    check_run(run)
    file = run / "label_scores.parquet"
    if not file.exists():
        raise UserError(
            f"{run} has no label_scores.parquet, because it is not finished or an older version "
            "trained it: train it again"
        )
    classes = validate(list[str], read_json(run / "classes.json"), run / "classes.json")
    of_name = {row["name"]: row for row in csv_rows(run / "splits.csv", SPLIT_COLUMNS)}
    types = {"name": str, "suggested": int, "suspicion": float}
    scores = read_parquet(file, types).to_pylist()
    suspects = [score for score in scores if score["suspicion"] > 0 and score["name"] in of_name]
    suspects.sort(key=lambda score: -score["suspicion"])
    table = [[*COLUMNS]]
    for score in suspects:
        if not 0 <= score["suggested"] < len(classes):
            raise RecordError(f"{file} is damaged: there is no class {score['suggested']}")
        row, suggested = of_name[score["name"]], classes[score["suggested"]]
        cells = [score["name"], row["split"], row["label"], suggested]
        table.append([*map(text_cell, cells), f"{score['suspicion']:.3f}", ""])
    return csv_text(table), len(suspects)


def corrected_table(
    run: Path, corrections: Path, table: Path, data: str | None = None
) -> CorrectedTable:
    """Return a table of all images of a run with corrected labels.

    Args:
        run: the run directory.
        corrections: CSV with the columns `image` and `new_label`, or the file of `scs serve`.
        table: where the table will be written; its paths are relative to that folder.
        data: where the images are now; default: where they were when the run was trained.

    Raises:
        UserError: a file is missing, an image or class is unknown, or the images are not files.
    """
    check_run(run)
    images = _images_of(run, data)
    names = {image.name for image in images}
    classes = sorted({image.label for image in images})
    changes = _read_changes(corrections)
    for name, label in changes.items():
        if name not in names:
            raise UserError(f"{corrections} lists {name!r}, which is not an image of {run}")
        if label not in (*classes, LEAVE_OUT):
            raise UserError(
                f"{corrections}: {name!r} has the new label {label!r}, which is not a class"
                f"{did_you_mean(label, classes)}; {LEAVE_OUT!r} leaves an image out"
            )
    rows = [("image_path", "label", "split")]
    changed = left_out = test_images = 0
    for image in images:
        label = changes.get(image.name, image.label)
        if label != image.label:
            test_images += image.split == "test"
            left_out += label == LEAVE_OUT
            changed += label != LEAVE_OUT
        if label != LEAVE_OUT:
            path = os.path.relpath(image.path, table.resolve().parent)
            rows.append((Path(path).as_posix(), label, image.split))
    return CorrectedTable(csv_text(rows), changed, left_out, test_images)


def _images_of(run: Path, data: str | None) -> list[LabelledFile]:
    recipe = read_stored_values(run / RECIPE)
    recorded = str(section(recipe, "data").get("source", ""))
    source = recorded_source(recorded, data, "give a folder or table of them with --data")
    images = load_images(source)
    if images.paths is None:
        raise UserError(
            f"the images of {source} are not files: only files can be listed in a table"
        )
    path_of = dict(zip(images.names, images.paths, strict=True))
    rows = list(csv_rows(run / "splits.csv", SPLIT_COLUMNS))
    missing = [row["name"] for row in rows if row["name"] not in path_of]
    if missing:
        raise UserError(f"{source} no longer has {missing[0]!r}, an image of {run}: restore it")
    return [
        LabelledFile(row["name"], path_of[row["name"]].resolve(), row["label"], row["split"])
        for row in rows
    ]


def _read_changes(file: Path) -> Mapping[str, str]:
    """Return the new label of each image; later rows override earlier ones."""
    if file.name == JOURNAL:
        return {row.image: row.new_label or LEAVE_OUT for row in Corrections(file, {}).rows}
    rows = _read_csv(file, ("image", "new_label"))
    from_server = bool(rows) and "action" in rows[0]  # of version 0.2: no label means not used
    changes = {}
    for row in rows:
        image, label = row["image"].removeprefix("'"), row["new_label"].strip()
        if label or from_server:
            changes[image] = label.removeprefix("'") or LEAVE_OUT
    return changes


def _read_csv(file: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    try:
        text = read_text(file, links=True).removeprefix("\ufeff")
        reader = csv.DictReader(io.StringIO(text, newline=""))
        missing = [name for name in columns if name not in (reader.fieldnames or ())]
        rows = [{key: value or "" for key, value in row.items() if key} for row in reader]
    except csv.Error as error:
        raise UserError(f"{file} is not a UTF-8 CSV file ({error})") from error
    if missing:
        raise UserError(f"{file} has no column {missing[0]!r}: expected {', '.join(columns)}")
    return rows
