"""One process or several: set up Fabric, and sum gradients over processes."""

import atexit
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from lightning_fabric.wrappers import is_wrapped
from torch import Tensor, distributed, nn

from scs_supcon.device import check_device, keep_freed_memory, torch_device
from scs_supcon.errors import UserError

# The first process computes the features of a frozen encoder while the others wait.
TIMEOUT = timedelta(days=1)
TIMEOUT_VARIABLE = "SCS_TIMEOUT"  # seconds that processes wait for each other
# What gloo and NCCL say if another process has ended, or does not answer in time.
LOST = re.compile(r"connection|timed out|timeout|broken pipe|socket closed|peer", re.IGNORECASE)


class SummedGradients(DDPStrategy):
    """Strategy for several processes, each with its rows of every batch.

    DistributedDataParallel is not used: it averages gradients where the gathered loss needs their
    sum, and it fails if a parameter affects the output but not the loss. The training loop sums
    the gradients that exist.
    """

    def setup_module(self, module: nn.Module) -> nn.Module:  # type: ignore[override]
        """Return the module itself, with the values of the first process."""
        _broadcast((*module.parameters(), *module.buffers()))
        return module


def make_fabric(device: str = "auto", precision: str = "32-true") -> Fabric:
    """Return a launched Fabric; under torchrun, this process is one of several.

    Args:
        device: "auto", "cpu", "cuda" or "cuda:1". Apple's "mps" cannot train: it lacks float64,
            which the exact sums of the losses need.
        precision: "32-true", "bf16-mixed", "16-mixed" or "64-true".
    """
    check_device(device)
    kind, _, number = device.partition(":")
    kind = torch_device(kind)
    _check_available(kind, device, precision)
    if kind == "cpu":
        keep_freed_memory()
    world = int(os.environ["WORLD_SIZE"]) if distributed.is_torchelastic_launched() else 1
    options: dict[str, Any] = {"accelerator": kind, "precision": precision}
    if world > 1:
        local_world = int(os.environ["LOCAL_WORLD_SIZE"])
        options |= {
            "devices": local_world,
            "num_nodes": world // local_world,
            "strategy": SummedGradients(timeout=_timeout()),
        }
    else:
        options |= {"devices": [int(number)] if number else 1}
    with warnings.catch_warnings():
        # A hint for clusters, which is given wherever Slurm is installed.
        warnings.filterwarnings("ignore", message="The `srun` command")
        fabric = Fabric(**options)
    fabric.launch()
    if world > 1:
        atexit.register(_destroy_group)
    return fabric


def _timeout() -> timedelta:
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    try:
        seconds = float(text) if text else TIMEOUT.total_seconds()
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 1e9:
        raise UserError(f"{TIMEOUT_VARIABLE} is {text!r}: expected a number of seconds, at least 1")
    return timedelta(seconds=seconds)


@contextmanager
def explain_lost_processes() -> Iterator[None]:
    """Raise a `UserError` if another process of the run has ended or does not answer."""
    try:
        yield
    except RuntimeError as error:  # also torch's DistBackendError
        if not distributed.is_initialized() or not LOST.search(str(error)):
            raise
        raise UserError(
            f"process {os.environ.get('RANK', '?')} lost another process of this run, which ended "
            "or did not answer in time: see its messages. Run the same command again to resume "
            f"from the last checkpoint; torchrun --max-restarts does so by itself. ({error})"
        ) from error


def _destroy_group() -> None:
    """Destroy the process group: its threads would abort a process that exits first."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _check_available(kind: str, device: str, precision: str) -> None:
    available = {"cpu": True, "cuda": torch.cuda.is_available()}
    if kind == "mps":
        raise UserError(
            "cannot train on mps, which lacks float64: use --device cpu (scs predict and "
            "scs evaluate can use mps)"
        )
    if not available.get(kind, False):
        usable = ", ".join(name for name, ok in available.items() if ok)
        raise UserError(f"device {device!r} is not available: use one of auto, {usable}")
    if kind == "cpu" and precision == "16-mixed":
        raise UserError("precision 16-mixed needs a GPU: use bf16-mixed or 32-true on the CPU")


def local_parameters(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    """Return the parameters set up with Fabric: each process has the gradient of its rows only."""
    wrapped = (child for module in modules for child in module.modules() if is_wrapped(child))
    parameters = (p for module in wrapped for p in module.parameters() if p.requires_grad)
    return list(dict.fromkeys(parameters))


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Sum the gradients of all processes in place."""
    _exchange((p.grad for p in parameters if p.grad is not None), distributed.all_reduce)


def gather(tensor: Tensor) -> list[Tensor]:
    """Return the tensors of all processes, in order of rank; all must have the same shape."""
    if not distributed.is_initialized():
        return [tensor]
    gathered = [torch.empty_like(tensor) for _ in range(distributed.get_world_size())]
    distributed.all_gather(gathered, tensor)
    return gathered


def share_buffers(modules: Iterable[nn.Module]) -> None:
    """Copy the first process's batch statistics to all, so that all evaluate the same network."""
    _broadcast(buffer for module in modules for buffer in module.buffers())


def _broadcast(tensors: Iterable[Tensor]) -> None:
    _exchange(tensors, lambda flat: distributed.broadcast(flat, src=0))


def _exchange(tensors: Iterable[Tensor], communicate: Callable[[Tensor], Any]) -> None:
    """Apply a collective operation to the tensors in place, in one message per dtype."""
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        by_dtype.setdefault(tensor.dtype, []).append(tensor.detach())
    for group in by_dtype.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in group])
        communicate(flat)
        pieces = torch.split(flat, [tensor.numel() for tensor in group])
        for tensor, piece in zip(group, pieces, strict=True):
            tensor.copy_(piece.view_as(tensor))
