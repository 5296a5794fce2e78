"""CS-SupCon with overlap: some columns belong to both fields (Dornaika & Wang, 2025).

The loss of `cs_supcon`; of 256 columns, c has 0…191 and s has 164…255, so 28 are shared.
"""

from collections.abc import Mapping
from typing import Any

from scs_supcon.methods.cs_supcon import CSSupCon
from scs_supcon.methods.shared.base import Options


class CSSupConOverlap(CSSupCon):
    """CS-SupCon whose fields share `overlap` columns.

    Args:
        common_dim: columns of the common field; default: three quarters of the embedding.
        overlap: columns that belong to both fields.
        options: as in `CSSupCon`.
    """

    @classmethod
    def recipe_defaults(cls, preset: str | None) -> Mapping[str, Options]:
        return {"head": {"centre": True, "style_dim": 92, "overlap": 28}}

    def __init__(self, common_dim: int | None = None, *, overlap: int = 28, **options: Any) -> None:
        super().__init__(common_dim, overlap=overlap, **options)
