"""Shared by the methods that split an embedding into a common and a style field."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from scs_supcon.errors import UserError
from scs_supcon.kernels import Rows, gather_rows
from scs_supcon.methods.shared.base import Method, one_of
from scs_supcon.nn.head import Normalise, fields


@dataclass(frozen=True)
class PairInputs:
    """The two sides of a batch's pairs, sorted by label: its rows and what they are held against.

    Without references the rows are held against each other.
    """

    rows: Rows
    common: Tensor
    style: Tensor
    columns: Rows | None = None
    reference_common: Tensor | None = None
    reference_style: Tensor | None = None

    @property
    def all_rows(self) -> Rows:
        """The rows of all processes where they were gathered, else this process's."""
        gathered = self.columns is not None and self.columns.own is not None
        return self.columns if gathered and self.columns is not None else self.rows

    @property
    def apart(self) -> Rows | None:
        """References that do not hold the rows themselves."""
        return None if self.all_rows is self.columns else self.columns


class CommonStyleMethod(Method):
    """A method on embeddings `[common | style]`.

    Args:
        common_dim: columns of the common field; default: three quarters of the embedding.
        overlap: last columns of the common field that belong to the style field too.
        normalize: bring to unit length each field by itself ("separate"), the whole embedding
            ("joint"), or nothing ("none").
        gather_across_devices: hold the rows against those of all processes. The value is the
            joined one, the gradient of this process's rows too; see `pairs.sum_gradients`.
    """

    probe_input = "common"

    def __init__(
        self,
        common_dim: int | None = None,
        *,
        overlap: int = 0,
        normalize: Normalise = "separate",
        gather_across_devices: bool = False,
    ) -> None:
        super().__init__()
        one_of("normalize", normalize, ("separate", "joint", "none"))
        self.common_dim, self.overlap, self.normalize = common_dim, overlap, normalize
        self.gather_across_devices = gather_across_devices

    @property
    def gathers(self) -> bool:
        """Whether there are other processes whose rows count."""
        return self.gather_across_devices and several_processes()

    @property
    def plain(self) -> bool:
        """Whether the fields are two halves of a row, each normalised by itself, in one process."""
        return self.normalize == "separate" and not self.overlap and not self.gathers

    def width(self, embeddings: Tensor) -> int:
        """Columns of the common field of these embeddings."""
        d = embeddings.shape[-1]
        k = self.common_dim if self.common_dim is not None else max(1, d * 3 // 4)
        if not 1 <= k <= d:
            raise UserError(
                f"embeddings have {d} columns, common_dim is {k}: choose 1 ≤ common_dim ≤ {d}"
            )
        if not 0 <= self.overlap <= k:
            raise UserError(f"overlap is {self.overlap}: choose 0 ≤ overlap ≤ common_dim = {k}")
        return k

    def fields(self, embeddings: Tensor) -> tuple[Tensor, Tensor]:
        """(common, style), normalised as the method reads them."""
        return fields(embeddings, self.width(embeddings), self.overlap, self.normalize)

    def sides(self, embeddings: Tensor, rows: Rows) -> PairInputs:
        """Split sorted rows; gather those of the other processes if asked to."""
        common, style = self.fields(embeddings)
        if not self.gathers:
            return PairInputs(rows, common, style)
        both = torch.cat([common.detach(), style.detach()], 1)
        everyone, columns = gather_rows(both, rows.labels)
        k = common.shape[1]
        return PairInputs(rows, common, style, columns, everyone[:, :k], everyone[:, k:])


def several_processes() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
