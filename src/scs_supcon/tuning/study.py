"""A search by Optuna's TPE over the recipe, judged on validation images alone.

Workers share one study (a journal file, or any database that Optuna knows) and one folder. A worker
holds a lock for the trial it computes, which the system frees when it dies; whoever comes next
puts the trial back into the queue, and its run goes on where it stopped.
"""

import hashlib
import json
import logging
import math
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from scs_supcon.device import find_compute
from scs_supcon.errors import UserError
from scs_supcon.io.atomic import write_json
from scs_supcon.io.lock import InUse, Lock, is_held
from scs_supcon.methods import code_digest, is_plugin, method_class, parse
from scs_supcon.runs.environment import numeric_code_digest
from scs_supcon.training.checkpointing import Stopped
from scs_supcon.training.train import train
from scs_supcon.tuning.space import Axis, read_space

STUDY = "scs-supcon"
STARTUP = 10  # random trials before TPE has something to go by
RETRIES = 2  # of a trial whose worker died


@dataclass(frozen=True)
class Search:
    """One search: what to train, what to vary, how often.

    Attributes:
        source: the images.
        out: folder of the search.
        trials: how many are to be completed.
        over: what to vary, as text; see `space.py`.
        seed: of the search and of every trial.
        options: of `train` that decide its recipe; they hold for every trial.
        settings: parts of the recipe that hold for every trial.
        place: options of `train` that say where to compute.
        storage: a database URL; empty for a journal file in `out`.
    """

    source: str
    out: Path
    trials: int
    over: tuple[str, ...]
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    settings: tuple[str, ...] = ()
    place: dict[str, Any] = field(default_factory=dict)
    storage: str = ""

    @property
    def axes(self) -> tuple[Axis, ...]:
        """What to vary."""
        return read_space(self.over, self.options.get("method") or "scs_supcon")

    @property
    def facts(self) -> dict[str, Any]:
        """What may not change while a search goes on; more trials may be asked for."""
        kept = asdict(self)
        options = kept.pop("options")
        for key in ("out", "trials", "place"):
            del kept[key]
        plain: dict[str, Any] = json.loads(json.dumps(kept | options, default=str))
        name, _ = parse(self.options.get("method") or "scs_supcon")
        return plain | ({"code": code_digest(method_class(name))} if is_plugin(name) else {})


@dataclass(frozen=True)
class Trial:
    """A completed trial."""

    number: int
    loss: float
    accuracy: float
    params: dict[str, Any]
    run: str


def prepare(search: Search, accept_old: bool = False) -> None:
    """Create the folder and the study, or check that the existing ones belong to this search.

    Args:
        search: the search.
        accept_old: continue a search that was started by other numeric code.
    """
    # These say what is wrong with the ranges and the place before anything is begun.
    _ = search.axes
    find_compute(**search.place)
    search.out.mkdir(parents=True, exist_ok=True)
    file = search.out / "search.json"
    with _alone(search.out):
        if not file.exists():
            write_json(file, search.facts | {"numeric_code": numeric_code_digest()})
        before = json.loads(file.read_text(encoding="utf-8"))
        changed = [key for key, value in search.facts.items() if before.get(key) != value]
        if changed:
            raise UserError(
                f"{search.out} holds another search ({changed[0]}: {before.get(changed[0])} then, "
                f"{search.facts[changed[0]]} now): choose another --out"
            )
        if before.get("numeric_code") != numeric_code_digest() and not accept_old:
            started = "other numeric code" if "numeric_code" in before else "scs-supcon 0.1.0"
            raise UserError(
                f"the search in {search.out} was started by {started}, so its trials cannot be "
                "compared with new ones: choose another --out, or add --accept-old to continue it"
            )
        open_study(search)


def open_study(search: Search) -> Any:
    """Open the study; every worker does."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it tells of every table it makes
    journal = search.out / "study.journal"
    storage = search.storage or JournalStorage(JournalFileBackend(str(journal)))
    return optuna.create_study(study_name=STUDY, storage=storage, load_if_exists=True)


def work(search: Search) -> str:
    """Compute trials until enough are complete; many workers may do so at once."""
    study = open_study(search)
    while (claimed := _claim(search, study)) is not None:
        trial, lock = claimed
        if trial is None:  # others compute the last ones; should they die, we take over
            time.sleep(0.5)
            continue
        try:
            _compute(search, study, trial)
        finally:
            lock.release()
    return ""


def completed(study: Any) -> list[Trial]:
    """Completed trials in the order of their numbers."""
    found = []
    for trial in study.get_trials(deepcopy=False):
        if trial.state.name == "COMPLETE":
            kept = trial.user_attrs
            found.append(
                Trial(trial.number, trial.value, kept["accuracy"], trial.params, kept["run"])
            )
    return found


def best(trials: Sequence[Trial]) -> Trial:
    """The trial with the least loss on validation; the first of equals."""
    return min(trials, key=lambda trial: (trial.loss, trial.number))


def _claim(search: Search, study: Any) -> tuple[Any, Any] | None:
    """Take a trial and its lock; (None, None) to wait; None when enough are completed."""
    import optuna

    with _alone(search.out):
        _bring_back_the_dead(search, study)
        states = [trial.state.name for trial in study.get_trials(deepcopy=False)]
        if states.count("COMPLETE") >= search.trials:
            return None
        _give_up_if_nothing_works(study, states)
        under_way = states.count("COMPLETE") + states.count("RUNNING")
        if under_way >= search.trials:
            return None, None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.sampler = optuna.samplers.TPESampler(
                n_startup_trials=min(STARTUP, max(2, search.trials // 3)),
                constant_liar=True,  # several workers should not try the same thing at once
                seed=search.seed * 1_000_003 + len(states),
            )
        trial = study.ask()
        return trial, Lock(_lock_file(search, trial.number))


def _compute(search: Search, study: Any, trial: Any) -> None:
    chosen = [axis.suggest(trial) for axis in search.axes]
    run = f"trials/{hashlib.sha256(json.dumps(chosen).encode()).hexdigest()[:12]}"
    try:
        train(
            search.source,
            out=search.out / run,
            settings=[*search.settings, *chosen],
            seed=search.seed,
            report=False,
            quiet=True,
            **search.options,
            **search.place,
        )
        loss, accuracy = on_validation(search.out / run)
    except Stopped:  # saved; whoever comes next goes on with it
        trial.set_user_attr("stopped", True)
        raise
    except InUse:  # the same numbers are being tried elsewhere at this moment
        study.tell(trial.number, state=_state("PRUNED"))
        return
    except Exception as error:  # such as a batch that does not fit into memory
        known = isinstance(error, UserError)
        reason = str(error) if known else f"{type(error).__name__}: {error}"
        trial.set_user_attr("error", reason)
        study.tell(trial.number, state=_state("FAIL"))
        return
    trial.set_user_attr("accuracy", accuracy)
    trial.set_user_attr("run", run)
    study.tell(trial.number, loss)


def on_validation(run: Path) -> tuple[float, float]:
    """Mean −ln p(right class) and accuracy on the validation images of a finished run."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(run / "predictions.parquet")
    rows = table.filter(pc.equal(table["split"], "val")).to_pylist()
    classes = json.loads((run / "classes.json").read_text(encoding="utf-8"))
    place = {name: index for index, name in enumerate(classes)}
    # Float32 may have rounded a small probability to 0.
    chances = [max(row["probabilities"][place[row["label"]]], 1e-30) for row in rows]
    right = sum(row["prediction"] == row["label"] for row in rows)
    return -sum(map(math.log, chances)) / len(rows), right / len(rows)


def _bring_back_the_dead(search: Search, study: Any) -> None:
    """Queue the trials anew whose workers died; their runs then go on where they stopped.

    A trial that every worker dies of is given up: it may be what kills them.
    """
    from optuna.trial import Trial as Running

    trials = study.get_trials(deepcopy=False)
    for trial in trials:
        if trial.state.name == "RUNNING" and not is_held(_lock_file(search, trial.number)):
            deaths = _deaths(trials, trial.number)
            again = bool(trial.params) and deaths <= RETRIES
            if trial.params and not again:
                reason = f"{deaths} workers died of it, perhaps for want of memory"
                Running(study, trial._trial_id).set_user_attr("error", reason)
            study.tell(trial.number, state=_state("FAIL"))
            if again:
                study.enqueue_trial(trial.params, user_attrs={"again": trial.number})


def _deaths(trials: Sequence[Any], number: int | None) -> int:
    """How many workers died of a trial and of those it takes up again; a stop is no death."""
    deaths = 0
    while number is not None:
        kept = trials[number].user_attrs
        deaths += "stopped" not in kept
        number = kept.get("again")
    return deaths


def _give_up_if_nothing_works(study: Any, states: Sequence[str]) -> None:
    errors = [t.user_attrs["error"] for t in study.trials if "error" in t.user_attrs]
    if len(errors) >= 3 and "COMPLETE" not in states:
        raise UserError(f"the first {len(errors)} trials all failed, the last with: {errors[-1]}")
    if len(errors) > 2 * states.count("COMPLETE") + 3:
        raise UserError(
            f"{len(errors)} trials failed, the last with: {errors[-1]}\nNarrow what to vary"
        )


def _state(name: str) -> Any:
    from optuna.trial import TrialState

    return TrialState[name]


def _lock_file(search: Search, number: int) -> Path:
    return search.out / "trials" / f".{number}.lock"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One worker at a time; the lock of a dead one is free."""
    (folder / "trials").mkdir(parents=True, exist_ok=True)
    while True:
        try:
            lock = Lock(folder / ".search.lock")
            break
        except InUse:
            time.sleep(0.05)
    try:
        yield
    finally:
        lock.release()
