"""The directory of a saved model, which can be loaded without running code.

`weights.safetensors` holds the tensors, `model.json` everything else (`ModelInfo`), and `README.md`
is the model card. `SHA256SUMS` is written last and checked first, so that incomplete directories
are rejected. README.md has no checksum and can be edited. A model that is saved again takes the
place of the old one in one step (`io.exchange`).
"""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import safetensors.torch
import torch
from pydantic import Field, model_validator
from safetensors import SafetensorError
from torch import Tensor, nn

from scs_supcon.data.splits import NO_TEST_SPLIT, SPLIT_TITLES
from scs_supcon.errors import UserError
from scs_supcon.inference.rejection import FALSE_REJECTIONS, rejection_rate
from scs_supcon.io.exchange import exchange_folders, keep_copy, read_folder, updating_folder
from scs_supcon.io.records import MAX_BYTES, memory_bytes, parse_json_object, read_bytes, read_text
from scs_supcon.io.text import printable, printable_name
from scs_supcon.io.typed import validate
from scs_supcon.nn.network import ProbeInput
from scs_supcon.recipe import Count, Positive, Recipe, Section, Share, write_toml
from scs_supcon.runs.layout import MODEL_FILES, find_model, previous_model

FORMAT_VERSION: Literal[4] = 4
DTYPES = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool, torch.uint8),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
)
WEIGHTS, INFO, SUMS, CARD = MODEL_FILES


class RejectionRule(Section):
    """When an image is rejected as unknown."""

    rule: Literal["out_of_fold", "quantile", "given"]
    """A quantile of the training images, out of fold, or of the validation images; or given."""
    threshold: float
    """Similarity to a class that an image needs, over all classes."""
    val_rejected: Share | None
    """Share of the validation images that are rejected; None if the threshold was changed."""
    margins: tuple[float, ...] = ()
    """Quantiles (0%, 1%, … 100%) of the margins of held-out images of known classes over the
    thresholds: added to the thresholds, the quantile q rejects the share q of these images."""


FAR = 1e6  # a boundary of pairs beyond it is shown as this value: similarities are at most 1


class PairRule(Section):
    """σ(t r − b) is the probability that two images with similarity r are of one class."""

    t: float
    """Temperature."""
    b: float
    """Bias."""
    learned: bool
    """Whether the method learned t and b; otherwise they were fitted to held-out pairs."""

    @property
    def boundary(self) -> float:
        """The similarity b/t at which the probability is ½, at most `FAR` in both directions."""
        ratio = self.b / self.t if self.t else math.copysign(math.inf, self.b)
        return max(-FAR, min(FAR, ratio))


class ModelMetrics(Section):
    """Results on the test images, or on the validation images if there is no test split."""

    accuracy: float | None = None
    top5_accuracy: float | None = None
    macro_f1: float | None = None
    balanced_accuracy: float | None = None
    ece: float | None = None
    nll: float | None = None


class ModelInfo(Section):
    """Everything about a model that is not a tensor: the content of `model.json`."""

    format_version: Literal[4] = FORMAT_VERSION
    """Increased when older versions of this package cannot read the directory."""
    classes: Annotated[tuple[str, ...], Field(min_length=1)]
    """Names of the classes."""
    trained_classes: Count
    """Number of trained classes, which come first; the others were added by their mean."""
    probe_input: ProbeInput
    """Input of the classifier: features, embeddings, or the common field."""
    temperature: Positive
    """Divides the logits of the classifier."""
    prototype_scale: Positive
    """Multiplies the closeness to class means, if classes were added."""
    rejection: RejectionRule
    """When an image is rejected as unknown."""
    pairs: PairRule
    """When two images are of one class."""
    omega: Share | None = None
    """Weight of the whitened features in the similarity; None without whitened features."""
    recipe: Recipe
    """How the model was trained; its data section also says how images are prepared."""
    image_names: tuple[str, ...]
    """Names of the images whose embeddings are stored."""
    counts: dict[str, int] = Field(default_factory=dict)
    """Number of images in the train, val and test split."""
    metrics: ModelMetrics = ModelMetrics()
    """Results of the evaluation."""
    weights_licence: str = "unknown"
    """Licence of the weights that the encoder was initialised with."""

    @model_validator(mode="after")
    def _check_classes(self) -> "ModelInfo":
        if len(set(self.classes)) < len(self.classes):
            raise ValueError("two classes have the same name")
        if self.trained_classes > len(self.classes):
            raise ValueError(
                f"{self.trained_classes} trained classes, but {len(self.classes)} names"
            )
        return self


def write_package(directory: Path, info: ModelInfo, tensors: Mapping[str, Tensor]) -> None:
    """Write a model's directory; an existing model is replaced, other files in it stay."""
    if (directory / CARD).exists() and not (directory / INFO).exists():
        raise UserError(f"{directory} has a {CARD} but no model: choose another directory")
    # Copies, because safetensors rejects tensors that share memory, such as tied weights.
    copies = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    contents = {
        WEIGHTS: safetensors.torch.save(copies),
        INFO: (json.dumps(info.model_dump(mode="json"), indent=1) + "\n").encode(),
    }
    sums = (
        f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in contents.items()
    )
    contents |= {CARD: model_card(info).encode(), SUMS: "".join(sums).encode()}
    with updating_folder(directory) as new:
        for name, content in contents.items():
            (new / name).write_bytes(content)


def keep_previous(directory: Path) -> None:
    """Keep a copy of a model that is about to be replaced, for `restore_previous`."""
    keep_copy(directory, previous_model(directory))


def restore_previous(directory: Path) -> ModelInfo:
    """Exchange a model with the one before it, and return its facts.

    Raises:
        UserError: there is no previous model.
    """
    previous = previous_model(directory)
    if not (previous / INFO).is_file():
        raise UserError(f"{directory} has no previous model: expected it in {previous}")
    info, _ = read_package(previous)
    exchange_folders(previous, previous.with_name(directory.resolve().name))
    return info


def read_package(path: str | Path) -> tuple[ModelInfo, dict[str, Tensor]]:
    """Read and check the directory of a model, or of the run that trained it."""
    return read_folder(find_model(Path(path)), _read_directory)


def _read_directory(directory: Path) -> tuple[ModelInfo, dict[str, Tensor]]:
    sums = _read_sums(directory)
    info = _parse_info(directory / INFO, _read_checked(directory / INFO, sums, MAX_BYTES))
    content = _read_checked(directory / WEIGHTS, sums, memory_bytes() // 2)
    try:
        tensors = safetensors.torch.load(content)
    except (SafetensorError, ValueError, TypeError) as error:
        raise UserError(f"{directory / WEIGHTS} is not a safetensors file: {error}") from error
    # Copies, because the tensors share one buffer, in which they may start at odd addresses.
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            raise UserError(f"{directory / WEIGHTS}: {name} has the type {tensor.dtype}")
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise UserError(f"{directory / WEIGHTS}: {name} contains NaN or infinity")
    return info, tensors


def load_state(path: str | Path, module: nn.Module, part: str, tensors: dict[str, Tensor]) -> None:
    """Move the tensors named "part/..." into a module."""
    prefix = f"{part}/"
    names = [name for name in tensors if name.startswith(prefix)]
    try:
        module.load_state_dict({name.removeprefix(prefix): tensors.pop(name) for name in names})
    except RuntimeError as error:
        brief = " ".join(str(error).split())[:300]
        raise UserError(f"{path}: the weights do not fit the {part}: {brief}") from error


def initialise_from(path: str | Path, encoder: nn.Module, projection: nn.Module) -> None:
    """Load the weights of a saved model into an encoder and, if it has one, a projection head.

    Raises:
        UserError: the weights do not fit.
    """
    _, tensors = read_package(path)
    load_state(path, encoder, "encoder", tensors)
    if any(name.startswith("head/") for name in tensors):
        load_state(path, projection, "head", tensors)


def _read_sums(directory: Path) -> dict[str, str]:
    file = directory / SUMS
    if not file.exists():
        raise UserError(f"{directory} has no {SUMS}, so it is incomplete: save the model again")
    try:
        lines = [line.split() for line in read_text(file, limit=2**16).splitlines()]
        return {name: digest for digest, name in lines}
    except ValueError as error:  # also a RecordError
        raise UserError(f"{file} cannot be read: {error}") from error


def _read_checked(file: Path, sums: Mapping[str, str], limit: int) -> bytes:
    """Return the content of a file, read once so that the checked bytes are those that are used."""
    content = read_bytes(file, limit)
    if hashlib.sha256(content).hexdigest() != sums.get(file.name):
        raise UserError(
            f"{file} is damaged (its SHA-256 differs from {SUMS}): copy the directory again"
        )
    return content


def _parse_info(file: Path, content: bytes) -> ModelInfo:
    document = parse_json_object(content, file)
    version = document.get("format_version")
    if isinstance(version, int) and version != FORMAT_VERSION:
        raise UserError(
            f"{file} has format {version}, this version of scs-supcon reads format "
            f"{FORMAT_VERSION}: use the version that wrote it, or train again"
        )
    return validate(ModelInfo, document, file)


METRIC_TITLES = {
    "accuracy": "accuracy",
    "top5_accuracy": "top-5 accuracy",
    "macro_f1": "macro-F1",
    "balanced_accuracy": "balanced accuracy",
    "ece": "expected calibration error",
    "nll": "negative log-likelihood",
}


def model_card(info: ModelInfo) -> str:
    """Return the model card as Markdown."""
    sections = {
        f"Classifier of {len(info.classes)} classes": _card_summary(info),
        "Use": _card_use(info),
        "Results": _card_metrics(info),
        "Unknown images": _card_rejection(info),
        "Data": _card_data(info),
        "Licence": (
            f"Licence of the initial encoder weights: {_escape(info.weights_licence)}. The licence "
            "of the training images is not recorded; ask the person who trained the model."
        ),
        "Recipe": f"```toml\n{write_toml(info.recipe)}```",
    }
    card = "\n".join(
        f"{'#' if number == 0 else '##'} {title}\n\n{text}\n"
        for number, (title, text) in enumerate(sections.items())
    )
    return printable(card)


def _card_summary(info: ModelInfo) -> str:
    recipe = info.recipe
    method = recipe.method.name + (f"@{recipe.method.preset}" if recipe.method.preset else "")
    inputs = {
        "common": "common field",
        "embeddings": "embeddings",
        "features": "encoder's features",
    }
    field = inputs[info.probe_input]
    if info.omega is not None:
        field = f"{field} fused with the encoder's whitened features"
    by_means = info.omega is not None and recipe.fusion.classifier == "means"
    classifier = "a classifier by class means" if by_means else "a linear classifier"
    return (
        f"Trained with scs-supcon: encoder `{recipe.encoder.name}` "
        f"({'frozen' if recipe.encoder.frozen else 'trained'}), method `{method}`, and "
        f"{classifier} on the {field}, with temperature-scaled probabilities."
    )


def _card_use(info: ModelInfo) -> str:
    return (
        "```python\n"
        "import scs_supcon\n\n"
        'model = scs_supcon.load("path/of/this/directory")\n'
        'predictions, failures = model.predict(["photo.jpg"])\n'
        "```\n\n"
        f"The model resizes and crops images to {info.recipe.data.image_size} pixels."
    )


def _card_metrics(info: ModelInfo) -> str:
    metrics = info.metrics.model_dump(exclude_none=True)
    if not metrics:
        return "Not measured."
    split = "val" if info.counts.get("test") == 0 else "test"
    rows = [f"| on the {SPLIT_TITLES[split]} images | |", "|---|---|"]
    for name, value in metrics.items():
        text = f"{value:.4f}" if name == "nll" else f"{value:.2%}"
        rows.append(f"| {METRIC_TITLES[name]} | {text} |")
    return "\n".join([*rows, "", NO_TEST_SPLIT] if split == "val" else rows)


def _card_rejection(info: ModelInfo) -> str:
    rejection = info.rejection
    rate = rejection_rate(rejection.margins) if rejection.margins else FALSE_REJECTIONS
    reached = f"which {1 - rate:.0%} of the"
    origin = {
        "quantile": f"{reached} validation images reach",
        "out_of_fold": f"{reached} training images reach, each compared with a model that was "
        "trained without it",
        "given": "chosen by hand",
    }[rejection.rule]
    measured = ""
    if rejection.val_rejected is not None:
        measured = f" {rejection.val_rejected:.1%} of the validation images are rejected."
    return (
        "An image is rejected as unknown if its similarity to every class is below a threshold, on "
        f"average {rejection.threshold:.3f}, {origin}.{measured}\n\n"
        "Two images are more likely of one class than not if their similarity is above "
        f"{info.pairs.boundary:.3f}."
    )


def _card_data(info: ModelInfo) -> str:
    counts = ", ".join(f"{count} {_escape(split)}" for split, count in info.counts.items())
    names = ", ".join(_escape(name) for name in info.classes[: info.trained_classes])
    lines = [f"Images: {counts}." if counts else "", f"Classes: {names}."]
    if added := info.classes[info.trained_classes :]:
        lines.append(f"Classes added by their mean: {', '.join(map(_escape, added))}.")
    return "\n\n".join(line for line in lines if line)


def _escape(text: str) -> str:
    """Escape Markdown in names that come from files."""
    plain = " ".join(printable_name(text).split())
    return "".join(f"\\{char}" if char in "\\`*_[]<>|#" else char for char in plain)
