"""What timm knows about a model by its name; nothing here builds or downloads one."""

from difflib import get_close_matches
from typing import Any, TypedDict

from scs_supcon.errors import UserError
from scs_supcon.nn.tiny import TINY


class DataConfig(TypedDict):
    """How images have to look for an encoder; the keys are fields of the data recipe."""

    image_size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: str
    crop_pct: float


def data_config(name: str) -> DataConfig:
    """Return the size, channel statistics and resizing that `name` was made for."""
    if name == TINY:
        half = (0.5, 0.5, 0.5)
        return DataConfig(
            image_size=32, mean=half, std=half, interpolation="bilinear", crop_pct=1.0
        )
    published = pretrained_cfg(name)
    return DataConfig(
        image_size=max(published.input_size[1:]),
        mean=published.mean,
        std=published.std,
        interpolation=published.interpolation,
        crop_pct=min(published.crop_pct, 1.0),  # above 1, timm pads: we never do
    )


def weights_licence(name: str) -> str:
    """Return the licence of the pretrained weights of `name`, or "unknown".

    The encoder "tiny" has no pretrained weights: "none".
    """
    if name == TINY:
        return "none"
    return pretrained_cfg(name).license or "unknown"


def pretrained_cfg(name: str) -> Any:
    """Return timm's record of a model's weights and of the images they were trained on.

    Raises:
        UserError: timm has no such model, or no such weights of it.
    """
    timm = import_timm()
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        raise UserError(
            f"unknown encoder {name!r}{_close(architecture, [TINY, *timm.list_models()])} "
            f"Expected {TINY!r} or the name of a timm model."
        )
    if architecture in (renamed := timm.models.get_deprecated_models()):
        raise UserError(f"encoder {name!r} is called {renamed[architecture]!r} in timm now")
    if tag and name not in (known := timm.list_models(f"{architecture}.*", pretrained=True)):
        raise UserError(f"timm's {architecture} has no weights {tag!r}{_close(name, known)}")
    return timm.get_pretrained_cfg(name)


def import_timm() -> Any:
    """Import timm when an encoder is wanted: it is large, and the losses do without it."""
    try:
        import timm
    except ImportError as error:
        raise UserError("encoders need timm: pip install 'scs-supcon[train]'") from error
    return timm


def _close(name: str, known: list[str]) -> str:
    matches = get_close_matches(name, known, n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(map(repr, matches))}?" if matches else "."
