"""The run directory: all files of a run with one recipe, locked by the process that writes them.

`RunDir.open` restores the state of the last intact checkpoint, so that a resumed run writes the
same bytes as an uninterrupted one. If there are several processes, only the first one writes.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Self

from lightning_fabric import Fabric
from pydantic import BaseModel, Field

from scs_supcon.errors import UserError
from scs_supcon.io import atomic
from scs_supcon.io.lock import Lock
from scs_supcon.io.records import RecordError, inside, parse_toml, read_json_object
from scs_supcon.io.typed import validate
from scs_supcon.io.values import Value, ValueTree
from scs_supcon.recipe.defaults import complete_values
from scs_supcon.recipe.schema import Recipe
from scs_supcon.recipe.toml import Values, read_stored_values, section
from scs_supcon.runs.callbacks import Callbacks, RunCallback
from scs_supcon.runs.checkpoint_io import (
    Checkpoint,
    last_stage,
    read_checkpoint,
    read_last,
    remove_incomplete,
    write_checkpoint,
)
from scs_supcon.runs.environment import describe_environment, environment_changes
from scs_supcon.runs.layout import (
    ENVIRONMENT,
    FINISHED,
    FOLDERS,
    RECIPE,
    RUN_FILES,
    files_of,
    remove_empty_folders,
)
from scs_supcon.runs.metrics_log import MetricRows, MetricsLog


class SavedState(BaseModel):
    """What a checkpoint stores besides tensors.

    Attributes:
        metrics_bytes: Length of metrics.csv.
        metrics_sha256: Digest of that part of metrics.csv; None in checkpoints of older versions.
        training: State of the stage.
    """

    metrics_bytes: Annotated[int, Field(ge=0)]
    metrics_sha256: str | None = None
    training: dict[str, Any]


class RunDir:
    """A run directory, locked by this process until it is closed."""

    def __init__(self, path: Path, lock: Lock | None):
        """Create the object; use `open` instead. Without a lock, nothing is written."""
        self.path = path
        self._lock = lock
        self._metrics = MetricsLog(path)
        self._checkpoints = path / "checkpoints"
        self._restored: dict[str, Checkpoint] = {}
        self._callbacks = Callbacks()

    @classmethod
    def open(
        cls,
        path: str | Path,
        recipe: str,
        *,
        overwrite: bool = False,
        fabric: Fabric | None = None,
    ) -> Self:
        """Start a run in a new directory, or resume the run in an existing one.

        Args:
            path: The directory; created if needed.
            recipe: The recipe as TOML. A run with a different recipe is an error.
            overwrite: Delete a finished run, or one with a different recipe, and start again. An
                unfinished run with this recipe resumes, so that a command can be repeated.
            fabric: Required if there are several processes.

        Raises:
            UserError: The directory is in use, has a different recipe, or cannot be written.
        """
        folder = Path(path)
        if fabric is not None and not fabric.is_global_zero:
            fabric.barrier()  # until the first process has prepared the directory
            return cls(folder, None)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            run = cls(folder, Lock(folder / ".lock"))
        except OSError as error:
            raise atomic.write_error(error, folder) from error
        try:
            run._start_or_resume(recipe, overwrite)
        except BaseException:
            run.close()
            raise
        if fabric is not None:
            fabric.barrier()
        return run

    @property
    def writable(self) -> bool:
        """Whether this process writes the files of the run."""
        return self._lock is not None

    @property
    def finished(self) -> ValueTree | None:
        """The summary passed to `finish`, or None if the run is unfinished."""
        file = self.path / FINISHED
        try:
            return read_json_object(file) if file.exists() else None
        except RecordError as error:
            raise UserError(
                f"{error}: delete it and run the same command to finish the run"
            ) from error

    def start_callbacks(self, callbacks: Sequence[RunCallback], recipe: Recipe) -> None:
        """Report the run to callbacks from now on; only the first process does."""
        if self._lock:
            self._callbacks = Callbacks(callbacks)
            self._callbacks.call("started", self.path, recipe)

    def finish(self, summary: Mapping[str, Value]) -> None:
        """Mark the run as finished."""
        if self._lock:
            self._metrics.flush()
        self.write_json(FINISHED, dict(summary))
        numbers = {key: value for key, value in summary.items() if isinstance(value, float)}
        self._callbacks.call("finished", numbers)

    def write_text(self, name: str, text: str) -> None:
        """Write a text file of the run atomically."""
        if self._lock:
            atomic.write_text(self.path / name, text)

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file of the run atomically."""
        if self._lock:
            atomic.write_json(self.path / name, value)

    def append_metrics(
        self,
        stage: str,
        epoch: int,
        step: int,
        values: Mapping[str, float],
        earlier: MetricRows = (),
    ) -> None:
        """Add values to metrics.csv and TensorBoard (`MetricsLog.append`); call the callbacks."""
        if self._lock:
            self._metrics.append(stage, epoch, step, values, earlier)
            for row in (*earlier, (step, values)):
                self._callbacks.call("metrics", stage, *row)

    def save_checkpoint(self, stage: str, checkpoint: Checkpoint) -> None:
        """Save a checkpoint and flush the metrics."""
        if self._lock:
            length, digest = self._metrics.flush()
            state: ValueTree = {"metrics_bytes": length, "metrics_sha256": digest}
            state["training"] = checkpoint.state
            write_checkpoint(self._checkpoints, stage, Checkpoint(checkpoint.tensors, state))

    def load_checkpoint(self, stage: str) -> Checkpoint | None:
        """Return the newest checkpoint of a stage, or None if the stage has not started."""
        saved = self._restored.pop(stage, None) or read_checkpoint(self._checkpoints, stage)
        if saved is None:
            return None
        return Checkpoint(saved.tensors, self._saved_state(stage, saved).training)

    def close(self) -> None:
        """Close the files and release the lock."""
        self._callbacks.call("closed")
        self._metrics.close()
        if self._lock:
            self._lock.release()

    def __enter__(self) -> Self:
        """Return the run directory."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the run directory."""
        self.close()

    def _start_or_resume(self, recipe: str, overwrite: bool) -> None:
        if (self.path / RECIPE).exists():
            self._check_is_run()
            differences = recipe_differences(self.path / RECIPE, recipe)
            # Nothing is lost by restarting a run that has not saved a checkpoint.
            if (differences and self._nothing_saved()) or (
                overwrite and (differences or self.finished is not None)
            ):
                self._clear()
            elif differences:
                raise UserError(
                    f"{self.path} contains a run with a different recipe:\n  "
                    + "\n  ".join(differences)
                    + "\nChoose another folder, or use --overwrite to delete that run."
                )
        if not (self.path / RECIPE).exists():
            self._start(recipe)
        if self.finished is None:
            self._compare_environment()
            self._rewind()

    def _check_is_run(self) -> None:
        """Raise an error if the recipe was not written by a run: other files may not be either."""
        if not (self.path / ENVIRONMENT).exists() and self._nothing_saved():
            raise UserError(
                f"{self.path} contains {RECIPE} but no {ENVIRONMENT}, so it is not a run: choose "
                f"another folder; to train with that recipe, add --recipe {self.path / RECIPE}"
            )

    def _nothing_saved(self) -> bool:
        return self.finished is None and last_stage(self._checkpoints) is None

    def _start(self, recipe: str) -> None:
        foreign = [file for file in self._run_files() if file.name != ENVIRONMENT]
        if foreign:
            raise UserError(
                f"{self.path} contains {foreign[0].name} but no {RECIPE}, so it is not a run: "
                "choose another folder"
            )
        self.write_json(ENVIRONMENT, asdict(describe_environment()))
        self.write_text(RECIPE, recipe)

    def _rewind(self) -> None:
        """Restore the state of the last intact checkpoint."""
        remove_incomplete(inside(self.path, "checkpoints"))
        last = read_last(self._checkpoints)
        if last is None:
            self._metrics.rewind(0)
        else:
            stage, checkpoint = last
            self._restored[stage] = checkpoint
            state = self._saved_state(stage, checkpoint)
            self._metrics.rewind(state.metrics_bytes, state.metrics_sha256)

    def _saved_state(self, stage: str, checkpoint: Checkpoint) -> SavedState:
        return validate(
            SavedState, checkpoint.state, f"a checkpoint of stage {stage} in {self._checkpoints}"
        )

    def _compare_environment(self) -> None:
        now = asdict(describe_environment())
        try:
            changes = environment_changes(read_json_object(self.path / ENVIRONMENT), now)
        except RecordError:  # the run can still be resumed
            changes = [f"{ENVIRONMENT} was missing or damaged and has been rewritten"]
            self.write_json(ENVIRONMENT, now)
        if changes:
            warnings.warn(
                f"{self.path} may have been started in another environment, so the last digits may "
                f"differ from an uninterrupted run: {'; '.join(changes)}",
                RuntimeWarning,
                stacklevel=2,
            )

    def _run_files(self) -> list[Path]:
        return files_of(self.path, RUN_FILES)

    def _clear(self) -> None:
        for file in self._run_files():
            file.unlink()
        remove_empty_folders(self.path, FOLDERS)


def recipe_differences(file: Path, recipe: str) -> list[str]:
    """Return a line for each value in which a stored recipe differs from another one, as TOML."""
    try:
        then = read_stored_values(file)
    except RecordError as error:
        raise UserError(f"{error}: choose another folder") from error
    now = parse_toml(recipe)
    then, now = complete_values(then, now), complete_values(now, then)
    content = section(then, "data").get("content")
    if content is not None and content == section(now, "data").get("content"):
        for values in (then, now):  # the same data at another location
            values["data"] = {k: v for k, v in section(values, "data").items() if k != "source"}
    return _changes(then, now)


def _changes(then: Values, now: Values) -> list[str]:
    """Return a line for each changed value, such as `pretrain.lr: 0.1 then, 0.2 now`."""
    old, new = _flat(then), _flat(now)
    keys = sorted(old.keys() | new.keys())
    return [
        f"{key}: {old.get(key, 'not set')} then, {new.get(key, 'not set')} now"
        for key in keys
        if old.get(key) != new.get(key)
    ]


def _flat(table: Mapping[str, Value], prefix: str = "") -> Values:
    flat: Values = {}
    for key, value in table.items():
        flat |= (
            _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
        )
    return flat
