"""Journals and replaced folders after kills and power failures at every moment."""

import os

import pytest

from torture.durable import actions
from torture.power_loss import Action, kills, power_losses

ACTIONS = {action.name: action for action in actions()}


@pytest.mark.parametrize("name", ACTIONS)
def test_it_survives_a_kill_before_every_operation(name, tmp_path):
    (operations, _), *attempts = kills(ACTIONS[name], tmp_path)
    assert len(attempts) == operations > 3
    assert not [attempt for attempt in attempts if attempt[1]]


@pytest.mark.parametrize("name", ACTIONS)
def test_it_survives_a_power_failure_at_every_operation(name, tmp_path):
    (operations, _), *states = power_losses(ACTIONS[name], tmp_path)
    assert min(len(states), operations) > 3
    assert not [state for state in states if state[1]]


# The simulation finds what is lost if a step is left out.

OLD, NEW = b"old content", b"new"


def write_in_place(file, synced):
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(handle, NEW)
    if synced:
        os.fsync(handle)
    os.close(handle)


def sync_folder(folder):
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def in_place(folder, acknowledge):
    write_in_place(folder / "file", synced=True)
    acknowledge()


def without_syncing_the_file(folder, acknowledge):
    write_in_place(folder / "new", synced=False)
    (folder / "new").replace(folder / "file")
    sync_folder(folder)
    acknowledge()


def without_syncing_the_folder(folder, acknowledge):
    write_in_place(folder / "new", synced=True)
    (folder / "new").replace(folder / "file")
    acknowledge()


def complete(folder, acknowledge):
    write_in_place(folder / "new", synced=True)
    (folder / "new").replace(folder / "file")
    sync_folder(folder)
    acknowledge()


def check(folder, acknowledged):
    content = (folder / "file").read_bytes()
    if content not in (OLD, NEW):
        return "damaged"
    return "acknowledged, but old" if acknowledged and content == OLD else ""


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (in_place, {"damaged"}),
        (without_syncing_the_file, {"damaged"}),
        (without_syncing_the_folder, {"acknowledged, but old"}),
        (complete, set()),
    ],
)
def test_a_missing_step_is_found(act, expected, tmp_path):
    action = Action("file", lambda folder: (folder / "file").write_bytes(OLD), act, check)
    _, *states = power_losses(action, tmp_path / "power")
    assert {problem for _, problem in states} - {""} == expected
    # A kill alone does not show it.
    _, *attempts = kills(action, tmp_path / "kills")
    assert {problem for _, problem in attempts} - {""} <= {"damaged"} & expected
