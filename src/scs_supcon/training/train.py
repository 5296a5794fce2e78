"""The door to training: one call takes a set of images to a finished run folder."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scs_supcon.device import find_compute, first_process
from scs_supcon.progress import Display
from scs_supcon.recipe import write_toml
from scs_supcon.recipe.resolve import TrainOptions
from scs_supcon.report import build_report
from scs_supcon.training.pipeline import Session


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
    """Train both stages on a set of images and leave everything in one folder.

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
        batch_size: images in a step.
        micro_batch: views that the encoder works on at a time: less memory, a third more time.
        seed: all randomness follows from it.
        recipe: a TOML file with any part of a recipe.
        settings: such as "pretrain.lr=0.05".
        init_from: a finished run whose encoder and head to start from.
        device: "auto", "cpu", "cuda", …
        workers: processes that load images; default: one per core.
        cache: folder for the features of frozen encoders.
        offline: never download weights.
        overwrite: delete a finished run, or one with another recipe, first.
        dry_run: go through everything with a few images, then remove it.
        report: make report.html and figures/ at the end.
        quiet: show nothing.

    Returns:
        The summary of the run: accuracies, where things are.
    """
    options = TrainOptions(
        source=str(source),
        method=method,
        encoder=encoder,
        weights=Path(weights) if weights else None,
        from_scratch=from_scratch,
        frozen=frozen,
        epochs=epochs,
        batch_size=batch_size,
        micro_batch=micro_batch,
        seed=seed,
        recipe=Path(recipe) if recipe else None,
        init_from=Path(init_from) if init_from else None,
        settings=tuple(settings),
    )
    place = find_compute(device, workers, cache, offline)
    session = Session(options, place, Display(quiet or not first_process()))
    if dry_run:
        return session.dry_run_once()
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
        again = f"scs report {shlex.quote(str(run))}"
        display.line(f"no report ({reason}); the run is finished: `{again}` tries again")


def recipe_of(source: str | Path, *, device: str = "auto", **options: Any) -> str:
    """The whole recipe that `train` would follow, as TOML."""
    for name in ("weights", "recipe", "init_from"):
        options[name] = Path(options[name]) if options.get(name) else None
    chosen = TrainOptions(source=str(source), **options)
    place = find_compute(device, offline=True)
    return write_toml(Session(chosen, place, Display(quiet=True)).recipe)
