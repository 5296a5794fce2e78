"""A thin version of `make torture`: a few attempts of each category.

test_torture.py kills `train`; here are commands that start quickly.
"""

import pytest

from torture.files import files
from torture.flips import flips
from torture.images import images
from torture.kills import full_disks, kills
from torture.scenarios import Inputs, scenarios


def test_bits_are_flipped_in_checkpoints_and_caches(tmp_path):
    outcome = flips(1, 60, tmp_path)
    assert outcome.tried == 60
    assert not outcome.lost


def test_mutated_images_are_read(finished, tmp_path):
    outcome = images(1, 60, tmp_path, finished)
    assert outcome.tried >= 40
    assert not outcome.lost


def test_damaged_files_are_read(finished, shapes, tmp_path):
    outcome = files(1, 60, tmp_path, finished, next(shapes.rglob("*.png")))
    assert outcome.tried == 60
    assert outcome.errors > 20
    assert not outcome.lost


@pytest.fixture
def quick(finished, shapes, weights):
    """Commands that end quickly, by name."""
    listed = scenarios(Inputs(finished, shapes, weights))
    return {scenario.name: scenario for scenario in listed}


@pytest.mark.slow
def test_commands_are_killed(quick, processes, tmp_path):
    chosen = [quick["predict -o"], quick["doctor --fix"]]
    outcome = kills(1, 4, tmp_path, chosen, processes)
    assert outcome.tried >= 4
    assert not outcome.lost


@pytest.mark.slow
def test_disks_are_full(quick, processes, tmp_path):
    chosen = [quick["predict -o"], quick["train byol, pretrain.micro_batch=8"]]
    outcome = full_disks(1, 3, tmp_path, chosen, processes)
    assert outcome.tried == 3
    assert not outcome.lost
