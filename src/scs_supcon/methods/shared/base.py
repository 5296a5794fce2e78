"""The base class of all methods: a loss with a few optional hooks."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, Literal, Self, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from scs_supcon.errors import NonFiniteError, UserError
from scs_supcon.io.values import Option, Scalar
from scs_supcon.kernels import Gather, several_processes
from scs_supcon.kernels.autograd import reads_are_free, transformed, vmapped
from scs_supcon.kernels.gather import GradientReduction, Group, scale_for_reduction
from scs_supcon.nn.network import Network, Output, ProbeInput

Module = TypeVar("Module")
OptionValue: TypeAlias = Option | tuple[Scalar, ...] | None
Options: TypeAlias = Mapping[str, OptionValue]
ParameterGroup: TypeAlias = dict[str, Sequence[Tensor] | float]
"""`params`, and optionally `lr` and `weight_decay`, as the optimisers of torch expect."""

SUM_TOLERANCE = 1e-2  # of the sum of label probabilities, which may be in half precision


@dataclass(frozen=True)
class Batch:
    """The images of one training step.

    Attributes:
        images: all views in view-major order: view 1 of every image, then view 2, …
        labels: `(B,)` class of each image.
        indices: `(B,)` index of each image among the training images.
        label_probabilities: `(B, K)` soft labels of mixed images (MixUp, CutMix), the same for all
            views of an image; rows sum to 1. Methods with `supports_soft_labels` use them instead
            of `labels`.
    """

    images: Tensor
    labels: Tensor
    indices: Tensor
    label_probabilities: Tensor | None = None

    def map(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        """Return the batch with a function applied to each of its tensors."""
        soft = self.label_probabilities
        return Batch(
            function(self.images),
            function(self.labels),
            function(self.indices),
            None if soft is None else function(soft),
        )


@dataclass(frozen=True, eq=False)
class TaskInfo:
    """The task that a method is set up for, before training starts.

    Attributes:
        network: the network before the first step. Methods may store a copy, not the original.
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


EncodeTrainingSet = Callable[[nn.Module], Output]
"""Applies a network to all training images: evaluation view, in the order of `Batch.indices`."""


class Method(nn.Module):
    """A loss on embeddings and labels, with hooks for the training loop.

    A subclass writes `loss_terms`. The other hooks have defaults that suit a method with two views
    and two stages: contrastive pretraining, then a linear classifier (the probe).

    Attributes:
        views: number of augmented views of each image in a batch.
        probe_input: input of stage 2 (the probe): "features", "embeddings" or "common" (the common
            field); see `probe_input_for`.
        trains_head: False if the loss is computed on the features, so that the projection head
            stays untrained.
        uses_labels: False if the loss ignores the labels of the images; its batches are then
            shuffled, because balanced batches are made from labels.
        uses_taps: whether the method needs intermediate outputs of the encoder (`nn.taps`).
        gather_across_devices: whether the loss is computed on the rows of all processes.
        gradient_reduction: how the training loop combines the gradients of the processes if the
            loss is gathered. "mean" is what DistributedDataParallel, FSDP, Lightning, Accelerate
            and the Hugging Face Trainer do.
        group: the processes whose rows are gathered; None: all.
        supports_soft_labels: whether `training_step` uses `Batch.label_probabilities`.
        large_views: settings of `data` for an encoder that is trained on images of more than 64
            pixels, such as the blur of SimCLR.
        presets: named sets of options; a method with presets has a `preset` argument.
        adapted: whether the original method is for other data or could not be found.

    Example:
        A method is two files, the method and its test. Save this one as `my_losses.py` and train
        with `scs train birds/ --method ./my_losses.py:CosineLoss`:

        ```python
        from scs_supcon import Method
        from scs_supcon.methods import flatten


        class CosineLoss(Method):
            def __init__(self, margin: float = 0.2) -> None:
                super().__init__()
                self.margin = margin  # --set method.options.margin=0.3

            def loss_terms(self, embeddings, labels):
                rows, labels = flatten(embeddings, labels)
                z = rows / rows.norm(dim=1, keepdim=True)
                r = z @ z.T
                same = labels[:, None] == labels
                return {
                    "pull": (1 - r)[same].sum() / r.numel(),
                    "push": (r - self.margin).clamp_min(0)[~same].sum() / r.numel(),
                }
        ```

        In this package the files are `methods/<name>.py`, whose docstring holds the formula, and
        `tests/methods/test_<name>.py`, with a reference of the formula in plain Python.
    """

    views = 2
    probe_input: ProbeInput = "features"
    trains_head = True
    uses_labels = True
    uses_taps = False
    gather_across_devices = False
    gradient_reduction: GradientReduction = "mean"
    group: Group = None
    supports_soft_labels = False
    large_views: ClassVar[Mapping[str, tuple[float, ...]]] = {}
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {}
    adapted = False

    @classmethod
    def effective_options(cls, preset: str | None, options: Options) -> dict[str, OptionValue]:
        """Return all options of the constructor with their effective values.

        `options` override the preset, which overrides the defaults of the constructor.
        """
        defaults: dict[str, Any] = {
            name: parameter.default
            for name, parameter in constructor_parameters(cls).items()
            if parameter.default is not parameter.empty
        }
        if cls.presets:
            preset = preset or defaults["preset"]
            check_one_of("preset", preset, tuple(cls.presets))
            defaults |= cls.presets[preset]
        return defaults | dict(options)

    @classmethod
    def recipe_defaults(cls, preset: str | None) -> Mapping[str, Options]:
        """Return recipe settings that suit the method, such as `{"head": {"overlap": 28}}`.

        By default the embeddings are centred, as for every contrastive method: a comparison should
        not give an advantage of the head to one loss.
        """
        return {"head": {"centre": True}}

    @property
    def gathers(self) -> bool:
        """Whether rows of other processes are part of the batch."""
        return self.gather_across_devices and several_processes(self.group)

    def scaled(self, rows: Tensor) -> Tensor:
        """Return the rows of this process, with the gradient that the training loop needs."""
        if not self.gathers:
            return rows
        return scale_for_reduction(rows, self.gradient_reduction, self.group)

    def forward(self, embeddings: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the loss: the sum of `loss_terms`.

        Args:
            embeddings: `(N, D)`, or `(B, V, D)` for V views of B images.
            labels: integers, `(N,)` or `(B,)`.
        """
        return total(self.loss_terms, embeddings, labels)

    def extra_repr(self) -> str:
        """Return the arguments of the constructor that differ from their defaults."""
        values = vars(self)
        return ", ".join(
            f"{name}={values[name]!r}"
            for name, parameter in constructor_parameters(type(self)).items()
            if name in values and values[name] != parameter.default
        )

    def loss_terms(self, embeddings: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
        """Return the named terms whose sum is the loss."""
        raise NotImplementedError

    def setup(self, task: TaskInfo) -> Self:
        """Prepare for a task before the first step, for instance create a classifier."""
        return self

    def training_step(self, batch: Batch, network: nn.Module) -> dict[str, Tensor]:
        """Run the network on a batch and return the named terms of the loss."""
        embeddings = network(batch.images).embeddings
        return self.loss_terms(embeddings, batch.labels.repeat(self.views))

    def on_epoch_start(self, epoch: int, encode_training_set: EncodeTrainingSet) -> None:
        """Called before each epoch, counted from 0."""

    def after_step(self, network: nn.Module, progress: float) -> None:
        """Called after each optimiser step; `progress` is the finished share of training."""

    def scalars(self) -> dict[str, float]:
        """Return numbers to log after each epoch."""
        return {}

    def param_groups(self, lr: float, weight_decay: float = 0.0) -> list[ParameterGroup]:
        """Return parameter groups for an optimiser, with weight decay for matrices only."""
        learnable = [p for p in self.parameters() if p.requires_grad]
        matrices = [p for p in learnable if p.ndim > 1]
        others = [p for p in learnable if p.ndim <= 1]
        groups: list[ParameterGroup] = [
            {"params": matrices, "lr": lr, "weight_decay": weight_decay},
            {"params": others, "lr": lr, "weight_decay": 0.0},
        ]
        return [group for group in groups if group["params"]]

    def no_weight_decay(self) -> set[str]:
        """Return the names of parameters that timm's optimisers should not decay."""
        return {name for name, p in self.named_parameters() if p.ndim <= 1}

    def pair_parameters(
        self, training_rows: tuple[Tensor, Tensor] | None = None
    ) -> tuple[float, float] | None:
        """Return t and b if the method learns to classify pairs of unit vectors by σ(t r − b).

        The similarity b/t is then the decision boundary.

        Args:
            training_rows: unit rows `(n, D)` of the training images after training, and their
                labels. A method that solves b for each batch solves it for these instead of
                returning that of the last batch.
        """
        return None

    def class_logits(self, features: Tensor, embeddings: Tensor) -> Tensor | None:
        """Return `(n, classes)` logits if the method trains a classifier, else None."""
        return None

    def linear_classifier(self, probe_input: ProbeInput) -> tuple[Tensor, Tensor] | None:
        """Return weight and bias of the classifier if it is linear in `probe_input`, else None."""
        return None


def set_processes(method: Method, gather: bool | Gather) -> None:
    """Store which processes a method gathers rows from, if any."""
    processes = gather if isinstance(gather, Gather) else Gather()
    method.gather_across_devices = gather is not False
    method.gradient_reduction, method.group = processes.gradient_reduction, processes.group


def reject_arguments(method: Method, unexpected: Iterable[str], hints: Mapping[str, str]) -> None:
    """Raise an error that names an unexpected argument and, if possible, what to use instead."""
    for name in unexpected:
        known = constructor_parameters(type(method))
        advice = hints.get(name) or f"the arguments are {', '.join(known)}"
        raise UserError(f"{type(method).__name__} has no argument {name!r}: {advice}")


def constructor_parameters(method: type[Method]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a method's constructor, following `**options` to its parents."""
    parameters: dict[str, inspect.Parameter] = {}
    for parent in method.__mro__:
        if not issubclass(parent, Method) or "__init__" not in vars(parent):
            continue
        _, *declared = inspect.signature(parent.__init__).parameters.values()
        named = {p.name: p for p in declared if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
        parameters = named | parameters
        if not any(p.kind is p.VAR_KEYWORD for p in declared):
            break
    return parameters


def probe_input_for(
    method: Method, *, frozen: bool, setting: Literal["method"] | ProbeInput = "method"
) -> ProbeInput:
    """Return the input of stage 2 (the probe) for a method: `setting`, if it is not "method".

    The features of a frozen encoder are the same for every method. Only the projection head is
    trained, so the probe classifies the embeddings instead of the features.
    """
    if setting != "method":
        return setting
    if frozen and method.trains_head and method.probe_input == "features":
        return "embeddings"
    return method.probe_input


def total(
    compute_terms: Callable[..., dict[str, Tensor]],
    *arguments: Any,
    traceable: Callable[..., bool] | None = None,
    **options: Tensor | None,
) -> Tensor:
    """Return the sum of the loss terms.

    Args:
        compute_terms: returns the terms.
        arguments: of compute_terms.
        traceable: returns whether `torch.compile` can compile compute_terms for these arguments;
            otherwise they stay outside of the graph. `torch.compiler.disable` is not used as a
            decorator, which would load the compiler on import.
        options: of compute_terms.
    """
    compiling = torch.compiler.is_compiling()
    if compiling and (traceable is None or not traceable(*arguments, **options)):
        compute_terms = torch.compiler.disable(compute_terms)  # type: ignore[no-untyped-call]
    first, *others = compute_terms(*arguments, **options).values()
    return sum(others, start=first)


def flatten(
    embeddings: Tensor, labels: Tensor | None, *, any_integers: bool = False
) -> tuple[Tensor, Tensor]:
    """Check a batch and return `(N, D)` rows (view-major, at least float32) with their labels.

    Args:
        embeddings: `(N, D)` or `(B, V, D)`.
        labels: integers `(N,)` or `(B,)`.
        any_integers: whether labels may be negative; by default that is an error, because −1 often
            means "unlabelled".
    """
    _check_embeddings(embeddings)
    if labels is None:
        raise UserError("labels are missing: this method needs one integer per row of embeddings")
    _check_label_tensor(labels, embeddings)
    labels = labels.to(embeddings.device, torch.long)
    _check_numbers(embeddings, None if any_integers else labels)
    if embeddings.dim() == 3:
        labels = labels.repeat(embeddings.shape[1])
    return _as_rows(embeddings), labels


def flatten_embeddings(embeddings: Tensor) -> Tensor:
    """Check embeddings and return `(N, D)` rows, view-major and at least float32."""
    _check_embeddings(embeddings)
    _check_numbers(embeddings, None)
    return _as_rows(embeddings)


def _as_rows(embeddings: Tensor) -> Tensor:
    if embeddings.dim() == 3:
        embeddings = embeddings.transpose(0, 1).flatten(0, 1)
    if embeddings.dtype in (torch.float16, torch.bfloat16):
        embeddings = embeddings.float()
    return embeddings


def flatten_soft_labels(embeddings: Tensor, probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """Check a batch with soft labels; return `(N, D)` rows and `(N, K)` probabilities (`flatten`).

    Args:
        embeddings: `(N, D)` or `(B, V, D)`.
        probabilities: `(N, K)` or `(B, K)`; rows sum to 1.
    """
    _check_embeddings(embeddings)
    _check_numbers(embeddings, None)
    if not isinstance(probabilities, Tensor) or probabilities.dim() != 2:
        raise UserError(
            f"label_probabilities must be a tensor of shape ({len(embeddings)}, classes), got "
            f"{_describe(probabilities)}"
        )
    if not probabilities.is_floating_point():
        raise UserError(
            f"label_probabilities must be floating-point numbers, got {probabilities.dtype}"
        )
    if len(probabilities) != len(embeddings):
        raise UserError(
            f"the number of rows of label_probabilities ({len(probabilities)}) must equal that of "
            f"the embeddings ({len(embeddings)})"
        )
    far = (probabilities.sum(1) - 1).abs() > SUM_TOLERANCE
    wrong = far | ~(probabilities >= 0).all(1)  # NaN is wrong, too
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise UserError(
            "each row of label_probabilities must be at least 0 and sum to 1, got "
            f"{probabilities[row].tolist()} in row {row}"
        )
    if embeddings.dim() == 3:
        probabilities = probabilities.repeat(embeddings.shape[1], 1)
    rows = _as_rows(embeddings)
    return rows, probabilities.to(rows)


def after_setup(method: Method, module: Module | None) -> Module:
    """Return a module that `setup` creates; raise an error if `setup` has not been called."""
    if module is None:
        raise UserError(
            f"{type(method).__name__} has not been set up: call setup(task) first, "
            "then training_step(batch, network)"
        )
    return module


def needs_images(method: Method, reason: str) -> UserError:
    """Return the error of a method that cannot compute its loss from embeddings and labels."""
    return UserError(
        f"{type(method).__name__} {reason} and needs images: call setup(task), then "
        "training_step(batch, network)"
    )


def like(network: nn.Module) -> Tensor:
    """Return a tensor with the dtype and device of a network, for `Module.to`."""
    return next(network.parameters(), torch.empty(0))


def check_positive(**numbers: float) -> None:
    """Raise unless every number is positive and finite."""
    for name, value in numbers.items():
        if not isinstance(value, Real) or not 0 < value < math.inf:
            raise UserError(f"{name} must be positive and finite, got {value!r}")


def check_not_negative(**numbers: float) -> None:
    """Raise unless every number is finite and at least 0."""
    for name, value in numbers.items():
        if not 0 <= value < math.inf:
            raise UserError(f"{name} must be finite and at least 0, got {value}")


def check_share(**numbers: float) -> None:
    """Raise unless every number is between 0 and 1."""
    for name, value in numbers.items():
        if not 0 <= value <= 1:
            raise UserError(f"{name} must be between 0 and 1, got {value}")


def check_one_of(name: str, value: object, options: tuple[object, ...]) -> None:
    """Raise unless the value is one of the options."""
    if value not in options:
        raise UserError(f"{name} must be one of {', '.join(map(repr, options))}, got {value!r}")


def _check_embeddings(embeddings: Tensor) -> None:
    if isinstance(embeddings, Tensor) and vmapped(embeddings):
        raise UserError(
            "a loss over pairs cannot be used under torch.vmap, which hides the batch: call it in "
            "a loop and add the values"
        )
    if not isinstance(embeddings, Tensor) or embeddings.dim() not in (2, 3):
        raise UserError(
            f"embeddings must be a tensor of shape (N, D) or (B, V, D), got {_describe(embeddings)}"
        )
    if not embeddings.is_floating_point():
        raise UserError(f"embeddings must be floating-point numbers, got {embeddings.dtype}")
    if 0 in embeddings.shape[1:]:
        raise UserError(
            "only the first axis of the embeddings may be empty, got shape "
            f"{tuple(embeddings.shape)}"
        )


def _check_numbers(embeddings: Tensor, labels: Tensor | None) -> None:
    """Raise an error for NaN, infinity or negative labels; both are read in one step.

    Nothing is read under `torch.compile`, which reading would interrupt.
    """
    if torch.compiler.is_compiling():
        return
    # The sum is NaN or infinite if any number is, and is faster than checking each number. It may
    # also overflow, so the numbers themselves decide.
    total = embeddings.detach().sum()
    if labels is None or not labels.shape[0]:
        values = [total.item(), 0.0]
    elif reads_are_free(total) or transformed(total):  # which have no `tolist` in PyTorch 2.4
        values = [total.item(), labels.min().item()]
    else:
        values = torch.stack([total, labels.min().to(total)]).tolist()
    if not math.isfinite(values[0]):
        finite = torch.isfinite(embeddings.detach()).flatten(1).all(1)
        rows = torch.where(~finite)[0].tolist()
        if rows:
            raise NonFiniteError(
                f"embeddings contain NaN or infinity in {len(rows)} of {len(embeddings)} rows "
                f"(first: {rows[:5]}): lower the learning rate or check the encoder's inputs"
            )
    if values[1] < 0:
        raise UserError(
            f"labels must be at least 0, got {int(values[1])}: to leave out the rows with this "
            f"label, use ignore_index={int(values[1])} (SCSSupCon, SupCon, CSSupCon)"
        )


def _check_label_tensor(labels: Tensor, embeddings: Tensor) -> None:
    if not isinstance(labels, Tensor) or labels.dim() != 1:
        raise UserError(
            f"labels must be a tensor of shape ({len(embeddings)},), got {_describe(labels)}"
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise UserError(f"labels must be integers, got {labels.dtype}: use labels.long()")
    if labels.shape[0] != embeddings.shape[0]:
        raise UserError(
            f"the number of labels ({len(labels)}) must equal the number of rows of embeddings "
            f"({len(embeddings)})"
        )


def _describe(value: object) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__
