"""`scs tune`: search for a better recipe."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from scs_supcon.cli.app import Data, Device, Json, Quiet, app


@app.command()
def tune(
    data: Data,
    out: Annotated[Path, typer.Option(help="Folder of the search; the same line again goes on.")],
    trials: Annotated[int, typer.Option(min=1, help="How many trials to complete.")] = 20,
    over: Annotated[
        list[str] | None,
        typer.Option(
            help="What to vary: pretrain.lr=0.01..1:log, head.overlap=0..32, "
            "pretrain.batches=shuffle|balanced; may be repeated. Default: the method's own t0, b0, "
            "beta or temperature, and the learning rate."
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Trials at a time.")] = 1,
    storage: Annotated[
        str, typer.Option(help="Database URL for the study; default: a journal file in --out.")
    ] = "",
    retrain: Annotated[
        int,
        typer.Option(
            min=0, help="Train the best recipe again with so many new seeds, on the same split."
        ),
    ] = 0,
    method: Annotated[str | None, typer.Option(help="Loss of stage 1.")] = None,
    encoder: Annotated[str | None, typer.Option(help="Any timm model, or tiny.")] = None,
    weights: Annotated[
        Path | None, typer.Option(help="Safetensors file with the encoder's weights.")
    ] = None,
    from_scratch: Annotated[
        bool, typer.Option(help="Start the encoder from random weights.")
    ] = False,
    frozen: Annotated[bool | None, typer.Option(help="Train on cached features.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs of stage 1.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images in a step.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Such as probe.epochs=50; may be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option(help="All randomness follows from it.")] = 0,
    device: Device = "auto",
    workers: Annotated[int | None, typer.Option(help="Processes that load images.")] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder for cached features.")] = None,
    offline: Annotated[bool, typer.Option(help="Never download weights.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Search for a better recipe with Optuna, judged on validation images alone.

    The same line again goes on; the same line in a second terminal, or on another machine that
    shares the folder, helps. What a dead worker was computing is taken up by the others.

        scs tune ./birds --out tunings/birds --trials 30 --jobs 2
        scs train ./birds --recipe tunings/birds/best.toml --out runs/birds
    """
    from scs_supcon.progress import Display
    from scs_supcon.tuning import tune as tuning
    from scs_supcon.tuning.space import usual_space
    from scs_supcon.tuning.study import Search

    options: dict[str, Any] = {
        "method": method,
        "encoder": encoder,
        "weights": weights,
        "from_scratch": from_scratch,
        "frozen": frozen,
        "epochs": epochs,
        "batch_size": batch_size,
    }
    loaders = 0 if workers is None and jobs > 1 else workers
    place = {"device": device, "workers": loaders, "cache": cache, "offline": offline}
    varied = tuple(over or usual_space(method or "scs_supcon"))
    search = Search(data, out, trials, varied, seed, options, tuple(settings or ()), place, storage)
    found = tuning.tune(search, jobs=jobs, retrain=retrain, display=Display(quiet))
    if as_json:
        again = {"accuracies": found.accuracies, "judged_on": found.judged_on}
        facts = {"trials": len(found.trials), "best": vars(found.best), "retrained": again}
        print(json.dumps(facts, indent=1))
    else:
        print(tuning.describe(search, found))
