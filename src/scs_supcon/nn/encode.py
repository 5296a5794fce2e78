"""Run an encoder on prepared images, in passes of a fixed size.

The last bits of a result can depend on the batch size. With a fixed size, the features of an image
are the same in training, in the feature cache and in a saved model.
"""

import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

GPU_IMAGES = 128
# Few images at a time on a CPU: the memory of large feature maps is returned to the system after
# each layer, and allocating it again takes a third of the time.
CPU_IMAGES, CPU_PIXELS = 32, 4 * 224 * 224


def encode(encoder: nn.Module, images: Tensor) -> NDArray[np.float32]:
    """Return the features (n, F) of images (n, 3, H, W)."""
    device = _device(encoder)
    size = pass_size(encoder, images[0, 0].numel())
    passes = []
    for start in range(0, len(images), size):
        chunk = images[start : start + size]
        batch = chunk.new_zeros(size, *chunk.shape[1:])
        batch[: len(chunk)] = chunk
        batch = batch.to(device, memory_format=torch.channels_last)
        with torch.inference_mode():
            passes.append(encoder(batch)[: len(chunk)].float().cpu().numpy())
    return np.concatenate(passes)


def pass_size(encoder: nn.Module, pixels: int) -> int:
    """Return the number of images, each with this many pixels, in one pass of `encode`."""
    return min(CPU_IMAGES, max(1, CPU_PIXELS // pixels)) if on_cpu(encoder) else GPU_IMAGES


def for_inference(encoder: nn.Module) -> nn.Module:
    """Return a copy in evaluation mode and in channels-last layout, which convolutions prefer."""
    return copy.deepcopy(encoder).eval().to(memory_format=torch.channels_last)


def on_cpu(encoder: nn.Module) -> bool:
    """Return whether the encoder runs on the CPU."""
    return _device(encoder).type == "cpu"


def _device(encoder: nn.Module) -> torch.device:
    return next(encoder.parameters()).device
