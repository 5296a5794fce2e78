"""Send the metrics of a run to other tools: wandb, MLflow, or a callback of your own.

metrics.csv and TensorBoard are always written. wandb and MLflow are optional; nothing is sent over
the network unless their own environment variables say so.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from scs_supcon.errors import UserError, did_you_mean
from scs_supcon.recipe.schema import Recipe
from scs_supcon.recipe.toml import flat_keys

logger = logging.getLogger(__name__)


class RunCallback(Protocol):
    """What happens in a run. The first process calls it; an error disables it with a warning."""

    def started(self, run: Path, recipe: Recipe) -> None:
        """Called when a run is started or resumed, before training."""

    def metrics(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        """Called with values of a stage ("pretrain", "probe", …) after a step, as in metrics.csv.

        Steps after the last checkpoint are reported again when a run is resumed.
        """

    def finished(self, values: Mapping[str, float]) -> None:
        """Called with the headline numbers, such as accuracy, at the end of the run."""

    def closed(self) -> None:
        """Called last, also if the run is interrupted."""


class WandbCallback:
    """Write a run of Weights & Biases into the folder wandb of the run directory.

    The mode is that of $WANDB_MODE; by default it is offline, and `wandb sync` uploads it later.

    Args:
        project: of wandb.
    """

    def __init__(self, project: str = "scs-supcon") -> None:
        self.wandb = _import("wandb")
        self.project = project
        self._run: Any = None

    def started(self, run: Path, recipe: Recipe) -> None:
        """Start a run of wandb, with the recipe as its configuration."""
        self._run = self.wandb.init(
            project=self.project,
            name=run.name,
            id=_stable_id(run),
            resume="allow",
            dir=str(run),
            config=recipe.model_dump(mode="json", exclude_none=True),
            mode=os.environ.get("WANDB_MODE", "offline"),
        )

    def metrics(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        """Log the values under the name of the stage, against its steps."""
        self._run.define_metric(f"{stage}/*", step_metric=f"{stage}/step")
        named = {f"{stage}/{name}": value for name, value in values.items()}
        self._run.log(named | {f"{stage}/step": step})

    def finished(self, values: Mapping[str, float]) -> None:
        """Write the headline numbers to the summary."""
        self._run.summary.update(dict(values))

    def closed(self) -> None:
        """End the run of wandb."""
        if self._run is not None:
            self._run.finish()
            self._run = None


class MlflowCallback:
    """Write a run of MLflow to $MLFLOW_TRACKING_URI; by default to the folder mlruns beside it.

    Args:
        experiment: of MLflow.
    """

    def __init__(self, experiment: str = "scs-supcon") -> None:
        self.mlflow = _import("mlflow")
        self.experiment = experiment
        self._client: Any = None
        self._run_id = ""

    def started(self, run: Path, recipe: Recipe) -> None:
        """Start a run of MLflow, or continue that of an interrupted run."""
        address = os.environ.get("MLFLOW_TRACKING_URI")
        if not address:  # MLflow 3 asks for this variable before it writes to a folder
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            address = (run.parent / "mlruns").resolve().as_uri()
        self._client = client = self.mlflow.MlflowClient(tracking_uri=address)
        known = client.get_experiment_by_name(self.experiment)
        experiment = known.experiment_id if known else client.create_experiment(self.experiment)
        tag = _stable_id(run)
        before = client.search_runs([experiment], f"tags.scs_run = '{tag}'", max_results=1)
        if before:
            self._run_id = before[0].info.run_id
            client.update_run(self._run_id, status="RUNNING")
            return
        created = client.create_run(experiment, run_name=run.name, tags={"scs_run": tag})
        self._run_id = created.info.run_id
        for key, value in flat_keys(recipe.model_dump(mode="json", exclude_none=True)).items():
            client.log_param(self._run_id, key, str(value)[:500])

    def metrics(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        """Log the values under the name of the stage."""
        for name, value in values.items():
            self._client.log_metric(self._run_id, f"{stage}/{name}", value, step=step)

    def finished(self, values: Mapping[str, float]) -> None:
        """Log the headline numbers, and mark the run as finished."""
        for name, value in values.items():
            self._client.log_metric(self._run_id, name, value)
        self._client.set_terminated(self._run_id)

    def closed(self) -> None:
        """Nothing is left to do."""


LOGGERS: dict[str, Callable[[], RunCallback]] = {"wandb": WandbCallback, "mlflow": MlflowCallback}


def make_callbacks(log_to: Sequence[str | RunCallback]) -> list[RunCallback]:
    """Return the callbacks of names ("wandb", "mlflow"); callbacks are returned unchanged.

    Raises:
        UserError: a name is unknown, or the package is not installed.
    """
    callbacks: list[RunCallback] = []
    for entry in log_to:
        if isinstance(entry, str) and entry not in LOGGERS:
            hint = did_you_mean(entry, LOGGERS) or "."
            raise UserError(f"unknown logger {entry!r}{hint} Available: {', '.join(LOGGERS)}")
        callbacks.append(LOGGERS[entry]() if isinstance(entry, str) else entry)
    return callbacks


class Callbacks:
    """Calls every callback; one that raises an error is closed and left out, with a warning."""

    def __init__(self, callbacks: Sequence[RunCallback] = ()) -> None:
        self._callbacks = list(callbacks)

    def call(self, event: str, *arguments: object) -> None:
        """Call one method of every callback."""
        for callback in list(self._callbacks):
            try:
                getattr(callback, event)(*arguments)
            except Exception as error:  # training must not end because a server is away
                self._callbacks.remove(callback)
                name = type(callback).__name__
                logger.warning("%s failed (%s) and is not called again", name, error)


def _import(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise UserError(
            f"logging to {name} needs {error.name}: pip install 'scs-supcon[{name}]'"
        ) from error


def _stable_id(run: Path) -> str:
    return hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:16]
