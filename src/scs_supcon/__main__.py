"""`scs` and `python -m scs_supcon`, which is also what torchrun starts."""

import sys

from scs_supcon.errors import UserError

TRAIN = ("torchvision", "timm", "lightning_fabric", "safetensors", "PIL", "sklearn", "pydantic")
REPORT = ("jinja2", "markupsafe", "matplotlib", "openTSNE")
EXTRAS = dict.fromkeys(
    (*TRAIN, "tomli_w", "typer", "rich", "tensorboard", "pyarrow", *REPORT), "train"
)
EXTRAS |= dict.fromkeys(("onnx", "onnxscript", "onnxruntime"), "onnx")


def main() -> None:
    """Run the command; what a person can put right is told without a traceback."""
    try:
        from scs_supcon.cli import app

        app()
    except UserError as error:
        sys.exit(_failed(f"error: {error}", 2))
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        extra = EXTRAS[package]
        sys.exit(_failed(f"error: this needs {package}: pip install 'scs-supcon[{extra}]'", 2))
    except Exception as error:
        code = getattr(error, "exit_code", None)  # a run that was asked to stop, and was saved
        if code is None:
            raise
        sys.exit(_failed(str(error), code))


def _failed(message: str, code: int) -> int:
    print(message, file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
