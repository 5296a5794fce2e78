"""PASCAL VOC 2005 (Everingham et al., 2005): motorbikes, bicycles, people and cars.

The publisher labels objects, of which an image may have several. Here an image has the class of its
largest bounding box; images without an object of the four classes, or whose two largest boxes are
equal in area and of different classes, are left out.

The publisher issued two datasets: the first with the images for training, validation and the first
test, the second with the images of the second test. Dataset 1 is the training set here, dataset 2
the test set. The split of the paper (1,843 and 389 images) is not published.
"""

import re
from pathlib import Path

from scs_supcon.data.dataset import ImageDataset, Problem
from scs_supcon.data.named.base import Archive, ListedImage, NamedDataset, dataset_from_list
from scs_supcon.errors import UserError
from scs_supcon.io.records import read_bytes

SPLITS_BY_FOLDER = {"VOC2005_1": "train", "VOC2005_2": "test"}
CLASSES = ("motorbike", "bicycle", "person", "car")
VARIANTS = ("", "Side", "Sitting", "Standing", "Walking", "Frontal", "Rear")
CLASS_OF_LABEL = {f"PAS{name}{variant}": name for name in CLASSES for variant in VARIANTS}

_IMAGE = re.compile(r'^Image filename\s*:\s*"(.+)"', re.MULTILINE)
_BOX = re.compile(
    r'^Bounding box for object \d+ "(\w+)"[^:]*:\s*'
    r"\((-?\d+),\s*(-?\d+)\)\s*-\s*\((-?\d+),\s*(-?\d+)\)",
    re.MULTILINE,
)


def label_of(annotation: str) -> str | None:
    """Return the class of the largest bounding box; None without one, or if two classes tie."""
    areas = dict.fromkeys(CLASSES, 0)
    for label, *corners in _BOX.findall(annotation):
        if label in CLASS_OF_LABEL:
            left, top, right, bottom = map(int, corners)
            name = CLASS_OF_LABEL[label]
            areas[name] = max(areas[name], (right - left + 1) * (bottom - top + 1))
    largest = max(areas.values())
    names = [name for name, area in areas.items() if area == largest]
    return names[0] if largest > 0 and len(names) == 1 else None


def _read(folder: Path) -> ImageDataset:
    rows, notes = [], []
    for part, split in SPLITS_BY_FOLDER.items():
        files = sorted((folder / part / "Annotations").rglob("*.txt"))
        if not files:
            raise UserError(
                f"PASCAL VOC 2005: {folder / part} has no Annotations/*.txt: extract "
                f"{part.lower()}.tar.gz again"
            )
        for file in files:
            text = read_bytes(file, links=True).decode("latin-1")
            image = _IMAGE.search(text)
            if image is None:
                raise UserError(f"{file} names no image: it is not an annotation of PASCAL VOC")
            path = image[1].replace("\\", "/")
            label = label_of(text)
            if label is None:
                reason = "it has no object of the four classes, or two that are equally large"
                notes.append(Problem("skipped_file", path, f"{path} is not used: {reason}"))
            else:
                rows.append(ListedImage(path, label, split))
    return dataset_from_list("PASCAL VOC 2005", folder, rows, notes)


DATASET = NamedDataset(
    name="voc2005",
    title="PASCAL VOC 2005",
    classes=4,
    train=None,
    test=None,
    native_size=480,
    page="http://host.robots.ox.ac.uk/pascal/VOC/databases.html",
    archives=(
        Archive("http://host.robots.ox.ac.uk/pascal/VOC/download/voc2005_1.tar.gz"),
        Archive("http://host.robots.ox.ac.uk/pascal/VOC/download/voc2005_2.tar.gz"),
    ),
    folder="",
    files=tuple(SPLITS_BY_FOLDER),
    read=_read,
    known_issues=(
        "Images may show objects of several classes; each has the class of its largest bounding "
        "box. The paper does not say how it chose one label.",
        "The split of the paper (1,843 training and 389 test images) is not published: dataset 1 "
        "is used for training and dataset 2 for testing.",
    ),
)
