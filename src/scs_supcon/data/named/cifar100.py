"""CIFAR-100 (Krizhevsky, 2009): 60,000 images of 32 × 32 pixels in 100 classes."""

from pathlib import Path

from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.named.base import Archive, NamedDataset
from scs_supcon.data.named.cifar_binary import check_not_pickled, read_cifar

URL = "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz"
FILES = {"test.bin": "test", "train.bin": "train"}
CLASS_FILE = "fine_label_names.txt"


def _read(folder: Path) -> ImageDataset:
    # The first label of a record is the coarse one, of 20 groups.
    return read_cifar(folder, FILES, CLASS_FILE, label_bytes=2)


def _check(folder: Path) -> None:
    check_not_pickled(folder, ("meta", "cifar-100-python/train"), URL)


DATASET = NamedDataset(
    name="cifar100",
    title="CIFAR-100",
    classes=100,
    train=50_000,
    test=10_000,
    native_size=32,
    page="https://www.cs.toronto.edu/~kriz/cifar.html",
    archives=(Archive(URL, md5="03b5dce01913d631647c71ecec9e9cb8"),),
    folder="cifar-100-binary",
    files=(*FILES, CLASS_FILE),
    read=_read,
    known_issues=(
        "About 10% of the test images have a near duplicate among the training images (Barz and "
        "Denzler, 2020), so that results are too optimistic.",
    ),
    check=_check,
)
