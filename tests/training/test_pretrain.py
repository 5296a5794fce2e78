"""Stage 1: views, batches and workers; training changes network and method."""

import csv
import dataclasses
import multiprocessing
import os
import pickle
import signal
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from torch import nn

from scs_supcon.data.builtin import shapes
from scs_supcon.data.image_io import ImageError
from scs_supcon.data.load import load_images
from scs_supcon.data.sampler import plan_epoch
from scs_supcon.data.transforms import ViewDataset, eval_view, seeded, train_view
from scs_supcon.errors import UserError
from scs_supcon.methods import Method, Network, Output, TaskInfo, build_method
from scs_supcon.progress import Display
from scs_supcon.recipe import make_recipe, write_toml
from scs_supcon.runs.metrics_log import STEP_METRICS
from scs_supcon.runs.run_dir import RunDir
from scs_supcon.training.pretrain import (
    pretrain,
    set_up_method,
    training_set_from_features,
    training_set_from_images,
)

IMAGES = shapes(per_class=4)
INDICES = np.arange(1, 24, 2)  # two of each class


def recipe(seed=0, encoder=None, **pretrain):
    return make_recipe(
        {
            "seed": seed,
            "data": {"source": "shapes", "image_size": 8},
            "encoder": encoder or {},
            "pretrain": {"epochs": 2, "batch_size": 6, "lr": 0.1} | pretrain,
        }
    )


def plan(epoch=0, world=1):
    labels = IMAGES.labels[INDICES]
    return plan_epoch(labels, 5, kind="shuffle", per_class=2, seed=0, epoch=epoch, world=world)


def images_set(seed=0, workers=0, views=2):
    return training_set_from_images(IMAGES, INDICES, recipe(seed), views, workers)


def memory_set(seed=0, views=2):
    settings = recipe(seed)
    data = settings.data.model_copy(update={"in_memory": True})
    settings = settings.model_copy(update={"data": data})
    return training_set_from_images(IMAGES, INDICES, settings, views, 2)


def features_set(seed=0, views=2, cached=4, **encoder):
    """Features that hold their origin: (position, number of the view)."""
    rows, columns = torch.meshgrid(
        torch.arange(len(INDICES)), torch.arange(1 + cached), indexing="ij"
    )
    features = torch.stack([rows, columns], -1).float()
    return training_set_from_features(features, IMAGES, INDICES, recipe(seed, encoder), views)


def batches(training, epoch=0, rank=0, world=1, skip=0):
    return list(training.batches(plan(epoch, world), epoch, rank, skip))


def same(first, second):
    pairs = zip(first, second, strict=True)
    return all(
        torch.equal(a.images, b.images) and torch.equal(a.labels, b.labels) for a, b in pairs
    )


def test_a_view_depends_only_on_seed_epoch_image_and_view_number():
    (first, *_) = batches(images_set(), epoch=3)
    view = train_view(recipe().data)
    count = len(first.labels)
    for row, position in enumerate(first.indices.tolist()):
        index = int(INDICES[position])
        assert first.labels[row] == IMAGES.labels[index]
        for number in range(2):
            with seeded(0, 3, index, number, 0):
                expected = view(IMAGES.open(index))
            assert torch.equal(first.images[number * count + row], expected), "view-major order"


@pytest.mark.parametrize("make", [images_set, memory_set, features_set])
def test_an_epoch_has_every_image_once_with_the_views_of_the_method(make):
    for views in (1, 3):
        epoch = batches(make(views=views))
        positions = torch.cat([batch.indices for batch in epoch])
        assert sorted(positions.tolist()) == list(range(len(INDICES)))
        assert all(len(batch.images) == views * len(batch.labels) for batch in epoch)
        labels = torch.cat([batch.labels for batch in epoch])
        assert labels.tolist() == IMAGES.labels[INDICES][positions].tolist()


@pytest.mark.parametrize("make", [images_set, memory_set, features_set])
def test_skipping_batches_returns_the_rest_of_the_epoch(make):
    whole = batches(make(), epoch=1)
    assert same(batches(make(), epoch=1, skip=2), whole[2:])


@pytest.mark.parametrize("make", [images_set, memory_set, features_set])
def test_epochs_and_seeds_have_different_views(make):
    plain = [batch.images for batch in make().batches(plan(), 0, 0, 0)]
    for other in (make().batches(plan(), 1, 0, 0), make(seed=1).batches(plan(), 0, 0, 0)):
        assert not all(torch.equal(a, b.images) for a, b in zip(plain, other, strict=True))


@pytest.mark.parametrize("make", [images_set, memory_set, features_set])
def test_processes_split_the_rows_of_every_batch(make):
    single = batches(make())
    ranks = [batches(make(), rank=rank, world=2) for rank in range(2)]
    for whole, left, right in zip(single, *ranks, strict=True):
        assert torch.equal(torch.cat([left.indices, right.indices]), whole.indices)
        views = [
            torch.cat(pair)
            for pair in zip(*(p.images.chunk(2) for p in (left, right)), strict=True)
        ]
        assert torch.equal(torch.cat(views), whole.images)


def test_images_in_memory_have_the_same_evaluation_views():
    outputs = [training.apply_network(NoHead()) for training in (images_set(), memory_set())]
    assert torch.equal(outputs[0].features, outputs[1].features)


class NoHead(nn.Module):
    """Returns the images as features."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(()))

    def forward(self, images):
        return Output(images, images)


def test_workers_produce_the_same_views():
    assert same(batches(images_set(workers=2)), batches(images_set()))


PLAIN = {"frozen_mix": False, "frozen_dropout": 0.0}


def failing(failure):
    """Return a training set in which opening the fourth image fails."""

    def open_image(index, at_least=0):
        if index == INDICES[3]:
            failure()
        return IMAGES.open(index, at_least)

    images = dataclasses.replace(IMAGES, open=open_image)
    return lambda workers: training_set_from_images(images, INDICES, recipe(), 2, workers)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_missing_image_is_reported_without_a_traceback(workers):
    def missing():
        raise ImageError("x.png does not exist")

    others = set(multiprocessing.active_children())  # of other tests
    with pytest.raises(UserError, match=r"^x\.png does not exist$"):
        batches(failing(missing)(workers))
    for worker in set(multiprocessing.active_children()) - others:
        worker.join(60)
        assert not worker.is_alive(), "no worker is left"


def test_a_killed_worker_is_an_error_with_advice():
    main = os.getpid()

    def die():
        assert os.getpid() != main
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(UserError, match=r"was killed.*same command again with fewer --workers"):
        batches(failing(die)(2))


def test_other_errors_are_not_hidden():
    def bug():
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        batches(failing(bug)(0))


def test_cached_views_are_random_and_differ_within_an_image():
    for batch in batches(features_set(**PLAIN)):
        rows, numbers = batch.images.unbind(-1)
        first, second = numbers.chunk(2)
        assert (numbers >= 1).all(), "the evaluation view is not used for training"
        assert (first != second).all()
        assert torch.equal(rows, batch.indices.repeat(2).float())


def test_cached_views_repeat_if_there_are_too_few():
    for batch in batches(features_set(views=3, cached=1, **PLAIN)):
        assert (batch.images[:, 1] == 1).all()


def test_mixed_views_lie_between_two_views_of_the_same_image():
    numbers = []
    for batch in batches(features_set(frozen_mix=True, frozen_dropout=0.0)):
        rows, between = batch.images.unbind(-1)
        assert torch.allclose(rows, batch.indices.repeat(2).float())
        numbers.append(between)
    drawn_numbers = torch.cat(numbers)
    assert drawn_numbers.min() >= 0
    assert drawn_numbers.max() <= 4
    assert (drawn_numbers.frac() != 0).any()


def test_dropped_features_are_compensated_by_the_others():
    ones = torch.ones(len(INDICES), 3, 1000)
    settings = recipe(encoder={"frozen_mix": True, "frozen_dropout": 0.25})
    (first, *_) = batches(training_set_from_features(ones, IMAGES, INDICES, settings, 2))
    remaining = first.images[first.images != 0]
    assert torch.allclose(remaining, torch.tensor(1 / 0.75))
    assert len(remaining) / first.images.numel() == pytest.approx(0.75, abs=0.02)


class Counting(nn.Module):
    """The mean of each channel, and whether it was training."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.modes = []

    def forward(self, images):
        self.modes.append(self.training)
        return self.scale * (images.mean((2, 3)) if images.ndim == 4 else images)


@pytest.mark.parametrize("training", [True, False])
def test_a_network_is_applied_to_the_evaluation_view_of_every_image_in_order(training):
    network = Network(Counting(), nn.Identity()).train(training)
    output = images_set().apply_network(network)
    view = eval_view(recipe().data)
    expected = torch.stack([view(IMAGES.open(int(i))).mean((1, 2)) for i in INDICES])
    assert torch.allclose(output.embeddings, expected, atol=1e-6)
    assert not any(network.encoder.modes)
    assert network.training == training
    assert not output.features.requires_grad
    cached = features_set().apply_network(Network(Counting(), nn.Identity()))
    assert cached.features.tolist() == [[row, 0] for row in range(len(INDICES))]


def small_network():
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 6))
    return Network(encoder, nn.Linear(6, 256))


class RecordingDisplay(Display):
    def __init__(self):
        super().__init__(quiet=True)
        self.calls = []

    @contextmanager
    def progress(self, title):
        yield lambda done, total, note="": self.calls.append((done, total))


def train(folder, network, method, settings, training_set=None, display=None):
    fabric = Fabric(accelerator="cpu", devices=1)
    training_set = training_set or training_set_from_images(
        IMAGES, INDICES, settings, method.views, 0
    )
    with RunDir.open(folder, write_toml(settings)) as run:
        pretrain(fabric, run, network, method, training_set, settings, display)


def test_network_and_method_are_trained_and_left_in_eval_mode(tmp_path):
    network, method = small_network(), build_method("scs_supcon", "learned", common_dim=192)
    before = [p.detach().clone() for p in (*network.parameters(), *method.parameters())]
    display = RecordingDisplay()
    train(tmp_path, network, method, recipe(), display=display)
    after = [*network.parameters(), *method.parameters()]
    assert all(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert not network.training
    assert not method.training
    assert display.calls == [(done, 4) for done in range(5)], "two epochs of two batches"


def test_each_epoch_logs_mean_terms_scalars_and_learning_rate(tmp_path):
    method = build_method("scs_supcon", common_dim=192)
    train(tmp_path, small_network(), method, recipe(warmup_epochs=1))
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["stage"] for row in rows} == {"pretrain"}
    steps = [row["step"] for row in rows if row["metric"] == "step_t"]
    assert steps == ["1", "2", "3", "4"], "t and b are logged after every step"
    rows = [row for row in rows if row["metric"] not in STEP_METRICS]
    assert {(row["epoch"], row["step"]) for row in rows} == {("1", "2"), ("2", "4")}
    names = {row["metric"] for row in rows}
    assert {"lr", *method.scalars()} < names, "and the terms of the loss"
    (last,) = [row for row in rows if row["metric"] == "lr" and row["epoch"] == "2"]
    assert float(last["value"]) == pytest.approx(0.1 * 0.001), "the floor of the cosine"


def test_zero_epochs_change_nothing(tmp_path):
    network = small_network()
    before = [p.detach().clone() for p in network.parameters()]
    train(tmp_path, network, build_method("supcon"), recipe(epochs=0))
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))


def test_a_non_finite_batch_is_reported_with_its_images(tmp_path):
    features = torch.randn(len(INDICES), 3, 6)
    features[5] = torch.nan
    settings = recipe(batch_size=3)
    training_set = training_set_from_features(features, IMAGES, INDICES, settings, 2)
    network = Network(nn.Identity(), nn.Linear(6, 256))
    with pytest.raises(UserError, match=r"(?s)epoch 1, step \d+: .*Images of the batch: ") as error:
        train(tmp_path, network, build_method("supcon"), settings, training_set)
    assert IMAGES.names[INDICES[5]] in str(error.value)
    assert all(p.isfinite().all() for p in network.parameters())


def test_soft_labels_reach_methods_that_support_them_only(tmp_path):
    settings = recipe()
    hard = training_set_from_images(IMAGES, INDICES, settings, 1, 0)
    classes = int(hard.labels.max()) + 1

    def mixed(*arguments):
        for batch in hard.batches(*arguments):
            soft = torch.full((len(batch.labels), classes), 1 / classes)
            yield dataclasses.replace(batch, label_probabilities=soft)

    training_set = dataclasses.replace(hard, batches=mixed)
    network, method = small_network(), build_method("baseline")
    method.setup(TaskInfo(network, torch.from_numpy(hard.labels), classes, 6, 256, 2))
    train(tmp_path / "a", network, method, settings, training_set)
    with pytest.raises(UserError, match="SupCon cannot use the soft labels"):
        train(tmp_path / "b", small_network(), build_method("supcon"), settings, training_set)


def test_the_method_gets_the_facts_of_its_task():
    class Recording(Method):
        def setup(self, task):
            self.task = task
            return self

    network, method = small_network(), Recording()
    set_up_method(method, network, np.array([0, 0, 2, 2, 2]), 4, recipe())
    task = method.task
    assert task.class_counts == (2, 0, 3, 0)
    assert (task.feature_dim, task.embedding_dim, task.epochs) == (6, 256, 2)
    assert task.network is network


def test_a_training_set_can_be_pickled_for_spawned_workers(shapes):
    """Spawned workers get the dataset as a pickle."""
    images = load_images(shapes)
    dataset = ViewDataset(images, np.arange(4), train_view(recipe().data), 2, 0)
    copy = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(copy[(0, 1)][0], dataset[(0, 1)][0])
