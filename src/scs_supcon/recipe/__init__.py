"""The recipe of a run: schema, TOML format, defaults, and resolution of user options."""

from scs_supcon.recipe.schema import (
    SECTIONS,
    Count,
    DataRecipe,
    HeadRecipe,
    Positive,
    PretrainRecipe,
    ProbeRecipe,
    Recipe,
    Section,
    Share,
)
from scs_supcon.recipe.toml import (
    Values,
    from_toml,
    make_recipe,
    merge,
    override,
    read_recipe,
    recipe_hash,
    write_toml,
)

__all__ = [
    "SECTIONS",
    "Count",
    "DataRecipe",
    "HeadRecipe",
    "Positive",
    "PretrainRecipe",
    "ProbeRecipe",
    "Recipe",
    "Section",
    "Share",
    "Values",
    "from_toml",
    "make_recipe",
    "merge",
    "override",
    "read_recipe",
    "recipe_hash",
    "write_toml",
]
