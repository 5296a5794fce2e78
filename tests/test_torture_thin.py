"""A thin version of `make torture`: a few attempts of each category.

test_torture.py kills `train`; here are commands that start quickly.
"""

import os
from collections import defaultdict
from signal import SIGKILL
from time import monotonic, process_time

import pytest

import jumping_clock
from command_processes import CommandResult, Processes
from jumping_clock import YEAR, JumpingClock
from torture.crash_points import chosen_points, crash_points, server_points
from torture.crash_points import table as points_table
from torture.disks import full_disks
from torture.files import files
from torture.files import processes as damaged_in_processes
from torture.flips import flips
from torture.images import images
from torture.kills import kills
from torture.outcome import Outcome, attempt, call, total
from torture.scenarios import Inputs, Scenario, point_scenarios, scenarios
from torture.workers import Part, run_parts


def test_bits_are_flipped_in_checkpoints_and_caches(tmp_path):
    outcome = total(flips(1, 60, tmp_path))
    assert outcome.tried == 60
    assert not outcome.problems


def test_mutated_images_are_read(finished, tmp_path):
    outcome = total(images(1, 60, tmp_path, finished))
    assert outcome.tried >= 40
    assert not outcome.problems


def test_damaged_files_are_read(finished, shapes, tmp_path):
    outcome = total(files(1, 60, tmp_path, finished, next(shapes.rglob("*.png"))))
    assert outcome.tried == 60
    assert outcome.errors > 20
    assert not outcome.problems


@pytest.mark.slow
def test_damaged_files_are_read_by_processes_with_limited_memory(finished, shapes, tmp_path):
    outcome = total(damaged_in_processes(3, 1, tmp_path, finished, next(shapes.rglob("*.png"))))
    assert outcome.tried == 1
    assert not outcome.problems


@pytest.fixture
def quick(finished, shapes, weights):
    """Commands that end quickly, by name."""
    listed = scenarios(Inputs(finished, shapes, weights))
    return {scenario.name: scenario for scenario in listed}


@pytest.mark.slow
@pytest.mark.parametrize("stops", [False, True], ids=["killed", "stopped"])
def test_commands_are_killed(stops, quick, processes, tmp_path):
    chosen = [quick["predict -o"], quick["doctor --fix"]]
    outcome = total(kills(1, 2, tmp_path, chosen, processes, stops=stops))
    assert outcome.tried >= 2
    assert not outcome.problems


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "points"),
    [("pack", 8), ("add-class", 12), ("relabel", 5), ("predict --sort-into", 5)],
)
def test_commands_are_killed_before_file_operations(
    name, points, finished, shapes, weights, processes, tmp_path
):
    listed = point_scenarios(Inputs(finished, shapes, weights))
    chosen = [scenario for scenario in listed if scenario.name == name]
    outcomes = list(crash_points(points, tmp_path, chosen, processes))
    assert total(outcomes).tried == points
    assert not total(outcomes).problems
    assert not [outcome.left_behind for outcome in outcomes if outcome.left_behind]


class TrainingsInThisProcess:
    """Runs the trainings of a server without starting an interpreter for them."""

    def run(self, *arguments, kill_after):
        called = call(*arguments)
        return CommandResult(called.code, called.out, called.err + called.crash)


@pytest.mark.slow
def test_a_server_is_killed_before_file_operations(finished, processes, tmp_path):
    outcomes = list(server_points(3, tmp_path, finished, processes, TrainingsInThisProcess()))
    assert total(outcomes).tried == 3
    assert not total(outcomes).problems


@pytest.mark.slow
def test_a_command_that_cannot_be_repeated_is_lost(finished, shapes, processes, tmp_path):
    def command(folder):
        # Ends with an error if its output exists, although it is not written at once.
        if (folder / "names.csv").exists():
            return ("predict", folder / "missing", shapes)
        return ("predict", finished, shapes, "--format", "csv", "-o", folder / "names.csv")

    scenario = Scenario("predict", command, lambda folder: {})
    outcomes = list(crash_points(100, tmp_path, [scenario], processes))
    lines, is_good = points_table(outcomes)
    assert 0 < total(outcomes).lost < total(outcomes).tried
    assert not is_good
    assert f"| {outcomes[1].operations} | {total(outcomes).tried} |" in lines[-1]


def test_points_are_evenly_spaced():
    assert chosen_points(5, 40) == [1, 2, 3, 4, 5]
    assert chosen_points(1000, 5) == [1, 251, 501, 750, 1000]


@pytest.mark.slow
@pytest.mark.skipif(jumping_clock.library() is None, reason="apt-get install faketime")
def test_the_clock_jumps_while_a_run_is_killed(quick, tmp_path):
    processes = Processes(tmp_path, clock=JumpingClock(tmp_path / "clock"))
    chosen = [quick["train paco, frozen"]]
    outcome = total(kills(1, 1, tmp_path / "kills", chosen, processes))
    processes.close()
    dates = {file.stat().st_mtime // YEAR for file in (tmp_path / "kills").rglob("*")}
    assert len(dates) > 1, "the files have times of several years"
    assert outcome.tried >= 1
    assert not outcome.problems


@pytest.mark.slow
def test_disks_are_full(quick, processes, tmp_path):
    chosen = [quick["predict -o"], quick["train byol, pretrain.micro_batch=8"]]
    outcome = total(full_disks(1, 2, tmp_path, chosen, processes))
    assert outcome.tried == 2
    assert not outcome.problems


def test_a_part_that_dies_or_fails_does_not_lose_what_others_counted():
    def run(part):
        yield attempt(0)
        if part.category == "dies":
            os.kill(os.getpid(), SIGKILL)
        if part.category == "fails":
            raise ValueError("wrong")
        yield attempt(2)

    parts = [Part(name, 0, 1, 2) for name in ("dies", "fails", "good")]
    ends = run_parts(parts, 2, run, process_time, monotonic() + 60)
    outcomes = defaultdict(Outcome)
    for part, progress in ends:
        outcomes[part.category] += progress.outcome
    assert outcomes["good"] == Outcome(2, errors=1, correct=1)
    assert [outcomes[name].lost for name in ("dies", "fails")] == [1, 1]
    assert "code -9" in outcomes["dies"].problems[0]
    assert "ValueError: wrong" in outcomes["fails"].problems[0]


def test_no_attempt_is_begun_when_the_time_is_over():
    def run(part):
        while True:
            yield attempt(0)

    parts = [Part("endless", number, 2, 1) for number in range(2)]
    messages = list(run_parts(parts, 1, run, process_time, monotonic() + 0.5))
    assert {part.number for part, _ in messages} == {0}
    assert messages[-1][1].is_last
