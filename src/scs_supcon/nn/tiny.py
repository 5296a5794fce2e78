"""A small convolutional encoder for images of 8 to 32 pixels, quick on a CPU."""

from torch import Tensor, nn

TINY = "tiny"
WIDTH = 128


class TinyNet(nn.Module):
    """Four 3×3 convolutions of 32, 64, 128 and 128 channels, then the mean over all positions.

    GroupNorm and no batch statistics: an image's features do not depend on its batch, and any
    number of processes computes the same. From 24 pixels up the first layer halves the image,
    so that larger images cost about what those of half the size do.

    Args:
        in_size: Side of the images in pixels.
    """

    def __init__(self, in_size: int) -> None:
        super().__init__()
        self.stem_stride = 2 if in_size >= 24 else 1
        self.feature_info = [
            {"module": f"layers.{number}", "num_chs": channels}
            for number, channels in enumerate((32, 64, WIDTH, WIDTH))
        ]
        self.layers = nn.Sequential(
            _layer(3, 32, self.stem_stride),
            _layer(32, 64, 2),
            _layer(64, WIDTH, 2),
            _layer(WIDTH, WIDTH, 1),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, 3, height, width) to features (n, 128)."""
        maps: Tensor = self.layers(images)
        return maps.mean(dim=(2, 3))


def _layer(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
    nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
    return nn.Sequential(convolution, nn.GroupNorm(8, outputs), nn.ReLU(inplace=True))
