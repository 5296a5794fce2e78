"""Write the tables of images that recipes for trained encoders were chosen and compared on.

A recipe must not be judged on images that it was chosen on, so each dataset is divided once:

- birds: classes 1 to 20 to choose (`birds20.csv`), the other 30 to compare (`birds30.csv`);
- CIFAR: 300 images of each class to choose (`cifar_choose.csv`), the other 300 to compare
  (`cifar.csv`).

    python experiments/recommended/subsets.py DATA_FOLDER OUT_FOLDER

The data folder contains `birds50` and `cifar100-20`, each with train and test folders of classes;
both are joined.
"""

import csv
import random
import sys
from os.path import relpath
from pathlib import Path

CHOSEN_CLASSES, CHOSEN_IMAGES = 20, 300


def images_by_class(dataset: Path) -> dict[str, list[Path]]:
    """Return the images of each class, of all splits, in sorted order."""
    found: dict[str, list[Path]] = {}
    for image in sorted(dataset.glob("*/*/*")):
        found.setdefault(image.parent.name, []).append(image)
    return dict(sorted(found.items()))


def write(path: Path, classes: dict[str, list[Path]]) -> None:
    """Write `image_path,label`; paths are relative to the table."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["image_path", "label"])
        for name, images in classes.items():
            rows.writerows([relpath(image, path.parent), name] for image in sorted(images))


def main(data: Path, out: Path) -> None:
    """Write the four tables."""
    out.mkdir(parents=True, exist_ok=True)
    birds = list(images_by_class(data / "birds50").items())
    write(out / "birds20.csv", dict(birds[:CHOSEN_CLASSES]))
    write(out / "birds30.csv", dict(birds[CHOSEN_CLASSES:]))
    choose, compare = {}, {}
    for name, images in images_by_class(data / "cifar100-20").items():
        random.Random(f"{name}, 0").shuffle(images)
        choose[name], compare[name] = images[:CHOSEN_IMAGES], images[CHOSEN_IMAGES:]
    write(out / "cifar_choose.csv", choose)
    write(out / "cifar.csv", compare)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
