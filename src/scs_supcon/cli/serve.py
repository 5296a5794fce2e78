"""`scs serve`: a web app and a REST API for a run."""

import os
import secrets
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from scs_supcon.cli.app import app, echo
from scs_supcon.cli.options import AllowCode, Cache, RunData
from scs_supcon.errors import UserError
from scs_supcon.runs.layout import find_model


@app.command()
def serve(
    run: Annotated[
        Path | None, typer.Argument(help="A run directory. Not needed with --onnx.")
    ] = None,
    data: RunData = None,
    unlabelled: Annotated[
        Path | None, typer.Option(help="Folder with images without labels, for the label queue.")
    ] = None,
    onnx: Annotated[
        Path | None,
        typer.Option(
            help="Serve a file of `scs export` with onnxruntime, without PyTorch and without a "
            "run: predictions, embeddings and neighbours."
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on. Others than 127.0.0.1 can be reached from outside and "
            "need a token, which is printed, or taken from the variable SCS_TOKEN."
        ),
    ] = "127.0.0.1",
    open_page: Annotated[
        bool, typer.Option("--open", help="Open the page in the web browser.")
    ] = False,
    cache: Cache = None,
    allow_code: AllowCode = None,
) -> None:
    """Start a web app and a REST API: drop an image, see why, fix labels, retrain.

    Everything stays on this computer. Corrected labels are written to corrections.jsonl in the run
    directory; image files are never changed. `curl -F images=@photo.jpg
    localhost:8000/api/predict` classifies an image.

        scs serve runs/birds --open
    """
    import python_multipart  # noqa: F401 - starlette needs it, and its own error is less clear
    import uvicorn

    from scs_supcon.server.protocol import LimitedProtocol
    from scs_supcon.server.security import AccessRules, is_local

    token = os.environ.get("SCS_TOKEN", "")
    if not is_local(host) and not token:
        token = secrets.token_urlsafe(24)
    rules = AccessRules.for_address(host, port, token)
    if onnx is not None:
        if run is not None:
            raise UserError(f"give either the run {run} or --onnx {onnx}, not both")
        from scs_supcon.server.onnx_app import create_onnx_app

        application = create_onnx_app(onnx, rules)
    elif run is None:
        raise UserError("give a run directory, such as runs/birds, or --onnx FILE")
    else:
        find_model(run)
        from scs_supcon.server.run_app import create_run_app

        application = create_run_app(run, rules, data, unlabelled, cache)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{port}/" + (f"?token={token}" if token else "")
    echo(f"serving at {address} (stop with Ctrl-C)", err=True)
    if open_page:
        webbrowser.open(address)
    uvicorn.run(
        application,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        http=LimitedProtocol,
        ws="none",
        timeout_keep_alive=15,
        timeout_graceful_shutdown=5,
    )
