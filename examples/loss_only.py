"""Use only the loss, in a plain PyTorch training loop. Needs PyTorch and nothing else.

python examples/loss_only.py
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scs_supcon import SCSSupCon

CLASSES, COMMON = 8, 24


def sample(count: int, centres: Tensor, mixing: Tensor) -> tuple[Tensor, Tensor]:
    """Return random points of each class, mixed with as many columns that vary within a class."""
    labels = torch.randint(CLASSES, (count,))
    common = centres[labels] + 0.2 * torch.randn(count, 8)
    return torch.tanh(torch.cat([common, torch.randn(count, 8)], dim=1) @ mixing), labels


def same_class_accuracy(embeddings: Tensor, labels: Tensor, boundary: float) -> float:
    """Return the balanced accuracy of "same class if the similarity exceeds the boundary"."""
    common = F.normalize(embeddings[:, :COMMON], dim=1)
    predicted = common @ common.T > boundary
    same = labels[:, None] == labels
    return float((predicted[same].float().mean() + (~predicted)[~same].float().mean()) / 2)


def main() -> None:
    """Train a small encoder and print the loss, the boundary and the accuracy on new points."""
    torch.manual_seed(0)
    centres, mixing = torch.randn(CLASSES, 8), torch.randn(16, 16) / 4
    test_points, test_labels = sample(1000, centres, mixing)

    encoder = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 32))
    loss = SCSSupCon(common_dim=COMMON, preset="learned")  # this preset learns t and b
    optimizer = torch.optim.SGD(
        [{"params": encoder.parameters()}, *loss.param_groups(lr=0.05)], lr=0.5, momentum=0.9
    )
    for step in range(301):
        points, labels = sample(256, centres, mixing)
        value = loss(encoder(points), labels)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        if step % 100 == 0:
            with torch.no_grad():
                accuracy = same_class_accuracy(
                    encoder(test_points), test_labels, float(loss.boundary)
                )
            scalars = loss.scalars()
            print(
                f"step {step:3d}: loss {value.item():.4f}, t {scalars['t']:.2f}, "
                f"b {scalars['b']:.2f}, boundary {scalars['boundary']:.3f}, "
                f"test pairs classified correctly {accuracy:.1%}"
            )


if __name__ == "__main__":
    main()
