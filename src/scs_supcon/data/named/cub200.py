"""CUB-200-2011 (Wah et al., 2011): 11,788 photographs of 200 bird species."""

from pathlib import Path

from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.named.base import (
    Archive,
    ListedImage,
    NamedDataset,
    dataset_from_list,
    read_words,
)
from scs_supcon.errors import UserError

IMAGES, LABELS, SPLIT = "images.txt", "image_class_labels.txt", "train_test_split.txt"
CLASSES = "classes.txt"


def _read(folder: Path) -> ImageDataset:
    paths = _column(folder / IMAGES)
    labels, in_train = _column(folder / LABELS), _column(folder / SPLIT)
    class_names = _column(folder / CLASSES)
    rows = []
    for number, path in paths.items():
        if number not in labels or number not in in_train:
            file = LABELS if number not in labels else SPLIT
            raise UserError(f"{folder / file} has no row for image {number} ({path})")
        if in_train[number] not in ("0", "1"):
            raise UserError(
                f"{folder / SPLIT}: image {number} has {in_train[number]!r}, expected 0 or 1"
            )
        if labels[number] not in class_names:
            raise UserError(f"{folder / CLASSES} has no row for class {labels[number]}")
        split = "train" if in_train[number] == "1" else "test"
        rows.append(ListedImage(f"images/{path}", class_names[labels[number]], split))
    return dataset_from_list("CUB-200-2011", folder, rows)


def _column(file: Path) -> dict[str, str]:
    """Return the second word of each row by the first one, a number."""
    return {row[0]: row[1] for row in read_words(file, columns=2)}


DATASET = NamedDataset(
    name="cub200",
    title="CUB-200-2011",
    classes=200,
    train=5_994,
    test=5_794,
    native_size=375,
    page="https://www.vision.caltech.edu/datasets/cub_200_2011/",
    archives=(
        Archive(
            "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
            md5="97eceeb196236b17998738112f37df78",
        ),
    ),
    folder="CUB_200_2011",
    files=(IMAGES, LABELS, SPLIT, CLASSES, "images"),
    read=_read,
    known_issues=(
        "The publisher warns that images overlap with ImageNet: an encoder with ImageNet weights "
        "may have been trained on test images.",
    ),
)
