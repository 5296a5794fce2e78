"""Both stages: from pictures to a finished run folder."""

import inspect
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from lightning_fabric import Fabric
from numpy.typing import NDArray

from scs_supcon import forecast, model
from scs_supcon.assess import Findings
from scs_supcon.conclude import (
    assemble,
    headline,
    judge_splits,
    reading,
    settle_on,
    summarise,
    train_classifiers,
)
from scs_supcon.config import Recipe, make_recipe, merge, write_toml
from scs_supcon.data.check import UNUSABLE, lonely_classes
from scs_supcon.data.pictures import SPLITS, Pictures, Problem, without
from scs_supcon.data.reading import content_digest, read_usable
from scs_supcon.data.splits import read_splits_csv, write_splits_csv
from scs_supcon.data.views import seeded
from scs_supcon.display import Display
from scs_supcon.encoders import for_cache
from scs_supcon.errors import UserError
from scs_supcon.heads import Projection
from scs_supcon.looking import Looking, Parts, first_encoder
from scs_supcon.methods import Batch, Method, Network, build_method, method_class
from scs_supcon.methods.fields import FieldMethod
from scs_supcon.place import Place, accelerator, find_place, first_process
from scs_supcon.pretrain import TrainingSet, from_features, from_pictures, pretrain, task_of
from scs_supcon.processes import make_fabric
from scs_supcon.records import keep_records
from scs_supcon.report import build_report
from scs_supcon.run_folder import RunFolder, Stopped
from scs_supcon.run_folder.durable import replacing
from scs_supcon.settle import Wishes, settle, splits_of


def train(  # noqa: PLR0913
    source: str | Path,
    *,
    out: str | Path,
    method: str | None = None,
    encoder: str | None = None,
    weights: str | Path | None = None,
    from_scratch: bool = False,
    frozen: bool | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    micro_batch: int | None = None,
    seed: int | None = None,
    recipe: str | Path | None = None,
    settings: Sequence[str] = (),
    init_from: str | Path | None = None,
    device: str = "auto",
    workers: int | None = None,
    cache: str | Path | None = None,
    offline: bool = False,
    overwrite: bool = False,
    dry_run: bool = False,
    report: bool = True,
    quiet: bool = False,
) -> dict[str, Any]:
    """Train both stages on a set of pictures and leave everything in one folder.

    The same call again goes on where the last one stopped; a finished run is left alone.

    Args:
        source: folder of class folders, train/val/test folders, .csv, .parquet, "digits", "drawn".
        out: the run's folder.
        method: such as "scs_supcon" or "scs_supcon@paper"; `scs methods` lists them.
        encoder: any timm model, or "tiny".
        weights: a safetensors file for the encoder.
        from_scratch: start the encoder from random weights.
        frozen: train on cached features of the encoder as it is.
        epochs: of stage 1.
        batch_size: pictures in a step.
        micro_batch: views that the encoder works on at a time: less memory, a third more time.
        seed: all randomness follows from it.
        recipe: a TOML file with any part of a recipe.
        settings: such as "pretrain.lr=0.05".
        init_from: a finished run whose encoder and head to start from.
        device: "auto", "cpu", "cuda", …
        workers: processes that load pictures; default: one per core.
        cache: folder for the features of frozen encoders.
        offline: never download weights.
        overwrite: delete a finished run, or one with another recipe, first.
        dry_run: go through everything with a few pictures, then remove it.
        report: make report.html and figures/ at the end.
        quiet: show nothing.

    Returns:
        The summary of the run: accuracies, where things are.
    """
    wishes = Wishes(
        str(source),
        method,
        encoder,
        Path(weights) if weights else None,
        from_scratch,
        frozen,
        epochs,
        batch_size,
        seed,
        Path(recipe) if recipe else None,
        Path(init_from) if init_from else None,
        settings,
        micro_batch,
    )
    place = find_place(device, workers, cache, offline)
    session = Session(wishes, place, Display(quiet or not first_process()))
    if dry_run:
        return session.rehearse()
    summary = session.run(Path(out), overwrite)
    if report and first_process():
        add_report(Path(out), session.display)
    return summary


def add_report(run: Path, display: Display) -> None:
    """Make the report of a finished run if it has none.

    It is a by-product: whatever goes wrong here, the run is finished and stays so.
    """
    if (run / "report.html").exists():
        return
    display.line("making the report")
    try:
        build_report(run)
    except (Exception, KeyboardInterrupt) as error:
        reason = str(error) or type(error).__name__
        display.line(f"no report ({reason}); the run is finished: `scs report {run}` tries again")


def recipe_of(source: str | Path, *, device: str = "auto", **options: Any) -> str:
    """The whole recipe that `train` would follow, as TOML."""
    for name in ("weights", "recipe", "init_from"):
        options[name] = Path(options[name]) if options.get(name) else None
    assignments = options.pop("settings", ())
    wishes = Wishes(str(source), **options, assignments=assignments)
    place = find_place(device, offline=True)
    return write_toml(Session(wishes, place, Display(quiet=True)).recipe)


class Session:
    """One call of `train`: the data as found, the recipe that follows, and the two stages."""

    def __init__(
        self, wishes: Wishes, place: Place, display: Display, given: Pictures | None = None
    ) -> None:
        self.wishes, self.place, self.display = wishes, place, display
        self.pictures, self.problems = (given, []) if given else self._read()
        self.recipe = settle(wishes, self.pictures, accelerator(place.device))
        expected = self.recipe.data.content
        if expected is not None and expected != content_digest(self.pictures):
            raise UserError(
                f"{wishes.source} is not the data this recipe was made for: bring that back, or "
                "leave out data.content to train on this"
            )
        make_method(self.recipe)  # says what is wrong with its options before a folder is begun

    def run(self, out: Path, overwrite: bool) -> dict[str, Any]:
        """Train, or go on, and return the summary."""
        fabric = make_fabric(self.place.device, self.recipe.pretrain.precision)
        with RunFolder.open(
            out, write_toml(self.recipe), overwrite=overwrite, fabric=fabric
        ) as run:
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

    def rehearse(self) -> dict[str, Any]:
        """Go through everything with one batch of pictures and one epoch of each stage."""
        few = _few(self.pictures, splits_of(self.pictures, self.recipe), self.recipe)
        self.pictures = few
        short = {"pretrain": {"epochs": 1, "warmup_epochs": 0.0}, "probe": {"epochs": 1}}
        self.recipe = make_recipe(merge(self.recipe.model_dump(exclude_none=True), short))
        with tempfile.TemporaryDirectory(prefix="scs-dry-run-") as folder:
            summary = self.run(Path(folder) / "run", overwrite=False)
        self.display.line("dry run passed: one batch of everything; nothing was kept")
        return summary

    def _train(self, fabric: Fabric, run: RunFolder) -> dict[str, Any]:
        recipe, pictures = self.recipe, self.pictures
        splits = self._splits(run, fabric.is_global_zero)
        self._say(forecast.describe_data(pictures, splits, self.problems))
        with seeded(recipe.seed, 1):
            encoder, line = first_encoder(recipe, self.wishes, self.place.offline)
            self._say([line])
            width = encoder.num_features
            projection = Projection(width, recipe.head.dim, recipe.head.hidden, recipe.head.centre)
            frozen = recipe.encoder.frozen
            if self.wishes.init_from is not None:
                model.fill_from(self.wishes.init_from, encoder, projection)
            at_once = 0 if frozen else recipe.pretrain.micro_batch
            method = make_method(recipe, fabric.world_size)
            source, stand_in = for_cache(encoder, frozen and method.uses_taps)
            network = Network(stand_in if frozen else encoder, projection, at_once)
            indices = np.flatnonzero(splits == "train")
            labels = pictures.labels[indices]
            method.for_task(task_of(network, labels, len(pictures.classes), width, recipe))
        self._say(forecast.describe_batches(labels, recipe, method.views))
        parts = Parts(pictures, splits, encoder, source, network, method)
        looking = Looking(fabric, recipe, self.place, self.display)
        training = self._training_set(looking, parts, indices)
        self._estimate(network, method, training)
        with self.display.progress("stage 1") as tell:
            pretrain(fabric, run, network, method, training, recipe, tell)
        return self._conclude(looking, run, parts)

    def _conclude(self, looking: Looking, run: RunFolder, parts: Parts) -> dict[str, Any]:
        fabric, kept = looking.fabric, run.path / "features"
        seen = {split: looking.see(parts, split, kept) for split in SPLITS}
        recipe = self.recipe
        probe, linear = train_classifiers(
            fabric, run, seen, len(self.pictures.classes), recipe.probe, recipe.seed, self.display
        )
        method = parts.method
        reads, _ = reading(method, recipe.encoder.frozen)
        projection = parts.network.projection
        classifier, beside = settle_on(method, reads, probe, projection, seen)
        network = model.Network(parts.encoder, projection, reads)
        boundary = method.boundary_of()
        made = assemble(recipe, self.pictures, seen, network, classifier, boundary)
        judged = judge_splits(made, seen)
        summary = summarise(made, linear, seen, judged)
        summary["baselines"] |= beside
        summary |= {"bank": [vars(head) for head in classifier.bank], "run": str(run.path)}
        summary["model"] = str(run.path / "model")
        if fabric.is_global_zero:
            counts = {split: len(part.labels) for split, part in seen.items()}
            made.save(run.path / "model", summary["metrics"], counts)
            baselines = summary["baselines"]
            found = Findings(parts.pictures, self.problems, seen, judged, made, baselines)
            keep_records(run.path, found, self.place.workers)
        shutil.rmtree(kept, ignore_errors=True)
        return summary

    def _read(self) -> tuple[Pictures, list[Problem]]:
        with self.display.progress("checking pictures") as tell:
            pictures, problems = read_usable(self.wishes.source, self.place.workers, tell)
        for problem in problems:
            if problem.kind in UNUSABLE:
                self.display.line(f"left out: {problem.detail}")
        return pictures, problems

    def _splits(self, run: RunFolder, first: bool) -> NDArray[np.str_]:
        """Draw the splits; a run that goes on must find the pictures it began with."""
        splits = splits_of(self.pictures, self.recipe)
        file = run.path / "splits.csv"
        if file.exists():
            if not np.array_equal(read_splits_csv(file, self.pictures), splits):
                raise UserError(
                    f"the pictures are not those that {run.path} began with: bring them back, "
                    "or start another run with another --out"
                )
        elif first:
            with replacing(file) as temporary:
                write_splits_csv(temporary, self.pictures, splits)
            run.write_json("classes.json", list(self.pictures.classes))
        self.problems = [p for p in self.problems if p.kind != "one picture"]
        self.problems += lonely_classes(
            self.pictures.labels[splits == "train"], self.pictures.classes
        )
        return splits

    def _training_set(
        self, looking: Looking, parts: Parts, indices: NDArray[np.int64]
    ) -> TrainingSet:
        recipe, views = self.recipe, parts.method.views
        if not recipe.encoder.frozen:
            return from_pictures(self.pictures, indices, recipe, views, self.place.workers)
        features = looking.features(parts, indices, "train", recipe.encoder.frozen_views)
        return from_features(features, self.pictures, indices, recipe, views)

    def _estimate(self, network: Network, method: Method, training: TrainingSet) -> None:
        how = self.recipe.pretrain
        size = min(how.batch_size, len(training.labels))
        plan = [[np.arange(min(forecast.FEW, size))]]
        batch: Batch = next(training.batches(plan, 0, 0, 0))
        steps = how.epochs * -(-len(training.labels) // size)
        cost = forecast.estimate(network, method, batch, size, steps)
        self._say(forecast.describe_cost(cost, self.recipe))

    def _say(self, lines: list[str]) -> None:
        for line in lines:
            self.display.line(line)


def make_method(recipe: Recipe, world: int = 1) -> Method:
    """Build the method; the head's numbers say where its fields lie."""
    options: dict[str, Any] = dict(recipe.method.options)
    made = method_class(recipe.method.name)
    if issubclass(made, FieldMethod):
        options = {"common_dim": recipe.head.common_dim, "overlap": recipe.head.overlap} | options
    if world > 1 and "gather_across_devices" in inspect.signature(made).parameters:
        options["gather_across_devices"] = True
    return build_method(recipe.method.name, recipe.method.preset, **options)


def _few(pictures: Pictures, splits: NDArray[np.str_], recipe: Recipe) -> Pictures:
    """A few pictures of every class and split, about one batch in all."""
    most = max(4, recipe.pretrain.batch_size // len(pictures.classes))
    keep: list[int] = []
    for label in range(len(pictures.classes)):
        for split, count in (("train", most), ("val", 1), ("test", 1)):
            found = np.flatnonzero((pictures.labels == label) & (splits == split))
            keep += found[:count].tolist()
    left_out = np.setdiff1d(np.arange(len(pictures)), keep)
    return without(replace(pictures, splits=splits), left_out)
