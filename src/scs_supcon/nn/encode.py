"""Run an encoder on prepared images, in passes of a fixed size.

The last bits of a result can depend on the size of a batch. With one size, the features of an image
are the same in training, in the feature cache and in a saved model.
"""

import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

GPU_IMAGES = 128
# On a CPU, few images at a time: the memory of large maps goes back to the system after each layer,
# and allocating it again costs a third of the time.
CPU_IMAGES, CPU_PIXELS = 32, 4 * 224 * 224


def encode(encoder: nn.Module, images: Tensor) -> NDArray[np.float32]:
    """Return the features (n, F) of images (n, 3, H, W)."""
    device = _device(encoder)
    size = _pass_size(encoder, images[0, 0].numel())
    passes = []
    for start in range(0, len(images), size):
        chunk = images[start : start + size]
        batch = chunk.new_zeros(size, *chunk.shape[1:])
        batch[: len(chunk)] = chunk
        batch = batch.to(device, memory_format=torch.channels_last)
        with torch.inference_mode():
            passes.append(encoder(batch)[: len(chunk)].float().cpu().numpy())
    return np.concatenate(passes)


def pass_size(encoder: nn.Module, image_size: int) -> int:
    """Return how many square images `encode` processes at a time."""
    return _pass_size(encoder, image_size**2)


def for_inference(encoder: nn.Module) -> nn.Module:
    """Return a copy in evaluation mode and in the layout that convolutions prefer."""
    return copy.deepcopy(encoder).eval().to(memory_format=torch.channels_last)


def on_cpu(encoder: nn.Module) -> bool:
    """Return whether the encoder runs on the CPU."""
    return _device(encoder).type == "cpu"


def _pass_size(encoder: nn.Module, pixels: int) -> int:
    return min(CPU_IMAGES, max(1, CPU_PIXELS // pixels)) if on_cpu(encoder) else GPU_IMAGES


def _device(encoder: nn.Module) -> torch.device:
    return next(encoder.parameters()).device
