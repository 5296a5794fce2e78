"""Store a training step whose loss or gradient was not finite.

`failed/step.safetensors` holds the batch, the weights before the step and the state of the random
number generator; `failed/step.json` says which step it was and which images were in the batch.
"""

import shlex
from collections.abc import Sequence

import safetensors.torch
from pydantic import BaseModel

from scs_supcon.errors import UserError
from scs_supcon.io.atomic import write_bytes
from scs_supcon.methods import Batch
from scs_supcon.runs.checkpoint_io import storable
from scs_supcon.runs.run_dir import RunDir
from scs_supcon.training.loop import NonFiniteLossError, Stage

STEP, TENSORS = "failed/step.json", "failed/step.safetensors"


class FailedStep(BaseModel):
    """A step that was not finite: the content of `failed/step.json`."""

    stage: str
    epoch: int
    step: int
    reason: str
    images: list[str]
    """Names of the images, in the order of the batch."""


def store_failed_step(
    run: RunDir, stage: Stage, error: NonFiniteLossError, names: Sequence[str]
) -> UserError:
    """Store the step of an error in the run directory; return an error that says what to do.

    Args:
        run: the run directory.
        stage: the stage, with its modules.
        error: the error.
        names: names of the training images.
    """
    images = [names[index] for index in error.indices]
    if run.writable:
        _write(run, stage, error, images)
    return UserError(
        f"{error}\nImages of the batch: {', '.join(images)}\nTo find the first value that is not "
        f"finite: scs replay {shlex.quote(str(run.path))}"
    )


def _write(run: RunDir, stage: Stage, error: NonFiniteLossError, images: list[str]) -> None:
    batch: Batch = error.batch
    tensors = {"images": batch.images, "labels": batch.labels, "indices": batch.indices}
    if batch.label_probabilities is not None:
        tensors["label_probabilities"] = batch.label_probabilities
    stored = {f"batch/{name}": tensor for name, tensor in tensors.items()} | {"rng": error.rng}
    for part in ("network", "method"):
        state = stage.modules[part].state_dict()
        stored |= {f"{part}/{name}": tensor for name, tensor in state.items()}
    record = FailedStep(
        stage=stage.name, epoch=error.epoch, step=error.step, reason=error.reason, images=images
    )
    write_bytes(run.path / TENSORS, safetensors.torch.save(storable(stored)))
    run.write_json(STEP, record.model_dump())
