"""Names and places of the files of a run, and checks that need no torch, so that they are quick."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from scs_supcon.errors import UserError, did_you_mean
from scs_supcon.io.atomic import check_writable
from scs_supcon.io.exchange import recover
from scs_supcon.io.records import inside

RECIPE, ENVIRONMENT, FINISHED = "recipe.toml", "environment.json", "finished.json"
MODEL_INFO = "model.json"
MODEL_FILES = ("weights.safetensors", MODEL_INFO, "SHA256SUMS", "README.md")
PREVIOUS = ".previous"  # suffix of the directory with the model before `scs add-class`
MODELS = ("model", "model" + PREVIOUS)
FIGURES = ("curves", "similarities", "confusion", "calibration", "tsne")
NUMBERED = "checkpoints/[a-z]*-[0-9][0-9][0-9][0-9][0-9][0-9]."

# Files that a finished run does not need. Cached features are named by hashes.
HASH = "[0-9a-f]" * 64
SPARE = (
    *(NUMBERED + suffix for suffix in ("sha256", "json", "safetensors")),
    *(
        f"features/{HASH}/{name}"
        for name in (f"{HASH}.safetensors", f"{HASH}.*.tmp", f".{HASH}.*.tmp", ".filling")
    ),
)

# All files that a run writes; --overwrite removes these and nothing else. Recipe and environment
# mark a folder as a run. They are removed last, so that an interrupted removal can be repeated.
RUN_FILES = (
    *SPARE,
    "tensorboard/*/events.out.tfevents.*",
    *(f"{folder}/{name}" for folder in MODELS for name in MODEL_FILES),
    *("classes.json", "splits.csv", "metrics.csv", "predictions.parquet", "embeddings.parquet"),
    *("thumbnails.parquet", "label_scores.parquet", "problems.json", "evaluation.json"),
    "report.html",
    *("evaluations/*.json", "evaluations/*.parquet"),
    *(f"figures/{name}.*" for name in FIGURES),
    *("failed/step.json", "failed/step.safetensors"),
    *(FINISHED, RECIPE, ENVIRONMENT),
)

SPARE_FOLDERS = ("checkpoints", "features/*", "features")
FOLDERS = (
    *SPARE_FOLDERS,
    *("tensorboard/*", "tensorboard", *MODELS, "evaluations", "figures", "failed"),
)


def files_of(run: Path, patterns: Iterable[str]) -> list[Path]:
    """Return the matching files of a run directory, in the order of the patterns."""
    return [file for pattern in patterns for file in sorted(run.glob(pattern))]


def remove_empty_folders(run: Path, patterns: Iterable[str]) -> None:
    """Remove the matching folders that are empty."""
    for folder in files_of(run, patterns):
        with suppress(OSError):  # not empty: it holds other files
            folder.rmdir()


def check_new_run(out: Path, data: str) -> None:
    """Raise a `UserError` if a run of this data cannot be stored in `out`; nothing is written.

    Args:
        out: the run directory; it may contain a run already.
        data: the images as given by the user.
    """
    if (out / RECIPE).exists():
        return  # `RunDir` checks the run
    if out.exists() and not out.is_dir():
        raise UserError(
            f"--out {out} is a file: give a folder for the run, such as runs/{out.stem}"
        )
    source = Path(data)
    if source.is_dir():
        root, target = source.resolve(), out.resolve()
        if target == root or root in target.parents:
            place = "is" if target == root else "is inside"
            raise UserError(
                f"--out {out} {place} the folder of the images, where the files of the run would "
                f"be taken for images: choose another folder, such as runs/{root.name}"
            )
    if out.is_dir() and (foreign := _foreign_files(out)):
        names = ", ".join(foreign[:3]) + (", …" if len(foreign) > 3 else "")
        raise UserError(
            f"--out {out} contains other files ({names}): choose a new or empty folder, such as "
            f"{out / 'run'}"
        )
    check_writable(out)


def _foreign_files(out: Path) -> list[str]:
    """Return the names of files and folders that no run writes; logs and hidden files are fine."""
    known = {pattern.partition("/")[0] for pattern in (*RUN_FILES, *FOLDERS)}
    return sorted(
        path.name
        for path in out.iterdir()
        if path.name not in known
        and not path.name.startswith(".")
        and path.suffix not in (".log", ".out", ".err", ".txt")
    )


def check_run(path: Path) -> None:
    """Raise a `UserError` unless there is something at the path of a run or model."""
    if path.exists():
        return
    siblings = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
    raise UserError(
        f"{path} does not exist: give the directory of a finished run or a model"
        f"{did_you_mean(path.name, siblings)}"
    )


def previous_model(directory: Path) -> Path:
    """Return the directory of the model that `scs add-class` has replaced."""
    directory = directory.resolve()
    return directory.with_name(directory.name + PREVIOUS)


def find_model(path: Path) -> Path:
    """Return the directory of a model, given it or the run that contains it.

    Raises:
        UserError: there is no model.
    """
    recover(path / "model")
    recover(path)
    check_run(path)
    for directory in (path, inside(path, "model")):
        if (directory / MODEL_INFO).exists():
            return directory
    if (path / RECIPE).is_file():
        raise UserError(f"the run in {path} is not finished: run its training command again")
    raise UserError(f"{path} has no model: expected {MODEL_INFO} in it or in {path / 'model'}")
