"""The folder of a run: one owner, one recipe, and everything the run writes.

`RunDir.open` brings the folder back to its last good checkpoint; from there the run goes on as
if it had never stopped. Of several processes only the first writes.
"""

import json
import tomllib
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lightning_fabric import Fabric

from scs_supcon.errors import UserError
from scs_supcon.io import atomic
from scs_supcon.io.lock import Lock
from scs_supcon.recipe.defaults import complete_old_values
from scs_supcon.runs.checkpoint_io import (
    Checkpoint,
    last_stage,
    read_checkpoint,
    read_last,
    sweep,
    write_checkpoint,
)
from scs_supcon.runs.environment import describe_environment, environment_changes
from scs_supcon.runs.metrics_log import MetricsLog

RECIPE, ENVIRONMENT, FINISHED = "recipe.toml", "environment.json", "finished.json"
FIGURES = ("curves", "similarities", "confusion", "calibration", "tsne")
NUMBERED = "checkpoints/[a-z]*-[0-9][0-9][0-9][0-9][0-9][0-9]."

# What a finished run no longer needs; its own features are named by hashes.
HASH = "[0-9a-f]" * 64
SPARE = (
    *(NUMBERED + suffix for suffix in ("sha256", "json", "safetensors")),
    *(f"features/{HASH}/{name}" for name in (f"{HASH}.safetensors", f"{HASH}.*.tmp", ".filling")),
)

# All that a run writes; overwriting removes these and nothing else. Recipe and environment, which
# make a folder a run, go last, so that a removal cut short is taken up again.
OWN = (
    *SPARE,
    "tensorboard/*/events.out.tfevents.*",
    *(f"model/{name}" for name in ("weights.safetensors", "model.json", "SHA256SUMS", "README.md")),
    *("classes.json", "splits.csv", "metrics.csv", "predictions.parquet", "embeddings.parquet"),
    *("thumbnails.parquet", "problems.json", "evaluation.json", "report.html"),
    *("evaluations/*.json", "evaluations/*.parquet"),
    *(f"figures/{name}.*" for name in FIGURES),
    *(FINISHED, RECIPE, ENVIRONMENT),
)

SPARE_FOLDERS = ("checkpoints", "features/*", "features")
FOLDERS = (*SPARE_FOLDERS, "tensorboard/*", "tensorboard", "model", "evaluations", "figures")


class RunDir:
    """A run's folder, held by this process until it is closed."""

    def __init__(self, path: Path, lock: Lock | None):
        """Use `open`. Without a lock nothing is written."""
        self.path = path
        self._lock = lock
        self._journal = MetricsLog(path)
        self._checkpoints = path / "checkpoints"
        self._found: dict[str, Checkpoint] = {}

    @classmethod
    def open(
        cls,
        path: str | Path,
        recipe: str,
        *,
        overwrite: bool = False,
        fabric: Fabric | None = None,
    ) -> Self:
        """Begin a run in a new folder, or take up the one that is there.

        Args:
            path: the folder; made if needed.
            recipe: the recipe as TOML. A run with another one is refused.
            overwrite: delete a finished run, or one with another recipe, and begin again. An
                unfinished run with this recipe goes on: a line may always be repeated.
            fabric: needed when there are several processes.

        Raises:
            UserError: the folder is in use, belongs to another recipe, or cannot be written.
        """
        folder = Path(path)
        if fabric is not None and not fabric.is_global_zero:
            fabric.barrier()  # until the first process has put the folder in order
            return cls(folder, None)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            run = cls(folder, Lock(folder / ".lock"))
        except OSError as error:
            raise atomic.write_error(error, folder) from error
        try:
            run._take_up(recipe, overwrite)
        except BaseException:
            run.close()
            raise
        if fabric is not None:
            fabric.barrier()
        return run

    @property
    def finished(self) -> dict[str, Any] | None:
        """What `finish` was told, or None while there is something left to do."""
        file = self.path / FINISHED
        try:
            return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
        except ValueError as error:
            raise UserError(
                f"{file} is damaged ({error}): delete it, and the same line finishes the run again"
            ) from error

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Note that nothing is left to do."""
        if self._lock:
            self._journal.flush()
        self.write_json(FINISHED, dict(summary))

    def write_text(self, name: str, text: str) -> None:
        """Write a text file of the run in one step."""
        if self._lock:
            atomic.write_text(self.path / name, text)

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file of the run in one step."""
        if self._lock:
            atomic.write_json(self.path / name, value)

    def append_metrics(
        self, stage: str, epoch: int, step: int, values: Mapping[str, float]
    ) -> None:
        """Add numbers to metrics.csv and TensorBoard."""
        if self._lock:
            self._journal.append(stage, epoch, step, values)

    def save_checkpoint(self, stage: str, checkpoint: Checkpoint) -> None:
        """Make everything up to here durable."""
        if self._lock:
            state = {"metrics_bytes": self._journal.flush(), "training": checkpoint.state}
            write_checkpoint(self._checkpoints, stage, Checkpoint(checkpoint.tensors, state))

    def load_checkpoint(self, stage: str) -> Checkpoint | None:
        """Return where a stage is to go on, or None at its beginning."""
        found = self._found.pop(stage, None) or read_checkpoint(self._checkpoints, stage)
        return Checkpoint(found.tensors, found.state["training"]) if found else None

    def close(self) -> None:
        """Let go of the folder."""
        self._journal.close()
        if self._lock:
            self._lock.release()

    def __enter__(self) -> Self:
        """Return the folder itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def _take_up(self, recipe: str, overwrite: bool) -> None:
        if (self.path / RECIPE).exists():
            self._must_be_a_run()
            differences = _differences(self.path / RECIPE, recipe)
            # A run that failed before it saved anything has nothing to lose.
            if (differences and self._nothing_saved()) or (
                overwrite and (differences or self.finished is not None)
            ):
                self._clear()
            elif differences:
                raise UserError(
                    f"{self.path} holds a run with another recipe:\n  "
                    + "\n  ".join(differences)
                    + "\nChoose another folder, or say --overwrite to delete that run."
                )
        if not (self.path / RECIPE).exists():
            self._begin(recipe)
        if self.finished is None:
            self._compare_environment()
            self._rewind()

    def _must_be_a_run(self) -> None:
        """A recipe that stands alone was put there by a person, and so may be what lies beside."""
        if not (self.path / ENVIRONMENT).exists() and self._nothing_saved():
            raise UserError(
                f"{self.path} holds {RECIPE} but no {ENVIRONMENT}, so it is not a run: choose "
                f"another folder; to train by that recipe, add --recipe {self.path / RECIPE}"
            )

    def _nothing_saved(self) -> bool:
        return self.finished is None and last_stage(self._checkpoints) is None

    def _begin(self, recipe: str) -> None:
        strangers = [file for file in self._own_files() if file.name != ENVIRONMENT]
        if strangers:
            raise UserError(
                f"{self.path} holds {strangers[0].name} but no {RECIPE}, so it is not a run: "
                "choose another folder"
            )
        self.write_json(ENVIRONMENT, describe_environment())
        self.write_text(RECIPE, recipe)

    def _rewind(self) -> None:
        """Go back to the last good checkpoint."""
        sweep(self._checkpoints)
        last = read_last(self._checkpoints)
        if last is None:
            self._journal.rewind(0)
        else:
            stage, found = last
            self._found[stage] = found
            self._journal.rewind(found.state["metrics_bytes"])

    def _compare_environment(self) -> None:
        now = describe_environment()
        try:
            then = json.loads((self.path / ENVIRONMENT).read_text(encoding="utf-8"))
            changes = environment_changes(then, now)
        except (
            FileNotFoundError,
            ValueError,
            AttributeError,
        ):  # lost or damaged: the run itself is not
            changes = [f"there is no {ENVIRONMENT} that can be read, this one is written down"]
            self.write_json(ENVIRONMENT, now)
        if changes:
            warnings.warn(
                f"{self.path} may have been begun in another environment, so the last digits may "
                f"differ from an unbroken run: {'; '.join(changes)}",
                RuntimeWarning,
                stacklevel=2,
            )

    def _own_files(self) -> list[Path]:
        return files_of(self.path, OWN)

    def _clear(self) -> None:
        for file in self._own_files():
            file.unlink()
        remove_empty(self.path, FOLDERS)


def files_of(run: Path, patterns: Iterable[str]) -> list[Path]:
    """The files of a run's folder that match, in the order of the patterns."""
    return [file for pattern in patterns for file in sorted(run.glob(pattern))]


def remove_empty(run: Path, patterns: Iterable[str]) -> None:
    """Remove the folders that match and are empty."""
    for folder in files_of(run, patterns):
        with suppress(OSError):  # not empty: something in it is not ours
            folder.rmdir()


def _differences(file: Path, recipe: str) -> list[str]:
    try:
        then = tomllib.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{file} cannot be read ({error}): choose another folder") from error
    now = tomllib.loads(recipe)
    then, now = complete_old_values(then, now), complete_old_values(now, then)
    content = then.get("data", {}).get("content")
    if content is not None and content == now["data"].get("content"):
        del then["data"]["source"], now["data"]["source"]  # the same data, wherever it lies
    return _changes(then, now)


def _changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a line for each value that changed, such as `pretrain.lr: 0.1 then, 0.2 now`."""
    old, new = _flat(then), _flat(now)
    keys = sorted(old.keys() | new.keys())
    return [
        f"{key}: {old.get(key, 'not there')} then, {new.get(key, 'not there')} now"
        for key in keys
        if old.get(key) != new.get(key)
    ]


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= (
            _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        )
    return flat
