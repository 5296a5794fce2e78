"""Methods: one file, one formula each. A method is found by the name of its file.

Those of other people are named with their place, as in `my_lab.losses:SoftCircle`.
"""

import inspect
import pkgutil
from importlib import import_module
from typing import Any

from scs_supcon.errors import UserError, did_you_mean
from scs_supcon.methods.shared.base import (
    Batch,
    Look,
    Method,
    TaskInfo,
    constructor_parameters,
    probe_input_for,
)
from scs_supcon.methods.shared.plugins import code_digest, is_plugin, plugin_class
from scs_supcon.nn.network import Network, Output

OptionValue = bool | int | float | str | list[Any]

DETERMINED_BY_RUN = ("preset", "gather_across_devices", "common_dim", "overlap")


def available() -> list[str]:
    """Names of all methods."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.ispkg)


def method_class(name: str) -> type[Method]:
    """Return the class that `methods/<name>.py` defines, or one that a person has named."""
    if is_plugin(name):
        return plugin_class(name)
    if name not in available():
        raise UserError(
            f"unknown method {name!r}{did_you_mean(name, available())} "
            f"There are: {', '.join(available())}; your own go by module:Class"
        )
    module = import_module(f"{__name__}.{name}")
    (found,) = [
        c
        for _, c in inspect.getmembers(module, inspect.isclass)
        if issubclass(c, Method) and c.__module__ == module.__name__
    ]
    return found


def parse(text: str) -> tuple[str, str | None]:
    """Cut "scs_supcon@paper" into name and preset; a folder's name may hold an @."""
    place, colon, last = text.rpartition(":")
    name, _, preset = last.partition("@")
    return place + colon + name, preset or None


def build_method(name: str, preset: str | None = None, **options: Any) -> Method:
    """Make a method from its name and options; unknown options are errors."""
    method = method_class(name)
    known = list(constructor_parameters(method))
    for key in options:
        if key not in known:
            raise UserError(
                f"unknown option {key!r} of method {name}{did_you_mean(key, known)} "
                f"It takes: {', '.join(dict.fromkeys(known))}"
            )
    if preset is not None:
        if "preset" not in known:
            raise UserError(f"method {name} has no presets: write {name!r} without @{preset}")
        options["preset"] = preset
    return method(**options)


def method_defaults(
    name: str, preset: str | None = None, **options: OptionValue
) -> dict[str, OptionValue]:
    """Return every option of a method with its effective value, as plain TOML values.

    `build_method(name, preset, **method_defaults(name, preset))` is the method that
    `build_method(name, preset)` returns. Options that the run or the projection head determines
    (`DETERMINED_BY_RUN`) are left out, as are those without a value.

    Args:
        name: the method.
        preset: one of its presets; None means its default preset.
        options: values that replace the defaults; options that depend on them follow.
    """
    values = method_class(name).effective_options(preset, options)
    return {
        option: list(value) if isinstance(value, tuple) else value
        for option, value in values.items()
        if option not in DETERMINED_BY_RUN
        and isinstance(value, bool | int | float | str | list | tuple)
    }


__all__ = [
    "Batch",
    "Look",
    "Method",
    "Network",
    "OptionValue",
    "Output",
    "TaskInfo",
    "available",
    "build_method",
    "code_digest",
    "is_plugin",
    "method_class",
    "method_defaults",
    "parse",
    "probe_input_for",
]
