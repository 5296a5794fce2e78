"""Pictures to features exactly as the cache of a frozen run computes them."""

from pathlib import Path

import pytest
import torch

from scs_supcon.config import DataRecipe
from scs_supcon.data.cache import frozen_features, keyed_views
from scs_supcon.data.embedded import digits
from scs_supcon.encoders import build_encoder
from scs_supcon.model.reader import Reader


@pytest.mark.parametrize(("name", "size"), [("tiny", 32), ("test_resnet", 64)])
def test_features_are_those_of_the_cache_to_the_last_bit(
    tmp_path: Path, name: str, size: int
) -> None:
    data = DataRecipe(source="digits", image_size=size)
    torch.manual_seed(0)
    encoder = build_encoder(name, small_stem=False, in_size=size).eval()
    pictures = digits()
    cached = frozen_features(
        pictures,
        range(50),
        encoder=encoder,
        encoder_key="test",
        transforms=keyed_views("eval", data),
        cache_dir=tmp_path,
    )
    read = Reader(encoder, data).read([pictures.open(index) for index in range(50)])
    assert torch.equal(read.features, torch.from_numpy(cached[:, 0]))
    later = Reader(encoder, data).read([pictures.open(index) for index in range(47, 50)])
    assert torch.equal(later.features, read.features[47:])


def test_pictures_of_any_mode_are_taken() -> None:
    encoder = build_encoder("tiny", small_stem=False, in_size=8)
    image = digits().open(0)
    reader = Reader(encoder, DataRecipe(source="digits", image_size=8))
    colours, grey = reader.read([image, image.convert("L")]).features
    assert torch.equal(colours, grey)
