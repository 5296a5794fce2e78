"""Contrastive learning methods: one file and one formula per method, named after the method.

Methods outside this package are given by module or file, such as `my_lab.losses:SoftCircle`;
`methods.shared.base` explains how to write one.
"""

import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from scs_supcon.errors import UserError, did_you_mean, unknown_method
from scs_supcon.io.values import Option
from scs_supcon.methods.shared.base import (
    Batch,
    EncodeTrainingSet,
    Method,
    TaskInfo,
    constructor_parameters,
    flatten,
    probe_input_for,
)
from scs_supcon.methods.shared.pair_loss import OPTIONS as PAIR_OPTIONS
from scs_supcon.methods.shared.pair_loss import PairLoss
from scs_supcon.nn.network import Network, Output

DETERMINED_BY_RUN = ("preset", "gather_across_devices", "common_dim", "overlap")


def available() -> list[str]:
    """Return the names of all methods in this package."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.ispkg)


def method_class(name: str) -> type[Method]:
    """Return the class that `methods/<name>.py` defines, or one given as `module:Class`."""
    if ":" in name:
        return _plugin_class(name)
    if name not in available():
        raise unknown_method(name, available())
    module = import_module(f"{__name__}.{name}")
    (method,) = [
        cls
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if issubclass(cls, Method) and cls.__module__ == module.__name__
    ]
    return method


def _plugin_class(name: str) -> type[Method]:
    """Import the module before the last colon and return the class after it."""
    from scs_supcon.methods.shared.loss_method import LossMethod
    from scs_supcon.plugins import import_place

    place, _, class_name = name.rpartition(":")
    methods = {
        key: value
        for key, value in inspect.getmembers(import_place(place), inspect.isclass)
        if issubclass(value, Method) and value not in (Method, LossMethod)
    }
    if class_name not in methods:
        available = ", ".join(methods) or "none (a method must derive from scs_supcon.Method)"
        raise UserError(
            f"{place} has no method {class_name!r}{did_you_mean(class_name, methods) or '.'} "
            f"Available: {available}. A loss becomes a method by scs_supcon.LossMethod"
        )
    return methods[class_name]


def parse(text: str) -> tuple[str, str | None]:
    """Split "scs_supcon@paper" into name and preset; the path of a file may contain an @."""
    module, colon, last = text.rpartition(":")
    name, _, preset = last.partition("@")
    return module + colon + name, preset or None


def check_soft_labels(method: Method | type[Method]) -> None:
    """Raise an error unless a method can train on soft labels (`Batch.label_probabilities`)."""
    if not method.supports_soft_labels:
        cls = method if isinstance(method, type) else type(method)
        able = [name for name in available() if method_class(name).supports_soft_labels]
        raise UserError(
            f"{cls.__name__} cannot use the soft labels of mixed images: turn off MixUp and "
            f"CutMix, or choose one of {', '.join(able)}"
        )


def build_method(name: str, preset: str | None = None, **options: Any) -> Method:
    """Build a method from its name and options; unknown options are errors."""
    method = method_class(name)
    parameters = constructor_parameters(method)
    for option in options:
        if option not in parameters:
            raise UserError(
                f"method {name} has no option {option!r}{did_you_mean(option, parameters) or '.'} "
                f"Available: {', '.join(parameters)}"
            )
    if preset is not None:
        if "preset" not in parameters:
            raise UserError(f"method {name} has no presets: use {name!r} without @{preset}")
        options["preset"] = preset
    with _explain_types(name, options):
        return method(**options)


@contextmanager
def _explain_types(name: str, options: Mapping[str, object]) -> Iterator[None]:
    """Raise a `UserError` for options of a wrong type, which files may contain."""
    try:
        yield
    except TypeError as error:
        given = ", ".join(f"{option}={value!r}" for option, value in options.items())
        raise UserError(f"method {name} cannot use these options ({given}): {error}") from error


def method_defaults(name: str, preset: str | None = None, **options: Option) -> dict[str, Option]:
    """Return every option of a method with its effective value, as plain TOML values.

    `build_method(name, preset, **method_defaults(name, preset))` equals
    `build_method(name, preset)`. Options that the run or the projection head determines
    (`DETERMINED_BY_RUN`) are left out, as are those without a value.

    Args:
        name: the method.
        preset: one of its presets; None means its default preset.
        options: values that override the defaults, also of options that depend on them.
    """
    method = method_class(name)
    with _explain_types(name, options):
        values = method.effective_options(preset, options)
    left_out = (*DETERMINED_BY_RUN, *(PAIR_OPTIONS if issubclass(method, PairLoss) else ()))
    return {
        option: list(value) if isinstance(value, tuple) else value
        for option, value in values.items()
        if option not in left_out and isinstance(value, bool | int | float | str | list | tuple)
    }


__all__ = [
    "Batch",
    "EncodeTrainingSet",
    "Method",
    "Network",
    "Output",
    "TaskInfo",
    "available",
    "build_method",
    "check_soft_labels",
    "constructor_parameters",
    "flatten",
    "method_class",
    "method_defaults",
    "parse",
    "probe_input_for",
]
