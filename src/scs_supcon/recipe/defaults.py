"""Complete the method options of a recipe with their defaults, so that it holds every value.

The default of a field that a later version adds is the behaviour of earlier versions, so that the
command that started a run still resumes it.
"""

from collections.abc import Mapping
from typing import Any

from scs_supcon.io.typed import validate
from scs_supcon.io.values import Option, Value
from scs_supcon.methods import method_class, method_defaults
from scs_supcon.recipe.schema import SECTIONS
from scs_supcon.recipe.toml import Values, section, value_of


def options_of(method: Mapping[str, Value]) -> dict[str, Option]:
    """Return the options in the method section of a recipe."""
    return validate(dict[str, Option], section(method, "options"), "method.options")


def preset_name(name: str, preset: str | None) -> str | None:
    """Return the preset, or the default preset of the method if none is given."""
    if preset is not None or not method_class(name).presets:
        return preset
    return str(method_class(name).effective_options(None, {})["preset"])


def complete_options(
    name: str, preset: str | None, options: Mapping[str, Option]
) -> dict[str, Option]:
    """Return the given options and the defaults of all other options."""
    return method_defaults(name, preset, **options) | dict(options)


def complete_values(then: Mapping[str, Value], now: Mapping[str, Value]) -> Values:
    """Return the values of the recipe `then` with all options of its method and new fields.

    The default of a field that a later version added is the behaviour of earlier versions. The
    method is imported only if the recipe `now` uses the same one, because reading a file must
    never import a plug-in.
    """
    then = _with_new_fields(then, now)
    method = section(then, "method")
    name = value_of(method, "name", "")
    if not name or name != section(now, "method").get("name"):
        return dict(then)
    preset = preset_name(name, value_of(method, "preset", "") or None)
    options = complete_options(name, preset, options_of(method))
    complete = method | {"options": options} | ({"preset": preset} if preset is not None else {})
    return dict(then) | {"method": complete}


def _with_new_fields(then: Mapping[str, Value], now: Mapping[str, Value]) -> Values:
    """Return the values of `then` with the fields that only `now` sets, to their defaults."""
    complete = dict(then)
    for name in SECTIONS.keys() & now.keys() - {"method"}:
        fields = SECTIONS[name].model_fields
        defaults = {
            key: value
            for key, value in section(now, name).items()
            if key in fields and _plain(fields[key].default) == value
        }
        complete[name] = defaults | section(complete, name)
    return complete


def _plain(value: Any) -> Any:
    """Return a default as TOML reads it."""
    return list(value) if isinstance(value, tuple) else value
