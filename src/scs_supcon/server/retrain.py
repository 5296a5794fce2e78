"""Train a new run with the corrected labels, in a process of its own.

The command is an ordinary `scs train` of a table in the run directory, so it can be repeated by
hand. `retrain.json` records the name of the new run before it starts: after a crash of the server
the training either still runs, which its lock shows, or can be resumed from its last checkpoint.
The command is put together from that name each time; a stored command would run what others wrote.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Required, TypedDict

from scs_supcon.errors import UserError
from scs_supcon.inference.package import read_package
from scs_supcon.io.atomic import replacing, write_json, write_text
from scs_supcon.io.lock import is_held
from scs_supcon.io.records import (
    MissingRecord,
    RecordError,
    csv_rows,
    open_record,
    read_json_object,
    read_text,
)
from scs_supcon.io.typed import validate
from scs_supcon.recipe import write_toml
from scs_supcon.server.workspace import TABLES, Workspace

FILE = "retrain.json"
WEIGHTS = "encoder.safetensors"  # in the folder of the tables
STEP = re.compile(r"^(.{1,80}?): ([\d,]+) of ([\d,]+)")
TAIL = 20_000  # bytes of the log that are read
LINES = 12  # shown
FOLDS = 2  # for the calibration, which takes most of the time: someone waits for the result

State = Literal["none", "running", "stopped", "failed", "finished"]


class TrainingProgress(TypedDict):
    """The last step in the log, such as "pretraining: 3 of 20"."""

    title: str
    done: int
    total: int


class TrainingStatus(TypedDict, total=False):
    """The state of a training in JSON; `curve` lists epochs and validation accuracies."""

    state: Required[State]
    run: str
    command: str
    corrections: int
    progress: TrainingProgress | None
    lines: list[str]
    curve: list[list[float]]


@dataclass(frozen=True)
class Job:
    """A training that was started.

    Attributes:
        run: name of the new run, a directory beside the served one: that of the served run and
            a number.
        corrections: number of labels that differ from the original ones.
    """

    run: str
    corrections: int


class Retrain:
    """Starts, watches, stops and resumes the training of new runs, one at a time.

    Args:
        workspace: the served run.
        options: further options of `scs train`, such as ("--cache", "DIR").
    """

    def __init__(self, workspace: Workspace, options: Sequence[str] = ()) -> None:
        self._workspace, self._options = workspace, tuple(options)
        self._process: subprocess.Popen[bytes] | None = None
        self.job = _read_job(workspace)

    @property
    def state(self) -> State:
        """State of the last training."""
        if self.job is None:
            return "none"
        path = self._workspace.path_of(self.job.run)
        if (path / "finished.json").exists():  # the process may still write the report
            return "finished"
        if self._process is not None and self._process.poll() is None:
            return "running"
        if is_held(path / ".lock"):  # started by a server that was killed
            return "running"
        code = None if self._process is None else self._process.returncode
        return "stopped" if code in (None, 130, 143, -signal.SIGTERM, -signal.SIGKILL) else "failed"

    def start(self) -> Job:
        """Start to train a new run with the current labels.

        Raises:
            UserError: a run is being trained, or a label is missing.
        """
        if self.state == "running":
            raise UserError("a run is already being trained: wait until it ends, or stop it")
        workspace = self._workspace
        workspace.check_present()
        self._check_classes()
        _write_weights(workspace)
        name = self._next_name()
        write_text(workspace.write_table(name).with_suffix(".toml"), _recipe_text(workspace))
        self.job = Job(name, len(workspace.corrections.changes()))
        write_json(workspace.run / FILE, asdict(self.job))
        self._spawn()
        return self.job

    def resume(self) -> None:
        """Continue a stopped or failed run from its last checkpoint."""
        if self.job is None or self.state not in ("stopped", "failed"):
            raise UserError(f"there is no run to resume: the last one is {self.state}")
        self._spawn()

    def stop(self) -> None:
        """Save a checkpoint and stop the training."""
        if self.state != "running" or self.job is None:
            raise UserError("no run is being trained")
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            return
        lock = self._workspace.path_of(self.job.run) / ".lock"
        owner = read_text(lock).partition(" ")[0] if lock.exists() else ""
        if owner.isdecimal():
            os.kill(int(owner), signal.SIGTERM)

    def close(self, seconds: float = 20.0) -> None:
        """Stop a training that this server started; it can be resumed later."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def status(self) -> TrainingStatus:
        """Return the state with progress, metrics and the last lines of the log, for JSON."""
        state = self.state
        if self.job is None:
            return {"state": state}
        lines = self._log_lines()
        steps = [match for line in lines if (match := STEP.match(line))]
        progress: TrainingProgress | None = None
        if steps and state == "running":
            title, done, total = steps[-1].groups()
            numbers = [int(text.replace(",", "")) for text in (done, total)]
            progress = {"title": title, "done": numbers[0], "total": numbers[1]}
        return {
            "state": state,
            "run": self.job.run,
            "command": shlex.join(["scs", *self._command(self.job)]),
            "corrections": self.job.corrections,
            "progress": progress,
            "lines": lines[-LINES:],
            "curve": _validation_curve(self._workspace.path_of(self.job.run) / "metrics.csv"),
        }

    def _command(self, job: Job) -> list[str]:
        """Return the arguments of `scs` that train or resume a run."""
        folder = self._workspace.run / TABLES
        frozen = self._workspace.recipe.encoder.frozen
        return [
            "train",
            str(folder / f"{job.run}.csv"),
            *("--out", str(self._workspace.path_of(job.run))),
            *("--recipe", str(folder / f"{job.run}.toml")),
            *(("--weights", str(folder / WEIGHTS)) if frozen else ()),
            *self._options,
        ]

    def _spawn(self) -> None:
        assert self.job is not None
        self._workspace.check_present()
        with suppress(MissingRecord):  # a pipe or a link to another file is an error
            open_record(self._log, None).close()
        # A file instead of a pipe, so that the training outlives a killed server.
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                # -P: no module is imported from the current folder.
                [sys.executable, "-P", "-m", "scs_supcon", *self._command(self.job)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "SCS_LOG_SECONDS": "1"},
            )

    @property
    def _log(self) -> Path:
        assert self.job is not None
        return self._workspace.run / TABLES / f"{self.job.run}.log"

    def _log_lines(self) -> list[str]:
        try:
            with open_record(self._log, None) as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
                return file.read().decode("utf-8", "replace").splitlines()
        except RecordError:
            return []

    def _next_name(self) -> str:
        # A table alone was left by a server that was killed before it recorded the training.
        workspace, number = self._workspace, 2
        while workspace.path_of(name := f"{workspace.run.name}-{number}").exists():
            number += 1
        return name

    def _check_classes(self) -> None:
        """Raise an error if a class has no training image left."""
        labels = self._workspace.labels()
        train = used_for_training(self._workspace)
        present = {int(label) for label, used in zip(labels, train, strict=True) if used}
        for number, name in enumerate(self._workspace.classes):
            if number not in present:
                raise UserError(f"class {name!r} has no training image left: give it one first")


def used_for_training(workspace: Workspace) -> list[bool]:
    """Return for each image whether it is used for training; unlabelled ones are once labelled."""
    return [image.split in ("train", "") for image in workspace.images]


def _read_job(workspace: Workspace) -> Job | None:
    file = workspace.run / FILE
    try:
        stored = read_json_object(file)
        stored.pop("command", None)  # of version 0.2
        job = validate(Job, stored, file)
    except MissingRecord:
        return None
    except RecordError as error:
        raise UserError(f"{file} cannot be read ({error}): delete it") from error
    if not re.fullmatch(re.escape(workspace.run.name) + r"-[0-9]{1,9}", job.run):
        raise UserError(
            f"{file} names the run {job.run!r}, expected {workspace.run.name}-NUMBER: delete it"
        )
    return job


def _recipe_text(workspace: Workspace) -> str:
    """Return the recipe of the served run for other data, with few folds."""
    recipe = workspace.recipe
    data = recipe.data.model_copy(update={"content": None})
    fusion = recipe.fusion.model_copy(update={"folds": min(FOLDS, recipe.fusion.folds)})
    return write_toml(recipe.model_copy(update={"data": data, "fusion": fusion}))


def _write_weights(workspace: Workspace) -> None:
    """Write the initial weights of the encoder for `--weights`, if the recipe needs a file.

    A frozen encoder still has its initial weights, which are taken from the model.
    """
    encoder, file = workspace.recipe.encoder, workspace.run / TABLES / WEIGHTS
    if not encoder.frozen and encoder.weights.startswith("sha256:"):
        raise UserError(
            f"the run started from a weights file ({encoder.weights}), which is not part of the "
            "run: serve a run with a frozen encoder, or train from another start"
        )
    if encoder.frozen and not file.exists():
        from safetensors.torch import save_file

        _, tensors = read_package(workspace.run)
        prefix = "encoder/body."
        weights = {
            name.removeprefix(prefix): tensor.contiguous()
            for name, tensor in tensors.items()
            if name.startswith(prefix)
        }
        with replacing(file) as temporary:
            save_file(weights, temporary)


def _validation_curve(file: Path) -> list[list[float]]:
    """Return (epoch, validation accuracy) of stage 1, if it is measured."""
    columns = {"stage": str, "metric": str, "epoch": int, "value": float}
    try:
        return [
            [int(row["epoch"]), float(row["value"])]
            for row in csv_rows(file, columns)
            if row["stage"] == "pretrain" and row["metric"] == "val_accuracy"
        ]
    except RecordError:  # none yet
        return []
