"""SCS-SupCon: a sigmoid loss on pairs with an explicit decision boundary (Wang & Dornaika, 2025).

    a_uv = t c_u·c_v − b,   boundary b/t

    L = mean over pairs of softplus(−a_uv) for positive pairs, softplus(a_uv) for negative pairs
        − β (1/n) Σ_i (1/|P_i|) Σ_{p∈P_i} ‖s_i − s_p‖

c and s are the common and the style field of an embedding, each of unit length. "SCS-SupCon:
Sigmoid-based Common and Style Supervised Contrastive Learning with Adaptive Decision Boundaries",
arXiv 2512.17954, Eq. 4. Soft labels p of mixed images give a pair the target q_uv = p_u·p_v; its
cost is q_uv softplus(−a_uv) + (1 − q_uv) softplus(a_uv). The paper leaves several choices open:
each is a named argument here and a section of docs/paper_choices.md.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, Never

from torch import Tensor, nn

from scs_supcon.kernels import Gather, Pairs, Weighting, mean_distance, sigmoid_pairs
from scs_supcon.kernels.autograd import traced
from scs_supcon.kernels.bias import solve_bias_of_rows
from scs_supcon.methods.shared.base import (
    Batch,
    Options,
    OptionValue,
    check_not_negative,
    check_one_of,
    reject_arguments,
)
from scs_supcon.methods.shared.common_style import CommonStyleMethod
from scs_supcon.methods.shared.pair_loss import PairLoss, Reduction
from scs_supcon.methods.shared.pair_scalars import Bias, PairPreset, PairScalars, batch_statistics
from scs_supcon.nn.head import Normalise

Preset = Literal["solved", "paper", "learned", "siglip"]

# Initial values of SigLIP, with the sign of Eq. 4.
LEARNED: PairPreset = {"pairs": "all", "t0": 10.0, "b0": 10.0, "bias": "learn"}
PRESETS: dict[str, PairPreset] = {
    # b solved at every step, t fixed (docs/paper_choices.md).
    "solved": {"pairs": "positives", "t0": 10.0, "bias": "solve"},
    # Eq. 4 as printed.
    "paper": {"pairs": "all", "t0": 0.1, "b0": 0.0, "bias": "learn"},
    "learned": LEARNED,
    "siglip": LEARNED,  # the name of "learned" in 0.2
}
HINTS = {
    "temperature": "similarities are multiplied by t, so use t0 = 1/temperature",
    "learn": 't is learned exactly if b is: use bias="learn", "fixed" or "solve"',
    "scale": "similarities are always multiplied by t",
    "margin": "it did not help (docs/paper_choices.md)",
    "memory": "wrap the loss: MemoryBank(SCSSupCon(), size)",
    "lr_t": "use loss.param_groups(lr, lr_t=...)",
    "lr_b": "use loss.param_groups(lr, lr_b=...)",
    "group": "use gather_across_devices=Gather(group=...)",
    "gradient_reduction": "use gather_across_devices=Gather(gradient_reduction=...)",
}


class SCSSupCon(PairScalars, PairLoss, CommonStyleMethod):
    """Sigmoid pair loss with a learnable or solved boundary, and a style-distance term.

    Args:
        common_dim: columns of the common field; default: three quarters of the embedding.
        preset: "solved" (default), "paper" or "learned"; sets the arguments left out.
        t0: initial temperature t.
        b0: initial bias b, unless it is solved.
        bias: "learn": t and b are parameters. "fixed": t0 and b0. "solve": at every step b is such
            that the mean of σ(a) equals the share of positive pairs, without a gradient; t is
            fixed.
        beta: weight of the style distance.
        pairs: "all": mean over all pairs. "balanced": half the mean over positive pairs plus half
            the mean over negative pairs. "positives": the sum, divided by the number of positives.
        include_self: whether the pair of a row with itself counts (Eq. 4 includes it).
        overlap: columns that belong to both fields.
        normalize: "separate", "joint" or "none"; see `CommonStyleMethod`.
        ignore_index: label of rows that are left out, for example -1 for unlabelled rows. Other
            negative labels are errors.
        class_weights: weight of each class; a pair is weighted by the product of its two weights.
        reduction: "mean", or "none" for one value per row, whose mean is the loss.
        gather_across_devices: compare the rows of each process with those of all processes. A
            `Gather` says which processes, and how the training loop combines their gradients.
    """

    presets = PRESETS
    supports_soft_labels = True

    def __init__(  # noqa: PLR0913
        self,
        common_dim: int | None = None,
        *,
        preset: Preset = "solved",
        t0: float | None = None,
        b0: float | None = None,
        bias: Bias | None = None,
        beta: float = 1e-3,
        pairs: Weighting | None = None,
        include_self: bool = True,
        overlap: int = 0,
        normalize: Normalise = "separate",
        ignore_index: int | None = None,
        class_weights: Sequence[float] | Tensor | None = None,
        reduction: Reduction = "mean",
        gather_across_devices: bool | Gather = False,
        **unexpected: Never,
    ) -> None:
        reject_arguments(self, unexpected, HINTS)
        super().__init__(
            common_dim,
            overlap=overlap,
            normalize=normalize,
            gather_across_devices=gather_across_devices,
        )
        check_one_of("preset", preset, tuple(PRESETS))
        if preset == "siglip":
            message = 'preset="siglip" is now called "learned"'
            warnings.warn(message, DeprecationWarning, stacklevel=2)
        self.pairs = pairs or PRESETS[preset]["pairs"]
        check_one_of("pairs", self.pairs, ("all", "balanced", "positives"))
        check_not_negative(beta=beta)
        self.beta, self.include_self = beta, include_self
        self.set_scalars(PRESETS[preset], t0, b0, bias)
        self.set_pair_options(ignore_index, class_weights, reduction)
        # In a list: attributes of modules are slow to set.
        self._last: list[tuple[Pairs, Tensor]] = []

    def terms(self, rows: Tensor, pairs: Pairs) -> dict[str, Tensor]:
        """Return "contrast", the sigmoid loss (at least 0), and "style", the style distance."""
        c, s = self.sides(rows, pairs, style=self.beta > 0)
        t, b = self.t_and_b()  # b is None if it is to be solved
        contrast, b = sigmoid_pairs(c, pairs, t, b, start=self.b if self.training else None)
        self.store_bias(b)
        self._remember(pairs, c.rows)
        if s is None:
            return {"contrast": contrast}
        return {"contrast": contrast, "style": -self.beta * mean_distance(s, pairs)}

    def training_step(self, batch: Batch, network: nn.Module) -> dict[str, Tensor]:
        """Run the network on a batch and return the named terms of the loss."""
        return self.batch_terms(network(batch.images).embeddings, batch)

    def batch_terms(self, embeddings: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the terms of a batch, given its embeddings; mixed images have soft labels."""
        if batch.label_probabilities is None:
            return self.loss_terms(embeddings, batch.labels.repeat(self.views))
        return self.loss_terms(embeddings, batch.label_probabilities.repeat(self.views, 1))

    def scalars(self) -> dict[str, float]:
        """Return t, b, the boundary, and statistics of the pairs in the last batch."""
        statistics = batch_statistics(*self._last[0]) if self._last else {}
        return super().scalars() | statistics

    def pair_parameters(
        self, training_rows: tuple[Tensor, Tensor] | None = None
    ) -> tuple[float, float] | None:
        if self.normalize != "separate":
            return None
        t, b = float(self.t), float(self.b.detach())
        if training_rows is not None and self.bias == "solve":
            b = solve_bias_of_rows(*training_rows, t)
        return t, b

    @classmethod
    def effective_options(cls, preset: str | None, options: Options) -> dict[str, OptionValue]:
        """As in `Method`; a solved bias has no initial value."""
        values = super().effective_options(preset, options)
        if values["bias"] == "solve" and options.get("b0") is None:
            values.pop("b0", None)
        return values

    @classmethod
    def recipe_defaults(cls, preset: str | None) -> Mapping[str, Options]:
        """Centre the embeddings for the solved boundary, so that similarities lie around 0."""
        return {"head": {"centre": preset in (None, "solved")}}

    def _remember(self, pairs: Pairs, common: Tensor) -> None:
        """Keep what `scalars` needs, without the graph of the references."""
        if traced(common):
            return
        if pairs.references is not None:
            pairs = replace(pairs, references=pairs.references.detach())
        self._last[:] = [(pairs, common.detach())]
