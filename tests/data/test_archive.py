"""Zip archives of images as datasets and as images to classify."""

import zipfile

import pytest

from scs_supcon.data.load import find_images, load_images
from scs_supcon.errors import UserError


def zip_folder(folder, file, prefix):
    with zipfile.ZipFile(file, "w") as archive:
        for path in sorted(folder.rglob("*.png")):
            archive.write(path, f"{prefix}{path.relative_to(folder)}")
        archive.writestr(f"__MACOSX/{prefix}bar/._00.png", b"metadata")
    return file


@pytest.mark.parametrize("prefix", ["", "birds/"])
def test_an_archive_of_class_folders_is_a_dataset(shapes, tmp_path, prefix):
    images = load_images(zip_folder(shapes, tmp_path / "birds.zip", prefix))
    expected = load_images(shapes)
    assert images.names == expected.names
    assert images.classes == expected.classes
    assert [images.file_hash(k) for k in range(4)] == [expected.file_hash(k) for k in range(4)]
    again = load_images(tmp_path / "birds.zip")
    assert again.paths == images.paths, "extracted once"
    assert len(find_images([str(tmp_path / "birds.zip")])) == len(images)


def test_a_damaged_archive_is_an_error(tmp_path):
    (tmp_path / "birds.zip").write_bytes(b"PK broken")
    with pytest.raises(UserError, match=r"birds\.zip cannot be extracted"):
        load_images(tmp_path / "birds.zip")
