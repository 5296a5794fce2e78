"""What a model accepts: paths, folders, patterns, Pillow images, arrays, and lists of these."""

import numpy as np
import pytest
import torch
from PIL import Image

from scs_supcon.errors import UserError
from scs_supcon.inference.images import list_images

PIXELS = np.random.default_rng(0).integers(0, 256, (8, 9, 3), dtype=np.uint8)


@pytest.fixture
def folder(tmp_path):
    for name in ("b.png", "a.png", "below/c.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(PIXELS).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    return tmp_path


def test_paths_folders_and_patterns(folder):
    names = [str(folder / name) for name in ("a.png", "b.png", "below/c.png")]
    assert [image.name for image in list_images(folder)] == names
    assert [image.name for image in list_images(str(folder / "a.png"))] == names[:1]
    assert [image.name for image in list_images(f"{folder}/*.png")] == names[:2]
    assert [image.name for image in list_images([folder / "b.png", folder])] == [names[1], *names]
    missing = list_images([folder / "gone.png"])
    assert [image.name for image in missing] == [str(folder / "gone.png")], "opening it fails"


def test_images_in_memory_are_numbered(folder):
    mixed = [Image.fromarray(PIXELS), folder / "a.png", PIXELS[:, :, 0], np.stack([PIXELS] * 2)]
    listed = list_images(mixed)
    names = ["image 1", str(folder / "a.png"), "image 3", "image 4", "image 5"]
    assert [image.name for image in listed] == names
    assert [image.open().mode for image in listed] == ["RGB"] * 5
    assert np.array_equal(np.asarray(listed[3].open()), PIXELS)
    assert [image.name for image in list_images(PIXELS)] == ["image 1"]
    assert list_images([]) == []


@pytest.mark.parametrize("wrong", [torch.zeros(3, 8, 9), [torch.zeros(3, 8, 9)], 3, [None]])
def test_other_types_are_named(wrong):
    with pytest.raises(UserError, match="expected a path, a Pillow image, a NumPy array") as error:
        list_images(wrong)
    assert len(str(error.value)) < 200


def test_a_folder_without_images_is_an_error(tmp_path):
    with pytest.raises(UserError, match="no images at"):
        list_images(tmp_path)
