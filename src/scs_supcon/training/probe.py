"""Stage 2: a linear classifier on frozen features, with calibrated probabilities.

By default no learning rate has to be guessed: a bank of linear heads, one per pair of learning rate
and weight decay, is trained as one layer. The validation images select a head and its temperature.
A single head with a given learning rate (`probe.classifier`) is stage 2 of the paper.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import Tensor, nn

from scs_supcon.data.sampler import plan_epoch
from scs_supcon.data.transforms import seeded
from scs_supcon.errors import UserError
from scs_supcon.inference.classifier import LinearClassifier, useful_temperature
from scs_supcon.methods import Method
from scs_supcon.methods.shared.base import ParameterGroup
from scs_supcon.nn.network import ProbeInput
from scs_supcon.progress import Display, ProgressCallback
from scs_supcon.recipe import ProbeRecipe, Recipe
from scs_supcon.runs.run_dir import RunDir
from scs_supcon.training.checkpointing import CheckpointManager
from scs_supcon.training.features import RunFeatures
from scs_supcon.training.loop import (
    Hooks,
    Stage,
    TrainPosition,
    cosine_lr,
    make_optimizer,
    train_loop,
)


@dataclass(frozen=True)
class ProbeData:
    """Training and validation data of a linear classifier.

    Attributes:
        train: (n, views, D) inputs of the training images, several views each.
        train_labels: (n,)
        val: (m, D) inputs of the validation images under the evaluation view.
        val_labels: (m,)
        classes: number of classes.
    """

    train: Tensor
    train_labels: Tensor
    val: Tensor
    val_labels: Tensor
    classes: int


@dataclass(frozen=True)
class ProbeHead:
    """One head of the bank and its scores on the validation images.

    `plain` marks the head without input standardisation: stage 2 as in the paper. `own` marks the
    classifier that the method trained in stage 1; it has no learning rate in stage 2.
    """

    lr: float
    weight_decay: float
    plain: bool
    own: bool = False
    val_accuracy: float = 0.0
    val_nll: float = 0.0
    chosen: bool = False


@dataclass(frozen=True)
class Probe:
    """The classifier that the validation images selected, and the scores of all heads."""

    classifier: LinearClassifier
    heads: tuple[ProbeHead, ...]

    @property
    def own(self) -> bool:
        """Whether the classifier is the one that the method trained in stage 1."""
        return any(head.own and head.chosen for head in self.heads)


@dataclass(frozen=True)
class ProbeBatch:
    """Inputs, labels and indices of one step."""

    inputs: Tensor
    labels: Tensor
    indices: Tensor


class HeadBank(nn.Module):
    """Linear heads with different learning rates as one layer with learning rate 1.

    A step of SGD with rate η on w is a step with rate 1 on v where w = √η v, momentum included. The
    weight decay of w is a term of the loss. Terms are means over the heads, hence the √heads.

    Inputs are centred and divided by their root mean square length, so that a learning rate means
    the same for every encoder. The first head is the plain one: it gets the inputs as they are.
    """

    rates: Tensor
    decays: Tensor
    mean: Tensor
    length: Tensor

    def __init__(self, heads: Sequence[ProbeHead], data: ProbeData) -> None:
        super().__init__()
        width, count = data.train.shape[-1], len(heads)
        rows = data.train.flatten(0, 1)
        mean = rows.mean(0)
        length = (rows - mean).square().sum(1).mean().sqrt()
        constants = {
            "rates": torch.tensor([math.sqrt(count * head.lr) for head in heads]),
            "decays": torch.tensor([head.weight_decay for head in heads]),
            "mean": mean,
            "length": torch.where(length > 0, length, 1.0),
        }
        for name, value in constants.items():
            self.register_buffer(name, value, persistent=False)
        self.weight = nn.Parameter(torch.zeros(count, data.classes, width))
        self.bias = nn.Parameter(torch.zeros(count, data.classes))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits of every head: (n, heads, classes)."""
        weight, bias = self._scaled()
        scaled = (inputs - self.mean) / self.length
        plain = F.linear(inputs, weight[0], bias[0])
        others = F.linear(scaled, weight[1:].flatten(0, 1), bias[1:].flatten())
        return torch.cat([plain, others], 1).view(len(inputs), *bias.shape)

    def weights_and_biases(self) -> tuple[Tensor, Tensor]:
        """Return weights (heads, classes, D) and biases for unscaled inputs, in float64."""
        weight, bias = (tensor.detach().cpu().double() for tensor in self._scaled())
        weight[1:] /= self.length.cpu()
        bias[1:] -= weight[1:] @ self.mean.cpu().double()
        return weight, bias

    def _scaled(self) -> tuple[Tensor, Tensor]:
        return self.weight * self.rates[:, None, None], self.bias * self.rates[:, None]

    def terms(self, batch: ProbeBatch) -> dict[str, Tensor]:
        """Return the mean cross-entropy and the mean decay ½ λ ‖w‖² of the heads."""
        logits = self(batch.inputs)
        labels = batch.labels[:, None].expand(logits.shape[:2])
        sizes = self.rates.square() * self.weight.square().sum((1, 2))
        return {
            "cross_entropy": F.cross_entropy(logits.flatten(0, 1), labels.flatten()),
            "decay": (self.decays * sizes).mean() / 2,
        }


def fit_probe(
    fabric: Fabric,
    run: RunDir,
    name: str,
    data: ProbeData,
    recipe: ProbeRecipe,
    seed: int,
    progress: ProgressCallback = lambda done, total: None,
) -> Probe:
    """Train the bank of heads, or resume it, and select a head on the validation images.

    Several processes train the same bank on the same batches: it is too small to distribute.

    Args:
        fabric: where to compute.
        run: stores checkpoints and metrics.
        name: of the stage in checkpoints and metrics: "probe", or "linear" on encoder features.
        data: training and validation inputs.
        recipe: learning rates, epochs, batch size.
        seed: determines the order of images and views.
        progress: called with (epochs done, epochs in total).
    """
    _check_data(data)
    heads = _heads(recipe)
    bank = HeadBank(heads, data).to(fabric.device)
    stage = _make_stage(fabric, name, data, recipe, seed, bank)
    with CheckpointManager(run, fabric, stage) as checkpoints:

        def after_epoch(position: TrainPosition) -> None:
            run.append_metrics(name, position.epoch, position.global_step, checkpoints.means())
            checkpoints.after_epoch(position)
            progress(position.epoch, recipe.epochs)

        hooks = Hooks(after_step=checkpoints.after_step, after_epoch=after_epoch)
        train_loop(fabric, stage, checkpoints.position, hooks)
    return _select(bank, heads, data)


def fit_probes(
    fabric: Fabric,
    run: RunDir,
    features: RunFeatures,
    classes: int,
    recipe: Recipe,
    display: Display,
) -> tuple[Probe, Probe]:
    """Fit the probe of stage 2 and, as a baseline, a linear probe on the encoder's features."""
    train, val = features["train"], features["val"]
    # The baseline is always the best of a bank: a single rate suits the features of few encoders.
    baseline = recipe.probe.model_copy(update={"classifier": "bank", "dropout": 0.0})
    stages = {
        "probe": ("stage 2", train.probe_inputs, val.probe_inputs, recipe.probe),
        "linear": ("linear probe of the encoder", train.features, val.features, baseline),
    }
    probes = []
    for name, (title, train_inputs, val_inputs, settings) in stages.items():
        data = ProbeData(train_inputs, train.labels, val_inputs[:, 0], val.labels, classes)
        with display.progress(title) as progress:
            probes.append(fit_probe(fabric, run, name, data, settings, recipe.seed, progress))
    return probes[0], probes[1]


def choose_classifier(
    probe: Probe, method: Method, probe_input: ProbeInput, val: tuple[Tensor, Tensor, Tensor]
) -> tuple[Probe, ProbeInput]:
    """Return the probe of stage 2 or the method's own classifier, and the input of the choice.

    A single-stage method has a classifier on the features. If the encoder is frozen, the probe
    classifies embeddings instead, and the choice decides what the model classifies.

    Args:
        probe: of stage 2.
        method: after stage 1.
        probe_input: input of the probe.
        val: features (m, F), probe inputs (m, D) and labels (m,) of the validation images.
    """
    features, inputs, labels = val
    own = method.linear_classifier(probe_input)
    if own is not None:
        return select_classifier(probe, own, inputs, labels), probe_input
    chosen = select_classifier(probe, method.linear_classifier("features"), features, labels)
    return chosen, "features" if chosen.own else probe_input


def select_classifier(
    probe: Probe, method_classifier: tuple[Tensor, Tensor] | None, val: Tensor, labels: Tensor
) -> Probe:
    """Return the method's own classifier, or the probe if the method has none or a worse one.

    Worse means by more than one standard error of the validation accuracy.

    Args:
        probe: of stage 2; its heads are kept for comparison.
        method_classifier: weight and bias of the classifier that the method trained in stage 1;
            None if it has none.
        val: (m, D) inputs of that classifier for the validation images.
        labels: (m,)
    """
    if method_classifier is None:
        return probe
    weight, bias = (tensor.detach().cpu().double() for tensor in method_classifier)
    logits = val.cpu().double() @ weight.T + bias
    head = _score(ProbeHead(0.0, 0.0, False, own=True), logits, labels)
    best = max(other.val_accuracy for other in probe.heads if other.chosen)
    if head.val_accuracy < best - _standard_error(best, len(labels)):
        return replace(probe, heads=(head, *probe.heads))
    others = (replace(other, chosen=False) for other in probe.heads)
    classifier = LinearClassifier(weight, bias, useful_temperature(logits, labels))
    return Probe(classifier, (replace(head, chosen=True), *others))


def _check_data(data: ProbeData) -> None:
    if not len(data.val):
        raise UserError("there are no validation images to select a classifier with: add some")
    if data.train.ndim != 3 or data.val.ndim != 2:
        shapes = tuple(data.train.shape), tuple(data.val.shape)
        raise UserError(f"probe inputs have shapes {shapes}, expected (n, views, D) and (m, D)")


def _heads(recipe: ProbeRecipe) -> tuple[ProbeHead, ...]:
    if recipe.classifier == "single":
        return (ProbeHead(recipe.plain_lr, recipe.weight_decays[0], plain=True),)
    grid = [ProbeHead(lr, decay, False) for lr in recipe.lrs for decay in recipe.weight_decays]
    return (ProbeHead(recipe.plain_lr, 0.0, True), *grid)


def _make_stage(
    fabric: Fabric, name: str, data: ProbeData, recipe: ProbeRecipe, seed: int, bank: HeadBank
) -> Stage:
    train = data.train.to(fabric.device)
    labels = data.train_labels.to(fabric.device)
    per_epoch = math.ceil(len(train) / recipe.batch_size)
    groups: list[ParameterGroup] = [{"params": list(bank.parameters()), "weight_decay": 0.0}]
    optimizer: Any = fabric.setup_optimizers(make_optimizer("sgd", groups, 1.0, recipe.momentum))

    def batches(epoch: int, skip: int) -> Iterator[ProbeBatch]:
        plan = plan_epoch(
            data.train_labels.numpy(),
            recipe.batch_size,
            kind="shuffle",
            per_class=1,
            seed=seed,
            epoch=epoch,
        )
        with seeded(seed, epoch):
            views = torch.randint(train.shape[1], (len(train),)).to(fabric.device)
        for number, (positions,) in enumerate(plan[skip:], start=skip):
            rows = torch.as_tensor(positions, device=fabric.device)
            inputs = train[rows, views[rows]]
            if recipe.dropout:
                inputs = _drop(inputs, recipe.dropout, seed, epoch, number)
            yield ProbeBatch(inputs, labels[rows], rows)

    return Stage(
        name=name,
        modules={"bank": bank},
        losses=bank.terms,
        optimizer=optimizer,
        schedule=lambda step: cosine_lr(step, recipe.epochs * per_epoch, 0, 1.0),
        batches=batches,
        epochs=recipe.epochs,
    )


def _drop(inputs: Tensor, share: float, *seeds: int) -> Tensor:
    """Return inputs with dropout, whose random numbers depend on the seeds only."""
    with seeded(*seeds):
        kept = torch.rand(inputs.shape) >= share
    return inputs * kept.to(inputs.device) / (1 - share)


def _select(bank: HeadBank, heads: tuple[ProbeHead, ...], data: ProbeData) -> Probe:
    """Score every head on the validation images, select the best and calibrate it."""
    weights, biases = bank.weights_and_biases()
    val, labels = data.val.cpu().double(), data.val_labels.cpu()
    logits = [val @ weight.T + bias for weight, bias in zip(weights, biases, strict=True)]
    scored = [_score(*pair, labels) for pair in zip(heads, logits, strict=True)]
    best = _best(scored, len(labels))
    scored[best] = replace(scored[best], chosen=True)
    temperature = useful_temperature(logits[best], labels)
    return Probe(LinearClassifier(weights[best], biases[best], temperature), tuple(scored))


def _score(head: ProbeHead, logits: Tensor, labels: Tensor) -> ProbeHead:
    accuracy = float((logits.argmax(1) == labels).double().mean())
    return replace(head, val_accuracy=accuracy, val_nll=float(F.cross_entropy(logits, labels)))


def _best(heads: list[ProbeHead], images: int) -> int:
    """Return the head with the lowest NLL among those within one standard error of the best.

    A difference of a few correct images is chance; the likelihood uses every image.
    """
    top = max(head.val_accuracy for head in heads)
    candidates = [
        k for k, head in enumerate(heads) if head.val_accuracy >= top - _standard_error(top, images)
    ]
    return min(candidates, key=lambda k: (heads[k].val_nll, -heads[k].val_accuracy))


def _standard_error(accuracy: float, images: int) -> float:
    return math.sqrt(accuracy * (1 - accuracy) / images)
