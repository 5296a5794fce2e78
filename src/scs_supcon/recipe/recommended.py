"""The recommended recipe: the settings of a run whose method is not given with a preset.

It keeps what defines the paper's method: a sigmoid on labelled pairs with a visible boundary, a
common and a style field. What was changed, and the measurements behind it, are in
docs/recommended.md.

A frozen encoder has

- four heads side by side, joined to one field, because single heads scatter by a point;
- the common field fused with the whitened features of the encoder, classified by class means;
- calibration, rejection and the boundary of pairs from images that were held out;
- a style field of the features whose class is erased: their principal directions, each with a
  scale that is its variance; a trained field tells more about the class.

An encoder that is trained has

- the cross-entropy of a classifier of the features in its loss, because pairs alone are slow;
- one view of each image, as cross-entropy has: two views of one image teach less than two images;
- a style field of the final features, as above;
- without --unfreeze: one head, fused with the whitened features and classified linearly;
- with --unfreeze: four heads and class means as above, and weights halfway between those before
  and after the training of the encoder, because few images tell less than those it has seen.
"""

from scs_supcon.recipe.toml import Values, section

METHOD = "scs_supcon"
FOUR_HEADS: Values = {
    "heads": 4,
    "hidden": 512,
    "common_dim": 128,
    "style_dim": 32,
    "style": "fitted",
}


def is_recommended(method: Values, recipe_file: Values) -> bool:
    """Return whether the recommended recipe applies.

    Args:
        method: the requested method section.
        recipe_file: values of the recipe file; a method in it is meant as it was written.
    """
    named_in_file = "name" in section(recipe_file, "method")
    return method.get("name", METHOD) == METHOD and "preset" not in method and not named_in_file


def recommended_values(frozen: bool, unfreeze: bool) -> Values:
    """Return the settings of the recommended recipe.

    Args:
        frozen: the encoder is not trained.
        unfreeze: the encoder is pretrained, and trained after the head.
    """
    if frozen:
        return {
            "head": FOUR_HEADS,
            "pretrain": {"epochs": 40},
            "fusion": {"whitened": True, "folds": 5},
        }
    if unfreeze:
        return {
            "head": FOUR_HEADS,
            "pretrain": {"cross_entropy": 0.9, "views": 1, "initial_share": 0.5},
            "fusion": {"whitened": True, "folds": 0},
        }
    return {
        "head": {"style": "fitted"},
        "pretrain": {"cross_entropy": 0.9, "views": 1},
        "fusion": {"whitened": True, "folds": 0, "classifier": "linear"},
    }
