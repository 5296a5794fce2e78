import pytest
import torch
from torch import nn

from scs_supcon.errors import UserError
from scs_supcon.nn.taps import pool, record_taps, taps_of


class Convolutions(nn.Sequential):
    taps = {"0": 5}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def test_maps_and_tokens_are_averaged_over_positions() -> None:
    x = torch.randn(2, 5, 3, 4)
    torch.testing.assert_close(pool(x, 5), x.mean((2, 3)))
    torch.testing.assert_close(pool(x.permute(0, 2, 3, 1), 5), x.mean((2, 3)))
    torch.testing.assert_close(pool(x.flatten(2).mT, 5), x.mean((2, 3)))
    assert torch.equal(pool(x[:, :, 0, 0], 5), x[:, :, 0, 0])
    with pytest.raises(UserError, match=r"\(2, 5, 3, 4\).*lists 7 channels"):
        pool(x, 7)


def test_every_pass_is_collected_and_no_hook_remains() -> None:
    encoder, images = Convolutions(), torch.randn(4, 3, 7, 7)
    with record_taps(encoder, [5]) as outputs:
        encoder(images[:3])
        encoder(images[3:])
    (tap,) = outputs
    torch.testing.assert_close(torch.cat(tap), encoder[0](images).mean((2, 3)))
    with pytest.raises(RuntimeError), record_taps(encoder, [5]):
        encoder(images[:, :2])
    assert not encoder[0]._forward_hooks


def test_an_encoder_without_taps_is_tapped_itself() -> None:
    assert taps_of(nn.Identity(), 7) == {"": 7}
    with record_taps(nn.Identity(), [7]) as outputs:
        assert outputs == [[]]
    wrong = Convolutions()
    wrong.taps = {"layer2": 5}
    with pytest.raises(UserError, match=r"tap 'layer2'.*no such submodule"):
        taps_of(wrong, 5)
