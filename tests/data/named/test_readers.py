"""Every reader on a tiny copy of the publisher's layout."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from scs_supcon.data.audit import diagnose
from scs_supcon.data.image_io import ImageError
from scs_supcon.data.load import load_dataset
from scs_supcon.data.named.base import dataset_from_list, read_named
from scs_supcon.data.named.registry import NAMED, load_named
from scs_supcon.data.named.voc2005 import label_of
from scs_supcon.errors import UserError
from tiny_datasets import SIZES, WRITERS, annotation, make_tiny, pixels, save, tiny

REQUIRED = {
    "cifar10": "cifar-10-batches-bin/test_batch.bin",
    "cifar100": "cifar-100-binary/fine_label_names.txt",
    "tiny_imagenet": "tiny-imagenet-200/wnids.txt",
    "cub200": "CUB_200_2011/train_test_split.txt",
    "stanford_dogs": "test_list.mat",
    "voc2005": "VOC2005_2",
}
IMAGES = {
    "tiny_imagenet": "tiny-imagenet-200/val/images/val_00.JPEG",
    "cub200": "CUB_200_2011/images/001.Albatross/Albatross_0.jpg",
    "stanford_dogs": "Images/n01-Chihuahua/n01_0.jpg",
    "voc2005": "VOC2005_1/PNGImages/some_set/PASbicycle_0.png",
}


@pytest.fixture(params=list(NAMED))
def dataset(request, tmp_path, monkeypatch):
    """Name and folder of a tiny copy."""
    return request.param, make_tiny(request.param, tmp_path, monkeypatch)


def test_the_publishers_layout_has_the_official_split(dataset):
    name, folder = dataset
    images = load_named(name, folder)
    classes, train, test = SIZES[name]
    assert len(images.classes) == classes
    assert list(images.classes) == sorted(images.classes)
    assert list(images.names) == sorted(images.names)
    assert (images.splits == "train").sum() == train
    assert (images.splits == "test").sum() == test
    assert [note.kind for note in images.notes] == ["known_issue"] * len(NAMED[name].known_issues)
    assert len({images.file_hash(index) for index in range(len(images))}) == len(images)


def test_the_images_can_be_checked_and_decoded(dataset):
    name, folder = dataset
    images, problems = load_dataset(f"{name}={folder}", 1, lambda done, total: None)
    assert {problem.kind for problem in problems} == {"known_issue"}
    assert all(images.open(index).mode == "RGB" for index in range(len(images)))
    diagnosis = diagnose(images)
    assert diagnosis.healthy or {p.kind for p in diagnosis.problems} <= {
        *("known_issue", "small_class", "wrong_extension")
    }


def test_the_folder_above_or_the_variable_is_enough(dataset, monkeypatch):
    name, folder = dataset
    digest = [load_named(name, folder).names, load_named(name, folder / NAMED[name].folder).names]
    monkeypatch.setenv("SCS_DATA", str(folder.parent))
    assert load_named(name).names == digest[0] == digest[1]


def test_a_missing_file_is_named(dataset):
    name, folder = dataset
    missing = folder / REQUIRED[name]
    (shutil.rmtree if missing.is_dir() else Path.unlink)(missing)
    with pytest.raises(UserError, match=missing.name) as error:
        load_named(name, folder)
    assert f"scs datasets download {name} --to" in str(error.value)
    assert NAMED[name].page in str(error.value)


@pytest.mark.parametrize("name", IMAGES)
def test_a_missing_image_is_named(name, tmp_path, monkeypatch):
    folder = make_tiny(name, tmp_path, monkeypatch)
    (folder / IMAGES[name]).unlink()
    with pytest.raises(UserError, match=Path(IMAGES[name]).name):
        load_named(name, folder)


def test_a_wrong_count_is_an_error(dataset, monkeypatch):
    name, folder = dataset
    classes, train, _ = SIZES[name]
    monkeypatch.setitem(NAMED, name, replace(tiny(name), train=train + 1))
    with pytest.raises(UserError, match=f"{train} training images, expected {train + 1}"):
        load_named(name, folder)
    monkeypatch.setitem(NAMED, name, replace(tiny(name), classes=classes + 1))
    with pytest.raises(UserError, match=f"{classes} classes, expected {classes + 1}"):
        load_named(name, folder)


def test_class_folders_of_the_same_images_are_read(dataset, tmp_path):
    name, folder = dataset
    images = load_named(name, folder)
    plain = tmp_path / "plain"
    test = NAMED[name].test_folder
    for index in range(len(images)):
        split = "train" if images.splits[index] == "train" else test
        target = plain / split / images.classes[images.labels[index]] / f"{index:03d}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        images.open(index).save(target)
    again = load_named(name, plain)
    assert again.classes == images.classes
    assert sorted(again.splits) == sorted(images.splits)
    assert np.bincount(again.labels).tolist() == np.bincount(images.labels).tolist()


def test_another_folder_is_an_error_with_directions(dataset, tmp_path):
    name, _ = dataset
    save(tmp_path / "other" / "birds" / "a.png", 0)
    with pytest.raises(UserError, match="neither the publisher's files") as error:
        load_named(name, tmp_path / "other")
    assert "scs datasets download" in str(error.value)
    with pytest.raises(UserError, match="is not a folder"):
        load_named(name, tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_pixels_and_labels_are_those_of_the_records(name, tmp_path, monkeypatch):
    images = load_named(name, make_tiny(name, tmp_path, monkeypatch))
    if name == "cifar10":  # the names of the classes are not in alphabetical order here
        index = images.names.index("data_batch_3/00001")
        label, seed = "airplane", 21
    else:
        index, label, seed = images.names.index("test/00005"), "bed", 121
    assert images.classes[images.labels[index]] == label
    assert np.array_equal(np.asarray(images.open(index)), pixels(seed))


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("cifar10", "cifar-10-batches-py/data_batch_1"),
        ("cifar10", "data_batch_1"),
        ("cifar100", "cifar-100-python/train"),
        ("cifar100", "meta"),
    ],
)
def test_the_pickled_version_is_not_opened(name, file, tmp_path):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_bytes(b"\x80\x04.")
    with pytest.raises(UserError, match=r"can run code.*binary\.tar\.gz"):
        load_named(name, tmp_path)


def test_a_truncated_binary_file_is_an_error(tmp_path, monkeypatch):
    folder = make_tiny("cifar10", tmp_path, monkeypatch)
    file = folder / "cifar-10-batches-bin" / "data_batch_2.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UserError, match="not a multiple of 3,073"):
        load_named("cifar10", folder)


def test_a_label_without_a_name_is_an_error(tmp_path, monkeypatch):
    folder = make_tiny("cifar100", tmp_path, monkeypatch)
    (folder / "cifar-100-binary" / "fine_label_names.txt").write_text("apple\nbear\n")
    with pytest.raises(UserError, match="label 2"):
        load_named("cifar100", folder)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("train_test_split.txt", "1 1\n", "no row for image 2"),
        ("train_test_split.txt", "1 yes\n", "expected 0 or 1"),
        ("image_class_labels.txt", "1\n", "expected 2 words"),
        ("images.txt", "1 ../../secret.jpg\n", "not below"),
        ("classes.txt", "1 wren\n", "no row for class 2"),
    ],
)
def test_damaged_lists_of_cub(file, text, message, tmp_path, monkeypatch):
    folder = make_tiny("cub200", tmp_path, monkeypatch)
    (folder / "CUB_200_2011" / file).write_text(text)
    with pytest.raises(UserError, match=message):
        load_named("cub200", folder)


def test_a_damaged_list_of_dogs(tmp_path, monkeypatch):
    folder = make_tiny("stanford_dogs", tmp_path, monkeypatch)
    (folder / "train_list.mat").write_bytes(b"not a mat file" * 40)
    with pytest.raises(UserError, match=r"train_list\.mat is damaged"):
        load_named("stanford_dogs", folder)


def test_the_label_of_voc_is_the_class_of_the_largest_box():
    car, bike = ("PAScarSide", 1, 1, 10, 10), ("PASbicycleSide", 1, 1, 9, 11)
    small_person = ("PASpersonSitting", 5, 5, 8, 8)
    assert label_of(annotation("x", car, bike, small_person)) == "car"  # 100, 99 and 16 pixels
    assert label_of(annotation("x", small_person, small_person, small_person)) == "person"
    assert label_of(annotation("x", car, ("PASperson", 11, 1, 20, 10))) is None  # equal areas
    assert label_of(annotation("x", car, car)) == "car"
    assert label_of(annotation("x", ("PAStree", 1, 1, 50, 50))) is None
    assert label_of(annotation("x")) is None


def test_images_of_voc_without_a_label_are_listed(tmp_path, monkeypatch):
    folder = make_tiny("voc2005", tmp_path, monkeypatch)
    file = next((folder / "VOC2005_1" / "Annotations").rglob("*.txt"))
    file.write_text(annotation("VOC2005_1/PNGImages/some_set/x.png", ("PAStree", 1, 1, 9, 9)))
    images = read_named(replace(tiny("voc2005"), train=15), folder)
    assert [note.name for note in images.notes if note.kind == "skipped_file"] == [
        "VOC2005_1/PNGImages/some_set/x.png"
    ]


def test_every_dataset_is_tested():
    assert set(WRITERS) == set(NAMED) == set(SIZES) == set(REQUIRED)


def test_the_official_sizes_are_those_of_the_paper():
    sizes = {name: (d.classes, d.train, d.test) for name, d in NAMED.items()}
    assert sizes == {
        "cifar10": (10, 50_000, 10_000),
        "cifar100": (100, 50_000, 10_000),
        "tiny_imagenet": (200, 100_000, 10_000),
        "cub200": (200, 5_994, 5_794),
        "stanford_dogs": (120, 12_000, 8_580),
        "voc2005": (4, None, None),
    }


def test_an_empty_list_is_an_error(tmp_path):
    with pytest.raises(UserError):
        dataset_from_list("x", tmp_path, [])


def test_an_unknown_name():
    with pytest.raises(UserError, match="did you mean 'cub200'"):
        load_named("cub_200")


def test_an_image_in_greyscale_is_converted(tmp_path, monkeypatch):
    folder = make_tiny("tiny_imagenet", tmp_path, monkeypatch)
    file = folder / IMAGES["tiny_imagenet"]
    Image.open(file).convert("L").save(file)
    images = load_named("tiny_imagenet", folder)
    assert {images.open(index).mode for index in range(len(images))} == {"RGB"}


def test_a_cifar_image_that_has_changed_is_an_error(tmp_path, monkeypatch):
    images = load_named("cifar10", make_tiny("cifar10", tmp_path, monkeypatch))
    known = images.file_hash(0)
    assert images.open(0, 0, known).tobytes() == images.open(0).tobytes()
    with pytest.raises(ImageError, match="changed while it was read"):
        images.open(0, 0, images.file_hash(1))
