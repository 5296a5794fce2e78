"""Compare feature extraction with timm's usual loop on the same images.

    python benchmarks/extract.py DATA --encoder tf_efficientnet_lite0 --weights FILE.safetensors

timm: `create_transform`, a DataLoader with the same number of workers, the model's forward pass in
inference mode; once in the default memory layout, once with channels last. This package:
`frozen_features` into an empty cache, writing included. The contenders take turns. The output is
images per second (median over the rounds), the ratio to timm, the largest difference between the
features, and the speed of reading the cache. Target: at least 1 against the faster of the two.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_model_data_config
from torch.utils.data import DataLoader, Dataset

from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.feature_cache import frozen_features, keyed_views
from scs_supcon.data.load import load_images
from scs_supcon.nn.encoder import Encoder, build_encoder, encoder_key
from scs_supcon.nn.timm_models import data_config
from scs_supcon.nn.weights import load_weights
from scs_supcon.recipe import DataRecipe

Features = np.ndarray[Any, np.dtype[np.float32]]


class Files(Dataset[torch.Tensor]):
    """Images read as timm's own dataset does."""

    def __init__(self, paths: list[Path], transform: Callable[[Image.Image], torch.Tensor]) -> None:
        self.paths = paths
        self.transform = transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        with Image.open(self.paths[index]) as image:
            return self.transform(image.convert("RGB"))


def timm_features(
    encoder: Encoder, paths: list[Path], options: argparse.Namespace, layout: torch.memory_format
) -> Features:
    """Return the features computed with timm's loop."""
    model = timm.create_model(encoder.name, num_classes=0).eval()
    model.load_state_dict(encoder.body.state_dict())
    model.to(memory_format=layout)
    transform = create_transform(**resolve_model_data_config(model), is_training=False)
    loader = DataLoader(
        Files(paths, transform), batch_size=options.batch_size, num_workers=options.workers
    )
    with torch.inference_mode():
        batches = [model(images.contiguous(memory_format=layout)).numpy() for images in loader]
    return np.concatenate(batches)


def our_features(
    encoder: Encoder, images: ImageDataset, chosen: list[int], cache: str, workers: int
) -> Features:
    """Return the features computed with `frozen_features`."""
    data = DataRecipe(source="measured", **data_config(encoder.name))
    features = frozen_features(
        images,
        chosen,
        encoder=encoder,
        encoder_key=encoder_key(encoder),
        transforms=keyed_views("eval", data),
        cache_dir=cache,
        workers=workers,
    )
    return features[:, 0]


def timed(work: Callable[[], Features]) -> tuple[float, Features]:
    """Return the duration in seconds and the result."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def main() -> None:
    """Measure the contenders in turns and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", type=Path, help="folder of class folders")
    parser.add_argument("--encoder", default="tf_efficientnet_lite0")
    parser.add_argument("--weights", type=Path, help="safetensors; random weights without it")
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64, help="of timm's loop")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()

    size = data_config(options.encoder)["image_size"]
    encoder = build_encoder(options.encoder, small_stem=False, in_size=size)
    if options.weights:
        load_weights(encoder, options.weights)
    images = load_images(options.data)
    count = min(options.images, len(images))
    chosen = np.linspace(0, len(images) - 1, count).astype(int).tolist()
    paths = [options.data / images.names[index] for index in chosen]

    seconds: dict[str, list[float]] = {}
    results: dict[str, Features] = {}
    for _ in range(options.rounds):
        with TemporaryDirectory() as cache:
            turns = {
                "scs-supcon": lambda: our_features(encoder, images, chosen, cache, options.workers),
                "timm": lambda: timm_features(encoder, paths, options, torch.contiguous_format),
                "timm, channels last": lambda: timm_features(
                    encoder, paths, options, torch.channels_last
                ),
                "scs-supcon, from the cache": lambda: our_features(
                    encoder, images, chosen, cache, 0
                ),
            }
            for name, work in turns.items():
                duration, results[name] = timed(work)
                seconds.setdefault(name, []).append(duration)

    rate = {name: count / statistics.median(rounds) for name, rounds in seconds.items()}
    print(f"{options.encoder}, {count} images, {size} pixels, {options.workers} workers")
    for name, value in rate.items():
        print(f"  {name:<27}{value:9.1f} images/s")
    fastest = max(rate["timm"], rate["timm, channels last"])
    ratios = rate["scs-supcon"] / rate["timm"], rate["scs-supcon"] / fastest
    print(f"  ratio to timm {ratios[0]:.2f}, to the faster of both layouts {ratios[1]:.2f}")
    difference = np.abs(results["scs-supcon"] - results["timm"]).max()
    print(f"  largest difference {difference:.1e} in features up to {results['timm'].max():.1f}")


if __name__ == "__main__":
    main()
