"""Compute a training step again whose loss or gradient was not finite; see `failed_step`."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from scs_supcon.errors import NonFiniteError, UserError
from scs_supcon.io.records import (
    RecordError,
    csv_rows,
    inside,
    memory_bytes,
    read_bytes,
    read_json,
    read_json_object,
    read_text,
)
from scs_supcon.io.typed import validate
from scs_supcon.methods import Batch, Method
from scs_supcon.nn.build import build_network, split_frozen
from scs_supcon.nn.network import Network
from scs_supcon.plugins import allow_code, check_allowed
from scs_supcon.recipe import Recipe, from_toml
from scs_supcon.training.failed_step import STEP, TENSORS, FailedStep
from scs_supcon.training.out_of_fold import fold_phase
from scs_supcon.training.pretrain import make_method, set_up_method
from scs_supcon.training.unfreeze import head_phase


@dataclass(frozen=True)
class Replay:
    """The result of computing a failed step again.

    Attributes:
        failed: The stored step.
        first: Name of the first tensor that is not finite; "" if the step is finite now.
        images: Names of the images whose rows of that tensor are not finite.
        terms: Terms of the loss.
    """

    failed: FailedStep
    first: str
    images: tuple[str, ...]
    terms: Mapping[str, float]

    def describe(self) -> str:
        """Return the result as text."""
        failed = self.failed
        lines = [f"stage {failed.stage}, epoch {failed.epoch + 1}, step {failed.step + 1}"]
        lines += [f"then      {failed.reason}"]
        terms = ", ".join(f"{name} = {value:g}" for name, value in self.terms.items())
        lines += [f"now       {terms or 'the loss was not reached'}"]
        if not self.first:
            return "\n".join([*lines, "finite    the step cannot be reproduced here"])
        names = ", ".join(self.images[:20]) + (" …" if len(self.images) > 20 else "")
        count = f"{len(self.images)} of {len(failed.images)}"
        return "\n".join([*lines, f"first     {self.first}", f"images    {count}: {names}"])


def replay(path: str | Path, method: str | None = None) -> Replay:
    """Compute the failed step of a run again on the CPU.

    Args:
        path: the run directory.
        method: the run's own method, if it is code from outside this package.

    Raises:
        UserError: the run has no failed step, or its files are damaged.
    """
    run = Path(path)
    if not (run / STEP).exists():
        raise UserError(f"{run} has no {STEP}: every loss and gradient of this run was finite")
    failed = validate(FailedStep, read_json_object(inside(run, STEP)), run / STEP)
    try:
        tensors = safetensors.torch.load(read_bytes(inside(run, TENSORS), memory_bytes()))
        images, labels, indices = (
            tensors[f"batch/{name}"].clone() for name in ("images", "labels", "indices")
        )
        batch = Batch(images, labels, indices, tensors.get("batch/label_probabilities"))
        rng = tensors["rng"].clone()
    except (SafetensorError, LookupError) as error:
        raise RecordError(f"{run / TENSORS} is damaged: {error}") from error
    network, loss = _build(run, failed, method)
    try:
        for part, module in (("network", network), ("method", loss)):
            prefix = f"{part}/"
            module.load_state_dict(
                {
                    name.removeprefix(prefix): tensor.clone()
                    for name, tensor in tensors.items()
                    if name.startswith(prefix)
                }
            )
        torch.set_rng_state(rng)
    except (RuntimeError, TypeError) as error:
        raise UserError(f"{run / TENSORS} does not fit this version: {error}") from error
    first, rows, terms = _first_non_finite(network, loss, batch)
    count = len(batch.labels)
    names = sorted({row % count for row in rows})
    affected = tuple(failed.images[i] for i in names if i < len(failed.images))
    return Replay(failed, first, affected, terms)


def _build(run: Path, failed: FailedStep, plugin: str | None) -> tuple[Network, Method]:
    """Return the network and the method of the failed stage, with random weights."""
    recipe: Recipe = from_toml(read_text(run / "recipe.toml"))
    name = recipe.method.name
    if plugin is not None:
        allow_code(plugin)
    check_allowed("method", name, f"--method {name} or ")
    if failed.stage == "head":
        recipe = head_phase(recipe)
    elif failed.stage.startswith("fold"):
        recipe = fold_phase(recipe)
    network, method = build_network(recipe), make_method(recipe)
    if recipe.encoder.frozen:
        _, network = split_frozen(network, method.uses_taps)
    classes = validate(list[str], read_json(run / "classes.json"), run / "classes.json")
    class_index = {label: index for index, label in enumerate(classes)}
    rows = csv_rows(run / "splits.csv", ("label", "split"))
    labels = [class_index.get(row["label"], 0) for row in rows if row["split"] == "train"]
    set_up_method(method, network, np.array(labels, np.int64), len(classes), recipe)
    return network.train(), method.train()


def _first_non_finite(
    network: Network, method: Method, batch: Batch
) -> tuple[str, list[int], dict[str, float]]:
    """Return the name of the first tensor that is not finite, its bad rows, and the loss terms."""
    found: list[tuple[str, list[int]]] = []
    all_rows = list(range(len(batch.images)))

    def check(name: str, value: Any, per_image: bool = True) -> None:
        for tensor in _tensors(value):
            if found or not tensor.is_floating_point() or bool(tensor.isfinite().all()):
                continue
            rows = all_rows
            if per_image and tensor.ndim and len(tensor) in (len(batch.labels), len(batch.images)):
                bad = ~tensor.detach().reshape(len(tensor), -1).isfinite().all(1)
                rows = torch.nonzero(bad)[:, 0].tolist()
            found.append((name, rows))

    check("images of the batch", batch.images)
    terms: dict[str, float] = {}
    with _watch({"network": network, "method": method}, check):
        for part, module in (("network", network), ("method", method)):
            # Not the buffers: the failed step has already updated statistics of its batch.
            for name, tensor in module.named_parameters():
                check(f"weights {part}.{name}", tensor, per_image=False)
        try:
            named_terms = method.training_step(batch, network)
        except NonFiniteError as error:  # the loss checks its input
            check("embeddings", batch.images.new_full((1,), torch.nan))
            return found[0][0], found[0][1], {str(error): torch.nan}
        terms = {name: float(value.detach()) for name, value in named_terms.items()}
        for name, value in named_terms.items():
            check(f"loss term {name}", value)
        torch.autograd.backward(torch.stack(tuple(named_terms.values())).sum())
    first, rows = found[0] if found else ("", [])
    return first, rows, terms


@contextmanager
def _watch(parts: Mapping[str, nn.Module], check: Callable[..., None]) -> Iterator[None]:
    """Check outputs of modules and gradients of parameters in the order they are computed."""
    hooks: list[Any] = []

    def watch_module(name: str, module: nn.Module) -> None:
        hooks.append(
            module.register_forward_hook(lambda _m, _i, out: check(f"output of {name}", out))
        )

    def watch_gradient(name: str, parameter: nn.Parameter) -> None:
        hooks.append(
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                lambda p: check(f"gradient of {name}", p.grad, per_image=False)
            )
        )

    for part, root in parts.items():
        for name, module in root.named_modules():
            watch_module(f"{part}.{name}".rstrip("."), module)
        for name, parameter in root.named_parameters():
            if parameter.requires_grad:
                watch_gradient(f"{part}.{name}", parameter)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
