"""`scs export`: a model for use elsewhere."""

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from scs_supcon.cli.app import Json, Quiet, RunPath, app


@app.command()
def export(
    run: RunPath,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="As an ONNX file; the only form yet.")
    ] = True,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Default: RUN/model.onnx.")
    ] = None,
    images: Annotated[
        list[str] | None,
        typer.Option(help="Compare by these; default: the run's test images. May be repeated."),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a model as one file for onnxruntime, and compare their answers on real images.

    Where they differ by more than 0.001, nothing is written and the exit code is 2.
    examples/onnx_predict.py uses the file without this package.

        scs export runs/birds --onnx -o birds.onnx
    """
    from dataclasses import asdict

    from scs_supcon import load
    from scs_supcon.data.load import find_images
    from scs_supcon.inference.onnx import export_onnx, images_of_run
    from scs_supcon.progress import Display

    model = load(run)
    chosen = [*find_images(images)] if images else images_of_run(run, model)
    file = output or run / "model.onnx"
    display = Display(quiet)
    display.line(f"exporting {model.info.recipe.encoder.name}, then comparing with torch")
    with display.progress("images judged") as tell:
        parity = export_onnx(model, file, chosen, tell)
    if as_json:
        print(json.dumps({"file": str(file), **asdict(parity)}, indent=1))
        return
    print(parity)
    print(f"{file} ({file.stat().st_size / 1e6:.1f} MB) holds {len(model.classes)} classes")
    print(f"use it    python examples/onnx_predict.py {shlex.quote(str(file))} image.jpg")
