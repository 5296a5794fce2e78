"""Methods of your own: `my_lab.losses:SoftCircle` of a package, `./loss.py:SoftCircle` of a file.

Importing runs code. So these functions are for names that a person has typed, never for names that
a file (a recipe, a model) brings along; `settle` sees to that.
"""

import hashlib
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module, util
from pathlib import Path
from types import ModuleType

from scs_supcon.errors import UserError, did_you_mean
from scs_supcon.methods.shared.base import Method

# Kept: a class is that of its import, whatever becomes of the file while the process lives.
_digests: dict[type[Method], str] = {}


def is_plugin(name: str) -> bool:
    """Whether a name stands for code outside this package."""
    return ":" in name


def plugin_class(name: str) -> type[Method]:
    """Import the module before the last colon and return the class after it."""
    place, _, wanted = name.rpartition(":")
    module = _from_file(Path(place)) if place.endswith(".py") else _from_package(place)
    there = {
        key: value
        for key, value in inspect.getmembers(module, inspect.isclass)
        if issubclass(value, Method) and value is not Method
    }
    if wanted not in there:
        listed = ", ".join(there) or "none: a method derives from scs_supcon.methods.Method"
        raise UserError(
            f"{place} has no method {wanted!r}{did_you_mean(wanted, there)} There are: {listed}"
        )
    return there[wanted]


def code_digest(made: type[Method]) -> str:
    """SHA-256 of the file in which a class is written; what that file imports is not in it."""
    if made not in _digests:
        file = Path(inspect.getfile(made))
        try:
            _digests[made] = hashlib.sha256(file.read_bytes()).hexdigest()
        except OSError as error:
            raise UserError(
                f"cannot read {file}, which holds the method {made.__name__}: {error.strerror}"
            ) from error
    return _digests[made]


def _from_package(place: str) -> ModuleType:
    try:
        with _importable_from(Path.cwd()):
            return import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise  # something that the module itself imports
    raise UserError(
        f"there is no module {place!r} here or among the installed packages: name it as Python "
        "does, such as my_lab.losses:SoftCircle, or a file, such as ./losses.py:SoftCircle"
    )


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UserError(f"there is no file {path}: name one, such as ./losses.py:SoftCircle")
    whole = path.resolve()
    name = f"{path.stem}_{hashlib.sha256(str(whole).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = util.spec_from_file_location(name, whole)
    assert spec is not None and spec.loader is not None  # it ends with .py
    module = sys.modules[name] = util.module_from_spec(spec)
    try:
        with _importable_from(whole.parent):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _importable_from(folder: Path) -> Iterator[None]:
    """Let Python look into a folder too, after all others and for this import alone."""
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
