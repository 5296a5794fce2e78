"""Use the loss with a miner and a memory of pytorch-metric-learning.

python examples/metric_learning.py
"""

import torch
from points import COMMON, accuracy, encoder, sample
from pytorch_metric_learning.miners import MultiSimilarityMiner

from scs_supcon import MetricLearningLoss, SCSSupCon
from scs_supcon.pml import CrossBatchMemory


def main() -> None:
    """Train with mined pairs of each batch and the last 1,024 rows; print the accuracy."""
    network = encoder()
    method = SCSSupCon(common_dim=COMMON)  # b is solved from the mined pairs
    memory = CrossBatchMemory(
        MetricLearningLoss(method),
        embedding_size=32,
        memory_size=1024,
        miner=MultiSimilarityMiner(),
    )
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    for step in range(60):
        points, labels = sample(256, seed=step)
        optimizer.zero_grad()
        memory(network(points), labels).backward()
        optimizer.step()
    method(network(points), labels)  # the boundary of all pairs, not only of hard ones
    boundary = float(method.boundary)
    correct = accuracy(network, boundary)
    print(f"boundary {boundary:.3f}, test pairs classified correctly {correct:.1%}")


if __name__ == "__main__":
    main()
