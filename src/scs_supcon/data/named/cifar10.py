"""CIFAR-10 (Krizhevsky, 2009): 60,000 images of 32 × 32 pixels in 10 classes."""

from pathlib import Path

from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.named.base import Archive, NamedDataset
from scs_supcon.data.named.cifar_binary import check_not_pickled, read_cifar

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
FILES = {f"data_batch_{number}.bin": "train" for number in range(1, 6)} | {"test_batch.bin": "test"}
CLASS_FILE = "batches.meta.txt"


def _read(folder: Path) -> ImageDataset:
    return read_cifar(folder, FILES, CLASS_FILE, label_bytes=1)


def _check(folder: Path) -> None:
    pickled = ("data_batch_1", "batches.meta", "cifar-10-batches-py/data_batch_1")
    check_not_pickled(folder, pickled, URL)


DATASET = NamedDataset(
    name="cifar10",
    title="CIFAR-10",
    classes=10,
    train=50_000,
    test=10_000,
    native_size=32,
    page="https://www.cs.toronto.edu/~kriz/cifar.html",
    archives=(Archive(URL, md5="c32a1d4ab5d03f1284b67883e8d87530"),),
    folder="cifar-10-batches-bin",
    files=(*FILES, CLASS_FILE),
    read=_read,
    known_issues=(
        "About 3% of the test images have a near duplicate among the training images (Barz and "
        "Denzler, 2020), so that results are slightly too optimistic.",
    ),
    check=_check,
)
