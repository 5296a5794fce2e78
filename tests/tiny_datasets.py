"""Tiny copies of the publishers' layouts, with other numbers of classes and images."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from scs_supcon.data.named.base import NamedDataset
from scs_supcon.data.named.registry import NAMED

PER_CLASS = {"train": 4, "test": 2}


def pixels(seed: int, side: int = 32) -> np.ndarray:
    """Return an image of coarse noise (side, side, 3)."""
    noise = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(noise).resize((side, side)))


def save(path: Path, seed: int, side: int = 32) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels(seed, side)).save(path)


def write_cifar10(root: Path) -> None:
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    (folder / "batches.meta.txt").write_text("cat\nairplane\n\n")
    for batch, name in enumerate([*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]):
        records = [bytes([label]) + planes(10 * batch + label) for label in (0, 1)]
        (folder / name).write_bytes(b"".join(records))


def write_cifar100(root: Path) -> None:
    folder = root / "cifar-100-binary"
    folder.mkdir(parents=True)
    (folder / "fine_label_names.txt").write_text("apple\nbear\nbed\n")
    for start, split in ((0, "train"), (100, "test")):
        records = [
            bytes([9, label]) + planes(start + 10 * label + number)
            for label in range(3)
            for number in range(PER_CLASS[split])
        ]
        (folder / f"{split}.bin").write_bytes(b"".join(records))


def planes(seed: int) -> bytes:
    return pixels(seed).transpose(2, 0, 1).tobytes()


def write_tiny_imagenet(root: Path) -> None:
    folder = root / "tiny-imagenet-200"
    lines = []
    for label, name in enumerate(("n01", "n02")):
        for number in range(4):
            save(folder / f"train/{name}/images/{name}_{number}.JPEG", 10 * label + number, 64)
        for number in range(2):
            file = f"val_{label}{number}.JPEG"
            save(folder / f"val/images/{file}", 100 + 10 * label + number, 64)
            lines.append(f"{file}\t{name}\t0\t0\t62\t62\n")
    (folder / "val/val_annotations.txt").write_text("".join(lines))
    (folder / "wnids.txt").write_text("n02\nn01\n")


def write_cub200(root: Path) -> None:
    folder = root / "CUB_200_2011"
    images, labels, splits = [], [], []
    names = ("001.Albatross", "002.Wren")
    for label, name in enumerate(names, start=1):
        for number in range(6):
            path = f"{name}/{name[4:]}_{number}.jpg"
            save(folder / "images" / path, 10 * label + number)
            identifier = len(images) + 1
            images.append(f"{identifier} {path}\n")
            labels.append(f"{identifier} {label}\n")
            splits.append(f"{identifier} {int(number < 4)}\n")
    (folder / "images.txt").write_text("".join(images))
    (folder / "image_class_labels.txt").write_text("".join(labels))
    (folder / "train_test_split.txt").write_text("".join(splits))
    (folder / "classes.txt").write_text("".join(f"{n} {c}\n" for n, c in enumerate(names, 1)))


def write_stanford_dogs(root: Path) -> None:
    from scipy.io import savemat

    lists: dict[str, list[str]] = {"train": [], "test": []}
    for label, name in enumerate(("n01-Chihuahua", "n02-Pug")):
        for number in range(6):
            path = f"{name}/{name[:3]}_{number}.jpg"
            save(root / "Images" / path, 10 * label + number)
            lists["train" if number < 4 else "test"].append(path)
    for split, paths in lists.items():
        cells = np.empty((len(paths), 1), dtype=object)
        cells[:, 0] = paths
        savemat(root / f"{split}_list.mat", {"file_list": cells})


ANNOTATION = """# PASCAL Annotation Version 1.00

Image filename : "{path}"
Image size (X x Y x C) : 64 x 48 x 3
Objects with ground truth : {count} {{ }}

# Top left pixel co-ordinates : (1, 1)

{boxes}"""
BOX = (
    'Bounding box for object {n} "{label}" (Xmin, Ymin) - (Xmax, Ymax) : ({0}, {1}) - ({2}, {3})\n'
)


def annotation(path: str, *objects: tuple[str, int, int, int, int]) -> str:
    """Return an annotation with objects (label, left, top, right, bottom)."""
    boxes = "".join(BOX.format(*o[1:], n=n, label=o[0]) for n, o in enumerate(objects, 1))
    return ANNOTATION.format(path=path, count=len(objects), boxes=boxes)


def write_voc2005(root: Path) -> None:
    labels = ("PASmotorbikeSide", "PASbicycle", "PASpersonWalking", "PAScarRear")
    for part, count in (("VOC2005_1", 4), ("VOC2005_2", 2)):
        for label in labels:
            for number in range(count):
                stem = f"{label}_{number}"
                path = f"{part}/PNGImages/some_set/{stem}.png"
                save(root / path, labels.index(label) * 10 + number + 100 * count)
                text = annotation(
                    path,
                    (label, 1, 1, 30, 30),
                    ("PASperson", 1, 1, 5, 5),
                    ("PAStree", 1, 1, 60, 40),
                )
                file = root / part / "Annotations/some_set" / f"{stem}.txt"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)


WRITERS: dict[str, Callable[[Path], None]] = {
    "cifar10": write_cifar10,
    "cifar100": write_cifar100,
    "tiny_imagenet": write_tiny_imagenet,
    "cub200": write_cub200,
    "stanford_dogs": write_stanford_dogs,
    "voc2005": write_voc2005,
}
SIZES = {  # classes, training images, test images
    "cifar10": (2, 10, 2),
    "cifar100": (3, 12, 6),
    "tiny_imagenet": (2, 8, 4),
    "cub200": (2, 8, 4),
    "stanford_dogs": (2, 8, 4),
    "voc2005": (4, 16, 8),
}


def tiny(name: str) -> NamedDataset:
    """Return the description of a dataset with the size of its tiny copy."""
    classes, train, test = SIZES[name]
    return replace(NAMED[name], classes=classes, train=train, test=test)


def make_tiny(name: str, root: Path, patch: pytest.MonkeyPatch) -> Path:
    """Write a tiny copy of a dataset to root/NAME and register its size; return the folder."""
    folder = root / name
    folder.mkdir(parents=True)
    WRITERS[name](folder)
    patch.setitem(NAMED, name, tiny(name))
    return folder
