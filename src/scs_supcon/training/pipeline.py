"""One run: the data as found, the recipe that follows, both stages, and what they leave."""

import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray

from scs_supcon.data.audit import UNUSABLE, single_image_classes
from scs_supcon.data.dataset import SPLITS, ImageDataset, Problem, content_digest, without
from scs_supcon.data.load import load_dataset
from scs_supcon.data.splits import read_splits_csv, write_splits_csv
from scs_supcon.data.transforms import seeded
from scs_supcon.device import Compute, has_gpu
from scs_supcon.errors import UserError
from scs_supcon.inference.package import initialise_from
from scs_supcon.io.atomic import replacing
from scs_supcon.methods import (
    Batch,
    Method,
    Network,
    build_method,
    method_class,
    probe_input_for,
)
from scs_supcon.methods.shared.common_style import CommonStyleMethod
from scs_supcon.nn.encoder import for_cache
from scs_supcon.nn.head import Projection
from scs_supcon.progress import Display
from scs_supcon.recipe import Recipe, make_recipe, merge, write_toml
from scs_supcon.recipe.resolve import (
    DatasetFacts,
    TrainOptions,
    resolve_recipe,
    split_dataset,
)
from scs_supcon.runs.run_dir import RunDir
from scs_supcon.training import estimate as forecast
from scs_supcon.training.artifacts import keep_records
from scs_supcon.training.assess import RunArtifacts
from scs_supcon.training.checkpointing import Stopped
from scs_supcon.training.distributed import make_fabric
from scs_supcon.training.features import FeatureExtractor, Parts, build_initial_encoder
from scs_supcon.training.input_files import read_input_files
from scs_supcon.training.pretrain import TrainingSet, from_features, from_images, pretrain, task_of
from scs_supcon.training.stage2 import (
    assemble,
    card_metrics,
    headline,
    judge_splits,
    settle_on,
    summarise,
    train_classifiers,
)


class Session:
    """One call of `train`: the data as found, the recipe that follows, and the two stages."""

    def __init__(
        self,
        options: TrainOptions,
        place: Compute,
        display: Display,
        given: ImageDataset | None = None,
    ) -> None:
        self.options, self.place, self.display = options, place, display
        files = read_input_files(options)
        self.images, self.problems = (given, []) if given else self._read()
        self.recipe = resolve_recipe(
            options, DatasetFacts.of(self.images), files, has_gpu=has_gpu(place.device)
        )
        expected = self.recipe.data.content
        if expected is not None and expected != content_digest(self.images):
            raise UserError(
                f"{options.source} is not the data this recipe was made for: bring that back, or "
                "leave out data.content to train on this"
            )
        make_method(self.recipe)  # says what is wrong with its options before a folder is begun

    def run(self, out: Path, overwrite: bool) -> dict[str, Any]:
        """Train, or go on, and return the summary."""
        fabric = make_fabric(self.place.device, self.recipe.pretrain.precision)
        with RunDir.open(out, write_toml(self.recipe), overwrite=overwrite, fabric=fabric) as run:
            done, start = run.finished, time.monotonic()
            if done is not None:
                self.display.line(f"{out} is finished: {headline(done)}")
                return done
            try:
                with seeded(self.recipe.seed):
                    summary = self._train(fabric, run)
            except KeyboardInterrupt:  # between the loops, which save themselves first
                raise Stopped(130) from None
            summary["seconds"] = time.monotonic() - start
            run.finish(summary)
            return summary

    def dry_run_once(self) -> dict[str, Any]:
        """Go through everything with one batch of images and one epoch of each stage."""
        few = _few(self.images, split_dataset(self.images, self.recipe), self.recipe)
        self.images = few
        short = {"pretrain": {"epochs": 1, "warmup_epochs": 0.0}, "probe": {"epochs": 1}}
        self.recipe = make_recipe(merge(self.recipe.model_dump(exclude_none=True), short))
        with tempfile.TemporaryDirectory(prefix="scs-dry-run-") as folder:
            summary = self.run(Path(folder) / "run", overwrite=False)
        self.display.line("dry run passed: one batch of everything; nothing was kept")
        return summary

    def _train(self, fabric: Fabric, run: RunDir) -> dict[str, Any]:
        recipe, images = self.recipe, self.images
        splits = self._splits(run, fabric.is_global_zero)
        self._say(forecast.describe_data(images, splits, self.problems))
        with seeded(recipe.seed, 1):
            encoder, line = build_initial_encoder(recipe, self.options, self.place.offline)
            self._say([line])
            width = encoder.num_features
            projection = Projection(width, recipe.head.dim, recipe.head.hidden, recipe.head.centre)
            frozen = recipe.encoder.frozen
            if self.options.init_from is not None:
                initialise_from(self.options.init_from, encoder, projection)
            at_once = 0 if frozen else recipe.pretrain.micro_batch
            method = make_method(recipe, fabric.world_size)
            source, stand_in = for_cache(encoder, frozen and method.uses_taps)
            network = Network(stand_in if frozen else encoder, projection, at_once)
            indices = np.flatnonzero(splits == "train")
            labels = images.labels[indices]
            method.setup(task_of(network, labels, len(images.classes), width, recipe))
        self._say(forecast.describe_batches(labels, recipe, method.views))
        parts = Parts(images, splits, encoder, source, network, method)
        looking = FeatureExtractor(fabric, recipe, self.place, self.display)
        training = self._training_set(looking, parts, indices)
        self._estimate(network, method, training, fabric.device)
        with self.display.progress("stage 1") as tell:
            pretrain(fabric, run, network, method, training, recipe, tell)
        return self._conclude(looking, run, parts)

    def _conclude(self, looking: FeatureExtractor, run: RunDir, parts: Parts) -> dict[str, Any]:
        fabric, kept = looking.fabric, run.path / "features"
        seen = {split: looking.see(parts, split, kept) for split in SPLITS}
        recipe = self.recipe
        probe, linear = train_classifiers(
            fabric, run, seen, len(self.images.classes), recipe.probe, recipe.seed, self.display
        )
        method = parts.method
        reads = probe_input_for(method, frozen=recipe.encoder.frozen)
        projection = parts.network.projection
        chosen, beside = settle_on(method, reads, probe, projection, seen)
        boundary = method.decision_boundary()
        made = assemble(
            recipe,
            self.images,
            seen,
            parts.encoder,
            projection,
            reads,
            chosen.classifier,
            boundary,
        )
        judged = judge_splits(made, seen)
        summary = summarise(made, linear.classifier, seen, judged)
        summary["baselines"] |= beside
        summary |= {"bank": [vars(head) for head in chosen.heads], "run": str(run.path)}
        summary["model"] = str(run.path / "model")
        if fabric.is_global_zero:
            counts = {split: len(part.labels) for split, part in seen.items()}
            metrics = card_metrics(summary["metrics"])
            made.save(run.path / "model", metrics, counts)
            baselines = summary["baselines"]
            found = RunArtifacts(parts.images, self.problems, seen, judged, made, baselines)
            keep_records(run.path, found, self.place.workers)
        shutil.rmtree(kept, ignore_errors=True)
        return summary

    def _read(self) -> tuple[ImageDataset, list[Problem]]:
        with self.display.progress("checking images") as tell:
            images, problems = load_dataset(self.options.source, self.place.workers, tell)
        for problem in problems:
            if problem.kind in UNUSABLE:
                self.display.line(f"left out: {problem.detail}")
        return images, problems

    def _splits(self, run: RunDir, first: bool) -> NDArray[np.str_]:
        """Draw the splits; a run that goes on must find the images it began with."""
        splits = split_dataset(self.images, self.recipe)
        file, classes = run.path / "splits.csv", run.path / "classes.json"
        if file.exists() and not np.array_equal(read_splits_csv(file, self.images), splits):
            raise UserError(
                f"the images are not those that {run.path} began with: bring them back, "
                "or start another run with another --out"
            )
        if first and not classes.exists():
            run.write_json(classes.name, list(self.images.classes))
        if first and not file.exists():
            with replacing(file) as temporary:
                write_splits_csv(temporary, self.images, splits)
        self.problems = [p for p in self.problems if p.kind != "single_image_class"]
        self.problems += single_image_classes(
            self.images.labels[splits == "train"], self.images.classes
        )
        return splits

    def _training_set(
        self, looking: FeatureExtractor, parts: Parts, indices: NDArray[np.int64]
    ) -> TrainingSet:
        recipe, views = self.recipe, parts.method.views
        if not recipe.encoder.frozen:
            return from_images(self.images, indices, recipe, views, self.place.workers)
        features = looking.features(parts, indices, "train", recipe.encoder.frozen_views)
        return from_features(features, self.images, indices, recipe, views)

    def _estimate(
        self, network: Network, method: Method, training: TrainingSet, device: torch.device
    ) -> None:
        how = self.recipe.pretrain
        size = min(how.batch_size, len(training.labels))
        plan = [[np.arange(min(forecast.FEW, size))]]
        batch: Batch = next(training.batches(plan, 0, 0, 0))
        steps = how.epochs * -(-len(training.labels) // size)
        cost = forecast.estimate(network, method, batch, size, steps, device)
        self._say(forecast.describe_cost(cost, self.recipe))

    def _say(self, lines: list[str]) -> None:
        for line in lines:
            self.display.line(line)


def make_method(recipe: Recipe, world: int = 1) -> Method:
    """Build the method; the head's numbers say where its fields lie."""
    options: dict[str, Any] = dict(recipe.method.options)
    made = method_class(recipe.method.name)
    if issubclass(made, CommonStyleMethod):
        options = {"common_dim": recipe.head.common_dim, "overlap": recipe.head.overlap} | options
    method = build_method(recipe.method.name, recipe.method.preset, **options)
    if world > 1:
        method.gather_across_devices = True
    return method


def _few(images: ImageDataset, splits: NDArray[np.str_], recipe: Recipe) -> ImageDataset:
    """A few images of every class and split, about one batch in all."""
    most = max(4, recipe.pretrain.batch_size // len(images.classes))
    keep: list[int] = []
    for label in range(len(images.classes)):
        for split, count in (("train", most), ("val", 1), ("test", 1)):
            found = np.flatnonzero((images.labels == label) & (splits == split))
            keep += found[:count].tolist()
    left_out = np.setdiff1d(np.arange(len(images)), keep)
    return without(replace(images, splits=splits), left_out)
