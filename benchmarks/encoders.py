"""Measure the speed and the size of the encoders that `scs encoders` lists.

    python benchmarks/encoders.py

Each encoder has random weights and encodes batches as prediction does, with one thread. The speed
is the number of images per second of processor time (median of the rounds), so that other programs
on the machine hardly matter.
"""

import argparse
import statistics
import time

import torch

from scs_supcon.nn.encode import encode, for_inference
from scs_supcon.nn.encoder import build_encoder
from scs_supcon.nn.timm_models import data_config, weights_licence
from scs_supcon.recipe.encoders import ENCODERS


def measure(name: str, rounds: int) -> tuple[float, float]:
    """Return millions of parameters with the classifier, and images per second of one core."""
    size = data_config(name)["image_size"]
    encoder = for_inference(build_encoder(name, small_stem=False, in_size=size))
    images = torch.rand(4, 3, size, size)
    encode(encoder, images)
    times = []
    for _ in range(rounds):
        start = time.process_time()
        encode(encoder, images)
        times.append(time.process_time() - start)
    parameters = sum(p.numel() for p in encoder.parameters()) / 1e6
    return parameters, len(images) / statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    print(f"{'encoder':<40} {'pixels':>6} {'M parameters':>13} {'images/s':>9}  licence")
    for choice in ENCODERS:
        parameters, speed = measure(choice.name, rounds)
        size = data_config(choice.name)["image_size"]
        licence = weights_licence(choice.name)
        print(
            f"{choice.name:<40} {size:>6} {parameters:>13.1f} {speed:>9.1f}  {licence}", flush=True
        )


if __name__ == "__main__":
    main()
