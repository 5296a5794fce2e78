"""Use the loss in a loop with Accelerate. Needs accelerate.

accelerate launch examples/accelerate_loop.py    (or python, for one process)
"""

import torch
from accelerate import Accelerator
from points import COMMON, accuracy, encoder, sample
from torch.utils.data import DataLoader, TensorDataset

from scs_supcon import SCSSupCon


def main() -> None:
    """Train on 40 batches and print the decision boundary and the accuracy on new points."""
    accelerator = Accelerator(cpu=True)
    network = encoder()
    loss = SCSSupCon(common_dim=COMMON, preset="learned", gather_across_devices=True)
    optimizer = torch.optim.SGD(
        [{"params": network.parameters()}, *loss.param_groups(lr=0.05)], lr=0.5, momentum=0.9
    )
    loader = DataLoader(TensorDataset(*sample(10240, seed=1)), batch_size=256)
    network, loss, optimizer, loader = accelerator.prepare(network, loss, optimizer, loader)
    for points, labels in loader:
        optimizer.zero_grad()
        accelerator.backward(loss(network(points), labels))
        optimizer.step()
    boundary = float(accelerator.unwrap_model(loss).boundary)
    correct = accuracy(network, boundary)
    accelerator.print(f"boundary {boundary:.3f}, test pairs classified correctly {correct:.1%}")


if __name__ == "__main__":
    main()
