"""Encoders of the user: `my_lab.nets:build` or `./nets.py:build`.

`build()` returns a module from images (n, 3, height, width) to features (n, columns), with the
weights to start from. The module may say which images it expects, as timm's models do, or with an
attribute `data_config`: a dictionary with any of `image_size`, `mean`, `std`, `interpolation` and
`crop_pct`. Otherwise images have 224 pixels and the channel statistics of ImageNet.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, cast

import torch
from torch import nn

from scs_supcon.errors import UserError
from scs_supcon.nn.data_config import IMAGENET, DataConfig
from scs_supcon.plugins import code_digest, import_allowed


def build_own_encoder(name: str) -> nn.Module:
    """Call the user's function, which must have been allowed, and return its module."""
    body = import_allowed("encoder", name)()
    if not isinstance(body, nn.Module):
        raise UserError(
            f"the encoder {name} returned {type(body).__name__}, expected a torch.nn.Module"
        )
    return body


def own_encoder_digest(name: str) -> str:
    """Return the SHA-256 of the file with the user's function."""
    return code_digest(import_allowed("encoder", name))


@cache
def own_data_config(name: str) -> DataConfig:
    """Return the images that the user's encoder expects, as fields of the data recipe."""
    with torch.random.fork_rng(devices=[]):
        body = build_own_encoder(name)
    stated: Any = getattr(body, "data_config", None)
    if stated is None:
        stated = _from_timm(getattr(body, "pretrained_cfg", None) or {})
    if not isinstance(stated, Mapping) or not stated.keys() <= IMAGENET.keys():
        raise UserError(
            f"the data_config of the encoder {name} is {stated!r}, expected a dictionary with any "
            f"of {', '.join(IMAGENET)}"
        )
    return cast("DataConfig", {**IMAGENET, **stated})


def _from_timm(published: Mapping[str, Any]) -> dict[str, Any]:
    values = {key: published[key] for key in IMAGENET if key in published}
    if "input_size" in published:
        values["image_size"] = max(published["input_size"][1:])
    if "crop_pct" in values:
        values["crop_pct"] = min(values["crop_pct"], 1.0)  # above 1 timm pads, which we do not
    return values
