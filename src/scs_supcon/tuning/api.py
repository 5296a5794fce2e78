"""`scs_supcon.tune`: a search for a better recipe from Python."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scs_supcon.plugins import allow_code
from scs_supcon.progress import Display
from scs_supcon.tuning.study import Objective, Search, space_of
from scs_supcon.tuning.tune import SearchResult, run_search


def tune(  # noqa: PLR0913
    data: str | Path,
    *,
    out: str | Path,
    trials: int = 20,
    over: Sequence[str] = (),
    objective: Objective | None = None,
    retrain: int = 0,
    method: str | None = None,
    encoder: str | None = None,
    transform: str | None = None,
    weights: str | Path | None = None,
    from_scratch: bool = False,
    frozen: bool | None = None,
    unfreeze: bool = False,
    epochs: int | None = None,
    batch_size: int | None = None,
    settings: Sequence[str] = (),
    seed: int = 0,
    storage: str = "",
    device: str = "auto",
    workers: int | None = None,
    cache: str | Path | None = None,
    offline: bool = False,
    jobs: int = 1,
    dask: str | None = None,
    accept_old: bool = False,
    quiet: bool = False,
) -> SearchResult:
    """Search for the recipe with the highest validation accuracy; test images are not used.

    The same call resumes an interrupted search. Trials are trained in other processes: call it
    under `if __name__ == "__main__":` in a script.

    Args:
        data: images as for `train`.
        out: folder of the search.
        trials: number of trials to complete.
        over: recipe values to search over, such as "pretrain.lr=0.01..1:log"; default: the learning
            rate and the main options of the method, or those of the search to resume.
        objective: "accuracy" or "loss" of the validation images.
        retrain: number of new seeds to train the best recipe with.
        method: as for `train`.
        encoder: as for `train`.
        transform: as for `train`.
        weights: as for `train`.
        from_scratch: as for `train`.
        frozen: as for `train`.
        unfreeze: as for `train`.
        epochs: of stage 1.
        batch_size: images per step.
        settings: assignments such as "pretrain.lr=0.05" for all trials.
        seed: of the search and of every trial.
        storage: database URL of the Optuna study; default: a journal file in `out`.
        device: "auto", "cpu", "cuda", …
        workers: processes that load images; default: one per core, none with several jobs.
        cache: directory for cached features of frozen encoders.
        offline: never download weights.
        jobs: trials to run in parallel.
        dask: address of the scheduler of a Dask cluster that computes the trials.
        accept_old: continue a search that was started by other numeric code.
        quiet: show no progress.

    Returns:
        The result: `.best`, `.trials`, `.accuracies` (of `retrain`), and `.to_pandas()`.
    """
    allow_code(*(name for name in (method, encoder, transform) if name is not None))
    options: dict[str, Any] = {
        "encoder": encoder,
        "weights": None if weights is None else Path(weights),
        "from_scratch": from_scratch,
        "frozen": frozen,
        "epochs": epochs,
        "batch_size": batch_size,
        "method": method,
    }
    options |= {"unfreeze": True} if unfreeze else {}
    options |= {} if transform is None else {"transform": transform}
    loaders = 0 if workers is None and jobs > 1 else workers
    search = Search(
        str(data),
        Path(out),
        trials,
        tuple(over) or space_of(Path(out), method or "scs_supcon"),
        seed,
        options,
        tuple(settings),
        {"device": device, "workers": loaders, "cache": cache, "offline": offline},
        storage,
        objective,
    )
    return run_search(
        search,
        jobs=jobs,
        retrain=retrain,
        display=Display(quiet),
        accept_old=accept_old,
        dask=dask,
    )
