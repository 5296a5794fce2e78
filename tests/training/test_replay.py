"""A step that is not finite is stored before the weights change, and can be computed again."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from scs_supcon.errors import UserError
from scs_supcon.training import loop
from scs_supcon.training.replay import replay


@pytest.fixture
def stopped(shapes, train_small, tmp_path, monkeypatch):
    """`stopped(step)` trains until that step, before which a weight becomes infinite."""

    def run(step, stage_name="pretrain", **options):
        original = loop._train_step

        def train_step(fabric, stage, batch, position, *others):
            if stage.name == stage_name and position.global_step == step:
                with torch.no_grad():
                    head = stage.modules["network"].projection
                    next(head.parameters())[0] = torch.inf
            return original(fabric, stage, batch, position, *others)

        monkeypatch.setattr(loop, "_train_step", train_step)
        with pytest.raises(UserError) as error:
            train_small(shapes, tmp_path / "run", **{"method": "supcon"} | options)
        monkeypatch.undo()
        return tmp_path / "run", str(error.value)

    return run


def test_the_first_tensor_that_is_not_finite_is_named(stopped, scs):
    run, message = stopped(3)
    assert f"scs replay {run}" in message
    assert "The weights were not changed" in message
    stored = json.loads((run / "failed" / "step.json").read_text())
    assert stored["stage"] == "pretrain"
    assert len(stored["images"]) > 1
    result = replay(run)
    assert result.first == "weights network.projection.layers.0.weight"
    assert set(result.images) == set(stored["images"])
    shown = scs("replay", run)
    assert shown.code == 0
    assert "first     weights network.projection.layers.0.weight" in shown.out


def test_a_step_of_a_fold_can_be_computed_again(stopped, weights):
    frozen = {"encoder": "tiny", "weights": weights, "frozen": True, "method": None}
    run, _ = stopped(1, "fold2", **frozen)
    result = replay(run)
    assert result.failed.stage == "fold2"
    assert result.first == "weights network.projection.heads.0.layers.0.weight"


def test_images_of_the_batch_are_named(stopped):
    run, _ = stopped(3)
    file = run / "failed" / "step.safetensors"
    tensors = load_file(file)
    tensors["network/projection.layers.0.weight"].zero_()
    save_file(tensors, file)
    assert replay(run).first == "", "with intact weights the step is finite"
    tensors["batch/images"][1] = torch.nan
    save_file(tensors, file)
    result = replay(run)
    assert result.first == "images of the batch"
    assert result.images == (result.failed.images[1],)


def test_a_run_without_a_failed_step_is_an_error(finished, scs, tmp_path):
    result = scs("replay", finished)
    assert result.code == 2
    assert "every loss and gradient of this run was finite" in result.err


def test_a_damaged_step_is_an_error(stopped):
    run, _ = stopped(3)
    (run / "failed" / "step.safetensors").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"step\.safetensors is damaged"):
        replay(run)
    (run / "failed" / "step.json").write_text('{"stage": 3}')
    with pytest.raises(UserError, match=r"step\.json is damaged: stage"):
        replay(run)
