"""Names of run directories in a folder that comparisons share: a hash of recipe and code."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from scs_supcon.errors import UserError
from scs_supcon.io.records import RecordError, read_json_object, table_of
from scs_supcon.plugins import is_plugin
from scs_supcon.recipe.defaults import complete_values
from scs_supcon.recipe.schema import Recipe
from scs_supcon.recipe.toml import (
    make_recipe,
    merge,
    read_stored_values,
    recipe_hash,
    section,
    value_of,
)
from scs_supcon.runs.environment import numeric_code_digest


@dataclass(frozen=True)
class StoredRun:
    """A run directory found on disk.

    Attributes:
        name: name of the directory.
        finished: whether the run is finished.
        version: version of scs-supcon that started the run.
        same_code: whether the run was started with the current numeric code.
    """

    name: str
    finished: bool
    version: str
    same_code: bool


def recipe_key(recipe: Recipe) -> str:
    """Return 16 digits that identify a recipe.

    The location of the data is ignored if the recipe holds a digest of its content.
    """
    if recipe.data.content is not None:
        recipe = make_recipe(merge(recipe.model_dump(), {"data": {"source": "anywhere"}}))
    return recipe_hash(recipe)[:16]


def run_address(recipe: Recipe) -> str:
    """Return the directory name of a run with this recipe and the current numeric code."""
    return f"{recipe_key(recipe)}-{numeric_code_digest()[:8]}"


def stored_runs(folder: Path, plugins: Collection[str] = ()) -> dict[str, list[StoredRun]]:
    """Return the runs in a folder, grouped by the key of their recipe, the best choice first.

    Runs with the current code come first, then finished runs, then the others; ties are sorted by
    name in descending order.

    Args:
        folder: folder with the runs.
        plugins: methods from outside this package that the user has named. Runs of other plug-ins
            are skipped, because reading a file must never import code.
    """
    runs: dict[str, list[StoredRun]] = {}
    for file in sorted(folder.glob("*/recipe.toml"), reverse=True):
        try:
            values = read_stored_values(file)
            name = value_of(section(values, "method"), "name", "")
            if is_plugin(name) and name not in plugins:
                continue
            key = recipe_key(make_recipe(complete_values(values, values)))
        except UserError:  # not a run
            continue
        runs.setdefault(key, []).append(_stored_run(file.parent))
    for choices in runs.values():
        choices.sort(key=lambda run: (not run.same_code, not run.finished))
    return runs


def _stored_run(folder: Path) -> StoredRun:
    try:
        environment = read_json_object(folder / "environment.json")
        libraries = table_of(environment, "libraries", folder)
    except RecordError:
        environment, libraries = {}, {}
    return StoredRun(
        name=folder.name,
        finished=(folder / "finished.json").exists(),
        version=str(libraries.get("scs-supcon") or "unknown"),
        same_code=environment.get("code") == numeric_code_digest(),
    )
