"""Commands that were killed at a bad moment leave a whole result, or can be repeated."""

import signal

import pytest

from scs_supcon.inference import load


@pytest.fixture
def new_images(shapes):
    return [str(file) for file in sorted((shapes / "bar").glob("*.png"))]


@pytest.mark.slow
def test_a_killed_add_class_leaves_a_model(processes, run_copy, new_images, finished):
    """The events are those of the files of the model: kills before each one, until none is left."""
    old = load(finished).classes
    for count in range(1, 60):
        result = processes.run(
            *("add-class", run_copy, f"class{count}", *new_images),
            signal_at=(signal.SIGKILL, "model", count),
        )
        now = load(run_copy).classes  # the old model or the new one, whole
        assert now[: len(old)] == old
        if result.code == 0:
            break
    else:
        pytest.fail("no attempt was left alone")
    assert count > 5
    assert load(run_copy).classes[-1] == f"class{count}"


def test_the_model_before_an_added_class_comes_back(scs, run_copy, new_images):
    before = {file.name: file.read_bytes() for file in (run_copy / "model").iterdir()}
    assert scs("add-class", run_copy, "dot", *new_images).code == 0
    assert "dot" in load(run_copy).classes
    assert scs("add-class", run_copy, "--undo").code == 0
    assert {file.name: file.read_bytes() for file in (run_copy / "model").iterdir()} == before
    for wrong in (["dot", *new_images, "--undo"], [], ["dot"]):
        result = scs("add-class", run_copy, *wrong)
        assert result.code == 2
        assert "--undo" in result.err


@pytest.mark.slow
def test_a_killed_pack_is_repeated(processes, shapes, tmp_path):
    for count in range(1, 30):
        out = tmp_path / f"packed-{count}"
        killed = processes.run("pack", shapes, out, signal_at=(signal.SIGKILL, "packed-", count))
        result = processes.run("pack", shapes, out)
        assert result.code == 0, result.err
        assert sorted(file.name for file in out.iterdir() if not file.name.endswith(".tmp")) == [
            *("index.parquet", "shard-00000.tar"),
        ]
        if killed.code == 0:
            break
    else:
        pytest.fail("no attempt was left alone")
    assert count > 3
