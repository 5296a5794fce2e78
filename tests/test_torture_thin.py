"""A thin version of `make torture`: a few attempts of each category that needs no processes."""

from torture.files import files
from torture.flips import flips
from torture.images import images


def test_bits_are_flipped_in_checkpoints_and_caches(tmp_path):
    outcome = flips(1, 60, tmp_path)
    assert outcome.tried == 60
    assert not outcome.lost


def test_mutated_images_are_read(finished, tmp_path):
    outcome = images(1, 60, tmp_path, finished)
    assert outcome.tried >= 60
    assert not outcome.lost


def test_damaged_files_are_read(finished, shapes, tmp_path):
    outcome = files(1, 60, tmp_path, finished, next(shapes.rglob("*.png")))
    assert outcome.tried == 60
    assert outcome.errors > 20
    assert not outcome.lost
