"""Features to readout: the head's fields in float64, and no row depends on its company."""

import pytest
import torch

from scs_supcon.inference.readout import ROWS, Network, ReadOut, in_passes
from scs_supcon.nn.head import Projection, fields
from scs_supcon.recipe import HeadRecipe

WIDTH = 40


def network(overlap: int) -> Network:
    torch.manual_seed(0)
    head = Projection(WIDTH, 24 - overlap, centre=True)
    head(torch.randn(50, WIDTH))  # statistics to centre by
    return Network(torch.nn.Identity(), head, "common")


@pytest.mark.parametrize("overlap", [0, 3])
def test_the_readout_is_the_common_field_and_style_stands_beside_it(overlap: int) -> None:
    recipe = HeadRecipe(common_dim=16, style_dim=8, overlap=overlap)
    parts = network(overlap)
    features = torch.randn(9, WIDTH)
    readout, style = ReadOut(parts, recipe)(features)
    assert parts.head is not None
    with torch.no_grad():
        common, expected = fields(parts.head.eval()(features), 16, overlap)
    assert readout.dtype == torch.float64
    torch.testing.assert_close(readout.float(), common, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(style.float(), expected, rtol=1e-4, atol=1e-5)


def test_features_are_their_own_readout() -> None:
    features = torch.randn(9, WIDTH)
    parts = Network(torch.nn.Identity(), network(0).head, "features")
    readout, style = ReadOut(parts, HeadRecipe())(features)
    assert torch.equal(readout, features.double())
    assert style.shape == (9, 0)


@pytest.mark.parametrize("count", [0, 1, ROWS - 1, ROWS, 3 * ROWS + 5])
def test_passes_of_one_size_give_every_row_the_same_bits(count: int) -> None:
    torch.manual_seed(1)
    read_out = ReadOut(network(0), HeadRecipe(common_dim=16, style_dim=8))
    rows = torch.randn(4 * ROWS, WIDTH)
    whole, _ = in_passes(read_out, rows)
    some, style = in_passes(read_out, rows[7 : 7 + count])
    assert torch.equal(some, whole[7 : 7 + count])
    assert style.shape == (count, 8)
