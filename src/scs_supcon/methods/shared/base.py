"""What every method is: a loss with a few optional hooks."""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from scs_supcon.errors import NonFiniteError, UserError
from scs_supcon.kernels import Rows, sort_rows
from scs_supcon.nn.network import Network, Output, ProbeInput


@dataclass(frozen=True)
class Batch:
    """One step's images.

    Attributes:
        images: all views, view-major: view 1 of every image, then view 2, …
        labels: `(B,)` class of each image.
        indices: `(B,)` which training image it is, counted from 0.
    """

    images: Tensor
    labels: Tensor
    indices: Tensor


@dataclass(frozen=True, eq=False)
class TaskInfo:
    """What a method learns about the task before training starts.

    Attributes:
        network: the network before the first step. A method may keep a copy, never the original.
        labels: `(n,)` class of each training image, in the order of `Batch.indices`.
        classes: number of classes; some may have no training image.
        feature_dim: number of columns of the features.
        embedding_dim: number of columns of the embeddings.
        epochs: number of epochs of stage 1.
    """

    network: Network
    labels: Tensor
    classes: int
    feature_dim: int
    embedding_dim: int
    epochs: int

    @property
    def class_counts(self) -> tuple[int, ...]:
        """Number of training images of each class."""
        return tuple(torch.bincount(self.labels.cpu(), minlength=self.classes).tolist())


Look = Callable[[nn.Module], Output]
"""Shows every training image (evaluation view, in the order of `Batch.indices`) to a network."""


class Method(nn.Module):
    """embeddings, labels -> loss.

    A subclass writes `loss_terms`; the rest has defaults that suit a two-view, two-stage method.
    """

    views = 2
    uses_taps = False  # whether it looks at what the encoder holds half-way, see `taps`
    gather_across_devices = False  # whether the loss is that of the rows of all processes
    adapted = False  # whether the original is for other data, or could not be found
    trains_head = True  # False: the loss is on the features, the projection head stays untrained
    probe_input: ProbeInput = "features"  # what stage 2 (the probe) sees; see `probe_input_for`
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # named sets of options

    @classmethod
    def effective_options(cls, preset: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return every option of the constructor with the value it takes.

        Given options win over those of the preset, which win over the constructor's defaults.
        """
        defaults = {
            name: parameter.default
            for name, parameter in constructor_parameters(cls).items()
            if parameter.default is not parameter.empty
        }
        if cls.presets:
            chosen = preset or defaults["preset"]
            one_of("preset", chosen, tuple(cls.presets))
            defaults |= cls.presets[chosen]
        return defaults | dict(options)

    @classmethod
    def recipe_defaults(cls, preset: str | None) -> dict[str, dict[str, Any]]:
        """Parts of a recipe that suit the method, such as {"head": {"overlap": 28}}."""
        return {"head": {"centre": False}}

    def forward(self, embeddings: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the sum of the terms.

        Args:
            embeddings: `(N, D)`, or `(B, V, D)` for V views of B images.
            labels: integers, `(N,)` or `(B,)`.
        """
        return total(self.loss_terms, embeddings, labels)

    def loss_terms(self, embeddings: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
        """Return the named terms whose sum is the loss."""
        raise NotImplementedError

    def setup(self, task: TaskInfo) -> Self:
        """Take on the number of classes and the like, before the first step."""
        return self

    def training_step(self, batch: Batch, network: nn.Module) -> dict[str, Tensor]:
        """Look at a batch through the network and return the terms."""
        embeddings = network(batch.images).embeddings
        return self.loss_terms(embeddings, batch.labels.repeat(self.views))

    def scalars(self) -> dict[str, float]:
        """Numbers worth a curve."""
        return {}

    def boundary_of(self) -> float | None:
        """The similarity of unit rows above which a pair counts as "same", if there is one."""
        return None

    def param_groups(self, lr: float, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """Parameter groups for an optimiser; only matrices decay."""
        own = [p for p in self.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in own if p.ndim > 1], "lr": lr, "weight_decay": weight_decay},
            {"params": [p for p in own if p.ndim <= 1], "lr": lr, "weight_decay": 0.0},
        ]
        return [group for group in groups if group["params"]]

    def classify(self, features: Tensor, embeddings: Tensor) -> Tensor | None:
        """Logits of the method's own classifier, where training gives it one."""
        return None

    def own_classifier(self, reads: str) -> tuple[Tensor, Tensor] | None:
        """Weight and bias of that classifier, if it is a linear one on what stage 2 reads."""
        return None

    def on_epoch_start(self, epoch: int, look: Look) -> None:
        """Called before each epoch."""

    def after_step(self, network: nn.Module, done: float) -> None:
        """Called after each step of the optimiser; `done` is the share of training behind us."""


def constructor_parameters(method: type[Method]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a method's constructor, following `**options` to its parents."""
    parameters: dict[str, inspect.Parameter] = {}
    for parent in method.__mro__:
        if not issubclass(parent, Method) or "__init__" not in vars(parent):
            continue
        _, *own = inspect.signature(parent.__init__).parameters.values()
        named = {p.name: p for p in own if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
        parameters = named | parameters
        if not any(p.kind is p.VAR_KEYWORD for p in own):
            break
    return parameters


def probe_input_for(method: Method, *, frozen: bool) -> ProbeInput:
    """Return what stage 2 sees of the trained network.

    The features of a frozen encoder are the same for every method: what a method has learnt is in
    the projection head, so the probe sees the embeddings instead of the features.
    """
    if frozen and method.trains_head and method.probe_input == "features":
        return "embeddings"
    return method.probe_input


def total(terms: Callable[..., dict[str, Tensor]], *arguments: Any) -> Tensor:
    """Sum the terms; under `torch.compile` they stay outside the compiled graph.

    The decorator `torch.compiler.disable` would load the compiler on import, for everybody.
    """
    if torch.compiler.is_compiling():
        terms = torch.compiler.disable(terms)  # type: ignore[no-untyped-call]
    first, *rest = terms(*arguments).values()
    return sum(rest, start=first)


def flatten(embeddings: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor]:
    """Check a batch and return `(N, D)` rows (view-major, at least float32) with their labels."""
    _check_embeddings(embeddings)
    if labels is None:
        raise UserError("labels are missing: this method needs one integer per row of embeddings")
    _check_labels(labels, embeddings)
    if embeddings.dim() == 3:
        labels = labels.repeat(embeddings.shape[1])
        embeddings = embeddings.transpose(0, 1).flatten(0, 1)
    if embeddings.dtype in (torch.float16, torch.bfloat16):
        embeddings = embeddings.float()
    return embeddings, labels.to(embeddings.device, torch.long)


def prepare(embeddings: Tensor, labels: Tensor | None) -> tuple[Tensor, Rows]:
    """`flatten`, then sort by label, as `pairs` wants its rows."""
    return sort_rows(*flatten(embeddings, labels))


def _check_embeddings(embeddings: Tensor) -> None:
    if not isinstance(embeddings, Tensor) or embeddings.dim() not in (2, 3):
        came = tuple(embeddings.shape) if isinstance(embeddings, Tensor) else type(embeddings)
        raise UserError(f"embeddings are {came}: give a tensor of (N, D) or (B, V, D)")
    if not embeddings.is_floating_point():
        raise UserError(f"embeddings are {embeddings.dtype}: give floating-point numbers")
    if 0 in embeddings.shape[1:]:
        raise UserError(f"embeddings are {tuple(embeddings.shape)}: no axis but the first may be 0")
    # A sum keeps every NaN and infinity, and costs less than looking at each number.
    if not math.isfinite(float(embeddings.detach().sum(dtype=torch.float64))):
        bad = ~torch.isfinite(embeddings.detach()).flatten(1).all(1)
        rows = torch.where(bad)[0].tolist()
        if rows:
            raise NonFiniteError(
                f"embeddings hold NaN or infinity in {len(rows)} of {len(embeddings)} rows (first: "
                f"{rows[:5]}): lower the learning rate or check the inputs of the encoder"
            )


def _check_labels(labels: Tensor, embeddings: Tensor) -> None:
    if not isinstance(labels, Tensor) or labels.dim() != 1:
        came = tuple(labels.shape) if isinstance(labels, Tensor) else type(labels)
        raise UserError(f"labels are {came}: give a tensor of ({len(embeddings)},)")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise UserError(f"labels are {labels.dtype}: give integers, for example labels.long()")
    if len(labels) != len(embeddings):
        raise UserError(
            f"{len(labels)} labels for {len(embeddings)} rows of embeddings: give one each"
        )


def positive(**numbers: float) -> None:
    """Raise unless every number is positive and finite."""
    for name, value in numbers.items():
        if not 0 < value < math.inf:
            raise UserError(f"{name} is {value}: give a positive, finite number")


def not_negative(**numbers: float) -> None:
    """Raise unless every number is finite and at least 0."""
    for name, value in numbers.items():
        if not 0 <= value < math.inf:
            raise UserError(f"{name} is {value}: give a finite number that is not negative")


def share(**numbers: float) -> None:
    """Raise unless every number is between 0 and 1."""
    for name, value in numbers.items():
        if not 0 <= value <= 1:
            raise UserError(f"{name} is {value}: choose 0 ≤ {name} ≤ 1")


def one_of(name: str, value: object, options: tuple[object, ...]) -> None:
    """Raise unless the value is one of the options."""
    if value not in options:
        raise UserError(f"{name} is {value!r}: choose one of {', '.join(map(repr, options))}")
