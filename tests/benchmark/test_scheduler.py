"""Cells in processes: killed, stopped, failing, and shared between commands."""

import csv
import os
import re
import signal
import time
from contextlib import suppress

import psutil
import pytest

from scs_supcon.benchmark.results import read_outcomes, results_csv
from scs_supcon.benchmark.scheduler import is_finished, train_cells
from scs_supcon.benchmark.table import write_table_file
from scs_supcon.io.lock import is_held

pytestmark = pytest.mark.slow


def line(table, tmp_path, *more):
    """The command for a table, with results in `out` and runs in `runs`."""
    file = tmp_path / "table.toml"
    file.write_text(write_table_file(table))
    where = ("--out", tmp_path / "out", "--runs", tmp_path / "runs", "--device", "cpu")
    return ("compare", file, *where, *more)


def numbers(results):
    """Everything in results.csv but how long it took."""
    with results.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def wait_for(condition, seconds=300):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited for too long"
        time.sleep(0.02)


def family(process):
    """A process and all that it has started."""
    parent = psutil.Process(process)
    return [parent, *parent.children(recursive=True)]


def kill(members):
    for member in members:
        with suppress(psutil.NoSuchProcess):  # gone with its parent
            member.kill()
    psutil.wait_procs(members, 120)


def runs_in(folder, file):
    return sorted(path.parent for path in folder.glob(f"*/{file}"))


@pytest.fixture(autouse=True)
def nothing_stays(processes):
    """A test that fails leaves no command behind."""
    yield
    for left in psutil.Process(processes.server.pid).children():
        kill(family(left.pid))


@pytest.fixture(scope="module")
def table(small_table):
    """Two methods, two seeds: four of the runs of `two_seeds`."""
    return small_table(["supcon"], seeds=2)


@pytest.fixture(scope="module")
def unbroken(table, two_seeds, cells_of, tmp_path_factory):
    """What results.csv says when nothing is stopped."""
    file = tmp_path_factory.mktemp("unbroken") / "results.csv"
    file.write_text(results_csv(read_outcomes(cells_of(table), two_seeds[1], {})))
    return numbers(file)


@pytest.fixture(scope="module")
def others(processes, tmp_path_factory):
    """Commands at the same time as those of `processes`."""
    started = type(processes)(tmp_path_factory.mktemp("others"))
    yield started
    started.server.kill()
    started.server.wait()


def test_killed_in_the_middle_and_started_again(table, unbroken, processes, tmp_path):
    command = line(table, tmp_path, "--jobs", "2")
    process = processes.start(*command)
    wait_for(lambda: runs_in(tmp_path / "runs", "finished.json"))
    kill(family(process))
    assert processes.wait().code == -signal.SIGKILL
    done = runs_in(tmp_path / "runs", "finished.json")
    assert 0 < len(done) < 4
    before = {run: (run / "finished.json").stat().st_mtime_ns for run in done}
    said = processes.run(*command)
    assert said.code == 0, said.err
    assert {run: (run / "finished.json").stat().st_mtime_ns for run in done} == before
    assert len(re.findall("images right", said.err)) == 4 - len(done)
    assert numbers(tmp_path / "out" / "results.csv") == unbroken


def test_two_commands_on_one_folder_do_every_cell_once(
    table, unbroken, processes, others, tmp_path
):
    command = line(table, tmp_path, "--jobs", "2")
    others.start(*command, "--out", tmp_path / "other")
    processes.start(*command)
    ends = [processes.wait(), others.wait()]
    assert [end.code for end in ends] == [0, 0], ends
    for run in runs_in(tmp_path / "runs", "finished.json"):
        with (run / "metrics.csv").open(newline="") as file:
            told = [tuple(row.values())[:4] for row in csv.DictReader(file)]
        assert len(told) == len(set(told)), f"{run} was trained twice"
    for out in (tmp_path / "out", tmp_path / "other"):
        assert numbers(out / "results.csv") == unbroken


def test_cells_of_the_dead_are_taken_over(small_table, processes, others, tmp_path):
    """One command holds a cell and dies; the other, which waits for it, does it."""
    table = small_table(["supcon"])
    first = others.start(*line(table, tmp_path))
    wait_for(lambda: [run for run in runs_in(tmp_path / "runs", ".lock") if is_held(run / ".lock")])
    members = family(first)
    for member in members:
        member.suspend()  # holds its cell and does nothing
    (held,) = [run for run in runs_in(tmp_path / "runs", ".lock") if is_held(run / ".lock")]
    processes.start(*line(table, tmp_path))
    wait_for(lambda: [r for r in runs_in(tmp_path / "runs", "finished.json") if r != held])
    assert not is_finished(held)
    kill(members)
    said = processes.wait()
    assert said.code == 0, said.err
    assert is_finished(held)
    assert others.wait().code == -signal.SIGKILL


def test_a_cell_whose_process_is_killed_is_named_and_the_others_go_on(
    small_table, processes, tmp_path
):
    table = small_table(["supcon"])
    process = processes.start(*line(table, tmp_path))
    wait_for(lambda: runs_in(tmp_path / "runs", "recipe.toml"))
    (begun,) = runs_in(tmp_path / "runs", "recipe.toml")
    owner = int((begun / ".lock").read_text().split()[0])
    os.kill(owner, signal.SIGKILL)
    assert process != owner
    said = processes.wait()
    assert said.code == 1
    assert "supcon on shapes, seed 0: the process ended with signal 9" in said.err
    statuses = [row["status"] for row in numbers(tmp_path / "out" / "results.csv")]
    assert sorted(statuses) == ["done", "failed"]
    again = processes.run(*line(table, tmp_path))
    assert again.code == 0, again.err


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_when_it_is_stopped_its_runs_are_saved_and_nothing_stays(
    number, code, small_table, processes, tmp_path
):
    """Killed alone, it cannot stop its processes: they notice."""
    settings = [*small_table().settings, "pretrain.epochs=100000"]
    table = small_table(["supcon"], settings=settings)
    process = processes.start(*line(table, tmp_path, "--jobs", "2"))
    wait_for(lambda: len(runs_in(tmp_path / "runs", "metrics.csv")) == 2)
    members = family(process)
    os.kill(process, number)
    said = processes.wait()
    assert said.code == code
    assert number == signal.SIGKILL or "run the same line again" in said.err
    psutil.wait_procs(members, 120)
    assert not [member for member in members if member.is_running()]
    for run in runs_in(tmp_path / "runs", "recipe.toml"):
        assert not is_held(run / ".lock")
        assert list((run / "checkpoints").glob("pretrain-*.safetensors"))


def test_a_cell_that_cannot_be_trained(small_table, cells_of, suite_of, silent, tmp_path):
    broken = {"method": "supcon", "name": "broken", "settings": ["pretrain.precision=16-mixed"]}
    suite = suite_of(small_table([broken, "supcon"]))
    cells = cells_of(suite.table)
    failures = train_cells(cells, suite.runs, tmp_path / "recipes", suite.place, 1, silent)
    (address,) = failures
    assert address == cells[0].address
    assert "16-mixed needs a GPU" in failures[address]
    assert [is_finished(suite.runs / cell.address) for cell in cells] == [False, True, True]
    assert {path.stem for path in (tmp_path / "recipes").iterdir()} == {c.address for c in cells}


def test_finished_cells_need_no_process(two_seeds, cells_of, suite_of, silent, tmp_path):
    table, runs = two_seeds
    suite = suite_of(table, runs)
    assert train_cells(cells_of(table), runs, tmp_path / "recipes", suite.place, 2, silent) == {}
    assert not (tmp_path / "recipes").exists()
