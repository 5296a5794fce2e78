"""A run's images through its encoder: which weights it starts from, and the features it gives."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor

from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.feature_cache import ViewKind, frozen_features, keyed_views
from scs_supcon.device import Compute
from scs_supcon.errors import UserError
from scs_supcon.methods import Method, Network, probe_input_for
from scs_supcon.nn.encoder import Encoder, TappedEncoder, build_encoder, rows_key
from scs_supcon.nn.weights import fetch_weights, load_weights
from scs_supcon.progress import Display
from scs_supcon.recipe import Recipe
from scs_supcon.recipe.resolve import TrainOptions
from scs_supcon.training.stage2 import Seen, see


@dataclass(frozen=True)
class Parts:
    """What a run is made of.

    Attributes:
        source: what gives the rows that are cached: the encoder, or that with its taps.
    """

    images: ImageDataset
    splits: NDArray[np.str_]
    encoder: Encoder
    source: Encoder | TappedEncoder
    network: Network
    method: Method


def build_initial_encoder(
    recipe: Recipe, options: TrainOptions, offline: bool
) -> tuple[Encoder, str]:
    """The encoder with the weights it starts from, and a line about them."""
    wanted = recipe.encoder
    encoder = build_encoder(
        wanted.name, small_stem=wanted.small_stem, in_size=recipe.data.image_size
    )
    if wanted.weights == "pretrained":
        load_weights(encoder, fetch_weights(wanted.name, offline))
    elif wanted.weights != "scratch" and options.init_from is None:
        if options.weights is None:
            raise UserError("this recipe needs its weights file: give it with --weights FILE")
        load_weights(encoder, options.weights)
    how = "its features are computed once" if wanted.frozen else "it is trained"
    begin = {"scratch": "random weights", "pretrained": "timm's weights"}
    start = begin.get(wanted.weights, f"weights from {options.init_from or options.weights}")
    return encoder, f"encoder   {wanted.name}, {start}; {how}"


@dataclass(frozen=True)
class FeatureExtractor:
    """Looks at the images of a run through its encoder, as it stands at that moment."""

    fabric: Fabric
    recipe: Recipe
    place: Compute
    display: Display

    def features(
        self,
        parts: Parts,
        indices: NDArray[np.int64],
        kind: ViewKind,
        views: int,
        folder: Path | None = None,
    ) -> Tensor:
        """Features, and taps, `(n, 1 + views, d)`: the evaluation view, then random ones."""
        fabric = self.fabric
        keyed = keyed_views("eval", self.recipe.data)
        keyed += keyed_views(kind, self.recipe.data, views) if views else []
        source = parts.source.to(fabric.device)
        if not fabric.is_global_zero:
            fabric.barrier()  # the first process computes, the others read what it kept
        with self.display.progress("features") as tell:
            found = frozen_features(
                parts.images,
                indices,
                encoder=source,
                encoder_key=rows_key(source),
                transforms=keyed,
                cache_dir=folder or self.place.cache,
                workers=self.place.workers,
                progress=tell,
            )
        if fabric.is_global_zero:
            fabric.barrier()
        return torch.from_numpy(found)

    def see(self, parts: Parts, split: str, folder: Path) -> Seen:
        """Look at a split through the trained network, under the views that stage 2 learns from.

        Args:
            parts: of the run.
            split: "train", "val" or "test".
            folder: keeps the features of an encoder that only this run has.
        """
        indices = np.flatnonzero(parts.splits == split)
        encoder = self.recipe.encoder
        kind: ViewKind = "train" if encoder.frozen else "probe"
        views = encoder.frozen_views if encoder.frozen else self.recipe.probe.views
        kept = None if encoder.frozen else folder
        rows = self.features(parts, indices, kind, views if split == "train" else 0, kept)
        features = rows[..., : parts.encoder.num_features]
        return see(
            features,
            indices,
            parts.images.labels,
            parts.network.projection,
            probe_input_for(parts.method, frozen=encoder.frozen),
            self.recipe.head.common_dim,
        )
