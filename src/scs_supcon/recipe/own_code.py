"""The user's own code in a recipe: which code it names, and the digests of its files."""

from collections.abc import Callable
from dataclasses import dataclass

from scs_supcon.data.own_transform import own_transform_digest
from scs_supcon.errors import UserError
from scs_supcon.methods import method_class
from scs_supcon.nn.own_encoder import own_encoder_digest
from scs_supcon.plugins import check_allowed, code_digest, is_plugin
from scs_supcon.recipe.schema import Recipe
from scs_supcon.recipe.toml import Values, merge, section, value_of


@dataclass(frozen=True)
class CodeKey:
    """Where a recipe names code of one kind.

    Attributes:
        kind: what the code is.
        section: of the recipe.
        name: the key with the name.
        code: the key with the digest.
        digest: returns the digest of the file; the code must have been allowed.
    """

    kind: str
    section: str
    name: str
    code: str
    digest: Callable[[str], str]


def _method_digest(name: str) -> str:
    check_allowed("method", name, f"--method {name} or ")
    return code_digest(method_class(name))


CODE_KEYS = (
    CodeKey("method", "method", "name", "code", _method_digest),
    CodeKey("encoder", "encoder", "name", "code", own_encoder_digest),
    CodeKey("transform", "data", "transform", "transform_code", own_transform_digest),
)


def check_code_allowed(values: Values) -> None:
    """Raise an error for code that the values of a recipe name and the user has not allowed."""
    for key in CODE_KEYS:
        name = value_of(section(values, key.section), key.name, "")
        check_allowed(key.kind, name, f"--{key.kind} {name} or ")


def with_code_digests(values: Values) -> Values:
    """Return values of a recipe with the digests of all code they name.

    Raises:
        UserError: the values hold the digest of other code.
    """
    for key in CODE_KEYS:
        given = section(values, key.section)
        name = value_of(given, key.name, "")
        if is_plugin(name):
            digest = key.digest(name)
            if given.get(key.code, digest) != digest:
                raise _changed(key, name)
            values = merge(values, {key.section: {key.code: digest}})
    return values


def without_other_digests(values: Values, before: Values) -> Values:
    """Return values without the digests that belong to other code, which options have replaced.

    Args:
        values: the values of files and options.
        before: the values of the files alone.
    """
    kept = dict(values)
    for key in CODE_KEYS:
        given, first = section(kept, key.section), section(before, key.section)
        if key.code in given and given.get(key.name) != first.get(key.name):
            kept[key.section] = {k: v for k, v in given.items() if k != key.code}
    return kept


def check_code(recipe: Recipe) -> None:
    """Raise an error if code has changed since the recipe was resolved."""
    with_code_digests(recipe.model_dump(exclude_none=True))


def _changed(key: CodeKey, name: str) -> UserError:
    return UserError(
        f"the code of {name} has changed since this recipe was written: restore the old code, or "
        f"remove {key.section}.{key.code} from the recipe to train with the new code"
    )
