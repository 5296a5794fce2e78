"""Compare whole pipelines with what one would write instead, side by side and in turns.

    python benchmarks/pipeline.py --large FOLDER --small FOLDER --weights FILE.safetensors

Without arguments it makes synthetic images and uses random weights, which take the same time. It
measures

(a) a folder of JPEGs of 224 pixels to a trained classifier of frozen features, against timm with
    scikit-learn's logistic regression, and against the two-crop loader of SupContrast and lightly
    with a linear classifier, with equal numbers of views;
(b) a step of fine-tuning with two views, against the two-crop loop and a plain timm loop, each with
    its best number of workers;
(c) training a small encoder on images of 32 pixels, against a loop that holds and augments all of
    them as tensors, as airbench does;
(d) `scs --help` and `scs train digits`.

The contenders take turns. Ratios are theirs / ours of the same turn, so above 1 we are faster; the
page gives their median and range, for the wall time and for the processor time of all processes,
which other load on the machine changes less. It is written to docs/benchmarks/pipeline.md.
"""

import argparse
import ctypes
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from multiprocessing import RawArray
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pipeline_peers as peers
import torch
from PIL import Image
from torch import nn

from scs_supcon.data import feature_cache, image_io, small_images
from scs_supcon.data.dataset import ImageDataset
from scs_supcon.data.load import load_images
from scs_supcon.data.transforms import View
from scs_supcon.device import M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, cores, keep_freed_memory
from scs_supcon.nn.build import build_network
from scs_supcon.nn.encoder import Encoder, build_encoder
from scs_supcon.nn.timm_models import data_config
from scs_supcon.nn.weights import load_weights
from scs_supcon.recipe import Recipe, write_toml
from scs_supcon.recipe.resolve import split_dataset
from scs_supcon.runs.run_dir import RunDir
from scs_supcon.training import pipeline, pretrain, train
from scs_supcon.training.checkpointing import CheckpointManager
from scs_supcon.training.distributed import make_fabric

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks" / "pipeline.md"
PARTS = ("decode", "augment", "forward", "backward", "loss", "optimiser", "head", "evaluation")
OTHERS = "checkpoint"  # not part of a step
PLAIN, CHANNELS_LAST = torch.contiguous_format, torch.channels_last


@dataclass
class PartTimes:
    """Processor and wall time of the parts of a pipeline, also of those in forked workers."""

    cpu: Any = field(default_factory=lambda: RawArray("d", len(PARTS) + 1))
    wall: Any = field(default_factory=lambda: RawArray("d", len(PARTS) + 1))
    stack: list[int] = field(default_factory=list)
    process: int = field(default_factory=os.getpid)
    last: tuple[float, float] = (0.0, 0.0)
    total: tuple[float, float] = (0.0, 0.0)

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Count the time inside for `part`, and not for the part that it interrupts."""
        self._add()
        self.stack.append((*PARTS, OTHERS).index(part))
        try:
            yield
        finally:
            self._add()
            if self.stack:
                self.stack.pop()

    @contextmanager
    def window(self) -> Iterator[None]:
        """Measure the total time inside; an inner window replaces that of an outer one."""
        self.total = (0.0, 0.0)
        start = _cpu_seconds(), time.perf_counter()
        yield
        if self.total == (0.0, 0.0):
            self.total = _cpu_seconds() - start[0], time.perf_counter() - start[1]

    def _add(self) -> None:
        now = time.process_time(), time.perf_counter()
        if self.process != os.getpid():  # a new worker
            self.process, self.stack = os.getpid(), []
        if self.stack:
            with _LOCK:
                self.cpu[self.stack[-1]] += now[0] - self.last[0]
                self.wall[self.stack[-1]] += now[1] - self.last[1]
        self.last = now

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self(part):
                return function(*args, **kwargs)

        return wrapper

    def values(self, kind: str = "cpu") -> dict[str, float]:
        return dict(zip((*PARTS, OTHERS), getattr(self, kind), strict=True))


_LOCK = torch.multiprocessing.get_context("fork").Lock()


@dataclass(frozen=True)
class Measured:
    """One turn of one contender, in seconds.

    Attributes:
        wall: Wall time.
        cpu: Processor time of this process and its workers.
        parts: Processor time of the parts.
        wall_parts: Wall time of the parts in this process.
        result: What it returned, such as an accuracy.
    """

    wall: float
    cpu: float
    parts: dict[str, float]
    wall_parts: dict[str, float]
    result: Any = None


Work = Callable[[PartTimes], Any]


def measure(work: Work) -> Measured:
    """Run a contender once."""
    _default_malloc()
    parts = PartTimes()
    with parts.window():
        result = work(parts)
    cpu, wall = parts.total
    values, wall_values = parts.values(), parts.values("wall")
    return Measured(
        wall - wall_values.pop(OTHERS), cpu - values.pop(OTHERS), values, wall_values, result
    )


def _default_malloc() -> None:
    """Undo `keep_freed_memory`: these are the values that glibc arrives at by itself."""
    if keep_freed_memory():
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, 2**25)
        libc.mallopt(M_TRIM_THRESHOLD, 2**26)
        libc.malloc_trim(0)


def _cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def in_turns(
    contenders: dict[str, Work], rounds: int, warm_up: Sequence[str] = ()
) -> dict[str, list[Measured]]:
    """Run all contenders `rounds` times, in changing order; some of them once before."""
    for name in warm_up:
        measure(contenders[name])
    turns: dict[str, list[Measured]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name in list(contenders)[:: -1 if number % 2 else 1]:
            turns[name].append(measure(contenders[name]))
            last = turns[name][-1]
            print(f"  {name:<44} {last.wall:7.2f} s, {last.cpu:7.2f} s of processors", flush=True)
    return turns


def ratios(theirs: list[Measured], ours: list[Measured], kind: str) -> str:
    """Return the median of the ratios of the same turns, and their range."""
    values = [getattr(a, kind) / getattr(b, kind) for a, b in zip(theirs, ours, strict=True)]
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def load() -> str:
    """Return the load of the machine."""
    return " ".join(f"{value:.1f}" for value in os.getloadavg())


# ---------------------------------------------------------------------------------------- images


def sample_folder(source: Path, target: Path, images: int, classes: int) -> Path:
    """Copy a few images of a few classes into class folders, evenly."""
    root = source / "train" if (source / "train").is_dir() else source
    folders = sorted(path for path in root.iterdir() if path.is_dir())[:classes]
    for folder in folders:
        files = sorted(path for path in folder.iterdir() if path.is_file())
        (target / folder.name).mkdir(parents=True)
        for path in files[: images // len(folders)]:
            copyfile(path, target / folder.name / path.name)
    return target


def make_folder(target: Path, images: int, classes: int, side: int) -> Path:
    """Write synthetic images: smooth noise around a colour of the class."""
    rng = np.random.default_rng(0)
    for label in range(classes):
        folder = target / f"class{label:02d}"
        folder.mkdir(parents=True)
        colour = rng.integers(60, 196, 3)
        for number in range(images // classes):
            noise = rng.normal(0, 40, (9, 12, 3)) + colour
            coarse = Image.fromarray(noise.clip(0, 255).astype(np.uint8))
            width = side if side <= 64 else int(side * rng.uniform(1, 1.5))
            image = coarse.resize((width, side), Image.Resampling.BICUBIC)
            suffix, quality = (".png", {}) if side <= 64 else (".jpg", {"quality": 92})
            image.save(folder / f"{number:04d}{suffix}", **quality)
    return target


@dataclass(frozen=True)
class Setup:
    """What all measurements share."""

    options: argparse.Namespace
    folder: Path
    encoder: Encoder
    large: Path
    small: Path
    weights: Path


def set_up(options: argparse.Namespace, folder: Path) -> Setup:
    """Make or sample the images, and the weights of the encoder."""
    name = options.encoder
    size = data_config(name)["image_size"]
    torch.manual_seed(0)
    encoder = build_encoder(name, small_stem=False, in_size=size)
    weights = options.weights
    if weights is None:
        from safetensors.torch import save_file

        weights = folder / "random.safetensors"
        save_file({k: v.contiguous() for k, v in encoder.body.state_dict().items()}, weights)
    load_weights(encoder, weights)
    large, small = folder / "large", folder / "small"
    if options.large:
        sample_folder(options.large, large, options.images, options.classes)
    else:
        make_folder(large, options.images, options.classes, 224)
    if options.small:
        sample_folder(options.small, small, options.small_images, 100)
    else:
        make_folder(small, options.small_images, 10, 32)
    return Setup(options, folder, encoder, large, small, weights)


# ------------------------------------------------------------------ (a) from JPEGs to a classifier


def our_classifier(setup: Setup, settings: Sequence[str]) -> Work:
    """Return `scs train --frozen` with an empty cache."""
    views = setup.options.views

    def work(parts: PartTimes) -> float:
        with TemporaryDirectory(dir=setup.folder) as folder, _patched(parts):
            result = train.train(
                setup.large,
                out=Path(folder) / "run",
                encoder=setup.encoder.name,
                weights=setup.weights,
                frozen=True,
                settings=(f"encoder.frozen_views={views}", *settings),
                cache=Path(folder) / "cache",
                report=False,
                quiet=True,
            )
        return float(result.accuracy)

    return work


@contextmanager
def _patched(parts: PartTimes) -> Iterator[None]:
    """Count the parts of our pipeline."""
    places: list[tuple[Any, str, str]] = [
        (image_io, "open_image", "decode"),
        (View, "__call__", "augment"),
        (small_images, "make_views", "augment"),
        (feature_cache, "encode", "forward"),
        *((pipeline, name, "head") for name in ("pretrain", "fuse_fields", "fit_probes")),
        *((pipeline, name, "evaluation") for name in ("evaluate_run", "write_artifacts")),
        (pipeline, "run_baselines", "evaluation"),
        (CheckpointManager, "after_epoch", OTHERS),
    ]
    with ExitStack() as stack:
        for owner, name, part in places:
            before = getattr(owner, name)
            setattr(owner, name, parts.timed(part, before))
            stack.callback(setattr, owner, name, before)
        yield


def timm_classifier(
    setup: Setup, layout: torch.memory_format, workers: int, *, two_crops: bool
) -> Work:
    """Return timm's features with logistic regression, or the two-crop loader's with SGD."""
    images = load_images(setup.large)
    recipe = train.resolved_recipe(
        setup.large, encoder=setup.encoder.name, weights=setup.weights, frozen=True
    )
    splits = split_dataset(images, recipe)
    assert images.paths is not None
    paths = np.array(images.paths)

    def work(parts: PartTimes) -> float:
        model = peers.timm_model(setup.encoder)
        centre, random = peers.timm_transforms(model)
        random = peers.two_crop_transform(model) if two_crops else random
        rows = {}
        for split in ("train", "val", "test"):
            chosen = splits == split
            views = [centre, *[random] * (setup.options.views if split == "train" else 0)]
            dataset = peers.ImageViews(paths[chosen], images.labels[chosen].tolist(), views, parts)
            batches = peers.loader(dataset, 64 // len(views), workers)
            rows[split] = peers.extract(model, batches, layout, parts)
        with parts("head"):
            if two_crops:
                return peers.linear_classifier(rows["train"], rows["test"])
            return peers.logistic_regression(rows["train"], rows["val"], rows["test"])

    return work


def frozen_features(setup: Setup) -> list[str]:
    """Compare (a) and return its section of the page."""
    print(f"(a) JPEGs to a classifier of frozen features; load {load()}", flush=True)
    ours, default = "scs train --frozen, folds=0", "scs train --frozen"
    probe = (f"probe.views={setup.options.views}",)
    contenders: dict[str, Work] = {
        ours: our_classifier(setup, (*probe, "fusion.folds=0")),
        "timm, channels last + logistic regression": timm_classifier(
            setup, CHANNELS_LAST, cores(), two_crops=False
        ),
        "timm + logistic regression": timm_classifier(setup, PLAIN, 1, two_crops=False),
        "two-crop loader + linear classifier": timm_classifier(
            setup, PLAIN, cores(), two_crops=True
        ),
    }
    turns = in_turns(contenders, setup.options.rounds)
    if setup.options.rounds > 1:  # takes long, and has no counterpart
        turns |= in_turns({default: our_classifier(setup, probe)}, 1)
    views = setup.options.views
    lines = [
        "## (a) From JPEGs to a classifier of frozen features",
        "",
        f"{_count(setup.large)} images of 224 pixels; {setup.encoder.name}; of each training image "
        f"the centre and {views} random views. `folds=0` chooses on the validation images, as the "
        "grid of C does; the default trains the heads again for five folds. Ours includes the "
        "check of the images and the evaluation, but not the report, which the others lack.",
        "",
        *_table(turns, ours),
        "",
        "Seconds of processors, median of the turns:",
        "",
        *_split_table(turns, ("decode", "augment", "forward", "head", "evaluation")),
    ]
    others = {name: t for name, t in turns.items() if name not in (ours, default)}
    best = min(others, key=lambda name: statistics.median(t.wall for t in others[name]))
    both = (ratios(others[best], turns[ours], kind) for kind in ("wall", "cpu"))
    measured = "{} in wall time, {} in processor time".format(*both)
    return [
        *lines,
        "",
        f"Goal: faster than the best alternative ({best}). Measured: {measured}.",
        "",
    ]


# --------------------------------------------------------------------------- (b) fine-tuning steps


def our_steps(setup: Setup, recipe: Recipe, images: ImageDataset, workers: int) -> Work:
    """Return one epoch of stage 1 with our loop."""
    chosen = np.arange(setup.options.steps * recipe.pretrain.batch_size) % len(images)

    def work(parts: PartTimes) -> None:
        _our_epoch(recipe, images, chosen, workers, parts, setup)

    return work


def _our_epoch(
    recipe: Recipe,
    images: ImageDataset,
    chosen: np.ndarray[Any, np.dtype[np.int64]],
    workers: int,
    parts: PartTimes,
    setup: Setup,
) -> None:
    torch.manual_seed(0)
    network = build_network(recipe)
    encoder: Any = network.encoder
    if encoder.name == setup.encoder.name:
        load_weights(encoder, setup.weights)
    method = pretrain.make_method(recipe)
    pretrain.set_up_method(method, network, images.labels[chosen], len(images.classes), recipe)
    with TemporaryDirectory(dir=setup.folder) as folder, _patched(parts):
        fabric = make_fabric("cpu")
        network.forward = parts.timed("forward", network.forward)  # type: ignore[method-assign]
        fabric.backward = parts.timed("backward", fabric.backward)  # type: ignore[method-assign]
        data = pretrain.training_set_from_images(images, chosen, recipe, method.views, workers)
        with (
            RunDir.open(Path(folder) / "run", write_toml(recipe)) as run,
            _window_of_steps(parts),
        ):
            pretrain.pretrain(fabric, run, network, method, data, recipe)


@contextmanager
def _window_of_steps(parts: PartTimes) -> Iterator[None]:
    """Measure the training loop only, and not how the network and the run are set up."""
    before = pretrain.train_loop

    def train_loop(*args: Any) -> None:
        with parts.window():
            before(*args)

    pretrain.train_loop = train_loop
    try:
        yield
    finally:
        pretrain.train_loop = before


def peer_steps(setup: Setup, images: ImageDataset, workers: int, *, two_crops: bool) -> Work:
    """Return the two-crop loop, or timm's loop on twice as many images with one view."""
    size, steps = setup.options.batch_size, setup.options.steps
    assert images.paths is not None

    def work(parts: PartTimes) -> None:
        torch.manual_seed(0)
        model = peers.timm_model(setup.encoder)
        _, random = peers.timm_transforms(model)
        views = [peers.two_crop_transform(model)] * 2 if two_crops else [random]
        count = size * (1 if two_crops else 2)
        chosen = np.arange(steps * count) % len(images)
        dataset = peers.ImageViews(
            [images.paths[index] for index in chosen], images.labels[chosen].tolist(), views, parts
        )
        width = setup.encoder.num_features
        network: nn.Module = peers.Contrastive(model, width)
        loss = peers.supcon_loss
        if not two_crops:
            network = nn.Sequential(model, nn.Linear(width, len(images.classes)))
            loss = nn.functional.cross_entropy
        with parts.window():
            batches = cycle(peers.loader(dataset, count, workers, shuffle=True))
            peers.train_steps(network, batches, loss, steps, parts)
            del batches  # ends the workers, whose time counts

    return work


def fine_tuning(setup: Setup) -> list[str]:
    """Compare (b) and return its section of the page."""
    print(f"(b) steps of fine-tuning; load {load()}", flush=True)
    options = setup.options
    settings = (f"pretrain.batch_size={options.batch_size}", "pretrain.epochs=1")
    settings = (*settings, "pretrain.warmup_epochs=0", "pretrain.batches=shuffle")
    recipe = train.resolved_recipe(
        setup.large,
        encoder=setup.encoder.name,
        weights=setup.weights,
        frozen=False,
        method="supcon",
        settings=settings,
    )
    images = load_images(setup.large)
    ours = "scs train, supcon"
    contenders = {ours: our_steps(setup, recipe, images, cores())}
    for workers in (0, 1, 2):
        for name, two_crops in (("two-crop loop", True), ("timm loop", False)):
            contenders[f"{name}, {workers} workers"] = peer_steps(
                setup, images, workers, two_crops=two_crops
            )
    turns = in_turns(contenders, options.rounds, (ours, "two-crop loop, 0 workers"))
    mine = turns[ours]
    lines = [
        "## (b) A step of fine-tuning",
        "",
        f"{options.batch_size} images with two views each, {options.steps} steps; timm's loop has "
        f"{2 * options.batch_size} images with one view. Decode, views, forward, backward, loss "
        "and optimiser, with starting the workers, without checkpoints (every 30 seconds).",
        "",
        *_table(turns, ours, options.steps),
        "",
        "Seconds of processors, median of the turns:",
        "",
        *_split_table(turns, ("decode", "augment", "forward", "backward", "loss", "optimiser")),
    ]
    goals = []
    for name in ("two-crop loop", "timm loop"):
        runs = {key: t for key, t in turns.items() if key.startswith(name)}
        best = min(runs, key=lambda key: statistics.median(t.wall for t in runs[key]))
        goals.append(
            f"{best}: {ratios(runs[best], mine, 'wall')} in wall time, "
            f"{ratios(runs[best], mine, 'cpu')} in processor time"
        )
    outside = [1 - (t.wall_parts["forward"] + t.wall_parts["backward"]) / t.wall for t in mine]
    outside_cpu = [1 - (t.parts["forward"] + t.parts["backward"]) / t.cpu for t in mine]
    return [
        *lines,
        "",
        "Goal: at least 1.2 times the speed of the two-crop loop with its best number of workers. "
        f"Measured: {'; '.join(goals)}.",
        "",
        "Goal: everything outside of forward and backward at most 15% of a step. Measured: "
        f"{statistics.median(outside):.0%} of the wall time, {statistics.median(outside_cpu):.0%} "
        "of the processor time.",
        "",
    ]


# -------------------------------------------------------------------------- (c) images of 32 pixels


def our_epochs(setup: Setup, recipe: Recipe, images: ImageDataset) -> Work:
    """Return stage 1 on small images with our loop."""
    chosen = np.arange(len(images) - len(images) % recipe.pretrain.batch_size)

    def work(parts: PartTimes) -> None:
        _our_epoch(recipe, images, chosen, cores(), parts, setup)

    return work


def tensor_epochs(setup: Setup, recipe: Recipe, images: ImageDataset) -> Work:
    """Return the same number of epochs with tensors in memory."""

    def work(parts: PartTimes) -> None:
        torch.manual_seed(0)
        pixels = np.stack([np.asarray(images.open(index)) for index in range(len(images))])
        mean, std = (torch.tensor(v).view(3, 1, 1) for v in (recipe.data.mean, recipe.data.std))
        batches = peers.TensorBatches(
            torch.from_numpy(pixels).permute(0, 3, 1, 2),
            torch.from_numpy(images.labels),
            mean,
            std,
            recipe.pretrain.batch_size,
        )
        encoder = build_encoder("tiny", small_stem=False, in_size=recipe.data.image_size)
        classes, width = len(images.classes), encoder.num_features
        with parts.window():
            peers.train_on_tensors(encoder, width, classes, batches, recipe.pretrain.epochs, parts)

    return work


def small_images_from_scratch(setup: Setup) -> list[str]:
    """Compare (c) and return its section of the page."""
    print(f"(c) images of 32 pixels; load {load()}", flush=True)
    images = load_images(setup.small)
    settings = ("pretrain.batch_size=256", "pretrain.batches=shuffle", "pretrain.epochs=3")
    settings = (*settings, "pretrain.warmup_epochs=0", "pretrain.clip_norm=0")
    plain = ("data.jitter=0", "data.grayscale=0")

    def recipe(*more: str) -> Recipe:
        return train.resolved_recipe(
            setup.small,
            encoder="tiny",
            from_scratch=True,
            method="baseline",
            settings=(*settings, *more),
        )

    ours, peer = "scs train, crops and flips", "tensors in memory, shifts and flips"
    contenders = {
        ours: our_epochs(setup, recipe(*plain), images),
        peer: tensor_epochs(setup, recipe(*plain), images),
        "scs train, with jitter and grey": our_epochs(setup, recipe(), images),
        "scs train, views one by one": our_epochs(
            setup, recipe(*plain, "data.in_memory=false"), images
        ),
    }
    turns = in_turns(contenders, setup.options.rounds + 2, (ours, peer))
    return [
        "## (c) Training on images of 32 pixels",
        "",
        f"{len(images)} images, `--encoder tiny`, cross-entropy, batches of 256, 3 epochs, after "
        "the images were read into memory.",
        "",
        *_table(turns, ours),
        "",
        "Seconds of processors, median of the turns:",
        "",
        *_split_table(turns, ("augment", "forward", "backward")),
        "",
        f"Goal: at least 1.0. Measured: {ratios(turns[peer], turns[ours], 'wall')} in wall time, "
        f"{ratios(turns[peer], turns[ours], 'cpu')} in processor time.",
        "",
    ]


# ------------------------------------------------------------------------------------ (d) start-up


def start_up(setup: Setup) -> list[str]:
    """Measure (d) and return its section of the page."""
    print(f"(d) start-up; load {load()}", flush=True)

    def command(*args: str) -> Work:
        def work(_: PartTimes) -> None:
            with TemporaryDirectory(dir=setup.folder) as folder:
                subprocess.run(
                    [sys.executable, "-m", "scs_supcon", *args],
                    cwd=folder,
                    check=True,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )

        return work

    turns = in_turns({"scs --help": command("--help")}, 5)
    turns |= in_turns({"scs train digits": command("train", "digits", "--out", "run")}, 1)
    goals = {"scs --help": 0.5, "scs train digits": 20.0}
    rows = [
        f"| `{name}` | {min(t.wall for t in turn):.2f} | {min(t.cpu for t in turn):.2f} "
        f"| {goals[name]:g} |"
        for name, turn in turns.items()
    ]
    header = ["| command | wall, s | processors, s | goal, s |", "|---|---:|---:|---:|"]
    return ["## (d) Start-up", "", "The fastest turn.", "", *header, *rows, ""]


# -------------------------------------------------------------------------------------------- page


def _count(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*"))


def _table(turns: dict[str, list[Measured]], ours: str, steps: int = 0) -> list[str]:
    per = "s per step" if steps else "s"
    lines = [
        f"| | wall, {per} | processors, {per} | theirs / ours, wall "
        "| theirs / ours, processors | result |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, turn in turns.items():
        wall, cpu = (
            statistics.median(getattr(t, kind) for t in turn) / (steps or 1)
            for kind in ("wall", "cpu")
        )
        comparable = name != ours and len(turn) == len(turns[ours])
        cells = [ratios(turn, turns[ours], kind) if comparable else "" for kind in ("wall", "cpu")]
        result = turn[-1].result
        accuracy = f"{result:.1%} accuracy" if isinstance(result, float) else ""
        lines.append(f"| {name} | {wall:.2f} | {cpu:.2f} | {' | '.join(cells)} | {accuracy} |")
    return lines


def _split_table(turns: dict[str, list[Measured]], parts: Sequence[str]) -> list[str]:
    lines = [f"| | {' | '.join(parts)} | rest |", "|---|" + "---:|" * (len(parts) + 1)]
    for name, turn in turns.items():
        medians = [statistics.median(t.parts[part] for t in turn) for part in parts]
        rest = statistics.median(t.cpu - sum(t.parts[part] for part in parts) for t in turn)
        cells = " | ".join(f"{value:.2f}" for value in (*medians, rest))
        lines.append(f"| {name} | {cells} |")
    return lines


SECTIONS = {
    "a": frozen_features,
    "b": fine_tuning,
    "c": small_images_from_scratch,
    "d": start_up,
}


def main() -> None:
    """Measure everything in turns and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--large", type=Path, help="class folders of JPEGs; default: synthetic")
    parser.add_argument("--small", type=Path, help="class folders of small images")
    parser.add_argument("--weights", type=Path, help="safetensors of the encoder; default: random")
    parser.add_argument("--encoder", default="tf_efficientnet_lite0")
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--classes", type=int, default=20)
    parser.add_argument("--small-images", type=int, default=2560)
    parser.add_argument("--views", type=int, default=2, help="random views of a training image")
    parser.add_argument("--batch-size", type=int, default=12, help="images per step of (b)")
    parser.add_argument("--steps", type=int, default=4, help="steps of (b)")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=cores(), help="of torch, for all")
    parser.add_argument("--only", default="abcd", help="letters of the sections to measure")
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    start, before = time.monotonic(), load()
    with TemporaryDirectory() as folder:
        setup = set_up(options, Path(folder))
        sections = [line for letter in options.only for line in SECTIONS[letter](setup)]
    data = "synthetic images" if options.large is None else "images of two folders"
    weights = "random weights" if options.weights is None else "pretrained weights"
    lines = [
        "# Whole pipelines, side by side",
        "",
        "Written by `python benchmarks/pipeline.py`, which explains what is measured and how. "
        "Ratios above 1 mean that ours is faster; they are medians of turns taken side by side, "
        "with their range. Processor time is that of all processes together.",
        "",
        f"{_machine()}, {options.threads} threads; {data}, {weights}; {options.rounds} turns; "
        f"load of the machine (1, 5 and 15 minutes) {before} before and {load()} after, "
        f"{(time.monotonic() - start) / 60:.0f} minutes.",
        "",
        *sections,
    ]
    options.page.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    print("\n".join(lines))


def _machine() -> str:
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    return f"{model}, {cores()} cores, torch {torch.__version__.partition('+')[0]}"


if __name__ == "__main__":
    main()
