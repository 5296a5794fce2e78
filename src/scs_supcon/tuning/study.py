"""Search over keys of the recipe with Optuna's TPE sampler, by the scores on validation images.

Workers share one study (a journal file, or any database that Optuna supports) and one folder. A
worker holds a lock while it computes a trial. The system frees the lock if the worker crashes;
another worker then queues the trial again, and its run resumes.
"""

import hashlib
import json
import logging
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from scs_supcon.device import find_compute
from scs_supcon.errors import UserError
from scs_supcon.evaluation.predictions import ValidationScores, validation_scores
from scs_supcon.io.atomic import CannotWrite, make_folder, write_error, write_json
from scs_supcon.io.lock import InUse, Lock, is_held
from scs_supcon.io.records import RecordError, open_record, read_json_object
from scs_supcon.io.typed import validate
from scs_supcon.io.values import ValueTree
from scs_supcon.methods import method_class, parse
from scs_supcon.plugins import allow_code, code_digest, import_allowed, is_plugin
from scs_supcon.recipe import Share
from scs_supcon.runs.environment import numeric_code_digest
from scs_supcon.training.checkpointing import Stopped
from scs_supcon.training.train import train
from scs_supcon.tuning.journal import JournalLock
from scs_supcon.tuning.space import Axis, default_space, read_space

Objective = Literal["accuracy", "loss"]
OBJECTIVES = get_args(Objective)
STUDY = "scs-supcon"
STARTUP_TRIALS = 10  # random trials before TPE takes over
RETRIES = 2  # of a trial whose worker crashed


@dataclass(frozen=True)
class Search:
    """What to train and what to vary.

    Attributes:
        source: the data.
        out: folder of the search.
        trials: number of trials to complete.
        over: ranges and choices as text; see `space.py`.
        seed: seed of the search and of every trial.
        options: arguments of `train` that decide the recipe of every trial.
        settings: `key=value` settings of the recipe of every trial.
        compute: arguments of `train` about device, data loading and cache.
        storage: a database URL; empty for a journal file in `out`.
        objective: "accuracy" (maximised; equal accuracies are ordered by the loss) or "loss"
            (minimised); None: that of the existing search, "accuracy" for a new one.
    """

    source: str
    out: Path
    trials: int
    over: tuple[str, ...]
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    settings: tuple[str, ...] = ()
    compute: dict[str, Any] = field(default_factory=dict)
    storage: str = ""
    objective: Objective | None = None

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The parsed ranges and choices."""
        return read_space(self.over, self.options.get("method") or "scs_supcon")

    @property
    def facts(self) -> ValueTree:
        """The values that must stay the same when a search is resumed; `trials` may change."""
        values = asdict(self)
        options = values.pop("options")
        for key in ("out", "trials", "compute"):
            del values[key]
        values["objective"] = self.objective or "accuracy"
        plain: ValueTree = json.loads(json.dumps(values | options, default=str))
        name, _ = parse(self.options.get("method") or "scs_supcon")
        digests = {"code": code_digest(method_class(name))} if is_plugin(name) else {}
        for kind in ("encoder", "transform"):
            name = self.options.get(kind) or ""
            if is_plugin(name):
                allow_code(name)
                digests[f"{kind}_code"] = code_digest(import_allowed(kind, name))
        return plain | digests

    def as_text(self) -> str:
        """The search as JSON, for `work_on` on this or another machine."""
        return json.dumps(asdict(self), default=str)


@dataclass(frozen=True)
class Trial:
    """A completed trial.

    Attributes:
        number: its number in the study.
        loss: mean −ln p(true class) on the validation images.
        accuracy: accuracy on the validation images.
        params: the values of the varied keys.
        run: the run directory, relative to the folder of the search.
    """

    number: int
    loss: float
    accuracy: float
    params: dict[str, float | int | str]
    run: str


def prepare(search: Search, accept_old: bool = False) -> None:
    """Create the folder and the study, or check that the existing ones belong to this search.

    Args:
        search: the search.
        accept_old: continue a search that was started by other numeric code.
    """
    # Report invalid ranges and devices before anything is written.
    _ = search.axes
    if search.objective not in (None, *OBJECTIVES):
        raise UserError(f"--objective must be accuracy or loss, got {search.objective!r}")
    find_compute(**search.compute)
    make_folder(search.out)
    file = search.out / "search.json"
    with _exclusive(search.out):
        if not file.exists():
            write_json(file, search.facts | {"numeric_code": numeric_code_digest()})
        known, stored = _read_search(file)
        stored["objective"] = known.objective
        facts = search.facts | ({} if search.objective else {"objective": stored["objective"]})
        changed = [key for key, value in facts.items() if stored.get(key) != value]
        if changed:
            raise UserError(
                f"{search.out} contains another search ({changed[0]}: {stored.get(changed[0])} "
                f"there, {search.facts[changed[0]]} here): choose another --out"
            )
        if stored.get("numeric_code") != numeric_code_digest() and not accept_old:
            origin = "other numeric code" if "numeric_code" in stored else "scs-supcon 0.1.0"
            raise UserError(
                f"the search in {search.out} was started by {origin}, so its trials cannot be "
                "compared with new ones: choose another --out, or add --accept-old to continue it"
            )
        open_study(search)


def space_of(out: Path, method: str) -> tuple[str, ...]:
    """Return the search space of the search in a folder, or the default space for a new search."""
    file = out / "search.json"
    return tuple(_read_search(file)[0].over) if file.exists() else default_space(method)


def objective_of(search: Search) -> Objective:
    """Return the objective of a prepared search; before version 0.3 it was the loss."""
    return _read_search(search.out / "search.json")[0].objective


class SearchFile(BaseModel):
    """The keys of search.json that a search is resumed with."""

    over: list[str]
    objective: Objective = "loss"


def _read_search(file: Path) -> tuple[SearchFile, ValueTree]:
    """Return the content of search.json, validated and as it is."""
    try:
        facts = read_json_object(file)
        return validate(SearchFile, facts, file), facts
    except RecordError as error:
        raise UserError(f"{error}: restore it, or choose another --out") from error


def open_study(search: Search) -> Any:
    """Open or create the Optuna study and return it.

    Raises:
        UserError: the study is damaged, or the database cannot be opened.
    """
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it logs every table it creates
    journal = search.out / "study.journal"
    if journal.exists():
        open_record(journal, None).close()
    try:
        storage = search.storage or JournalStorage(
            JournalFileBackend(str(journal), lock_obj=JournalLock(journal))  # type: ignore[arg-type]
        )
        study = optuna.create_study(study_name=STUDY, storage=storage, load_if_exists=True)
        study.get_trials(deepcopy=False)
    except ImportError:  # a missing database driver
        raise
    except OSError as error:
        raise write_error(error, journal) from error
    except Exception as error:
        raise UserError(
            f"cannot open the study {search.storage or journal} ({type(error).__name__}: {error}): "
            "restore it from a copy, or choose another --out"
        ) from error
    return study


def work(search: Search) -> str:
    """Compute trials until enough are complete; several workers may run at once."""
    study = open_study(search)
    while (claimed := _claim(search, study)) is not None:
        trial, lock = claimed
        if trial is None:  # other workers compute the last trials; take over if they crash
            time.sleep(0.5)
            continue
        try:
            _compute(search, study, trial)
        finally:
            lock.release()
    return ""


def work_on(search: str) -> str:
    """Compute the trials of a search that is given as text; see `Search.as_text`."""
    values = json.loads(search)
    return work(Search(**values | {"out": Path(values["out"])}))


class TrialAttributes(BaseModel):
    """What a study stores about a completed trial."""

    model_config = ConfigDict(allow_inf_nan=False)

    loss: float
    accuracy: Share
    run: Annotated[str, Field(pattern=r"^trials/[0-9a-f]+$")]


def completed(study: Any) -> list[Trial]:
    """Return the completed trials in the order of their numbers.

    Raises:
        UserError: a trial lacks its accuracy or run, so the study is damaged.
    """
    trials = []
    for trial in study.get_trials(deepcopy=False):
        if trial.state.name != "COMPLETE":
            continue
        stored = trial.values or [None]  # the loss of a trial before version 0.3
        values = {"loss": stored[0]} | trial.user_attrs
        try:
            attributes = validate(TrialAttributes, values, f"trial {trial.number} of the study")
        except RecordError as error:
            raise UserError(
                f"{error}: the study is damaged or was written by another program; choose another "
                "--out"
            ) from error
        trials.append(
            Trial(trial.number, attributes.loss, attributes.accuracy, trial.params, attributes.run)
        )
    return trials


def best(trials: Sequence[Trial], objective: Objective = "accuracy") -> Trial:
    """Return the trial with the highest validation accuracy, or the lowest validation loss.

    Equal accuracies are ordered by the loss; of equal trials it is the first.
    """

    def order(trial: Trial) -> tuple[float, float, int]:
        first = -trial.accuracy if objective == "accuracy" else 0.0
        return first, trial.loss, trial.number

    return min(trials, key=order)


def objective_value(objective: Objective, scores: ValidationScores) -> float:
    """Return the number that Optuna minimises.

    For "accuracy" it is (wrong + loss/(1 + loss)) / images, where wrong is the number of images
    classified wrongly. The second term is below 1, so that it decides between equal accuracies
    only.
    """
    if objective == "loss":
        return scores.loss
    return 1 - scores.accuracy + scores.loss / (1 + scores.loss) / scores.images


def _claim(search: Search, study: Any) -> tuple[Any, Any] | None:
    """Return a trial and its lock, (None, None) to wait, or None if enough are complete."""
    import optuna

    with _exclusive(search.out):
        _requeue_stale_trials(search, study)
        trials = study.get_trials(deepcopy=False)
        states = [trial.state.name for trial in trials]
        if states.count("COMPLETE") >= search.trials:
            return None
        _check_failures(study, states)
        started = states.count("COMPLETE") + states.count("RUNNING")
        if started >= search.trials:
            return None, None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.sampler = optuna.samplers.TPESampler(
                n_startup_trials=min(STARTUP_TRIALS, max(2, search.trials // 3)),
                constant_liar=True,  # workers should not try the same values at once
                # Trials that were interrupted are not counted: the next one gets the same values.
                seed=search.seed * 1_000_003 + sum(not _interrupted(trial) for trial in trials),
            )
        trial = study.ask()
        return trial, Lock(_lock_file(search, trial.number))


def _compute(search: Search, study: Any, trial: Any) -> None:
    suggested = [axis.suggest(trial) for axis in search.axes]
    run = f"trials/{hashlib.sha256(json.dumps(suggested).encode()).hexdigest()[:12]}"
    try:
        train(
            search.source,
            out=search.out / run,
            settings=[*search.settings, *suggested],
            seed=search.seed,
            report=False,
            quiet=True,
            **search.options,
            **search.compute,
        )
        scores = validation_scores(search.out / run)
    except (Stopped, CannotWrite):  # not the trial's fault: the next worker resumes its run
        with suppress(OSError):
            trial.set_user_attr("stopped", True)
        raise
    except InUse:  # another worker is training the same values
        study.tell(trial.number, state=_state("PRUNED"))
        return
    except Exception as error:  # such as out of memory
        expected = isinstance(error, UserError)
        reason = str(error) if expected else f"{type(error).__name__}: {error}"
        trial.set_user_attr("error", reason)
        study.tell(trial.number, state=_state("FAIL"))
        return
    trial.set_user_attr("loss", scores.loss)
    trial.set_user_attr("accuracy", scores.accuracy)
    trial.set_user_attr("run", run)
    study.tell(trial.number, objective_value(objective_of(search), scores))


def _requeue_stale_trials(search: Search, study: Any) -> None:
    """Queue the trials of crashed workers again; their runs then resume.

    A trial is dropped after 3 worker crashes, as it probably causes them.
    """
    from optuna.trial import Trial as RunningTrial

    trials = study.get_trials(deepcopy=False)
    for trial in trials:
        if trial.state.name == "RUNNING" and not is_held(_lock_file(search, trial.number)):
            crashes = _crashes(trials, trial.number)
            chosen = all(axis.key in trial.params for axis in search.axes)
            retry = chosen and crashes <= RETRIES
            if chosen and not retry:
                reason = f"it crashed {crashes} workers, perhaps out of memory"
                RunningTrial(study, trial._trial_id).set_user_attr("error", reason)
            study.tell(trial.number, state=_state("FAIL"))
            if retry:
                study.enqueue_trial(trial.params, user_attrs={"again": trial.number})


def _interrupted(trial: Any) -> bool:
    """Return whether a trial waits to be computed again, or was given up for that."""
    state = trial.state.name
    return state == "WAITING" or (state == "FAIL" and "error" not in trial.user_attrs)


def _crashes(trials: Sequence[Any], number: int | None) -> int:
    """Return the number of workers that crashed in a trial and in the trials it repeats."""
    crashes = 0
    while number is not None:
        values = trials[number].user_attrs
        crashes += "stopped" not in values
        again = values.get("again")
        # A trial repeats an earlier one; anything else is damage, which must not loop.
        number = again if isinstance(again, int) and 0 <= again < number else None
    return crashes


def _check_failures(study: Any, states: Sequence[str]) -> None:
    errors = [t.user_attrs["error"] for t in study.trials if "error" in t.user_attrs]
    if len(errors) >= 3 and "COMPLETE" not in states:
        raise UserError(
            f"all of the first {len(errors)} trials failed, the last with: {errors[-1]}"
        )
    if len(errors) > 2 * states.count("COMPLETE") + 3:
        raise UserError(
            f"{len(errors)} trials failed, the last with: {errors[-1]}\nUse narrower ranges"
        )


def _state(name: str) -> Any:
    from optuna.trial import TrialState

    return TrialState[name]


def _lock_file(search: Search, number: int) -> Path:
    return search.out / "trials" / f".{number}.lock"


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Hold the lock of the search; the system frees the lock of a crashed worker."""
    (folder / "trials").mkdir(parents=True, exist_ok=True)
    with Lock(folder / ".search.lock", wait=True):
        yield
