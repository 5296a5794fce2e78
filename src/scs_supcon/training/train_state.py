"""Capture the state of training as tensors and JSON, and restore it bit for bit.

Tensors are named `network/...`, `optimizer/<parameter>/...` and `rng/<process>/...`.
"""

import math
import random
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

import numpy as np
import torch
from lightning_fabric import Fabric
from pydantic import BaseModel, Field
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.io.records import RecordError
from scs_supcon.io.typed import validate
from scs_supcon.io.values import Value, ValueTree
from scs_supcon.runs.checkpoint_io import Checkpoint
from scs_supcon.training.distributed import gather
from scs_supcon.training.loop import Stage, TrainPosition


def capture_state(
    fabric: Fabric, stage: Stage, position: TrainPosition, memo: Mapping[str, Value]
) -> Checkpoint:
    """Return all that `stage` needs to resume. Every process has to call this.

    Args:
        fabric: provides the processes and the gradient scaler.
        stage: its modules and optimiser are stored.
        position: current position of the stage.
        memo: further values to store; JSON.
    """
    tensors: dict[str, Tensor] = {}
    for name, module in stage.modules.items():
        tensors |= {f"{name}/{key}": value for key, value in module.state_dict().items()}
    values, optimizer_tensors = _split_optimizer_state(stage.optimizer)
    tensors |= {f"optimizer/{key}": value for key, value in optimizer_tensors.items()}
    for name, value in _random_state(fabric.device).items():
        local = value.to(fabric.device) if fabric.world_size > 1 else value
        for process, gathered in enumerate(gather(local)):
            tensors[f"rng/{process}/{name}"] = gathered.cpu()
    state: ValueTree = {
        "progress": asdict(position),
        "memo": memo,
        "optimizer": values,
        "precision": fabric.strategy.precision.state_dict(),
    }
    return Checkpoint(tensors, state)


def restore_state(
    fabric: Fabric, stage: Stage, checkpoint: Checkpoint
) -> tuple[TrainPosition, ValueTree]:
    """Restore modules, optimiser and random state; return the position and the memo.

    Raises:
        UserError: The checkpoint is intact, but not one of this stage.
    """
    tensors = checkpoint.tensors
    name = f"the checkpoint of stage {stage.name}"
    state = validate(StageState, checkpoint.state, name)
    for part, module in stage.modules.items():
        _load_module(part, module, _with_prefix(f"{part}/", tensors))
    try:
        _load_optimizer_state(stage.optimizer, state.optimizer, _with_prefix("optimizer/", tensors))
        fabric.strategy.precision.load_state_dict(state.precision)
        _set_random_state(_with_prefix(f"rng/{fabric.global_rank}/", tensors), fabric.device)
    except (LookupError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise RecordError(f"{name} is damaged: {type(error).__name__}: {error}") from error
    return TrainPosition(**dict(state.progress)), state.memo


class StageProgress(BaseModel):
    """The position of a stage; see `TrainPosition`."""

    epoch: Annotated[int, Field(ge=0)]
    step: Annotated[int, Field(ge=0)]
    global_step: Annotated[int, Field(ge=0)]


class OptimizerState(BaseModel):
    """Plain values of each parameter, by its number, and the parameter groups."""

    values: dict[str, dict[str, Any]]
    groups: list[dict[str, Any]]


class StageState(BaseModel):
    """What the checkpoint of a stage stores besides tensors."""

    progress: StageProgress
    memo: dict[str, Any]
    optimizer: OptimizerState
    precision: dict[str, Any]


def _with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # Copies: the tensors share one buffer, in which they may start at odd addresses.
    matching = {key: value for key, value in tensors.items() if key.startswith(prefix)}
    return {key.removeprefix(prefix): value.clone() for key, value in matching.items()}


def _load_module(name: str, module: nn.Module, tensors: dict[str, Tensor]) -> None:
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        raise UserError(
            f"the checkpoint does not fit the {name} of this version of scs-supcon: resume with "
            f"the version that started the run, or start again with --overwrite. {error}"
        ) from error


def _split_optimizer_state(
    optimizer: torch.optim.Optimizer,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the plain values and the tensors of an optimiser, named `<parameter>/<name>`."""
    state = optimizer.state_dict()
    values: dict[str, dict[str, Any]] = {}
    tensors: dict[str, Tensor] = {}
    for index, entry in state["state"].items():
        tensors |= {f"{index}/{k}": v for k, v in entry.items() if isinstance(v, Tensor)}
        values[str(index)] = {k: v for k, v in entry.items() if not isinstance(v, Tensor)}
    return {"values": values, "groups": state["param_groups"]}, tensors


def _load_optimizer_state(
    optimizer: torch.optim.Optimizer, saved_state: OptimizerState, tensors: dict[str, Tensor]
) -> None:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    entries = {int(index): dict(entry) for index, entry in saved_state.values.items()}
    for name, tensor in tensors.items():
        index, _, key = name.partition("/")
        entries[int(index)][key] = _with_strides_of(parameters[int(index)], tensor)
    for current, saved in zip(optimizer.param_groups, saved_state.groups, strict=True):
        _check_group(current, saved)
    groups = [
        # JSON has no tuples, but AdamW expects its betas as one.
        {k: tuple(v) if isinstance(current[k], tuple) else v for k, v in saved.items()}
        for current, saved in zip(optimizer.param_groups, saved_state.groups, strict=True)
    ]
    optimizer.load_state_dict({"state": entries, "param_groups": groups})


def _check_group(current: dict[str, Any], saved: dict[str, Any]) -> None:
    """Raise an error if a saved parameter group has other keys or types than the current one."""
    if current.keys() != saved.keys():
        names = ", ".join(sorted(current.keys() ^ saved.keys()))
        raise ValueError(f"the optimizer's group has other keys: {names}")
    for key, value in current.items():
        number = isinstance(value, int | float) and isinstance(saved[key], int | float)
        sequence = isinstance(value, list | tuple) and isinstance(saved[key], list)
        if not (number or sequence or isinstance(saved[key], type(value))):
            raise TypeError(f"{key} of the optimizer is {saved[key]!r}")


def _with_strides_of(parameter: Tensor, value: Tensor) -> Tensor:
    """Return `value` with the strides of its parameter, so that the same kernels are used."""
    if value.shape != parameter.shape:
        return value
    return torch.empty_like(parameter, dtype=value.dtype, device=value.device).copy_(value)


def _random_state(device: torch.device) -> dict[str, Tensor]:
    """Return the state of the global generators of torch, NumPy and Python."""
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002
    _, words, gauss = random.getstate()
    state = {
        "torch": torch.get_rng_state(),
        "numpy": torch.tensor([*np.asarray(keys).tolist(), position, has_gauss]),
        "numpy_gauss": torch.tensor([cached], dtype=torch.float64),
        "python": torch.tensor(words),
        "python_gauss": torch.tensor([math.nan if gauss is None else gauss], dtype=torch.float64),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def _set_random_state(state: dict[str, Tensor], device: torch.device) -> None:
    """Set the generators; a process without a saved state keeps its current one."""
    if not state:
        return
    torch.set_rng_state(state["torch"])
    *keys, position, has_gauss = state["numpy"].tolist()
    numpy_state = ("MT19937", np.array(keys, dtype=np.uint32), position, has_gauss)
    np.random.set_state((*numpy_state, state["numpy_gauss"].item()))  # noqa: NPY002
    gauss = state["python_gauss"].item()
    random.setstate((3, tuple(state["python"].tolist()), None if math.isnan(gauss) else gauss))
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
