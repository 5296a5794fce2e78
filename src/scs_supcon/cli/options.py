"""Options that several commands share, each declared once.

The decorator `with_recipe_options` adds every option of `_recipe_options` to `train`, `compare` and
`tune`. To add an option that sets a value of the recipe, add a parameter marked with `Sets` there;
nothing else has to change.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from scs_supcon.cli.app import echo
from scs_supcon.errors import UserError

if TYPE_CHECKING:
    from scs_supcon.training.train import TrainArguments

MODEL, TRAINING, COMPUTE, OUTPUT = "Model", "Training", "Compute", "Output"
PROTOCOL = "Protocol"
UNKNOWN = "Unknown images"


def _allow_code(places: list[str] | None) -> list[str] | None:
    from scs_supcon.plugins import allow_code

    for place in places or ():
        if place.endswith(".py") and not Path(place).is_file():
            raise UserError(f"--allow-code {place}: there is no such file")
    allow_code(*places or ())
    return places


Data = Annotated[
    str,
    typer.Argument(
        help="Labelled images: a folder with one folder per class, a folder with train, val and "
        "test folders, a .csv or .parquet table with the columns image_path, label and optionally "
        "split, fold, group, a folder or address written by `scs pack`, a built-in dataset "
        "(digits, shapes), or a dataset of the paper "
        "(cifar10, cifar100, tiny_imagenet, cub200, stanford_dogs, voc2005; see `scs datasets`)."
    ),
]
DataFolder = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        metavar="FOLDER",
        help="Folder of a dataset of the paper, as FOLDER or NAME=FOLDER. May be repeated. "
        "Default: the folder NAME in $SCS_DATA.",
    ),
]
RunData = Annotated[
    str | None,
    typer.Option(
        "--data",
        help="Where the images of the run are now, as for `scs train`. Default: where they were "
        "when the run was trained; an address must be typed again.",
    ),
]
RunPath = Annotated[Path, typer.Argument(help="A run directory, or its model directory.")]
ImagePaths = Annotated[
    list[str], typer.Argument(help="Image files, folders, or patterns such as 'photos/*.jpg'.")
]
FalseRejection = Annotated[
    float | None,
    typer.Option(
        help="Share of the images of known classes that may be rejected as unknown: 0.01 rejects "
        "fewer images, 0.2 more. Default: 0.05.",
        rich_help_panel=UNKNOWN,
    ),
]
Threshold = Annotated[
    float | None,
    typer.Option(
        help="Reject images whose similarity to every class is below this value, from -1 (never) "
        "to 1. Default: a value for each class, from held-out images.",
        rich_help_panel=UNKNOWN,
    ),
]
Method = Annotated[
    str | None,
    typer.Option(
        help="Method of stage 1, with an optional preset: supcon, scs_supcon, scs_supcon@paper. "
        "`scs methods` lists all of them. Your own code: my_lab.losses:SoftCircle or "
        "./my_loss.py:SoftCircle. Default: scs_supcon.",
        rich_help_panel=MODEL,
    ),
]
AllowCode = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-code",
        metavar="FILE",
        callback=_allow_code,
        help="Your own code that recipes, tables and models may import: a file, such as losses.py, "
        "or a module, such as my_lab.nets. May be repeated. Importing runs the code: allow only "
        "what you trust. Default: none.",
        rich_help_panel=MODEL,
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(min=0, help="Seed of all random numbers. Default: 0.", rich_help_panel=TRAINING),
]
Device = Annotated[
    str,
    typer.Option(
        help="auto, cpu, cuda, cuda:1 for the second GPU, or mps (Apple; not for training). auto "
        "uses CUDA if it is available.",
        rich_help_panel=COMPUTE,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        help="Number of processes that load images; 0 uses the main process. Default: one per "
        "core.",
        rich_help_panel=COMPUTE,
    ),
]
Cache = Annotated[
    Path | None,
    typer.Option(
        help="Folder for cached features of frozen encoders. Default: $SCS_CACHE, or "
        "~/.cache/scs-supcon/features.",
        rich_help_panel=COMPUTE,
    ),
]
Offline = Annotated[
    bool,
    typer.Option("--offline", help="Never download pretrained weights.", rich_help_panel=COMPUTE),
]
Runs = Annotated[
    Path,
    typer.Option(
        help="Folder for the run directories. Several commands and machines may share it.",
        rich_help_panel=OUTPUT,
    ),
]
Jobs = Annotated[
    int, typer.Option(help="Number of runs to train in parallel.", rich_help_panel=COMPUTE)
]
Dask = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Address of a Dask scheduler, such as tcp://10.0.0.1:8786: its workers do the work, "
        "in the same shared folder. They get recipes and names of files, never code.",
        rich_help_panel=COMPUTE,
    ),
]


def _submit(context: typer.Context, tasks: int | None) -> None:
    if tasks is not None:
        from scs_supcon.cli.slurm import submit_this

        submit_this(str(context.info_name), context.meta["arguments"], tasks)
        raise typer.Exit


Slurm = Annotated[
    int | None,
    typer.Option(
        metavar="TASKS",
        min=1,
        is_eager=True,
        callback=_submit,
        help="Submit this command as an array of this many SLURM jobs, which share the work, "
        "instead of running it here. `scs slurm` does the same with options of sbatch.",
        rich_help_panel=COMPUTE,
    ),
]
NoTrain = Annotated[
    bool,
    typer.Option(
        "--no-train",
        help="Do not train; write the results from the finished runs.",
        rich_help_panel=OUTPUT,
    ),
]
AcceptOld = Annotated[
    bool,
    typer.Option(
        "--accept-old",
        help="Also reuse runs that were trained by other versions of the numeric code. By default, "
        "only runs with the same recipe and the same code are reused.",
        rich_help_panel=OUTPUT,
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print the result as JSON.", rich_help_panel=OUTPUT),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", help="Do not show progress.", rich_help_panel=OUTPUT)
]


def exit_if_failed(failed: Mapping[str, str]) -> None:
    """List the runs that failed, and why, and exit with code 1 if there are any."""
    for run, reason in failed.items():
        echo(f"failed: {run}: {reason}", err=True)
    if failed:
        raise typer.Exit(1)


@dataclass(frozen=True)
class Sets:
    """Marks an option that sets one value of the recipe, such as "pretrain.micro_batch"."""

    key: str


def _recipe_options(
    encoder: Annotated[
        str | None,
        typer.Option(
            help="fast, balanced or best (`scs encoders` lists them with size, speed and "
            "accuracy), an encoder of the paper (resnet18, resnet50, convnext_t, tinyvit_5m, "
            "tinyvit_21m), any other timm model, tiny, or your own code: my_lab.nets:build or "
            "./nets.py:build. Default: fast without a GPU, balanced with one or with few images; "
            "resnet18 or tiny for images of at most 64 pixels.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    transform: Annotated[
        str | None,
        typer.Option(
            help="Your own code for the views of stage 1, such as my_lab.views:build or "
            "./views.py:build; build(image_size) returns a function of an image. Default: random "
            "crops, mirroring and changes of colour.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            help="Safetensors file with the weights of the encoder, or a model folder of timm or "
            "Hugging Face (config.json and model.safetensors). Default: timm's pretrained "
            "weights; random weights for images of at most 64 pixels.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    from_scratch: Annotated[
        bool,
        typer.Option("--from-scratch", help="Start from random weights.", rich_help_panel=MODEL),
    ] = False,
    frozen: Annotated[
        bool | None,
        typer.Option(
            help="Freeze the encoder and train on its cached features: minutes instead of hours on "
            "a CPU. Default: --frozen without a GPU, unless the encoder starts from random "
            "weights.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    unfreeze: Annotated[
        bool,
        typer.Option(
            "--unfreeze",
            help="Fine-tune: train the head on cached features of the encoder first, then the "
            "whole network, with a lower learning rate for the encoder (pretrain.encoder_lr).",
            rich_help_panel=MODEL,
        ),
    ] = False,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Epochs of stage 1. Default: 40 or 60 with a frozen encoder, more with few "
            "images; 20 with --unfreeze, 50 with pretrained weights, 200 from scratch (tiny: 20).",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Images per step. Default: 256, or 64 with --unfreeze; all training images if "
            "there are fewer.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    micro_batch: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Encode this many views at a time to save memory. The loss is the same, but "
            "training takes a third longer. Default: 0 (all views of a batch).",
            rich_help_panel=TRAINING,
        ),
        Sets("pretrain.micro_batch"),
    ] = None,
    images_per_class: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Use only this many images of each class for training and validation, chosen by "
            "the seed; the test images stay the same. Default: all.",
            rich_help_panel=TRAINING,
        ),
        Sets("data.images_per_class"),
    ] = None,
    imbalance: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="Make the training set long-tailed: the first class keeps this many times the "
            "images of the last one, with an exponential decrease in between. Other splits stay "
            "the same. Default: all images.",
            rich_help_panel=TRAINING,
        ),
        Sets("data.imbalance"),
    ] = None,
    allow_code: AllowCode = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set any value of the recipe, such as pretrain.lr=0.05 or method.options.t0=5. "
            "May be repeated. `scs train DATA --print-recipe` shows all keys.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
) -> None:
    """Declare the options that determine a recipe, for all commands that train."""


def with_recipe_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter `options` of a command by the options of `_recipe_options`.

    The command is called with `options`: keyword arguments for `scs_supcon.train`. Options marked
    with `Sets` become assignments in `options["settings"]`, before the assignments of --set.
    """
    shared = inspect.signature(_recipe_options).parameters

    @wraps(command)
    def wrapper(**arguments: Any) -> None:
        values = {name: arguments.pop(name) for name in shared}
        command(**arguments, options=_train_arguments(values))

    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        parameters += shared.values() if name == "options" else [parameter]
    keyword_only = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    wrapper.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in keyword_only}
    return wrapper


def _train_arguments(values: Mapping[str, Any]) -> "TrainArguments":
    arguments = dict(values)
    if not arguments["unfreeze"]:
        del arguments["unfreeze"]  # a table of a comparison has it for each column
    if arguments["transform"] is None:
        del arguments["transform"]  # nor this
    del arguments["allow_code"]  # which its callback has handled
    settings = []
    for name, parameter in inspect.signature(_recipe_options).parameters.items():
        for mark in parameter.annotation.__metadata__:
            if isinstance(mark, Sets) and (value := arguments.pop(name)) is not None:
                settings.append(f"{mark.key}={value}")
    arguments["settings"] = (*settings, *(values["settings"] or ()))
    return cast("TrainArguments", arguments)
