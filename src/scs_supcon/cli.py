"""The command `scs`: one verb for each thing people do."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from scs_supcon import __version__
from scs_supcon.errors import UserError

app = typer.Typer(
    name="scs",
    help="Supervised contrastive learning with a learnable decision boundary.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Data = Annotated[
    str,
    typer.Argument(
        help="Folder of class folders, train/val/test folders, .csv or .parquet with "
        "image_path,label[,split,fold,group], or a built-in set: digits, drawn."
    ),
]
RunPath = Annotated[Path, typer.Argument(help="A run's folder, or its model folder.")]
Pictures = Annotated[
    list[str], typer.Argument(help="Files, folders and patterns such as 'x/*.jpg'.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result for programs.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"scs-supcon {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


@app.command()
def train(
    data: Data,
    out: Annotated[
        Path | None, typer.Option(help="The run's folder; the same line again goes on.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="Loss of stage 1: scs_supcon, scs_supcon@paper, …; see `scs methods`."),
    ] = None,
    encoder: Annotated[str | None, typer.Option(help="Any timm model, or tiny.")] = None,
    weights: Annotated[
        Path | None, typer.Option(help="Safetensors file with the encoder's weights.")
    ] = None,
    from_scratch: Annotated[
        bool, typer.Option(help="Start the encoder from random weights.")
    ] = False,
    frozen: Annotated[
        bool | None,
        typer.Option(help="Train on cached features; default without an accelerator."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs of stage 1.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Pictures in a step.")] = None,
    seed: Annotated[int | None, typer.Option(help="All randomness follows from it.")] = None,
    recipe: Annotated[
        Path | None, typer.Option(help="TOML file with any part of a recipe.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Such as pretrain.lr=0.05; may be repeated.")
    ] = None,
    print_recipe: Annotated[bool, typer.Option(help="Print the whole recipe and stop.")] = False,
    dry_run: Annotated[bool, typer.Option(help="One batch of everything; keeps nothing.")] = False,
    init_from: Annotated[
        Path | None, typer.Option(help="Finished run whose encoder and head to start from.")
    ] = None,
    device: Device = "auto",
    workers: Annotated[int | None, typer.Option(help="Processes that load pictures.")] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder for cached features.")] = None,
    offline: Annotated[bool, typer.Option(help="Never download weights.")] = False,
    overwrite: Annotated[
        bool, typer.Option(help="Delete a finished or different run first.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train both stages on a folder of pictures.

    The same line again goes on where the last one stopped, whatever stopped it.

        scs train ./birds --out runs/birds
        scs train digits --out runs/digits --method supcon
    """
    from scs_supcon import training
    from scs_supcon.conclude import describe

    options: dict[str, Any] = {
        "method": method,
        "encoder": encoder,
        "weights": weights,
        "from_scratch": from_scratch,
        "frozen": frozen,
        "epochs": epochs,
        "batch_size": batch_size,
        "seed": seed,
        "recipe": recipe,
        "settings": settings or (),
        "init_from": init_from,
    }
    if print_recipe:
        print(training.recipe_of(data, device=device, **options), end="")
        return
    if out is None and not dry_run:
        raise UserError(f"say where the run goes: --out runs/{Path(data).stem}")
    summary = training.train(
        data,
        out=out or "",
        device=device,
        workers=workers,
        cache=cache,
        offline=offline,
        overwrite=overwrite,
        dry_run=dry_run,
        quiet=quiet,
        **options,
    )
    if not training.first_process():
        return
    if as_json:
        print(json.dumps(summary, indent=1))
    elif not dry_run:
        print(describe(summary))


@app.command()
def predict(
    run: RunPath,
    pictures: Pictures,
    topk: Annotated[int, typer.Option(help="Classes to name for each picture.")] = 3,
    style: Annotated[str, typer.Option("--format", help="table, csv or jsonl.")] = "table",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write to a file.")] = None,
    quiet: Quiet = False,
) -> None:
    """Name pictures, with probabilities, or say that they are none of the classes.

    Unreadable files are listed, the rest is done, and the exit code is then 1.

        scs predict runs/birds photo.jpg more/ 'other/*.png' --format csv -o names.csv
    """
    from scs_supcon import asking, load
    from scs_supcon.data.finding import find_pictures
    from scs_supcon.display import Display

    writer = asking.writer(style)
    found = find_pictures(pictures)
    with Display(quiet).progress("predict") as tell:
        predictions = load(run).predict(found, topk, tell)
    asking.put(writer(predictions.records), output)
    _report(predictions.failures)


@app.command()
def embed(
    run: RunPath,
    pictures: Pictures,
    output: Annotated[Path, typer.Option("-o", "--output", help="A .parquet or .npz file.")],
    quiet: Quiet = False,
) -> None:
    """Write the common and style vectors of pictures.

    scs embed runs/birds more/ -o vectors.parquet
    """
    from scs_supcon import asking, load
    from scs_supcon.data.finding import find_pictures
    from scs_supcon.display import Display

    asking.check_vector_file(output)
    found = find_pictures(pictures)
    with Display(quiet).progress("embed") as tell:
        vectors = load(run).embed(found, tell)
    asking.write_vectors(vectors, output)
    print(f"{len(vectors.names)} pictures: {output}")
    _report(vectors.failures)


def _report(failures: Sequence[Any]) -> None:
    for failure in failures:
        print(f"not read: {failure.reason}", file=sys.stderr)
    if failures:
        raise typer.Exit(1)


@app.command()
def methods(as_json: Json = False) -> None:
    """List the methods, one line each."""
    from scs_supcon.methods import available, method_class

    found = {name: _first_line(method_class(name)) for name in available()}
    if as_json:
        print(json.dumps(found, indent=1))
        return
    width = max(map(len, found))
    for name, line in found.items():
        print(f"{name:<{width}}  {line}")


@app.command()
def show(name: Annotated[str, typer.Argument(help="A method, such as scs_supcon.")]) -> None:
    """Print a method's formula, arguments and origin."""
    import inspect

    from scs_supcon.methods import method_class, parse

    found = method_class(parse(name)[0])
    print(inspect.getdoc(sys.modules[found.__module__]))
    print()
    print(f"{found.__name__}{inspect.signature(found.__init__)}".replace("(self, ", "("))
    print()
    print(inspect.getdoc(found))


@app.command()
def runs(
    folder: Annotated[Path, typer.Argument(help="Where to look.")] = Path("runs"),
    clean: Annotated[
        bool, typer.Option(help="Remove the checkpoints of finished runs; models stay.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the runs on disk, their size, and what could be freed."""
    from scs_supcon import runs as listing

    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}: name the one that holds your runs")
    found = listing.find_runs(folder)
    if clean:
        freed = sum(listing.clean(run) for run in found)
        print(f"freed {freed / 2**20:,.1f} MiB")
        return
    if as_json:
        print(json.dumps([vars(run) | {"path": str(run.path)} for run in found], indent=1))
        return
    if not found:
        print(f"no runs in {folder}")
        return
    print(f"{'run':<28} {'data':<24} {'method':<20} {'accuracy':>10} {'MiB':>9} {'spare':>9}")
    for run in found:
        accuracy = "unfinished" if run.accuracy is None else f"{run.accuracy:.2%}"
        sizes = f"{run.bytes / 2**20:>9,.1f} {run.spare / 2**20:>9,.1f}"
        print(f"{run.path!s:<28} {run.source:<24} {run.method:<20} {accuracy:>10} {sizes}")


def _first_line(method: Any) -> str:
    line = (sys.modules[method.__module__].__doc__ or "").splitlines()[0].partition(": ")[2]
    return f"{line} [adapted]" if method.adapted else line
