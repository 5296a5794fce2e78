"""Methods outside this package: `my_lab.losses:SoftCircle` or `./losses.py:SoftCircle`.

Importing runs code. Call these functions only with names that a user has typed, never with names
read from a file (a recipe, a model); `recipe.resolve` ensures this.
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

# The digest belongs to the imported code, even if the file changes later.
_digests: dict[type[Method], str] = {}


def is_plugin(name: str) -> bool:
    """Return whether the name of a method refers to code outside this package."""
    return ":" in name


def plugin_class(name: str) -> type[Method]:
    """Import the module before the last colon and return the class after it."""
    location, _, class_name = name.rpartition(":")
    is_file = location.endswith(".py")
    module = _import_file(Path(location)) if is_file else _import_module(location)
    methods = {
        key: value
        for key, value in inspect.getmembers(module, inspect.isclass)
        if issubclass(value, Method) and value is not Method
    }
    if class_name not in methods:
        available = ", ".join(methods) or "none (a method must derive from scs_supcon.Method)"
        raise UserError(
            f"{location} has no method {class_name!r}{did_you_mean(class_name, methods) or '.'} "
            f"Available: {available}"
        )
    return methods[class_name]


def code_digest(method: type[Method]) -> str:
    """Return the SHA-256 of the file that defines a class, without the files it imports."""
    if method not in _digests:
        file = Path(inspect.getfile(method))
        try:
            _digests[method] = hashlib.sha256(file.read_bytes()).hexdigest()
        except OSError as error:
            raise UserError(
                f"cannot read {file}, which defines the method {method.__name__}: {error.strerror}"
            ) from error
    return _digests[method]


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
