"""Load a model from its directory."""

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from scs_supcon.errors import UserError
from scs_supcon.inference.classifier import LinearClassifier
from scs_supcon.inference.decision import DecisionRule
from scs_supcon.inference.model import EmbeddingGallery, Model
from scs_supcon.inference.package import ModelInfo, load_state, read_package
from scs_supcon.nn.build import build_network, network_shapes
from scs_supcon.nn.encoder import Encoder
from scs_supcon.nn.own_encoder import own_encoder_digest
from scs_supcon.nn.whitening import Whitening
from scs_supcon.plugins import is_plugin
from scs_supcon.recipe.schema import Recipe


def load(path: str | Path, device: str = "cpu") -> Model:
    """Load a model from its directory, or from the directory of the run that trained it.

    Loading never runs code from the directory: tensors are read with safetensors, everything else
    is validated JSON, and the encoder is built by timm, this package, or code of yours that you
    have allowed with `scs_supcon.allow_code` or --allow-code.

    Args:
        path: `runs/x` or `runs/x/model`.
        device: where the encoder runs, such as "cpu" or "cuda".

    Raises:
        UserError: there is no model, or it is damaged, incomplete or of a newer format.
    """
    info, tensors = read_package(path)
    recipe = info.recipe
    _check_types(path, tensors)
    _check_shapes(path, info, tensors)
    network = build_network(recipe)
    _check_own_encoder(path, recipe)
    encoder, projection = cast("Encoder", network.encoder), None
    load_state(path, encoder, "encoder", tensors)
    if info.probe_input != "features":
        projection = network.projection
        load_state(path, projection, "head", tensors)
    head = recipe.head
    widths = {
        "features": encoder.num_features,
        "embeddings": head.heads * head.dim,
        "common": head.heads * head.common_dim,
    }
    whitening = None
    parts: tuple[int, ...] = (widths[info.probe_input],)
    if info.omega is not None:
        whitening = _load_whitening(path, tensors, encoder.num_features)
        parts = (whitening.matrix.shape[1], *parts)
    rule, gallery = _load_rule(path, info, tensors, parts)
    if tensors:
        raise UserError(f"{path}: the weights contain {min(tensors)!r}, which is not expected")
    try:
        encoder.to(device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device {device!r} cannot be used: {error}") from error
    return Model(info, encoder, projection, rule, gallery, whitening)


def _check_own_encoder(path: str | Path, recipe: Recipe) -> None:
    name = recipe.encoder.name
    if is_plugin(name) and own_encoder_digest(name) != recipe.encoder.code:
        raise UserError(
            f"{path}: the code of the encoder {name} has changed since the model was trained: "
            "restore the old code, or train again"
        )


def _check_types(path: str | Path, tensors: Mapping[str, Tensor]) -> None:
    """Raise an error for integers where there should be floats; modules convert their own."""
    for name, tensor in tensors.items():
        own = name.startswith(("encoder/", "head/")) or name == "gallery/labels"
        if not own and not tensor.is_floating_point():
            raise UserError(f"{path}: {name} in the weights has the type {tensor.dtype}")


def _check_shapes(path: str | Path, info: ModelInfo, tensors: Mapping[str, Tensor]) -> None:
    """Raise an error unless the weights have the shapes that the recipe describes.

    Nothing is allocated, so that a small file cannot describe a network that fills the memory.
    """
    for part, shapes in network_shapes(info.recipe).items():
        if part == "head" and info.probe_input == "features":
            continue  # not stored
        for name, shape in shapes.items():
            stored = tensors.get(f"{part}/{name}")
            if stored is None or stored.shape != shape:
                actual = "missing" if stored is None else tuple(stored.shape)
                raise UserError(
                    f"{path}: the weights do not fit the {part}: {name} is {actual}, expected "
                    f"{tuple(shape)}"
                )


def _load_whitening(path: str | Path, tensors: dict[str, Tensor], width: int) -> Whitening:
    mean, matrix = (tensors.pop(f"whitening/{name}", None) for name in ("mean", "matrix"))
    fits = mean is not None and matrix is not None and mean.shape == (width,) and matrix.ndim == 2
    if mean is None or matrix is None or not fits or len(matrix) != width:
        raise UserError(f"{path}: the whitening in the weights does not fit {width} features")
    return Whitening(mean, matrix)


def _load_rule(
    path: str | Path, info: ModelInfo, tensors: dict[str, Tensor], parts: tuple[int, ...]
) -> tuple[DecisionRule, EmbeddingGallery]:
    width = sum(parts)
    classes, images = len(info.classes), len(info.image_names)
    shapes = {
        "classifier/weight": (info.trained_classes, width),
        "classifier/bias": (info.trained_classes,),
        "classes/centre": (width,),
        "classes/means": (classes, width),
        "classes/tightness": (classes,),
        "classes/thresholds": (classes,),
        "gallery/vectors": (images, width),
        "gallery/labels": (images,),
    }
    for name, shape in shapes.items():
        actual = tuple(tensors[name].shape) if name in tensors else "missing"
        if actual != shape:
            raise UserError(f"{path}: {name} in the weights is {actual}, expected {shape}")
    weight, bias, centre, means, similarity, thresholds, vectors, labels = (
        tensors.pop(name) for name in shapes
    )
    if labels.dtype != torch.long or (images and not 0 <= labels.min() <= labels.max() < classes):
        raise UserError(f"{path}: gallery/labels in the weights are not class indices")
    style = tensors.pop("gallery/style", vectors[:, :0])
    if style.ndim != 2 or len(style) != images:
        raise UserError(
            f"{path}: gallery/style in the weights is {tuple(style.shape)}, expected {images} rows"
        )
    rule = DecisionRule(
        LinearClassifier(weight.double(), bias.double(), info.temperature),
        centre=centre,
        means=means,
        within_class_similarity=similarity,
        prototype_scale=info.prototype_scale,
        threshold=info.rejection.threshold,
        class_thresholds=thresholds,
        parts=parts if len(parts) > 1 else (),
    )
    return rule, EmbeddingGallery(vectors.float(), labels, style.float())
