"""From a model's folder to a model, believing nothing that the folder says without a check."""

from pathlib import Path

import torch
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.inference.classifier import LinearClassifier
from scs_supcon.inference.decision import DecisionRule
from scs_supcon.inference.facts import Facts
from scs_supcon.inference.files import read_model
from scs_supcon.inference.model import Gallery, Model
from scs_supcon.inference.readout import Network
from scs_supcon.nn.encoder import build_encoder
from scs_supcon.nn.head import Projection


def load(path: str | Path, device: str = "cpu") -> Model:
    """Load a model from its folder, or from the folder of the run that made it.

    No code from the folder is run: tensors come from safetensors, the rest from checked JSON, and
    the encoder is one that timm or this package knows by name.

    Args:
        path: `runs/x` or `runs/x/model`.
        device: where the encoder computes, such as "cpu" or "cuda".

    Raises:
        UserError: there is no model, or it is damaged, incomplete or of a newer format.
    """
    facts, tensors = read_model(path)
    recipe = facts.recipe
    encoder = build_encoder(
        recipe.encoder.name,
        small_stem=recipe.encoder.small_stem,
        in_size=recipe.data.image_size,
    )
    _fill(path, "encoder", encoder, tensors)
    width, head = encoder.num_features, None
    if facts.readout != "features":
        head = Projection(width, recipe.head.dim, recipe.head.hidden, recipe.head.centre)
        _fill(path, "head", head, tensors)
    widths = {"features": width, "embeddings": recipe.head.dim, "common": recipe.head.common_dim}
    seen = widths[facts.readout]
    judge, gallery = _rules(path, facts, tensors, seen)
    if tensors:
        raise UserError(f"{path}: the weights hold {min(tensors)!r}, which the model does not need")
    try:
        encoder.to(device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device {device!r} cannot be used: {error}") from error
    return Model(facts, Network(encoder, head, facts.readout), judge, gallery)


def _fill(path: str | Path, part: str, module: nn.Module, tensors: dict[str, Tensor]) -> None:
    names = [name for name in tensors if name.startswith(f"{part}/")]
    try:
        module.load_state_dict({name.removeprefix(f"{part}/"): tensors.pop(name) for name in names})
    except RuntimeError as error:
        brief = " ".join(str(error).split())[:300]
        raise UserError(f"{path}: the weights do not fit the {part}: {brief}") from error


def _rules(
    path: str | Path, facts: Facts, tensors: dict[str, Tensor], width: int
) -> tuple[DecisionRule, Gallery]:
    classes, kept = len(facts.classes), len(facts.images)
    shapes = {
        "classifier/weight": (facts.trained, width),
        "classifier/bias": (facts.trained,),
        "classes/centre": (width,),
        "classes/means": (classes, width),
        "classes/tightness": (classes,),
        "gallery/vectors": (kept, width),
        "gallery/labels": (kept,),
    }
    for name, shape in shapes.items():
        found = tuple(tensors[name].shape) if name in tensors else "missing"
        if found != shape:
            raise UserError(f"{path}: {name} in the weights is {found}, expected {shape}")
    weight, bias, centre, means, tightness, vectors, labels = (tensors.pop(k) for k in shapes)
    if labels.dtype != torch.long or (kept and not 0 <= labels.min() <= labels.max() < classes):
        raise UserError(f"{path}: gallery/labels in the weights does not name classes")
    classifier = LinearClassifier(weight.double(), bias.double(), facts.temperature)
    rules = (centre.double(), means.double(), tightness.double())
    judge = DecisionRule(classifier, *rules, facts.sharpness, facts.boundary.threshold)
    return judge, Gallery(vectors.float(), labels)


def fill_from(path: str | Path, encoder: nn.Module, head: nn.Module) -> None:
    """Give an encoder, and a head if the model keeps one, the weights of a model.

    Raises:
        UserError: the model is of another make.
    """
    _, tensors = read_model(path)
    _fill(path, "encoder", encoder, tensors)
    if any(name.startswith("head/") for name in tensors):
        _fill(path, "head", head, tensors)
