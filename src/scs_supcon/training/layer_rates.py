"""Lower learning rates for the encoder: the closer a layer is to the image, the lower."""

import re

from torch import nn

from scs_supcon.nn.timm_models import import_timm


def encoder_rates(
    encoder: nn.Module, encoder_lr: float, layer_decay: float
) -> dict[nn.Parameter, float]:
    """Return the learning rate of each parameter of an encoder, as a share of `pretrain.lr`.

    The rate of a layer is encoder_lr · layer_decayᵏ, where k is the number of layers above it: 0
    for the last layer. Layers are timm's (`group_matcher`), or the four convolutions of "tiny".

    Args:
        encoder: an `Encoder`; other modules count as one layer.
        encoder_lr: share of the learning rate for the last layer.
        layer_decay: factor from each layer to the one below.
    """
    named = dict(encoder.named_parameters())
    layers = _layers(getattr(encoder, "body", encoder))
    last = max(layers.values(), default=0)
    return {
        parameter: encoder_lr * layer_decay ** (last - layers.get(name.removeprefix("body."), last))
        for name, parameter in named.items()
    }


def _layers(body: nn.Module) -> dict[str, int]:
    """Return the layer of each parameter, counted from the image; {} if it is not known."""
    matcher = getattr(body, "group_matcher", None)
    if matcher is not None:
        names: dict[str, int] = import_timm().models.group_parameters(
            body, matcher(coarse=False), reverse=True
        )
        return names
    numbers = {name: re.match(r"layers\.(\d+)\.", name) for name, _ in body.named_parameters()}
    return {name: int(match[1]) for name, match in numbers.items() if match}
