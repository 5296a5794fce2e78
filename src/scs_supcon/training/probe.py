"""Stage 2: the frozen readout -> a linear classifier with honest probabilities.

Nobody has to guess a learning rate: a bank of linear heads, one for each pair of learning rate and
weight decay, trains together as one layer. Validation chooses one of them, and its temperature.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import Tensor, nn

from scs_supcon.data.sampler import plan_epoch
from scs_supcon.data.transforms import seeded
from scs_supcon.errors import UserError
from scs_supcon.evaluation.calibration import fit_temperature
from scs_supcon.recipe import ProbeRecipe
from scs_supcon.runs.run_dir import RunDir
from scs_supcon.training.checkpointing import CheckpointManager
from scs_supcon.training.loop import Hooks, Progress, Stage, cosine_lr, make_optimizer, optimise


@dataclass(frozen=True)
class Readouts:
    """What a linear classifier learns from and is chosen on.

    Attributes:
        name: of the stage in checkpoints and metrics: "probe", or "linear" on encoder features.
        train: (n, views, D) readout of each training image under several views.
        train_labels: (n,)
        val: (m, D) readout of each validation image under the evaluation view.
        val_labels: (m,)
        classes: how many there are.
    """

    name: str
    train: Tensor
    train_labels: Tensor
    val: Tensor
    val_labels: Tensor
    classes: int


@dataclass(frozen=True)
class Member:
    """One head of the bank and how it did on validation.

    `plain` marks the head that saw the readout as it is: the paper's own stage 2. `own` marks the
    classifier that stage 1 has trained; it has no rates in stage 2.
    """

    lr: float
    weight_decay: float
    plain: bool
    own: bool = False
    val_accuracy: float = 0.0
    val_nll: float = 0.0
    chosen: bool = False


@dataclass(frozen=True)
class Classifier:
    """The chosen head, float64 on the CPU: p = softmax((W x + a) / temperature)."""

    weight: Tensor
    bias: Tensor
    temperature: float
    bank: tuple[Member, ...]

    def logits(self, readout: Tensor) -> Tensor:
        """Return calibrated logits (n, classes) of readouts (n, D)."""
        return (readout.cpu().double() @ self.weight.T + self.bias) / self.temperature

    def probabilities(self, readout: Tensor) -> Tensor:
        """Return calibrated probabilities (n, classes) of readouts (n, D)."""
        return self.logits(readout).softmax(1)


@dataclass(frozen=True)
class _Batch:
    readout: Tensor
    labels: Tensor
    indices: Tensor


class Bank(nn.Module):
    """Heads with rates of their own as one layer that trains at rate 1.

    A step of SGD at rate η on w is a step at rate 1 on v where w = √η v, momentum included. The
    decay that belongs to w is a term of the loss. Terms are means over the heads, hence the √heads.

    The readout is centred and divided by its usual length, so that rates mean the same for every
    encoder. The first head is the plain one: it sees the readout as it is.
    """

    rates: Tensor
    decays: Tensor
    mean: Tensor
    length: Tensor

    def __init__(self, members: Sequence[Member], readouts: Readouts) -> None:
        super().__init__()
        width, heads = readouts.train.shape[-1], len(members)
        rows = readouts.train.flatten(0, 1)
        mean = rows.mean(0)
        length = (rows - mean).square().sum(1).mean().sqrt()
        constants = {
            "rates": torch.tensor([math.sqrt(heads * member.lr) for member in members]),
            "decays": torch.tensor([member.weight_decay for member in members]),
            "mean": mean,
            "length": torch.where(length > 0, length, 1.0),
        }
        for name, value in constants.items():
            self.register_buffer(name, value, persistent=False)
        self.weight = nn.Parameter(torch.zeros(heads, readouts.classes, width))
        self.bias = nn.Parameter(torch.zeros(heads, readouts.classes))

    def forward(self, readout: Tensor) -> Tensor:
        """Return the logits of every head: (n, heads, classes)."""
        weight, bias = self._scaled()
        scaled = (readout - self.mean) / self.length
        plain = F.linear(readout, weight[0], bias[0])
        others = F.linear(scaled, weight[1:].flatten(0, 1), bias[1:].flatten())
        return torch.cat([plain, others], 1).view(len(readout), *bias.shape)

    def heads(self) -> tuple[Tensor, Tensor]:
        """Return float64 weights (heads, classes, D) and biases for the readout as it is."""
        weight, bias = (part.detach().cpu().double() for part in self._scaled())
        weight[1:] /= self.length.cpu()
        bias[1:] -= weight[1:] @ self.mean.cpu().double()
        return weight, bias

    def _scaled(self) -> tuple[Tensor, Tensor]:
        return self.weight * self.rates[:, None, None], self.bias * self.rates[:, None]

    def terms(self, batch: _Batch) -> dict[str, Tensor]:
        """Return mean cross-entropy and mean decay ½ λ ‖w‖² of the heads."""
        logits = self(batch.readout)
        labels = batch.labels[:, None].expand(logits.shape[:2])
        sizes = self.rates.square() * self.weight.square().sum((1, 2))
        return {
            "cross_entropy": F.cross_entropy(logits.flatten(0, 1), labels.flatten()),
            "decay": (self.decays * sizes).mean() / 2,
        }


def train_bank(
    fabric: Fabric,
    run: RunDir,
    readouts: Readouts,
    probe: ProbeRecipe,
    seed: int,
    after_epoch: Callable[[Progress], None] = lambda _: None,
) -> Classifier:
    """Train the bank, or take it up where it was left, and choose on validation.

    Several processes train the same bank on the same batches: it is too small to be shared out.

    Args:
        fabric: where to compute.
        run: keeps the checkpoints and the metrics.
        readouts: what to learn from.
        probe: rates, epochs, batch size.
        seed: decides the order of images and views.
        after_epoch: told where the stage stands, for a progress bar.
    """
    _check(readouts)
    members = _members(probe)
    bank = Bank(members, readouts).to(fabric.device)
    stage = _stage(fabric, readouts, probe, seed, bank)
    with CheckpointManager(run, fabric, stage) as checkpoints:

        def note(progress: Progress) -> None:
            run.append_metrics(
                stage.name, progress.epoch, progress.global_step, checkpoints.means()
            )
            checkpoints.after_epoch(progress)
            after_epoch(progress)

        optimise(
            fabric,
            stage,
            checkpoints.progress,
            Hooks(after_step=checkpoints.after_step, after_epoch=note),
        )
    return _choose(bank, members, readouts)


def with_own(
    probe: Classifier, own: tuple[Tensor, Tensor], val: Tensor, labels: Tensor
) -> Classifier:
    """Take the classifier that stage 1 has trained, unless it is clearly behind that of stage 2.

    Clearly is by more than one standard error of the accuracy on validation.

    Args:
        probe: of stage 2; its bank stays, for comparison.
        own: weight and bias.
        val: (m, D) readout of each validation image.
        labels: (m,)
    """
    weight, bias = (part.detach().cpu().double() for part in own)
    logits = val.cpu().double() @ weight.T + bias
    member = _judged(Member(0.0, 0.0, False, own=True), logits, labels)
    best = max(other.val_accuracy for other in probe.bank if other.chosen)
    if member.val_accuracy < best - _standard_error(best, len(labels)):
        return replace(probe, bank=(member, *probe.bank))
    others = (replace(other, chosen=False) for other in probe.bank)
    bank = (replace(member, chosen=True), *others)
    return Classifier(weight, bias, fit_temperature(logits, labels), bank)


def _check(readouts: Readouts) -> None:
    if not len(readouts.val):
        raise UserError("there is no validation image to choose a classifier on: give some")
    if readouts.train.ndim != 3 or readouts.val.ndim != 2:
        shapes = tuple(readouts.train.shape), tuple(readouts.val.shape)
        raise UserError(f"readouts are {shapes}: give (n, views, D) and (m, D)")


def _members(probe: ProbeRecipe) -> tuple[Member, ...]:
    grid = [Member(lr, decay, False) for lr in probe.lrs for decay in probe.weight_decays]
    return (Member(probe.plain_lr, 0.0, True), *grid)


def _stage(fabric: Fabric, readouts: Readouts, probe: ProbeRecipe, seed: int, bank: Bank) -> Stage:
    train = readouts.train.to(fabric.device)
    labels = readouts.train_labels.to(fabric.device)
    per_epoch = math.ceil(len(train) / probe.batch_size)
    groups = [{"params": list(bank.parameters()), "weight_decay": 0.0}]
    optimizer: Any = fabric.setup_optimizers(make_optimizer("sgd", groups, 1.0, probe.momentum))

    def batches(epoch: int, skip: int) -> Iterator[_Batch]:
        plan = plan_epoch(
            readouts.train_labels.numpy(),
            probe.batch_size,
            kind="shuffle",
            per_class=1,
            seed=seed,
            epoch=epoch,
        )
        with seeded(seed, epoch):
            views = torch.randint(train.shape[1], (len(train),)).to(fabric.device)
        for (positions,) in plan[skip:]:
            rows = torch.as_tensor(positions, device=fabric.device)
            yield _Batch(train[rows, views[rows]], labels[rows], rows)

    return Stage(
        name=readouts.name,
        modules={"bank": bank},
        losses=bank.terms,
        optimizer=optimizer,
        schedule=lambda step: cosine_lr(step, probe.epochs * per_epoch, 0, 1.0),
        batches=batches,
        epochs=probe.epochs,
    )


def _choose(bank: Bank, members: tuple[Member, ...], readouts: Readouts) -> Classifier:
    """Judge every head on validation, take the best and calibrate it."""
    weights, biases = bank.heads()
    val, labels = readouts.val.cpu().double(), readouts.val_labels.cpu()
    logits = [val @ weight.T + bias for weight, bias in zip(weights, biases, strict=True)]
    judged = [_judged(*pair, labels) for pair in zip(members, logits, strict=True)]
    best = _best(judged, len(labels))
    judged[best] = replace(judged[best], chosen=True)
    temperature = fit_temperature(logits[best], labels)
    return Classifier(weights[best], biases[best], temperature, tuple(judged))


def _judged(member: Member, logits: Tensor, labels: Tensor) -> Member:
    accuracy = float((logits.argmax(1) == labels).double().mean())
    return replace(member, val_accuracy=accuracy, val_nll=float(F.cross_entropy(logits, labels)))


def _best(judged: list[Member], images: int) -> int:
    """The most likely head of those within one standard error of the best accuracy.

    A few images more or less right are chance; the likelihood counts every image.
    """
    top = max(member.val_accuracy for member in judged)
    level = [
        k
        for k, member in enumerate(judged)
        if member.val_accuracy >= top - _standard_error(top, images)
    ]
    return min(level, key=lambda k: (judged[k].val_nll, -judged[k].val_accuracy))


def _standard_error(accuracy: float, images: int) -> float:
    return math.sqrt(accuracy * (1 - accuracy) / images)
