import pytest
import torch
from torch import nn

from scs_supcon.errors import UserError
from scs_supcon.nn.taps import pool, tapped, taps_of


class Convolutions(nn.Sequential):
    taps = {"0": 5}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def test_pool() -> None:
    x = torch.randn(2, 5, 3, 4)
    torch.testing.assert_close(pool(x, 5), x.mean((2, 3)))
    torch.testing.assert_close(pool(x.permute(0, 2, 3, 1), 5), x.mean((2, 3)))
    torch.testing.assert_close(pool(x.flatten(2).mT, 5), x.mean((2, 3)))
    assert torch.equal(pool(x[:, :, 0, 0], 5), x[:, :, 0, 0])
    with pytest.raises(UserError, match=r"\(2, 5, 3, 4\).*promise 7 channels"):
        pool(x, 7)


def test_every_pass_is_caught_and_nothing_stays_hooked() -> None:
    encoder, images = Convolutions(), torch.randn(4, 3, 7, 7)
    with tapped(encoder, [5]) as caught:
        encoder(images[:3])
        encoder(images[3:])
    (tap,) = caught
    torch.testing.assert_close(torch.cat(tap), encoder[0](images).mean((2, 3)))
    with pytest.raises(RuntimeError), tapped(encoder, [5]):
        encoder(images[:, :2])
    assert not encoder[0]._forward_hooks


def test_the_encoder_itself_is_tapped_where_it_has_no_taps() -> None:
    assert taps_of(nn.Identity(), 7) == {"": 7}
    with tapped(nn.Identity(), [7]) as caught:
        assert caught == [[]]
    wrong = Convolutions()
    wrong.taps = {"layer2": 5}
    with pytest.raises(UserError, match=r"taps 'layer2'.*no submodule"):
        taps_of(wrong, 5)
