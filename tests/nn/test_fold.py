import copy

import pytest
import torch
from torch import nn

from scs_supcon.nn.encode import encode, for_inference
from scs_supcon.nn.encoder import Encoder, TappedEncoder, build_encoder
from scs_supcon.nn.fold import fold_norms, has_foldable_norms
from scs_supcon.nn.timm_models import Stem

IMAGES = torch.randn(5, 3, 64, 64, generator=torch.Generator().manual_seed(1))


def with_statistics(encoder: nn.Module) -> nn.Module:
    """Give every normalisation statistics and weights that are not trivial."""
    generator = torch.Generator().manual_seed(2)
    for module in encoder.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.running_mean, module.running_var, module.weight, module.bias):
                assert tensor is not None
                tensor.data.uniform_(0.5, 1.5, generator=generator)
    return for_inference(encoder)


def norms(encoder: nn.Module) -> int:
    return sum(isinstance(module, nn.BatchNorm2d) for module in encoder.modules())


@pytest.mark.parametrize("name", ["resnet18", "tf_efficientnet_lite0", "mobilenetv3_small_050"])
def test_features_are_the_same_without_norms(name: str) -> None:
    encoder = with_statistics(build_encoder(name, small_stem=False, in_size=64))
    state = copy.deepcopy(encoder.state_dict())
    folded = fold_norms(encoder)
    assert norms(encoder) > 10
    assert norms(folded) == 0
    expected = encode(encoder, IMAGES)
    torch.testing.assert_close(
        torch.from_numpy(encode(folded, IMAGES)), torch.from_numpy(expected), rtol=1e-3, atol=1e-4
    )
    for key, value in encoder.state_dict().items():
        assert torch.equal(value, state[key]), "the encoder itself is unchanged"


def test_taps_are_the_same() -> None:
    encoder = with_statistics(build_encoder("resnet18", small_stem=False, in_size=64))
    assert isinstance(encoder, Encoder)
    tapped = TappedEncoder(encoder)
    folded = fold_norms(tapped)
    assert norms(folded) == 0
    with torch.no_grad():
        torch.testing.assert_close(folded(IMAGES), tapped(IMAGES), rtol=1e-3, atol=1e-4)


class OtherOrder(nn.Module):
    """The convolution's output is used without the normalisation, too."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        maps = self.convolution(images)
        return (self.norm(maps) + maps).mean((2, 3))


def test_an_encoder_that_would_change_is_returned_as_it_is() -> None:
    encoder = with_statistics(Encoder("resnet18", OtherOrder(), 4, Stem(), 64))
    assert has_foldable_norms(encoder)
    assert fold_norms(encoder) is encoder


def test_encoders_without_batch_normalisation_are_unchanged() -> None:
    encoder = build_encoder("tiny", small_stem=False, in_size=32).eval()
    assert not has_foldable_norms(encoder)
    assert fold_norms(encoder) is encoder
    own = Encoder("views.py:build", OtherOrder(), 4, Stem(), 64)
    assert not has_foldable_norms(own)
