"""The recommended recipe: the settings of a run whose method is not given with a preset.

It is the paper's method in kind: a sigmoid on labelled pairs with a visible boundary, a common and
a style field. What was changed, and the measurements behind it, are in docs/recommended.md.

A frozen encoder has

- four heads side by side, joined to one field, because single heads scatter by a point;
- the common field fused with the whitened features of the encoder, classified by class means;
- calibration, rejection and the boundary of pairs from images that were held out;
- a style field from features whose class is erased, which tells images of a class apart.

An encoder that is trained has

- the cross-entropy of a classifier of the features in its loss, because pairs alone are slow;
- one view of each image, as cross-entropy has: two views of one image teach less than two images;
- one head, fused with the whitened features and classified linearly;
- a style field of the final features whose class is erased: their principal directions.
"""

from collections.abc import Callable

from scs_supcon.recipe.toml import Values, section

RecommendedValues = Callable[[bool], Values]

METHOD = "scs_supcon"


def is_recommended(method: Values, recipe_file: Values) -> bool:
    """Return whether the recommended recipe applies.

    Args:
        method: the requested method section.
        recipe_file: values of the recipe file; a method in it is meant as it was written.
    """
    named_in_file = "name" in section(recipe_file, "method")
    return method.get("name", METHOD) == METHOD and "preset" not in method and not named_in_file


def recommended_values(frozen: bool) -> Values:
    """Return the settings of the recommended recipe for a frozen or a trained encoder."""
    if frozen:
        return {
            "head": {
                "heads": 4,
                "hidden": 512,
                "common_dim": 128,
                "style_dim": 32,
                "style_input": "erased",
            },
            "method": {"options": {"style": "instance", "style_weight": 0.05}},
            "pretrain": {"epochs": 40},
            "fusion": {"whitened": True, "folds": 5},
        }
    return {
        "head": {"style_input": "erased"},
        "method": {"options": {"style": "instance", "style_weight": 0.0}},
        "pretrain": {"cross_entropy": 0.9, "views": 1},
        "fusion": {"whitened": True, "folds": 0, "classifier": "linear"},
    }


def values_before_cross_entropy(frozen: bool) -> Values:
    """Return the settings of the first version of the recommended recipe."""
    if frozen:
        return {
            "head": {
                "heads": 4,
                "hidden": 512,
                "common_dim": 128,
                "style_dim": 32,
                "style_input": "erased",
            },
            "method": {"options": {"style": "instance", "style_weight": 1.0}},
            "pretrain": {"epochs": 40},
            "fusion": {"whitened": True, "folds": 5},
        }
    return {
        "head": {"style_input": "erased"},
        "method": {"options": {"style": "instance"}},
        "fusion": {"whitened": True, "folds": 0, "classifier": "linear"},
    }


EARLIER: tuple[RecommendedValues, ...] = (values_before_cross_entropy,)
"""Earlier versions of `recommended_values`: a run is resumed with the one it was started with."""
