"""Entry point of `scs`, `python -m scs_supcon` and torchrun."""

import errno
import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from scs_supcon.errors import UserError
from scs_supcon.io.text import printable

TRAIN = ("torchvision", "timm", "lightning_fabric", "safetensors", "PIL", "sklearn", "pydantic")
REPORT = ("jinja2", "markupsafe", "matplotlib", "openTSNE")
EXTRAS = dict.fromkeys(
    (*TRAIN, "tomli_w", "typer", "rich", "tensorboard", "pyarrow", *REPORT), "train"
)
EXTRAS |= dict.fromkeys(("scipy", "scikit_posthocs", "statsmodels", "pandas", "optuna"), "paper")
# Reasons why a path cannot be used, which the user can fix; others are bugs.
ENVIRONMENT_ERRORS = {
    *(errno.ENAMETOOLONG, errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENOENT, errno.EMFILE, errno.EIO),
    errno.EFBIG,
}
EXTRAS |= dict.fromkeys(("onnx", "onnxscript", "onnxruntime"), "onnx")
EXTRAS |= dict.fromkeys(("dask", "distributed"), "dask")
EXTRAS |= {"usearch": "index"}
EXTRAS |= dict.fromkeys(("starlette", "uvicorn", "python_multipart"), "serve")


def main() -> None:
    """Run the command line. Errors that the user can fix are printed without a traceback."""
    # Processes that this one starts import nothing from the current folder, like this one.
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        from scs_supcon.cli import app

        with _plain_warnings():
            app()
    except KeyboardInterrupt:  # before the command has started
        _exit("stopped", 130)
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
        if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            _exit("error: out of memory: use smaller values, fewer --workers or fewer --jobs", 2)
        if isinstance(error, OSError) and error.errno in ENVIRONMENT_ERRORS:
            _exit(f"error: {_unusable(error)}", 2)
        code = getattr(error, "exit_code", None)  # set if a run was interrupted and saved
        if code is None:
            raise
        _exit(str(error), code)


def _unusable(error: OSError) -> str:
    name = os.fsdecode(error.filename) if error.filename else "a file"
    return f"cannot use {name}: {error.strerror}"


def _out_of_memory(error: Exception) -> str:
    reason = str(error).partition(". ")[0]
    return (
        f"out of GPU memory ({reason}): use --micro-batch 64 or less, or a smaller --batch-size, "
        "or stop other programs that use the GPU"
    )


def _exit(message: str, code: int) -> NoReturn:
    print(printable(message), file=sys.stderr)
    sys.exit(code)


class _LineHandler(logging.Handler):
    """Prints a message of the logger as one line; `sys.stderr` is looked up each time."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"{record.levelname.lower()}: {printable(record.getMessage())}", file=sys.stderr)


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print warnings and log messages without the line of code that they come from."""

    def show(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        print(f"warning: {printable(str(message))}", file=sys.stderr)

    def show_thread(failed: threading.ExceptHookArgs) -> None:
        error = failed.exc_value
        if isinstance(error, OSError) and error.errno in ENVIRONMENT_ERRORS:
            print(f"warning: {printable(_unusable(error))}", file=sys.stderr)  # as TensorBoard's
        else:
            threading.__excepthook__(failed)

    logger, handler, previous = (
        logging.getLogger("scs_supcon"),
        _LineHandler(),
        warnings.showwarning,
    )
    propagate = logger.propagate
    logger.addHandler(handler)
    logger.propagate, warnings.showwarning = False, show
    previous_hook, threading.excepthook = threading.excepthook, show_thread
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate, warnings.showwarning = propagate, previous
        threading.excepthook = previous_hook


if __name__ == "__main__":
    main()
