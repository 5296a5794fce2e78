"""Features and taps side by side, so that a cache can hold both."""

import json

import torch
from torch import Tensor, nn

from scs_supcon.nn.encoder import Encoder, encoder_key
from scs_supcon.nn.taps import tapped


class Tapped(nn.Module):
    """Images to rows [features | taps]; the features are those of the encoder, bit for bit."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.num_features = encoder.num_features + sum(encoder.taps.values())

    def forward(self, images: Tensor) -> Tensor:
        with tapped(self.encoder, list(self.encoder.taps.values())) as caught:
            features: Tensor = self.encoder(images)
        return torch.cat([features, *(torch.cat(tap) for tap in caught)], 1)


class StandIn(nn.Module):
    """Takes the encoder's place in front of such rows: the same features, the same taps."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        widths = list(encoder.taps.values())
        self.features, *cuts = _cuts([encoder.num_features, *widths])
        self.tap = nn.ModuleList(cuts)
        self.taps = {f"tap.{number}": width for number, width in enumerate(widths)}

    def forward(self, rows: Tensor) -> Tensor:
        for tap in self.tap:
            tap(rows)  # whoever taps it looks here
        features: Tensor = self.features(rows)
        return features


class _Cut(nn.Module):
    def __init__(self, start: int, stop: int) -> None:
        super().__init__()
        self.start, self.stop = start, stop

    def forward(self, rows: Tensor) -> Tensor:
        return rows[:, self.start : self.stop]


def _cuts(widths: list[int]) -> list[_Cut]:
    ends = torch.tensor(widths).cumsum(0).tolist()
    return [_Cut(end - width, end) for width, end in zip(widths, ends, strict=True)]


def for_cache(encoder: Encoder, taps: bool) -> tuple[Encoder | Tapped, nn.Module]:
    """What gives the rows that are cached, and what takes the encoder's place in front of them."""
    if taps and encoder.taps:
        return Tapped(encoder), StandIn(encoder)
    return encoder, nn.Identity()


def rows_key(source: Encoder | Tapped) -> str:
    """Equal keys mean equal rows; rows with taps are never taken for rows without."""
    if isinstance(source, Tapped):
        return f"{encoder_key(source.encoder)} | {json.dumps(source.encoder.taps)}"
    return encoder_key(source)
