"""What one would write instead of `scs train`: the loops that benchmarks/pipeline.py compares with.

They are written for this comparison in the manner of timm's and SupContrast's scripts, lightly's
transforms and airbench's loader, and do what those do on a CPU, with the same encoder and weights.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from timm.data import create_transform, resolve_model_data_config
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from scs_supcon.nn.encoder import Encoder

C_GRID = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
LINEAR_EPOCHS = 100
Timer = Callable[[str], Any]
Transform = Callable[[Image.Image], Tensor]


class ImageViews(Dataset[tuple[Tensor, int]]):
    """Views of image files, one tensor (views, 3, H, W) per image, and the label."""

    def __init__(
        self, paths: Sequence[Path], labels: Sequence[int], views: Sequence[Transform], timer: Timer
    ) -> None:
        self.paths, self.labels, self.views, self.timer = paths, labels, views, timer

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with self.timer("decode"), Image.open(self.paths[index]) as file:
            image = file.convert("RGB")
        with self.timer("augment"):
            views = torch.stack([view(image) for view in self.views])
        return views, self.labels[index]


def timm_model(encoder: Encoder) -> nn.Module:
    """Return timm's model with the weights of our encoder."""
    model = timm.create_model(encoder.name, num_classes=0)
    model.load_state_dict(encoder.body.state_dict())
    return model


def timm_transforms(model: nn.Module) -> tuple[Transform, Transform]:
    """Return timm's transforms for evaluation and for training."""
    config = resolve_model_data_config(model)
    training = create_transform(**config, is_training=True, color_jitter=0.4)
    return create_transform(**config, is_training=False), training


def two_crop_transform(model: nn.Module) -> Transform:
    """Return the transform of SupContrast and lightly's SimCLR: crop, flip, jitter, grey."""
    config = resolve_model_data_config(model)
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(config["input_size"][-1], scale=(0.2, 1.0)),
            transforms.RandomHorizontalFlip(),
            transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
            transforms.RandomGrayscale(p=0.2),
            transforms.ToTensor(),
            transforms.Normalize(config["mean"], config["std"]),
        ]
    )


def loader(views: ImageViews, batch_size: int, workers: int, shuffle: bool = False) -> Any:
    """Return a plain DataLoader."""
    return DataLoader(views, batch_size, shuffle=shuffle, num_workers=workers, drop_last=shuffle)


def extract(
    model: nn.Module, batches: Any, layout: torch.memory_format, timer: Timer
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the features (n, views, F) and labels of all images."""
    model = model.eval().to(memory_format=layout)
    features, labels = [], []
    for images, targets in batches:
        with timer("forward"), torch.inference_mode():
            rows = model(images.flatten(0, 1).contiguous(memory_format=layout))
        features.append(rows.view(*images.shape[:2], -1).numpy())
        labels.append(targets.numpy())
    return np.concatenate(features), np.concatenate(labels)


def logistic_regression(
    train: tuple[NDArray[np.float32], NDArray[np.int64]],
    val: tuple[NDArray[np.float32], NDArray[np.int64]],
    test: tuple[NDArray[np.float32], NDArray[np.int64]],
) -> float:
    """Return the test accuracy of the C that is best on the validation images.

    Args:
        train: features (n, views, F) and labels.
        val: the same of the validation images; their first view is used.
        test: the same of the test images.
    """
    rows = train[0].reshape(-1, train[0].shape[-1])
    labels = np.repeat(train[1], train[0].shape[1])
    models = [
        make_pipeline(StandardScaler(), LogisticRegression(C=c, max_iter=1000)).fit(rows, labels)
        for c in C_GRID
    ]
    best = max(models, key=lambda model: model.score(val[0][:, 0], val[1]))
    return float(best.score(test[0][:, 0], test[1]))


def linear_classifier(
    train: tuple[NDArray[np.float32], NDArray[np.int64]],
    test: tuple[NDArray[np.float32], NDArray[np.int64]],
) -> float:
    """Return the test accuracy of a linear layer trained with SGD, as SupContrast's second stage.

    SupContrast runs the encoder again in each of these epochs; here the features are kept.
    """
    rows = torch.from_numpy(train[0])
    labels = torch.from_numpy(train[1])
    layer = nn.Linear(rows.shape[-1], int(labels.max()) + 1)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, LINEAR_EPOCHS)
    for _ in range(LINEAR_EPOCHS):
        for batch in torch.randperm(len(rows)).split(256):
            view = int(torch.randint(rows.shape[1], ()))
            optimizer.zero_grad()
            F.cross_entropy(layer(rows[batch, view]), labels[batch]).backward()
            optimizer.step()
        schedule.step()
    with torch.no_grad():
        predicted = layer(torch.from_numpy(test[0][:, 0])).argmax(1)
    return float((predicted.numpy() == test[1]).mean())


class Contrastive(nn.Module):
    """Encoder and projection head of SupContrast."""

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 128))

    def forward(self, images: Tensor) -> Tensor:
        return F.normalize(self.head(self.body(images)))


def supcon_loss(z: Tensor, labels: Tensor, temperature: float = 0.1) -> Tensor:
    """Return the supervised contrastive loss (Khosla et al. 2020) of unit vectors."""
    logits = z @ z.T / temperature
    itself = torch.eye(len(z), dtype=torch.bool)
    log_p = logits - logits.masked_fill(itself, -torch.inf).logsumexp(1, keepdim=True)
    positive = (labels[:, None] == labels) & ~itself
    return -(log_p * positive).sum(1).div(positive.sum(1)).mean()


def train_steps(
    model: nn.Module,
    batches: Iterator[tuple[Tensor, Tensor]],
    loss: Callable[[Tensor, Tensor], Tensor],
    steps: int,
    timer: Timer,
) -> None:
    """Train for some steps on batches (n, views, 3, H, W); all first views come first."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=1e-4)
    for _ in range(steps):
        images, labels = next(batches)
        views = images.shape[1]
        with timer("forward"):
            outputs = model(images.transpose(0, 1).flatten(0, 1))
        with timer("loss"):
            value = loss(outputs, labels.repeat(views))
            optimizer.zero_grad()
        with timer("backward"):
            value.backward()
        with timer("optimiser"):
            optimizer.step()
            value.item()


class TensorBatches:
    """All images in memory; flips and shifts of a whole epoch at once, as airbench's loader."""

    def __init__(self, pixels: Tensor, labels: Tensor, mean: Tensor, std: Tensor, batch: int):
        images = pixels.float().div_(255).sub_(mean).div_(std)
        self.padded = F.pad(images, (2,) * 4, "reflect")
        self.labels, self.batch = labels, batch

    def epoch(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of one epoch, without the last incomplete one."""
        images = self._shift(self.padded)
        flips = torch.rand(len(images), 1, 1, 1) < 0.5
        images = torch.where(flips, images.flip(-1), images)
        order = torch.randperm(len(images))
        for start in range(0, len(images) - self.batch + 1, self.batch):
            rows = order[start : start + self.batch]
            yield images[rows], self.labels[rows]

    @staticmethod
    def _shift(padded: Tensor) -> Tensor:
        side = padded.shape[-1] - 4
        shifts = torch.randint(5, (2, len(padded)))
        images = padded.new_empty(*padded.shape[:2], side, side)
        for top in range(5):
            for left in range(5):
                chosen = (shifts[0] == top) & (shifts[1] == left)
                images[chosen] = padded[chosen, :, top : top + side, left : left + side]
        return images


def train_on_tensors(
    encoder: nn.Module, width: int, classes: int, batches: TensorBatches, epochs: int, timer: Timer
) -> float:
    """Train encoder and linear classifier with cross-entropy; return the last loss."""
    model = nn.Sequential(encoder, nn.Linear(width, classes)).train()
    optimizer = torch.optim.SGD(
        model.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=1e-4
    )
    value = 0.0
    for _ in range(epochs):
        for images, labels in batches.epoch():
            with timer("forward"):
                outputs = model(images)
            loss = F.cross_entropy(outputs, labels)
            optimizer.zero_grad(set_to_none=True)
            with timer("backward"):
                loss.backward()
            optimizer.step()
            value = loss.item()
    return value
