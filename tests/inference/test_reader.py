"""Images to features exactly as the cache of a frozen run computes them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from scs_supcon.data.builtin import digits
from scs_supcon.data.feature_cache import frozen_features, keyed_views
from scs_supcon.inference.reader import Reader
from scs_supcon.nn.encoder import build_encoder
from scs_supcon.recipe import DataRecipe


@pytest.mark.parametrize(("name", "size"), [("tiny", 32), ("test_resnet", 64)])
def test_features_are_those_of_the_cache_to_the_last_bit(
    tmp_path: Path, name: str, size: int
) -> None:
    data = DataRecipe(source="digits", image_size=size)
    torch.manual_seed(0)
    encoder = build_encoder(name, small_stem=False, in_size=size).eval()
    images = digits()
    cached = frozen_features(
        images,
        range(50),
        encoder=encoder,
        encoder_key="test",
        transforms=keyed_views("eval", data),
        cache_dir=tmp_path,
    )
    read = Reader(encoder, data).read([images.open(index) for index in range(50)])
    assert torch.equal(read.features, torch.from_numpy(cached[:, 0]))
    later = Reader(encoder, data).read([images.open(index) for index in range(47, 50)])
    assert torch.equal(later.features, read.features[47:])


def test_images_of_any_mode_are_taken() -> None:
    encoder = build_encoder("tiny", small_stem=False, in_size=8)
    image = digits().open(0)
    reader = Reader(encoder, DataRecipe(source="digits", image_size=8))
    colours, grey = reader.read([image, image.convert("L")]).features
    assert torch.equal(colours, grey)


def test_a_image_gives_what_its_file_gives(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (12, 12, 4), dtype=np.uint8)
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.fromarray(noise[..., :3]).save(tmp_path / "turned.png", exif=turned)
    Image.fromarray(noise).save(tmp_path / "clear.png")
    Image.fromarray(noise[..., 0].astype(np.uint16) * 257).save(tmp_path / "deep.png")
    files = sorted(tmp_path.glob("*.png"))
    reader = Reader(
        build_encoder("tiny", small_stem=False, in_size=8),
        DataRecipe(source="digits", image_size=8),
    )
    by_name = reader.read(files).features
    assert torch.equal(by_name, reader.read([Image.open(file) for file in files]).features)


def test_a_image_too_thin_is_a_failure_by_its_number() -> None:
    encoder = build_encoder("tiny", small_stem=False, in_size=8)
    reader = Reader(encoder, DataRecipe(source="digits", image_size=8))
    read = reader.read([digits().open(0), Image.new("RGB", (900, 1))])
    assert read.names == ("image 1",)
    assert [failure.name for failure in read.failures] == ["image 2"]
