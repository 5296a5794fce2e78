"""`scs export`: write a model as an ONNX file, or its encoder as a folder of timm."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scs_supcon.cli.app import app, echo
from scs_supcon.cli.checks import check_images
from scs_supcon.cli.options import (
    AllowCode,
    FalseRejection,
    Json,
    Quiet,
    RunData,
    RunPath,
    Threshold,
)
from scs_supcon.errors import UserError
from scs_supcon.io.atomic import check_writable
from scs_supcon.runs.layout import find_model

if TYPE_CHECKING:
    from scs_supcon.inference import Model
    from scs_supcon.inference.images import ImageLike
    from scs_supcon.inference.onnx import Parity
    from scs_supcon.inference.quantise import Quantisation
    from scs_supcon.progress import Display


@app.command()
def export(
    run: RunPath,
    onnx: Annotated[bool, typer.Option("--onnx", help="Export to ONNX, the default.")] = True,
    int8: Annotated[
        bool,
        typer.Option(
            "--int8",
            help="Round weights and activations to 8 bits: about a quarter of the size, and "
            "quicker on most processors. Accuracy, size and time are measured beside those of the "
            "model in floating point, on validation images.",
        ),
    ] = False,
    timm: Annotated[
        bool,
        typer.Option(
            "--timm",
            help="Write the encoder instead, as a folder that timm (local-dir:FOLDER) and "
            "transformers (AutoModel.from_pretrained) read without a network.",
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Output file. Default: RUN/model.onnx, or RUN/model.int8.onnx with --int8; with "
            "--timm, the folder RUN/timm.",
        ),
    ] = None,
    images: Annotated[
        list[str] | None,
        typer.Option(
            help="Images for comparing ONNX with PyTorch. May be repeated. Default: test images "
            "of the run."
        ),
    ] = None,
    data: RunData = None,
    false_rejection: FalseRejection = None,
    threshold: Threshold = None,
    allow_code: AllowCode = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a model as one ONNX file and compare its outputs with PyTorch on real images.

    If they differ by more than 0.001, no file is written and the exit code is 2.
    examples/onnx_predict.py shows how to use the file without torch.

        scs export runs/birds --onnx -o birds.onnx
        scs export runs/birds --int8 -o birds.int8.onnx
        scs export runs/birds --timm -o birds-encoder
    """
    find_model(run)
    if timm:
        _export_timm(run, output or run / "timm")
        return
    if int8 and images:
        raise UserError("--int8 is measured on images of the run: leave out --images")
    file = output or run / ("model.int8.onnx" if int8 else "model.onnx")
    check_writable(file)
    files = check_images(run, images) if images else None

    from dataclasses import asdict

    from scs_supcon import load
    from scs_supcon.inference.gallery import replacing_gallery
    from scs_supcon.inference.onnx import images_of_run
    from scs_supcon.progress import Display

    model = load(run).with_rejection(false_rejection=false_rejection, threshold=threshold)
    display = Display(quiet)
    result: Quantisation | Parity
    with replacing_gallery(model, file, data) as gallery:
        if int8:
            result = _export_int8(run, model, file, data, display)
        else:
            result = _export(model, file, files or images_of_run(run, model, data), display)
    if as_json:
        echo(json.dumps({"file": str(file), **asdict(result)}, indent=1))
        return
    echo(result)
    echo(f"wrote {file} ({file.stat().st_size / 1e6:.1f} MB, {len(model.classes)} classes)")
    echo(f"wrote {gallery} (training images, for neighbours)")
    echo(f"serve it  scs serve --onnx {shlex.quote(str(file))}")
    echo(f"use it    python examples/onnx_predict.py {shlex.quote(str(file))} image.jpg")


def _export(
    model: "Model", file: Path, images: "Sequence[ImageLike]", display: "Display"
) -> "Parity":
    from scs_supcon.inference.onnx import export_onnx

    display.line(f"exporting {model.info.recipe.encoder.name}, then comparing with torch")
    with display.progress("comparing") as progress:
        return export_onnx(model, file, images, progress)


def _export_int8(
    run: Path, model: "Model", file: Path, data: str | None, display: "Display"
) -> "Quantisation":
    from scs_supcon.inference.quantise import export_int8, images_for_quantisation

    calibration, measured = images_for_quantisation(run, model, data)
    display.line(f"exporting {model.info.recipe.encoder.name} with and without 8 bits")
    with display.progress("calibrating and measuring") as progress:
        return export_int8(model, file, calibration, measured, progress)


def _export_timm(run: Path, folder: Path) -> None:
    check_writable(folder / "config.json")

    from scs_supcon import load
    from scs_supcon.nn.model_folder import write_model_folder

    model = load(run)
    write_model_folder(model.encoder, model.info.recipe.data, folder)
    echo(f"wrote {folder}")
    echo(f'use it    timm.create_model("local-dir:{folder}", pretrained=True)')
