"""Complete the method options of a recipe with their defaults, so that it holds every value.

Recipes written before version 0.2 do not contain the defaults. `OPTIONS_OF_0_1` records them, so
that old recipes keep their meaning when a default changes. `OLD_DEFAULTS` records defaults of the
other sections that have changed, so that the command that started a run still resumes it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from scs_supcon.io.typed import validate
from scs_supcon.io.values import Option, Value
from scs_supcon.methods import method_class, method_defaults
from scs_supcon.recipe.schema import SECTIONS
from scs_supcon.recipe.toml import Values, merge, section, value_of

_SCS: dict[str, Option] = {
    "beta": 0.001,
    "scale": "multiply",
    "include_self": True,
    "normalize": "separate",
}
_CS: dict[str, Option] = {
    "temperature": 0.1,
    "alpha": 0.01,
    "beta": 0.001,
    "normalize": "separate",
}
_PRESETS_OF_0_1: dict[str, dict[str, Option]] = {
    "solved": {"pairs": "positives", "t0": 10.0, "b0": 0.0, "learn": [], "bias": "solve"},
    "paper": {"pairs": "all", "t0": 0.1, "b0": 0.0, "learn": ["t", "b"], "bias": "learn"},
    "siglip": {"pairs": "all", "t0": 10.0, "b0": 10.0, "learn": ["t", "b"], "bias": "learn"},
}
OPTIONS_OF_0_1: dict[str, dict[str, Option]] = {
    "baseline": {},
    "byol": {"momentum": 0.996, "hidden": 4096},
    "circle": {"margin": 0.25, "gamma": 256.0},
    "circle_pair": {"margin": 0.25, "gamma": 256.0, "reduction": "anchor"},
    "cs_supcon": _CS,
    "cs_supcon_overlap": _CS,
    "csa_rsic": {"temperature": 0.1, "weight": 0.1},
    "cstcn": {
        "temperature": 0.1,
        "weight": 1.0,
        "prototypes": 0,
        "prototype_temperature": 0.1,
        "queue": 3840,
        "alternate": False,
    },
    "dacl": {"temperature": 0.1, "weight": 1.0, "margin": 0.1, "cap": 0.5, "rate": 0.01},
    "fncl": {"temperature": 0.1, "attract": 0, "threshold": 0.7, "classifier_weight": 0.0},
    "oscs_supcon": {"orthogonality": "projected", "weight": 0.01, **_SCS},
    "paco": {
        "temperature": 0.2,
        "alpha": 0.05,
        "beta": 1.0,
        "gamma": 1.0,
        "queue": 1024,
        "momentum": 0.999,
        "prior": False,
    },
    "pcl": {"temperature": 0.1, "granularities": [1, 2, 4], "warmup": 0.1, "momentum": 0.999},
    "scs_supcon": _SCS,
    "selfcon": {"temperature": 0.1},
    "simclr": {"temperature": 0.5, "loss_scale": 1.0},
    "supcon": {"temperature": 0.1, "loss_scale": 1.0},
    "timescl": {"temperature": 0.1, "weight": 0.5, "first": 10.0, "last": 0.5},
}


OLD_DEFAULTS: dict[str, Option] = {
    "pretrain.clip_norm": 1.0,
    "pretrain.batches": "balanced",  # of methods that use no labels
    "head.centre": False,
    "method.options.alpha": 0.05,  # of PaCo
    "data.blur": [0.0],  # of SimCLR and BYOL
    "data.solarize": [0.0],
    "data.in_memory": False,
}


def keep_old_defaults(
    now: Mapping[str, Value], then: Mapping[str, Value], requested: Mapping[str, Value]
) -> Values:
    """Return the values of the recipe `now` with the old defaults that a run was started with.

    Args:
        now: values of a resolved recipe.
        then: values of the recipe of the run.
        requested: values that the user has set; they are kept.
    """
    kept = dict(now)
    for key, default in OLD_DEFAULTS.items():
        *path, name = key.split(".")
        new, old, explicit = (_section(values, path) for values in (kept, then, requested))
        then_value = old.get(name, _default_of(path, name))
        if name in new and then_value == default and name not in explicit:
            kept = merge(kept, _nest(path, {name: default}))
    return kept


def _nest(path: Sequence[str], values: Values) -> Values:
    """Return values inside sections: (["a", "b"], v) becomes {"a": {"b": v}}."""
    return {path[0]: _nest(path[1:], values)} if path else values


def _default_of(path: Sequence[str], name: str) -> Value:
    """Return the default of a field, which is how earlier versions without the field behaved."""
    fields = SECTIONS[path[0]].model_fields if path[0] in SECTIONS else {}
    return _plain(fields[name].default) if len(path) == 1 and name in fields else None


def _section(values: Mapping[str, Value], path: Sequence[str]) -> Mapping[str, Value]:
    for name in path:
        values = section(values, name)
    return values


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


def complete_old_options(
    name: str, preset: str | None, options: Mapping[str, Option]
) -> dict[str, Option]:
    """Return the complete options of a recipe that may have been written by version 0.1."""
    defaults = dict(OPTIONS_OF_0_1.get(name, {}))
    if name in ("scs_supcon", "oscs_supcon"):
        in_preset = _PRESETS_OF_0_1.get(preset or "solved", {})
        coupled = {"bias", "learn"} if {"bias", "learn"} & options.keys() else set()
        defaults |= {key: value for key, value in in_preset.items() if key not in coupled}
    return complete_options(name, preset, defaults | dict(options))


def complete_old_values(then: Mapping[str, Value], now: Mapping[str, Value]) -> Values:
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
    options = complete_old_options(name, preset, options_of(method))
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
