"""Entry point of `scs`, `python -m scs_supcon` and torchrun."""

import sys
from typing import NoReturn

from scs_supcon.errors import UserError

TRAIN = ("torchvision", "timm", "lightning_fabric", "safetensors", "PIL", "sklearn", "pydantic")
REPORT = ("jinja2", "markupsafe", "matplotlib", "openTSNE")
EXTRAS = dict.fromkeys(
    (*TRAIN, "tomli_w", "typer", "rich", "tensorboard", "pyarrow", *REPORT), "train"
)
EXTRAS |= dict.fromkeys(("scipy", "scikit_posthocs", "statsmodels", "pandas", "optuna"), "paper")
EXTRAS |= dict.fromkeys(("onnx", "onnxscript", "onnxruntime"), "onnx")
EXTRAS |= dict.fromkeys(("starlette", "uvicorn", "python_multipart"), "serve")


def main() -> None:
    """Run the command line. Errors that the user can fix are printed without a traceback."""
    try:
        from scs_supcon.cli import app

        app()
    except UserError as error:
        _exit(f"error: {error}", 2)
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        _exit(f"error: {package} is not installed: pip install 'scs-supcon[{EXTRAS[package]}]'", 2)
    except Exception as error:
        # Compared by name, because not every command imports torch.
        if type(error).__name__ == "OutOfMemoryError":
            _exit(f"error: {_out_of_memory(error)}", 2)
        code = getattr(error, "exit_code", None)  # set if a run was interrupted and saved
        if code is None:
            raise
        _exit(str(error), code)


def _out_of_memory(error: Exception) -> str:
    reason = str(error).partition(". ")[0]
    return (
        f"out of GPU memory ({reason}): use --micro-batch 64 or less, or a smaller --batch-size, "
        "or stop other programs that use the GPU"
    )


def _exit(message: str, code: int) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
