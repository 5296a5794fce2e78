"""Points for the examples: eight classes, mixed with columns that vary within a class."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES, COMMON = 8, 24


def sample(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return points `(count, 16)` and their labels."""
    fixed = torch.Generator().manual_seed(0)
    centres = torch.randn(CLASSES, 8, generator=fixed)
    mixing = torch.randn(16, 16, generator=fixed) / 4
    source = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=source)
    common = centres[labels] + 0.2 * torch.randn(count, 8, generator=source)
    style = torch.randn(count, 8, generator=source)
    return torch.tanh(torch.cat([common, style], dim=1) @ mixing), labels


def encoder() -> nn.Module:
    """Return a small encoder with embeddings of 32 columns."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 32))


@torch.no_grad()
def accuracy(network: nn.Module, boundary: float) -> float:
    """Return the balanced accuracy of "same class if the similarity exceeds the boundary"."""
    points, labels = sample(500, seed=99)
    common = F.normalize(network(points)[:, :COMMON], dim=1)
    predicted, same = common @ common.T > boundary, labels[:, None] == labels
    return float((predicted[same].float().mean() + (~predicted)[~same].float().mean()) / 2)
