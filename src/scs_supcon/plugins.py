"""Code from outside this package: methods, encoders and transforms of the user.

They are named `my_lab.losses:SoftCircle` (a module) or `./losses.py:SoftCircle` (a file). Importing
runs code, so a name that comes from a file (a recipe, a table, a model) is imported only if the
user has named the code too: on the command line (--method, --encoder, --transform, --allow-code) or
with `allow_code` in Python.
"""

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module, util
from pathlib import Path
from types import ModuleType
from typing import Any

from scs_supcon.errors import UserError, did_you_mean

_allowed: set[str] = set()
# The digest belongs to the imported code, even if the file changes later.
_digests: dict[Callable[..., Any], str] = {}


def is_plugin(name: str) -> bool:
    """Return whether the name of a method, encoder or transform refers to code of the user."""
    return ":" in name


def allow_code(*places: str | Path) -> None:
    """Allow recipes, tables and models to import your own code in this process.

    Importing a file runs it: allow only code that you trust.

    Args:
        places: files such as "losses.py", or modules such as "my_lab.losses". A name such as
            "losses.py:SoftCircle" allows its file.
    """
    for place in places:
        _allowed.add(_place(str(place)))


def allowed_code() -> tuple[str, ...]:
    """Return what `allow_code` has allowed, for processes that this one starts."""
    return tuple(sorted(_allowed))


def is_allowed(name: str) -> bool:
    """Return whether the user has allowed the code that a name refers to."""
    return _place(name) in _allowed


def check_allowed(kind: str, name: str, option: str) -> None:
    """Raise an error for code that a file names and the user has not allowed.

    Args:
        kind: "method", "encoder" or "transform".
        name: what the file says; names without a colon are part of this package or of timm.
        option: how the user can name it, for the error.
    """
    if is_plugin(name) and not is_allowed(name):
        place = name.rpartition(":")[0]
        raise UserError(
            f"the {kind} {name} is code from outside this package, which is never imported "
            f"because a file names it: if you trust it, add {option}--allow-code {place}"
        )


def import_plugin(name: str) -> Any:
    """Import the module before the last colon; return what it calls by the name after the colon.

    Call it only with names that the user has typed or allowed.
    """
    place, _, attribute = name.rpartition(":")
    module = import_place(place)
    if not hasattr(module, attribute):
        available = [key for key in vars(module) if not key.startswith("_")]
        raise UserError(f"{place} has no {attribute!r}{did_you_mean(attribute, available) or '.'}")
    return getattr(module, attribute)


def import_allowed(kind: str, name: str) -> Callable[..., Any]:
    """Return the function or class of an allowed name; raise an error for any other one."""
    check_allowed(kind, name, "")
    value = import_plugin(name)
    if not callable(value):
        raise UserError(f"the {kind} {name} is {value!r}, expected a function or a class")
    code_digest(value)
    return value  # type: ignore[no-any-return]


def import_place(place: str) -> ModuleType:
    """Import a module, or a file whose name ends with .py."""
    return _import_file(Path(place)) if place.endswith(".py") else _import_module(place)


def code_digest(value: Callable[..., Any]) -> str:
    """Return the SHA-256 of the file that defines a class or a function, without its imports."""
    if value not in _digests:
        try:
            file = Path(inspect.getfile(inspect.unwrap(value)))
            _digests[value] = hashlib.sha256(file.read_bytes()).hexdigest()
        except (OSError, TypeError) as error:
            name = getattr(value, "__name__", repr(value))
            raise UserError(f"cannot read the file that defines {name}: {error}") from error
    return _digests[value]


def _place(name: str) -> str:
    """Return the absolute path of a file, or a module, from a name with or without an attribute."""
    before, colon, attribute = name.rpartition(":")
    place = before if colon and attribute.isidentifier() else name
    return str(Path(place).resolve()) if place.endswith(".py") else place


def _import_module(name: str) -> ModuleType:
    try:
        with _importable_from(Path.cwd()):
            return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # an import inside the module failed
    raise UserError(
        f"there is no module {name!r} in this folder or among the installed packages: give a "
        "module, such as my_lab.losses:SoftCircle, or a file, such as ./losses.py:SoftCircle"
    )


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UserError(f"there is no file {path}: give a file, such as ./losses.py:SoftCircle")
    absolute = path.resolve()
    name = f"{path.stem}_{hashlib.sha256(str(absolute).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = util.spec_from_file_location(name, absolute)
    assert spec is not None and spec.loader is not None  # the name ends with .py
    module = sys.modules[name] = util.module_from_spec(spec)
    try:
        with _importable_from(absolute.parent):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _importable_from(folder: Path) -> Iterator[None]:
    """Append a folder to `sys.path` temporarily."""
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
