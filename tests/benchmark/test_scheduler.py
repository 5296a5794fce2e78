"""Cells in worker processes: killed, stopped, failing, and shared between commands."""

import csv
import os
import re
import signal
import time
from contextlib import suppress

import psutil
import pytest

from scs_supcon.benchmark.results import read_results, results_csv
from scs_supcon.benchmark.scheduler import is_finished, train_cells
from scs_supcon.benchmark.table import write_table_file
from scs_supcon.io.lock import is_held

pytestmark = pytest.mark.slow


def command_for(table, tmp_path, *options):
    """Return the command for a table, with results in `out` and runs in `runs`."""
    file = tmp_path / "table.toml"
    file.write_text(write_table_file(table))
    where = ("--out", tmp_path / "out", "--runs", tmp_path / "runs", "--device", "cpu")
    return ("compare", file, *where, *options)


def rows_without_seconds(results):
    """Return the rows of results.csv without the seconds."""
    with results.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [{key: value for key, value in row.items() if "seconds" not in key} for row in rows]


def wait_for(condition, seconds=300):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.02)


def family(process):
    """Return a process and all its descendants."""
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
def no_process_is_left(processes):
    """Kill the processes that a failed test left running."""
    yield
    for child in psutil.Process(processes.server.pid).children():
        kill(family(child.pid))


@pytest.fixture(scope="module")
def table(small_table):
    """Two methods and two seeds: four of the runs of `two_seeds`."""
    return small_table(["supcon"], seeds=2)


@pytest.fixture(scope="module")
def unbroken(table, two_seeds, cells_of, tmp_path_factory):
    """The rows of results.csv without interruption."""
    file = tmp_path_factory.mktemp("unbroken") / "results.csv"
    file.write_text(results_csv(read_results(cells_of(table), two_seeds[1], {})))
    return rows_without_seconds(file)


@pytest.fixture(scope="module")
def others(processes, tmp_path_factory):
    """Commands that run at the same time as those of `processes`."""
    started = type(processes)(tmp_path_factory.mktemp("others"))
    yield started
    started.server.kill()
    started.server.wait()


def test_a_killed_comparison_resumes_without_repeating_runs(table, unbroken, processes, tmp_path):
    command = command_for(table, tmp_path, "--jobs", "2")
    process = processes.start(*command)
    wait_for(lambda: runs_in(tmp_path / "runs", "finished.json"))
    kill(family(process))
    assert processes.wait().code == -signal.SIGKILL
    finished = runs_in(tmp_path / "runs", "finished.json")
    assert 0 < len(finished) < 4
    before = {run: (run / "finished.json").stat().st_mtime_ns for run in finished}
    result = processes.run(*command)
    assert result.code == 0, result.err
    assert {run: (run / "finished.json").stat().st_mtime_ns for run in finished} == before
    assert len(re.findall("test accuracy on", result.err)) == 4 - len(finished)
    assert rows_without_seconds(tmp_path / "out" / "results.csv") == unbroken


def test_two_commands_on_one_folder_train_every_cell_once(
    table, unbroken, processes, others, tmp_path
):
    command = command_for(table, tmp_path, "--jobs", "2")
    others.start(*command, "--out", tmp_path / "other")
    processes.start(*command)
    ends = [processes.wait(), others.wait()]
    assert [end.code for end in ends] == [0, 0], ends
    for run in runs_in(tmp_path / "runs", "finished.json"):
        with (run / "metrics.csv").open(newline="") as file:
            rows = [tuple(row.values())[:4] for row in csv.DictReader(file)]
        assert len(rows) == len(set(rows)), f"{run} was trained twice"
    for out in (tmp_path / "out", tmp_path / "other"):
        assert rows_without_seconds(out / "results.csv") == unbroken


def test_the_cell_of_a_killed_command_is_taken_over(small_table, processes, others, tmp_path):
    """One command holds a cell and is killed; the other, which waits for it, trains it."""
    table = small_table(["supcon"])
    first = others.start(*command_for(table, tmp_path))
    wait_for(lambda: [run for run in runs_in(tmp_path / "runs", ".lock") if is_held(run / ".lock")])
    members = family(first)
    for member in members:
        member.suspend()  # keeps its lock
    (held,) = [run for run in runs_in(tmp_path / "runs", ".lock") if is_held(run / ".lock")]
    processes.start(*command_for(table, tmp_path))
    wait_for(lambda: [r for r in runs_in(tmp_path / "runs", "finished.json") if r != held])
    assert not is_finished(held)
    kill(members)
    result = processes.wait()
    assert result.code == 0, result.err
    assert is_finished(held)
    assert others.wait().code == -signal.SIGKILL


def test_a_killed_worker_is_reported_and_the_others_continue(small_table, processes, tmp_path):
    table = small_table(["supcon"])
    process = processes.start(*command_for(table, tmp_path))
    wait_for(lambda: runs_in(tmp_path / "runs", "recipe.toml"))
    (run,) = runs_in(tmp_path / "runs", "recipe.toml")
    owner = int((run / ".lock").read_text().split()[0])
    os.kill(owner, signal.SIGKILL)
    assert process != owner
    result = processes.wait()
    assert result.code == 1
    assert "supcon on shapes, seed 0: the process ended with signal 9" in result.err
    statuses = [row["status"] for row in rows_without_seconds(tmp_path / "out" / "results.csv")]
    assert sorted(statuses) == ["done", "failed"]
    again = processes.run(*command_for(table, tmp_path))
    assert again.code == 0, again.err


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_stopping_saves_the_runs_and_leaves_no_process(
    number, code, small_table, processes, tmp_path
):
    """After SIGKILL the command cannot stop its workers: they stop because it has ended."""
    settings = [*small_table().settings, "pretrain.epochs=100000"]
    table = small_table(["supcon"], settings=settings)
    process = processes.start(*command_for(table, tmp_path, "--jobs", "2"))
    wait_for(lambda: len(runs_in(tmp_path / "runs", "metrics.csv")) == 2)
    members = family(process)
    os.kill(process, number)
    result = processes.wait()
    assert result.code == code
    assert number == signal.SIGKILL or "run the same command again" in result.err
    psutil.wait_procs(members, 120)
    assert not [member for member in members if member.is_running()]
    for run in runs_in(tmp_path / "runs", "recipe.toml"):
        assert not is_held(run / ".lock")
        assert list((run / "checkpoints").glob("pretrain-*.safetensors"))


def test_a_cell_with_an_invalid_option_fails_alone(
    small_table, cells_of, compute, silent, tmp_path
):
    broken = {"method": "supcon", "name": "broken", "settings": ["pretrain.precision=16-mixed"]}
    runs, recipes = tmp_path / "runs", tmp_path / "recipes"
    cells = cells_of(small_table([broken, "supcon"]))
    failures = train_cells(cells, runs, recipes, compute, 1, silent)
    (address,) = failures
    assert address == cells[0].address
    assert "16-mixed needs a GPU" in failures[address]
    assert [is_finished(runs / cell.address) for cell in cells] == [False, True, True]
    assert {path.stem for path in (tmp_path / "recipes").iterdir()} == {c.address for c in cells}


def test_finished_cells_need_no_worker(two_seeds, cells_of, compute, silent, tmp_path):
    table, runs = two_seeds
    assert train_cells(cells_of(table), runs, tmp_path / "recipes", compute, 2, silent) == {}
    assert not (tmp_path / "recipes").exists()
