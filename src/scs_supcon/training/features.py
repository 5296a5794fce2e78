"""Initial weights of a network, and the features it extracts from the images of a run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor, nn

from scs_supcon.data.dataset import SPLITS, ImageDataset
from scs_supcon.data.feature_cache import ViewKind, frozen_features, keyed_views
from scs_supcon.data.feature_table import empty_table
from scs_supcon.data.splits import SPLIT_TITLES
from scs_supcon.device import Compute
from scs_supcon.errors import UserError
from scs_supcon.inference.package import initialise_from
from scs_supcon.nn.encoder import Encoder, TappedEncoder, rows_key
from scs_supcon.nn.network import Network, Output, ProbeInput, probe_features
from scs_supcon.nn.style import with_style
from scs_supcon.nn.weights import fetch_weights, load_weights
from scs_supcon.plugins import is_plugin
from scs_supcon.progress import Display, Progress, ProgressCallback
from scs_supcon.recipe import HeadRecipe, Recipe

CHUNK = 4096


@dataclass(frozen=True)
class SplitFeatures:
    """Features of the images of one split under the trained network.

    Attributes:
        indices: (n,) images of the dataset.
        labels: (n,) their classes.
        features: (n, 1 + views, F) encoder features, the evaluation view first.
        probe_inputs: (n, 1 + views, D) inputs of stage 2 for the same views.
    """

    indices: NDArray[np.int64]
    labels: Tensor
    features: Tensor
    probe_inputs: Tensor


RunFeatures = Mapping[str, SplitFeatures]
"""Features by split: "train", "val" and "test"; a split may be empty."""


def load_initial_weights(
    network: Network,
    recipe: Recipe,
    weights: Path | None = None,
    init_from: Path | None = None,
    offline: bool = False,
) -> str:
    """Load the initial weights of the network; return a line that describes the encoder.

    Args:
        network: from `build_network`, with random weights.
        recipe: says which weights to load.
        weights: a safetensors file for the encoder, if the recipe needs one.
        init_from: a finished run whose encoder and head to start from.
        offline: never download weights.
    """
    encoder, settings = cast("Encoder", network.encoder), recipe.encoder
    own = is_plugin(settings.name)
    if settings.weights == "pretrained" and not own:
        load_weights(encoder, fetch_weights(settings.name, offline))
    elif settings.weights not in ("scratch", "pretrained") and init_from is None:
        if weights is None:
            raise UserError("this recipe needs its weights file: give it with --weights FILE")
        load_weights(encoder, weights)
    if init_from is not None:
        initialise_from(init_from, encoder, network.projection)
    origin = {"scratch": "random weights", "pretrained": "pretrained weights"}.get(
        settings.weights, f"weights from {init_from or weights}"
    )
    if own and init_from is None and weights is None:
        origin = "the weights it is built with"
    use = "frozen, with" if settings.frozen else "trained, starting from"
    return f"encoder   {settings.name}, {use} {origin}"


def encode_images(
    encoder: Encoder | TappedEncoder,
    images: ImageDataset,
    recipe: Recipe,
    fabric: Fabric,
    compute: Compute,
    display: Display,
    indices: NDArray[np.int64],
    kind: ViewKind,
    views: int,
    cache: Path,
    title: str = "training",
) -> Tensor:
    """Return encoder features (n, 1 + views, F): the evaluation view, then random views.

    Args:
        encoder: its outputs are the features; with taps if the method uses them.
        images: the dataset.
        recipe: defines the views.
        fabric: where to compute; the first process computes, the others read its cache.
        compute: number of workers.
        display: shows progress.
        indices: which images to encode.
        kind: "train" or "probe" random views.
        views: number of random views per image.
        cache: directory for the features.
        title: of the split, for the display.
    """
    transforms = keyed_views("eval", recipe.data)
    transforms += keyed_views(kind, recipe.data, views) if views else []
    encoder = encoder.to(fabric.device)
    if not fabric.is_global_zero:
        fabric.barrier()
    with display.progress(f"encoding {title} images") as progress:
        features = frozen_features(
            images,
            indices,
            encoder=encoder,
            encoder_key=rows_key(encoder),
            transforms=transforms,
            cache_dir=cache,
            workers=compute.workers,
            progress=_count_images(progress, len(transforms)),
        )
    if fabric.is_global_zero:
        fabric.barrier()
    return torch.from_numpy(features)


def _count_images(progress: Progress, views: int) -> ProgressCallback:
    """Return a callback that takes rows, of which an image has several, unless all are cached."""
    started = False

    def report(done: int, total: int) -> None:
        nonlocal started
        started = started or done < total
        if started:
            progress(done // views, total // views)

    return report


def extract_features(
    network: Network,
    encode: Callable[[NDArray[np.int64], ViewKind, int, Path, str], Tensor],
    splits: NDArray[np.str_],
    labels: NDArray[np.int64],
    probe_input: ProbeInput,
    recipe: Recipe,
    cache: Path,
) -> dict[str, SplitFeatures]:
    """Return the features of all splits: several views of training images, one of the others.

    The views are cropped and mirrored; those of a frozen encoder are the cached ones of stage 1.

    Args:
        network: the trained network.
        encode: `encode_images` for the network's encoder and the images of the run.
        splits: split of each image.
        labels: class of each image.
        probe_input: which features stage 2 is trained on.
        recipe: of the run.
        cache: directory for the features.
    """
    frozen = recipe.encoder.frozen
    # The cached views of stage 1 are used again: others would double the time for the features.
    kind: ViewKind = "train" if frozen else "probe"
    views = recipe.encoder.frozen_views if frozen else recipe.probe.views
    feature_dim = cast("Encoder", network.encoder).num_features
    extracted = {}
    for split in SPLITS:
        indices = np.flatnonzero(splits == split)
        random_views = views if split == "train" else 0
        outputs = encode(indices, kind, random_views, cache, SPLIT_TITLES[split])
        features = outputs[..., :feature_dim]  # without taps
        extracted[split] = SplitFeatures(
            indices,
            torch.from_numpy(labels[indices]),
            features,
            probe_inputs(features, network.projection, probe_input, recipe.head.common_dim, cache),
        )
    return extracted


@torch.no_grad()
def probe_inputs(
    features: Tensor,
    projection: nn.Module,
    probe_input: ProbeInput,
    common_dim: int,
    folder: Path | None = None,
) -> Tensor:
    """Return the inputs of stage 2 (n, views, D) for encoder features (n, views, F).

    If they are large, they are mapped to a file in `folder`; see `empty_table`.
    """
    device = next(projection.parameters()).device
    chunks = torch.split(features.flatten(0, 1), CHUNK)
    inputs = torch.empty(0, 0)
    for number, chunk in enumerate(chunks):
        on_device = chunk.to(device)
        output = Output(on_device, projection(on_device))
        rows = probe_features(output, probe_input, common_dim).cpu()
        if not number:
            shape = (features.shape[0] * features.shape[1], rows.shape[1])
            inputs = torch.from_numpy(empty_table(shape, folder)) if folder else torch.empty(shape)
        inputs[number * CHUNK : number * CHUNK + len(rows)] = rows
    return inputs.view(*features.shape[:2], inputs.shape[-1])


def add_fitted_style(
    projection: nn.Module,
    probe_input: ProbeInput,
    features: Tensor,
    labels: Tensor,
    classes: int,
    head: HeadRecipe,
) -> tuple[nn.Module, ProbeInput]:
    """Return the head of the model and the input of its classifier, after stage 2.

    A style field that is not trained is fitted to the features; without it, the embeddings are the
    common field. A classifier of the features needs no head.
    """
    if not head.fitted_dim or probe_input == "features":
        return projection, probe_input
    return with_style(projection, features, labels, classes, head.fitted_dim), "common"
