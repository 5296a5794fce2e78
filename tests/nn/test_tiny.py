import torch
from torch import nn

from scs_supcon.nn.tiny import WIDTH, TinyNet


def test_takes_images_from_8_to_32_pixels() -> None:
    for size in (8, 12, 16, 24, 32):
        assert TinyNet(size)(torch.rand(2, 3, size, size)).shape == (2, WIDTH)


def test_features_do_not_depend_on_the_rest_of_the_batch_even_while_training() -> None:
    torch.manual_seed(0)
    encoder, images = TinyNet(16).train(), torch.rand(6, 3, 16, 16)
    alone = torch.cat([encoder(image[None]) for image in images])
    torch.testing.assert_close(encoder(images), alone, rtol=1e-5, atol=1e-6)
    assert not [m for m in encoder.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


def test_every_weight_learns() -> None:
    encoder = TinyNet(8)
    encoder(torch.rand(4, 3, 8, 8)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in encoder.parameters())
