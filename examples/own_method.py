"""Train with a custom loss. A method is a class with one required function, `loss_terms`.

python examples/own_method.py

The same from the command line:
scs train digits --out runs/own --method examples/own_method.py:MarginContrast
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor
from torch.nn import functional as F

import scs_supcon
from scs_supcon import Method


class MarginContrast(Method):
    """Contrastive loss with a margin.

        L = mean over positive pairs of (1 − r) + mean over negative pairs of max(0, r − margin)

    r is the cosine similarity of two embeddings.

    Args:
        margin: similarity below which a negative pair costs nothing.
    """

    def __init__(self, margin: float = 0.2) -> None:
        super().__init__()
        self.margin = margin

    def loss_terms(self, embeddings: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
        """Return both terms; they are summed, and logged under their names."""
        assert labels is not None
        rows = F.normalize(embeddings, dim=1)
        r = rows @ rows.T
        same = labels[:, None] == labels
        other_row = ~torch.eye(len(r), dtype=torch.bool, device=r.device)
        return {
            "attraction": mean(1 - r[same & other_row]),
            "repulsion": mean(F.relu(r[~same] - self.margin)),
        }


def mean(costs: Tensor) -> Tensor:
    """Return the mean, or 0 if there are no pairs."""
    return costs.sum() / max(len(costs), 1)


def main() -> None:
    """Train both stages on the handwritten digits for a few epochs and print the accuracy."""
    with TemporaryDirectory() as folder:
        result = scs_supcon.train(
            "digits",
            out=Path(folder) / "run",
            method=f"{__file__}:MarginContrast",
            settings=["method.options.margin=0.1", "probe.epochs=5", "probe.views=1"],
            epochs=2,
            workers=0,
            report=False,
        )
        print(f"MarginContrast: accuracy {result.accuracy:.1%} on the test images")


if __name__ == "__main__":
    main()
