"""Build a recipe from layers of plain values, and convert it to TOML and back.

`read_recipe`, `override` and `merge` return layers (dictionaries); `make_recipe` validates the
result. An unknown key is an error with a suggestion.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar, get_origin

import tomli_w
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from scs_supcon.errors import UserError, did_you_mean
from scs_supcon.io.records import RecordError, parse_toml, read_text, read_toml, table_of
from scs_supcon.io.typed import validate
from scs_supcon.io.values import Value, ValueTree
from scs_supcon.recipe.schema import SECTIONS, Recipe, Section

T = TypeVar("T")
Values: TypeAlias = ValueTree
"""A layer of a recipe: some values by section and key, not yet validated."""


def read_recipe(path: str | Path) -> Values:
    """Return the values of a TOML file, which may hold any part of a recipe."""
    try:
        text = read_text(Path(path), links=True)
    except RecordError as error:
        raise UserError(f"cannot read the recipe: {error}") from error
    try:
        values = _parse(text)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    return values


def read_stored_values(path: Path) -> Values:
    """Return the values of the recipe of a run, which another version may have written.

    Keys that this version does not know are kept.

    Raises:
        RecordError: The file is missing or damaged.
    """
    values = read_toml(path)
    for name in SECTIONS:
        table_of(values, name, path)
    method = table_of(values, "method", path)
    table_of(method, "options", path)
    for key in ("name", "preset"):
        if not isinstance(method.get(key, ""), str):
            raise RecordError(f"{path} is damaged: method.{key} should be text")
    return values


def from_toml(text: str) -> Recipe:
    """Return the recipe of a TOML document; missing values get the defaults of the schema."""
    return make_recipe(_parse(text))


def make_recipe(values: Mapping[str, Value]) -> Recipe:
    """Return the recipe of plain values; missing values get the defaults of the schema."""
    _check_keys(values)
    try:
        return Recipe.model_validate({"data": {}, **values})
    except ValidationError as error:
        messages = dict.fromkeys(_error_message(problem) for problem in error.errors())
        raise UserError("\n".join(messages)) from error


def merge(*layers: Mapping[str, Value]) -> Values:
    """Merge layers of values recursively; later layers override earlier ones."""
    merged: Values = {}
    for layer in layers:
        for key, value in layer.items():
            before = merged.get(key)
            merged[key] = (
                merge(before, value)
                if isinstance(before, Mapping) and isinstance(value, Mapping)
                else value
            )
    return merged


def section(values: Mapping[str, Value], name: str) -> Values:
    """Return a section of a layer; empty if the layer has none."""
    value = values.get(name)
    return dict(value) if isinstance(value, Mapping) else {}


def value_of(values: Mapping[str, Value], key: str, default: T) -> T:
    """Return the value of a key in a section, as the type of its default."""
    return validate(type(default), values.get(key, default), f"the value of {key}")


def flat_keys(values: Mapping[str, Value], prefix: str = "") -> Values:
    """Return nested values by keys such as "pretrain.lr"."""
    flat: Values = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        flat |= flat_keys(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return flat


def override(values: Mapping[str, Value], assignments: Iterable[str]) -> Values:
    """Return the values after `section.key=value` assignments, parsed by the type of the field."""
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise UserError(f"{assignment!r} is not key=value: write for example pretrain.lr=0.1")
        values = merge(values, _assign(key.strip().split("."), text.strip()))
    return dict(values)


def write_toml(recipe: Recipe) -> str:
    """Return a recipe as TOML, with a comment above each key."""
    blocks = ["\n".join(_lines(recipe))]
    for name, section in SECTIONS.items():
        title = f"# {(section.__doc__ or '').splitlines()[0]}\n[{name}]"
        blocks.append("\n".join([title, *_lines(getattr(recipe, name))]))
    return "\n\n".join(blocks) + "\n"


def recipe_hash(recipe: Recipe) -> str:
    """Return the SHA-256 of a recipe as canonical JSON, the same on every machine."""
    values = recipe.model_dump(mode="json", exclude_none=True)
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _parse(text: str) -> Values:
    values = parse_toml(text)
    _check_keys(values)
    return values


def _check_keys(values: Mapping[str, Value]) -> None:
    for key, value in values.items():
        _field(key)
        if key in SECTIONS:
            if not isinstance(value, Mapping):
                raise UserError(f"{key} = {value!r}: [{key}] is a section: write {key}.KEY = VALUE")
            for inner in value:
                _field(key, inner)


def _field(*path: str) -> FieldInfo:
    """Return the field of a key; raise an error with a suggestion for an unknown key."""
    section: type[Section] = SECTIONS[path[0]] if path[1:] else Recipe
    key = path[-1]
    if key in section.model_fields:
        return section.model_fields[key]
    location = f" in [{path[0]}]" if path[1:] else ""
    sections = [name for name, other in SECTIONS.items() if key in other.model_fields]
    hint = (
        f"; it belongs in [{sections[0]}]" if sections else did_you_mean(key, section.model_fields)
    )
    raise UserError(f"unknown key {key!r}{location}{hint}")


def _assign(path: list[str], text: str) -> Values:
    """Return `{"pretrain": {"lr": 0.1}}` for `["pretrain", "lr"], "0.1"`."""
    dotted = ".".join(path)
    if path[:2] == ["method", "options"] and path[2:]:
        return {"method": {"options": {".".join(path[2:]): _toml_value(text)}}}
    if path[0] not in SECTIONS and path[1:]:
        raise UserError(f"unknown section in {dotted!r}{did_you_mean(path[0], SECTIONS)}")
    if len(path) != 1 + (path[0] in SECTIONS):
        raise UserError(f"{dotted!r} is not a single value: write section.key=value")
    value = _parse_value(_field(*path), dotted, text)
    return {path[0]: value} if len(path) == 1 else {path[0]: {path[1]: value}}


def _parse_value(info: FieldInfo, dotted: str, text: str) -> Any:
    kind = get_origin(info.annotation)
    value = text
    if kind is dict:
        value = _toml_value(text)
    elif kind is tuple:
        value = _toml_value(text if text.startswith("[") else f"[{text}]")
    annotation: Any = Annotated[info.annotation, info]
    try:
        return TypeAdapter(annotation, config=Section.model_config).validate_python(value)
    except ValidationError as error:
        message = _shorten(error.errors()[0]["msg"])
        raise UserError(f"{dotted} = {text}: {message}. {info.description}") from error


def _toml_value(text: str) -> Any:
    """Return a parsed TOML value; a bare word is a string."""
    try:
        return parse_toml(f"value = {text}")["value"]
    except RecordError:
        return text


def _error_message(problem: ErrorDetails) -> str:
    key = ".".join(str(name) for name in problem["loc"][:3])
    message = _shorten(problem["msg"])
    if problem["type"] == "missing":
        return f"{key} is missing"
    if problem["type"] == "value_error":
        return f"[{key}] {message}" if key else message
    if key.startswith("method.options."):
        message = "it should be a finite number, text, true, false, or a list of these"
    description = _field(*(str(name) for name in problem["loc"][:2])).description or ""
    return f"{key} = {problem['input']!r}: {message}. {description}".rstrip()


def _shorten(message: str) -> str:
    """Return a message of pydantic as the end of a sentence."""
    message = message.removeprefix("Value error, ").replace("Input should", "it should")
    return message.replace("String should", "it should").replace("Field required", "too few values")


def _lines(section: Section) -> Iterable[str]:
    for key, info in type(section).model_fields.items():
        value = getattr(section, key)
        # TOML has no null: None is left out.
        if not isinstance(value, Section) and value is not None:
            yield f"# {info.description}"
            yield f"{key} = {_write_value(value)}"


def _write_value(value: Any) -> str:
    """Return a value as TOML on one line; tomli_w would use several lines for lists and tables."""
    if isinstance(value, Mapping):
        pairs = (_write_pair(key, inner) for key, inner in value.items())
        return f"{{ {', '.join(pairs)} }}" if value else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_write_value(item) for item in value)}]"
    return tomli_w.dumps({"x": value}).removeprefix("x = ").rstrip("\n")


def _write_pair(key: str, value: Any) -> str:
    quoted = tomli_w.dumps({key: 0}).rpartition(" = ")[0]
    return f"{quoted} = {_write_value(value)}"
