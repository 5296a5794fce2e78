"""`scs export`: write a model as an ONNX file."""

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from scs_supcon.cli.app import app, echo
from scs_supcon.cli.checks import check_images
from scs_supcon.cli.options import FalseRejection, Json, Quiet, RunPath, Threshold
from scs_supcon.io.atomic import check_writable
from scs_supcon.runs.layout import find_model


@app.command()
def export(
    run: RunPath,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Export to ONNX, the only supported format.")
    ] = True,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Output file. Default: RUN/model.onnx.")
    ] = None,
    images: Annotated[
        list[str] | None,
        typer.Option(
            help="Images for comparing ONNX with PyTorch. May be repeated. Default: test images "
            "of the run."
        ),
    ] = None,
    false_rejection: FalseRejection = None,
    threshold: Threshold = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a model as one ONNX file and compare its outputs with PyTorch on real images.

    If they differ by more than 0.001, no file is written and the exit code is 2.
    examples/onnx_predict.py shows how to use the file without torch.

        scs export runs/birds --onnx -o birds.onnx
    """
    find_model(run)
    file = output or run / "model.onnx"
    check_writable(file)
    files = check_images(run, images) if images else None

    from dataclasses import asdict

    from scs_supcon import load
    from scs_supcon.inference.gallery import export_gallery
    from scs_supcon.inference.onnx import export_onnx, images_of_run
    from scs_supcon.progress import Display

    model = load(run).with_rejection(false_rejection=false_rejection, threshold=threshold)
    chosen = files or images_of_run(run, model)
    display = Display(quiet)
    display.line(f"exporting {model.info.recipe.encoder.name}, then comparing with torch")
    with display.progress("comparing") as progress:
        parity = export_onnx(model, file, chosen, progress)
    gallery = export_gallery(run, model, file)
    if as_json:
        echo(json.dumps({"file": str(file), **asdict(parity)}, indent=1))
        return
    echo(parity)
    echo(f"wrote {file} ({file.stat().st_size / 1e6:.1f} MB, {len(model.classes)} classes)")
    echo(f"wrote {gallery} (training images, for neighbours)")
    echo(f"serve it  scs serve --onnx {shlex.quote(str(file))}")
    echo(f"use it    python examples/onnx_predict.py {shlex.quote(str(file))} image.jpg")
