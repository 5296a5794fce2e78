"""Compare the choices of docs/paper_choices.md on synthetic classes: accuracy, final t and b.

    python benchmarks/paper_choices.py                            # 400 steps, under a minute
    python benchmarks/paper_choices.py --steps 800 --datasets 3

Prints a Markdown table. It shows mechanisms, such as the plateau of Eq. 4 as printed, not
accuracies on images; differences of one or two points are noise.
"""

import argparse
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scs_supcon import SCSSupCon, SupCon
from scs_supcon.methods import Method

CLASSES, SIGNAL, STYLE, INPUTS = 20, 16, 16, 64
COMMON, EMBEDDING = 48, 64
SAMPLES, BATCH, LR, WARM_UP = 4000, 256, 0.5, 40
SPREAD, VIEW_NOISE = 1.0, 0.15

VARIANTS: dict[str, Callable[[], Method]] = {
    "SupCon, temperature 0.1": lambda: SupCon(temperature=0.1),
    "`paper`": lambda: SCSSupCon(COMMON, preset="paper"),
    "`paper`, t and b frozen at (0.1, 0)": lambda: SCSSupCon(COMMON, preset="paper", bias="fixed"),
    '`paper`, `pairs="balanced"`': lambda: SCSSupCon(COMMON, preset="paper", pairs="balanced"),
    "scale 10, b = 0, both fixed": lambda: SCSSupCon(COMMON, preset="paper", t0=10, bias="fixed"),
    "`learned`": lambda: SCSSupCon(COMMON, preset="learned"),
    "t0 = 10, b0 = ln 19, learned": lambda: SCSSupCon(
        COMMON, preset="paper", t0=10, b0=math.log(CLASSES - 1)
    ),
    "`solved`, centred": lambda: SCSSupCon(COMMON, preset="solved"),
}


class Data(NamedTuple):
    """Samples and labels for training and testing."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor


class Outcome(NamedTuple):
    """Accuracy of a linear classifier on the unit common field, and the final t and b."""

    accuracy: float
    t: float
    b: float


def make_data(seed: int) -> Data:
    """Return samples around random class centres, mixed with style through a tanh."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    centres = normal(CLASSES, SIGNAL)
    mixing = normal(SIGNAL + STYLE, INPUTS) / math.sqrt(SIGNAL)
    labels = torch.randint(CLASSES, (2 * SAMPLES,), generator=generator)
    signal = centres[labels] + SPREAD * normal(2 * SAMPLES, SIGNAL)
    inputs = torch.tanh(torch.cat([signal, normal(2 * SAMPLES, STYLE)], 1) @ mixing)
    return Data(inputs[:SAMPLES], labels[:SAMPLES], inputs[SAMPLES:], labels[SAMPLES:])


def train(method: Method, data: Data, steps: int, centre: bool) -> Outcome:
    """Train an encoder and a head with the method, then a linear classifier on the result."""
    torch.manual_seed(0)
    head = [nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, EMBEDDING)]
    if centre:
        head.append(nn.BatchNorm1d(EMBEDDING, affine=False))
    network = nn.Sequential(
        *(nn.Linear(INPUTS, 256), nn.BatchNorm1d(256), nn.ReLU()),
        *(nn.Linear(256, 128), nn.BatchNorm1d(128), nn.ReLU()),
        *head,
    )
    groups = [{"params": network.parameters(), "weight_decay": 1e-4}, *method.param_groups(lr=LR)]
    optimizer = torch.optim.SGD(groups, lr=LR, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(1, (step + 1) / WARM_UP) * (1 + math.cos(math.pi * step / steps)) / 2,
    )
    for _ in range(steps):
        chosen = torch.randint(SAMPLES, (BATCH,))
        views = data.train[chosen].repeat(2, 1)
        embeddings = network(views + VIEW_NOISE * torch.randn_like(views))
        value = method(embeddings, data.train_labels[chosen].repeat(2))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        schedule.step()
    network.eval()
    with torch.no_grad():
        width = COMMON if isinstance(method, SCSSupCon) else EMBEDDING
        train_rows, test_rows = (
            F.normalize(network(rows)[:, :width], dim=1) for rows in (data.train, data.test)
        )
    accuracy = linear_probe(train_rows, data.train_labels, test_rows, data.test_labels)
    scalars = method.scalars()
    return Outcome(accuracy, scalars.get("t", math.nan), scalars.get("b", math.nan))


def linear_probe(rows: Tensor, labels: Tensor, test: Tensor, test_labels: Tensor) -> float:
    """Return the test accuracy in % of a linear classifier trained on the rows."""
    classifier = nn.Linear(rows.shape[1], CLASSES)
    optimizer = torch.optim.LBFGS(classifier.parameters(), max_iter=100, history_size=10)

    def closure() -> Tensor:
        optimizer.zero_grad()
        decay = 1e-4 * classifier.weight.square().sum()
        value = F.cross_entropy(classifier(rows), labels) + decay
        value.backward()
        return value

    optimizer.step(closure)
    return 100 * float((classifier(test).argmax(1) == test_labels).float().mean())


def main() -> None:
    """Train every variant on every dataset and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--datasets", type=int, default=1)
    options = parser.parse_args()
    print("| variant | accuracy, % | final t | final b |\n|---|---|---|---|")
    for name, build in VARIANTS.items():
        outcomes = [
            train(build(), make_data(seed), options.steps, centre="centred" in name)
            for seed in range(options.datasets)
        ]
        cells = (
            " / ".join(f"{outcome.accuracy:.1f}" for outcome in outcomes),
            " / ".join(f"{outcome.t:.3g}" for outcome in outcomes),
            " / ".join(f"{outcome.b:.2f}" for outcome in outcomes),
        )
        print(f"| {name} | {' | '.join(cells)} |".replace("nan", "–"), flush=True)


if __name__ == "__main__":
    main()
