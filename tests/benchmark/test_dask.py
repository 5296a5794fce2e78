"""Cells and parts of embeddings on a Dask cluster over loopback; tests/scale kills its parts."""

import json

import numpy as np
import pytest

from dask_processes import DaskProcesses
from scs_supcon.benchmark import scheduler
from scs_supcon.benchmark.scheduler import is_finished
from scs_supcon.cluster import dask_worker
from scs_supcon.cluster.dask_pool import DaskPool
from scs_supcon.cluster.tasks import SharedTask, run_tasks
from scs_supcon.device import cores
from scs_supcon.errors import UserError
from scs_supcon.inference import load
from scs_supcon.inference.parts import embed_part, embedding_parts, join_parts
from scs_supcon.runs.environment import numeric_code_digest
from scs_supcon.training.workers import WorkerStatus

pytest.importorskip("distributed")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    started = DaskProcesses(tmp_path_factory.mktemp("dask"))
    try:
        started.start_scheduler()
        started.start_worker()
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="module")
def alone(small_table, cells_of, train_cells, tmp_path_factory):
    """A cell, and the folder of its run that this process has trained."""
    table, runs = small_table(["supcon"], seeds=1), tmp_path_factory.mktemp("alone")
    train_cells(table, runs)
    return cells_of(table)[0], runs


def test_a_cluster_trains_a_cell_with_the_bytes_of_one_process(
    cluster, alone, compute, silent, tmp_path
):
    cell, runs = alone[0], tmp_path / "runs"
    where = (runs, tmp_path / "recipes", compute, cores(), silent, cluster.address)
    assert scheduler.train_cells([cell], *where) == {}, cluster.logs()
    assert is_finished(runs / cell.address)
    here, there = (
        (folder / cell.address / "model" / "weights.safetensors").read_bytes()
        for folder in (alone[1], runs)
    )
    assert here == there


def test_a_cluster_computes_the_embeddings_of_one_process(
    cluster, alone, shapes, silent, tmp_path, monkeypatch
):
    monkeypatch.setattr("scs_supcon.inference.parts.PART_IMAGES", 5)
    run = alone[1] / alone[0].address
    damaged = tmp_path / "damaged.png"
    damaged.write_bytes(b"no image")
    files = [*sorted(shapes.rglob("*.png"))[:8], damaged]
    parts = embedding_parts(run, files, tmp_path)
    tasks = {
        part.file.stem: SharedTask(
            str(number),
            embed_part,
            (str(run), json.dumps([str(file) for file in part.images]), str(part.file)),
            part.file,
            part.lock,
        )
        for number, part in enumerate(parts)
    }
    assert len(tasks) == 2
    embed_part(*next(iter(tasks.values())).arguments)  # the cluster has to compute the other one
    assert run_tasks(tasks, DaskPool(cluster.address, 2), silent, "parts") == {}, cluster.logs()
    expected, vectors = load(run).embed(files), join_parts(parts)
    assert vectors.names == expected.names
    assert vectors.failures == expected.failures
    np.testing.assert_array_equal(vectors.common, expected.common)
    np.testing.assert_array_equal(vectors.style, expected.style)


@pytest.mark.parametrize(
    ("function", "code", "message"),
    [
        ("os:getcwd", None, "os:getcwd is not a function of scs_supcon"),
        ("scs_supcon.tuning.study:work_on", "other", "another version of scs-supcon"),
    ],
)
def test_workers_call_functions_of_this_package_and_version_only(function, code, message):
    request = {"function": function, "numeric_code": code or numeric_code_digest()}
    status, answer = dask_worker.answer(request)
    assert status == WorkerStatus.FAILED.value
    assert message in answer


def test_a_missing_scheduler_is_explained(monkeypatch):
    monkeypatch.setattr("scs_supcon.cluster.dask_pool.CONNECT_SECONDS", 1)
    with pytest.raises(UserError, match=r"no Dask scheduler answers .*`dask worker tcp://127"):
        DaskPool("tcp://127.0.0.1:9")
