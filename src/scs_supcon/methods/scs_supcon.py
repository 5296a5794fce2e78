"""SCS-SupCon: every pair judged by a sigmoid with a boundary of its own (Wang & Dornaika, 2025).

    a_uv = t c_u·c_v − b,   boundary b/t

    L = mean over pairs of softplus(−a_uv) for classmates, softplus(a_uv) for the others
        − β (1/n) Σ_i (1/|P_i|) Σ_{p∈P_i} ‖s_i − s_p‖

c and s are the common and the style field of an embedding, each of unit length. "SCS-SupCon:
Sigmoid-based Common and Style Supervised Contrastive Learning with Adaptive Decision Boundaries",
arXiv 2512.17954, Eq. 4. The paper leaves several choices open: each is a named argument here and a
section of docs/readings.md.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.kernels import (
    Rows,
    class_distances,
    listed_pairs,
    sigmoid_pairs,
    solve_bias,
    solve_listed_bias,
    sort_rows,
)
from scs_supcon.kernels.layout import members, same_class_pairs
from scs_supcon.methods.shared.base import flatten, not_negative, one_of, positive, prepare
from scs_supcon.methods.shared.common_style import CommonStyleMethod, PairInputs
from scs_supcon.methods.shared.dense import MOST_ROWS, Reading, judge_at_once
from scs_supcon.methods.shared.unused_parameters import Watch
from scs_supcon.nn.head import Normalise

Pairs = Literal["all", "balanced", "positives"]
Scale = Literal["multiply", "divide"]
Bias = Literal["learn", "fixed", "solve"]

PRESETS: dict[str, dict[str, Any]] = {
    # b solved at every step, t fixed: the boundary that trains (docs/readings.md).
    "solved": {"pairs": "positives", "t0": 10.0, "b0": 0.0, "learn": (), "bias": "solve"},
    # Eq. 4 as printed.
    "paper": {"pairs": "all", "t0": 0.1, "b0": 0.0, "learn": ("t", "b"), "bias": "learn"},
    # SigLIP's start, in Eq. 4's sign.
    "siglip": {"pairs": "all", "t0": 10.0, "b0": 10.0, "learn": ("t", "b"), "bias": "learn"},
}

LOG_MOST = math.log(100.0)  # t' stays where t multiplies by at most 100


class SCSSupCon(CommonStyleMethod):
    """Sigmoid pair loss with a learnable or solved boundary, and a style-distance term.

    Args:
        common_dim: columns of the common field; default: three quarters of the embedding.
        preset: "solved" (default), "paper" or "siglip"; sets the arguments left out.
        t0: first temperature t.
        b0: first bias b.
        beta: weight of the style distance.
        learn: which of "t" and "b" are parameters.
        bias: "learn"; "fixed" at b0; or "solve": at every step b is such that the mean of σ(a)
            equals the share of positive pairs, without a gradient.
        pairs: "all": mean over all pairs. "balanced": half the mean over positive pairs plus half
            the mean over negative ones. "positives": the sum, divided by the number of positives.
        scale: "multiply": a = t r − b, boundary b/t. "divide": a = r/t − b, boundary b·t.
        include_self: whether a row's pair with itself counts (Eq. 4 sums over it).
        overlap, normalize, gather_across_devices: see `CommonStyleMethod`.
    """

    b: Tensor
    presets = PRESETS

    @classmethod
    def effective_options(cls, preset: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
        """As in `Method`; `bias` and `learn` follow each other if only one of them is given."""
        values = super().effective_options(preset, options)
        chosen = PRESETS[preset or "solved"]
        bias, learn = _who_sets(chosen, options.get("learn"), options.get("bias"))
        return values | {"bias": bias, "learn": learn}

    @classmethod
    def recipe_defaults(cls, preset: str | None) -> dict[str, dict[str, Any]]:
        """Centred embeddings suit the solved boundary: their similarities lie around 0."""
        return {"head": {"centre": preset in (None, "solved")}}

    def __init__(  # noqa: PLR0913
        self,
        common_dim: int | None = None,
        *,
        preset: str = "solved",
        t0: float | None = None,
        b0: float | None = None,
        beta: float = 1e-3,
        learn: Sequence[str] | None = None,
        bias: Bias | None = None,
        pairs: Pairs | None = None,
        scale: Scale = "multiply",
        include_self: bool = True,
        overlap: int = 0,
        normalize: Normalise = "separate",
        gather_across_devices: bool = False,
    ) -> None:
        super().__init__(
            common_dim,
            overlap=overlap,
            normalize=normalize,
            gather_across_devices=gather_across_devices,
        )
        one_of("preset", preset, tuple(PRESETS))
        chosen = PRESETS[preset]
        self.bias, self.learn = _who_sets(chosen, learn, bias)
        self.pairs: Pairs = pairs or chosen["pairs"]
        one_of("pairs", self.pairs, ("all", "balanced", "positives"))
        one_of("scale", scale, ("multiply", "divide"))
        self.scale, self.beta, self.include_self = scale, beta, include_self
        first_t = chosen["t0"] if t0 is None else t0
        positive(t0=first_t)
        not_negative(beta=beta)
        if math.log(first_t) * (1 if scale == "multiply" else -1) > LOG_MOST:
            least = "t0 ≤ 100" if scale == "multiply" else "t0 ≥ 0.01"
            raise UserError(f"t0 is {first_t}: similarities count at most 100-fold, so {least}")
        # float64: two scalars cost nothing, and t0 = 10 is then 10 in every digit.
        log_t = torch.tensor(math.log(first_t), dtype=torch.float64)
        self.log_t = nn.Parameter(log_t, requires_grad="t" in self.learn)
        first_b = torch.tensor(chosen["b0"] if b0 is None else b0, dtype=torch.float64)
        if not first_b.isfinite():
            raise UserError(f"b0 is {b0}: give a finite number")
        if self.bias == "learn":
            self.b = nn.Parameter(first_b)
        else:
            self.register_buffer("b", first_b)
        self._last: tuple[Tensor, Tensor | None] | None = None  # labels of both sides
        self._watch = Watch()

    @property
    def t(self) -> Tensor:
        return self.log_t.detach().exp()

    @property
    def boundary(self) -> Tensor:
        """The similarity above which two rows count as one class."""
        b = self.b.detach()
        return b / self.t if self.scale == "multiply" else b * self.t

    def decision_boundary(self) -> float | None:
        return float(self.boundary) if self.normalize == "separate" else None

    def loss_terms(self, embeddings: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
        """Return {"contrast": sigmoid part, never negative; "style": −β × mean distance}."""
        rows, labels = flatten(embeddings, labels)
        if len(rows) <= MOST_ROWS and self.plain:
            return self._judge_at_once(rows, labels)
        return self._judge(self.sides(*sort_rows(rows, labels)))

    def against(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor
    ) -> dict[str, Tensor]:
        """Terms over the pairs (row, reference) only; divisor: rows × references."""
        rows, order = prepare(embeddings, labels)
        others, columns = prepare(ref_emb, ref_labels)
        common, style = self.fields(rows)
        return self._judge(PairInputs(order, common, style, columns, *self.fields(others)))

    def listed(
        self, embeddings: Tensor, pairs: tuple[Tensor, Tensor], same: Tensor, ref_emb: Tensor
    ) -> dict[str, Tensor]:
        """Terms over listed pairs (row, reference) only; divisor: their number."""
        (q, q_style), (r, r_style) = self.fields(embeddings), self.fields(ref_emb)
        t = self._multiplier()
        b = self._bias()
        self._watch_scalars(t, b)
        if self.bias == "solve":
            with torch.no_grad():
                logits = (q[pairs[0]] * r[pairs[1]]).sum(1) * t.detach()
                b = self._keep(solve_listed_bias(logits, same))
        parts = {"contrast": listed_pairs(q, r, pairs, same, t, b)}
        if self.beta and q_style.shape[1]:
            gap = q_style[pairs[0][same]] - r_style[pairs[1][same]]
            far = torch.linalg.vector_norm(gap, dim=1).sum() / max(int(same.sum()), 1)
            parts["style"] = -self.beta * far
        return parts

    def scalars(self) -> dict[str, float]:
        """t, b, boundary, and of the last batch: share of positive pairs, anchors without any."""
        own = {"t": float(self.t), "b": float(self.b.detach()), "boundary": float(self.boundary)}
        if self._last is None:
            return own
        return own | _pair_counts(*self._last, include_self=self.include_self)

    def param_groups(self, lr: float, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """t' and b for an optimiser, never decayed: decay would pull t towards 1."""
        return super().param_groups(lr, 0.0)

    def _judge_at_once(self, rows: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The same terms, by fewer steps where a batch is small."""
        self._last = labels, None
        width = self.width(rows)
        style = -self.beta if width < rows.shape[1] else 0.0
        t, b = self._multiplier(), None if self.bias == "solve" else self._bias()
        self._watch_scalars(t, b)
        reading = Reading(width, style, self.pairs, self.include_self)
        contrast, distance, used = judge_at_once(rows, labels, t, b, reading)
        if b is None:
            self._keep(used)
        return {"contrast": contrast, "style": distance} if style else {"contrast": contrast}

    def _judge(self, sides: PairInputs) -> dict[str, Tensor]:
        apart = sides.apart
        self._last = sides.all_rows.labels, None if apart is None else apart.labels
        t = self._multiplier()
        b = self._solved(sides, float(t.detach())) if self.bias == "solve" else self._bias()
        self._watch_scalars(t, b)
        parts = {
            "contrast": sigmoid_pairs(
                sides.common,
                sides.rows,
                t,
                b,
                references=sides.reference_common,
                columns=sides.columns,
                weighting=self.pairs,
                include_self=self.include_self,
            )
        }
        if self.beta and sides.style.shape[1]:
            distance = class_distances(
                sides.style,
                sides.rows,
                references=sides.reference_style,
                columns=sides.columns,
            )
            parts["style"] = -self.beta * distance
        return parts

    def _watch_scalars(self, t: Tensor, b: Tensor | None) -> None:
        if self.training and torch.is_grad_enabled():
            self._watch.look("log_t", self.log_t, t)
            if isinstance(self.b, nn.Parameter) and b is not None:
                self._watch.look("b", self.b, b)

    def _multiplier(self) -> Tensor:
        """What the similarity is multiplied by: t, or 1/t."""
        multiply = self.scale == "multiply"
        far = self.log_t.item() * (1 if multiply else -1) - LOG_MOST
        if far > 0:
            with torch.no_grad():  # moved back, not cut off: a clamp would leave no gradient
                self.log_t.fill_(LOG_MOST if multiply else -LOG_MOST)
        return self.log_t.exp() if multiply else (-self.log_t).exp()

    def _bias(self) -> Tensor:
        # Not the parameter itself: a hook on that would stay for good.
        return self.b * 1 if self.b.requires_grad else self.b

    def _solved(self, sides: PairInputs, t: float) -> Tensor:
        if sides.columns is not None and sides.columns.own is not None:
            assert sides.reference_common is not None
            b = solve_bias(sides.reference_common, sides.columns, t, include_self=self.include_self)
            shared = torch.tensor([b], dtype=torch.float64, device=sides.common.device)
            dist.broadcast(shared, 0)
            return self._keep(float(shared))
        b = solve_bias(
            sides.common,
            sides.rows,
            t,
            references=sides.reference_common,
            columns=sides.columns,
            include_self=self.include_self,
        )
        return self._keep(b)

    def _keep(self, b: float) -> Tensor:
        """Remember a solved b, so that `boundary` means something after training."""
        if self.training:
            self.b.fill_(b)
        return torch.tensor(b, dtype=torch.float64, device=self.b.device)


def _pair_counts(labels: Tensor, apart: Tensor | None, *, include_self: bool) -> dict[str, float]:
    rows = Rows(torch.sort(labels).values)
    others = rows if apart is None else Rows(torch.sort(apart).values)
    alone = members(rows.labels, others) == (1 if apart is None else 0)
    own = 0 if include_self or apart is not None else len(rows)
    pairs, positives = len(rows) * len(others) - own, same_class_pairs(rows, others) - own
    return {
        "positive_share": positives / max(pairs, 1),
        "anchors_without_positives": float(alone.sum()),
    }


def _who_sets(
    preset: dict[str, Any], learn: Sequence[str] | None, bias: Bias | None
) -> tuple[Bias, tuple[str, ...]]:
    """Settle (bias, learn): what is given wins over the preset, and both must agree."""
    if bias is not None:
        one_of("bias", bias, ("learn", "fixed", "solve"))
    names = tuple(preset["learn"] if learn is None else learn)
    for name in names:
        one_of("learn", name, ("t", "b"))
    if learn is None and bias is not None:
        names = tuple(n for n in names if n != "b") + (("b",) if bias == "learn" else ())
    if bias is None:
        stay: Bias = "fixed" if preset["bias"] == "learn" else preset["bias"]
        bias = "learn" if "b" in names else stay
    if (bias == "learn") != ("b" in names):
        raise UserError(f"bias={bias!r} contradicts learn={names}: name b in both or in neither")
    return bias, names
