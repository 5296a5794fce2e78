"""Base class of the methods that split an embedding into a common and a style field."""

from torch import Tensor

from scs_supcon.errors import UserError
from scs_supcon.kernels import Gather, Pairs, Sides
from scs_supcon.methods.shared.base import Method, check_one_of, set_processes
from scs_supcon.nn.head import Normalise, common_field, fields


class CommonStyleMethod(Method):
    """A method on embeddings `[common | style]`.

    Args:
        common_dim: columns of the common field; default: three quarters of the embedding.
        overlap: number of columns at the end of the common field that also belong to the style
            field.
        normalize: what is scaled to unit length: each field ("separate"), the whole embedding
            ("joint") or nothing ("none").
        gather_across_devices: pair the rows with those of all processes. The value and the
            gradients are then those of the joined batch. A `Gather` says which processes, and how
            the training loop combines their gradients.
    """

    probe_input = "common"

    def __init__(
        self,
        common_dim: int | None = None,
        *,
        overlap: int = 0,
        normalize: Normalise = "separate",
        gather_across_devices: bool | Gather = False,
    ) -> None:
        super().__init__()
        check_one_of("normalize", normalize, ("separate", "joint", "none"))
        self.common_dim, self.overlap, self.normalize = common_dim, overlap, normalize
        set_processes(self, gather_across_devices)

    def width(self, embeddings: Tensor) -> int:
        """Return the number of columns of the common field."""
        d = embeddings.shape[-1]
        k = self.common_dim if self.common_dim is not None else max(1, d * 3 // 4)
        if not 1 <= k <= d:
            raise UserError(
                f"common_dim must be between 1 and the width of the embeddings ({d}), got {k}"
            )
        if not 0 <= self.overlap <= k:
            raise UserError(f"overlap must be between 0 and common_dim ({k}), got {self.overlap}")
        return k

    def fields(self, embeddings: Tensor) -> tuple[Tensor, Tensor]:
        """Return the common and the style field, scaled according to `normalize`."""
        return fields(embeddings, self.width(embeddings), self.overlap, self.normalize)

    def sides(
        self, rows: Tensor, pairs: Pairs, *, style: bool = True
    ) -> tuple[Sides, Sides | None]:
        """Return both sides of the pairs for the common field and, unless it is empty, the style.

        Args:
            rows: `(n, D)`.
            pairs: with references `(m, D)`, or None.
            style: whether the style field is needed.
        """
        k, references = self.width(rows), pairs.references
        if not style or k - self.overlap == rows.shape[-1]:
            parts = [rows] if references is None else [rows, references]
            return Sides(*(common_field(x, k, self.normalize) for x in parts)), None
        common, style_rows = self.fields(rows)
        if references is None:
            return Sides(common), Sides(style_rows)
        other_common, other_style = self.fields(references)
        return Sides(common, other_common), Sides(style_rows, other_style)
