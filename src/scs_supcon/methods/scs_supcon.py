"""SCS-SupCon: a sigmoid loss on pairs with an explicit decision boundary (Wang & Dornaika, 2025).

    a_uv = t c_u·c_v − b,   boundary b/t

    L = mean over pairs of softplus(−a_uv) for positive pairs, softplus(a_uv) for negative pairs
        − β (1/n) Σ_i (1/|P_i|) Σ_{p∈P_i} ‖s_i − s_p‖

c and s are the common and the style field of an embedding, each of unit length. "SCS-SupCon:
Sigmoid-based Common and Style Supervised Contrastive Learning with Adaptive Decision Boundaries",
arXiv 2512.17954, Eq. 4. With a margin m, a_uv = t (c_u·c_v − m) − b for positive pairs only; the
boundary stays b/t. Soft labels p of mixed images give a pair the target q_uv = p_u·p_v; its cost is
q_uv softplus(−a_uv) + (1 − q_uv) softplus(a_uv) (`kernels.soft`). The paper leaves several choices
open: each is a named argument here and a section of docs/paper_choices.md.

The printed style term pushes the two views of one image apart like any other pair of the class, so
that the style field learns the noise of the views. `style="instance"` replaces it with a sigmoid
loss on same-class pairs, in which the views of one image are positive (`kernels.style`):

    + λ (1/#positive) Σ_uv softplus(∓(t_s s_u·s_v − b_s)),   b_s solved
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.kernels import (
    Weighting,
    gather_rows,
    sigmoid_pair_loss,
    soft_sigmoid_loss,
    soft_style_distance,
    style_distance,
)
from scs_supcon.kernels.autograd import traced
from scs_supcon.kernels.bias import solve_bias_of_rows
from scs_supcon.kernels.dense import pair_weights
from scs_supcon.kernels.gather import GradientReduction, Group
from scs_supcon.kernels.style import (
    field_correlation,
    instance_loss,
    scatter_ratio,
    variance_floor,
)
from scs_supcon.kernels.targets import (
    PairTargets,
    targeted_sigmoid_loss,
    targeted_style_distance,
)
from scs_supcon.methods.shared.base import (
    Batch,
    Options,
    OptionValue,
    TaskInfo,
    after_setup,
    check_not_negative,
    check_one_of,
    check_positive,
    flatten,
    flatten_soft_labels,
    like,
    total,
)
from scs_supcon.methods.shared.classifier import check_labels
from scs_supcon.methods.shared.common_style import CommonStyleMethod
from scs_supcon.methods.shared.joint import gather as gather_with_gradient
from scs_supcon.methods.shared.last_batch import LastBatch
from scs_supcon.methods.shared.memory_bank import MemoryBank
from scs_supcon.methods.shared.pair_loss import PairLoss, Reduction, weighted_rows
from scs_supcon.methods.shared.pair_scalars import (
    Bias,
    PairPreset,
    PairScalars,
    Scale,
    resolve_bias,
)
from scs_supcon.nn.head import Normalise

Preset = Literal["solved", "paper", "siglip"]
StyleTerm = Literal["distance", "instance"]

PRESETS: dict[str, PairPreset] = {
    # b solved at every step, t fixed (docs/paper_choices.md).
    "solved": {"pairs": "positives", "t0": 10.0, "b0": 0.0, "learn": (), "bias": "solve"},
    # Eq. 4 as printed.
    "paper": {"pairs": "all", "t0": 0.1, "b0": 0.0, "learn": ("t", "b"), "bias": "learn"},
    # SigLIP's initial values, with the sign of Eq. 4.
    "siglip": {"pairs": "all", "t0": 10.0, "b0": 10.0, "learn": ("t", "b"), "bias": "learn"},
}


class SCSSupCon(PairScalars, PairLoss, CommonStyleMethod):
    """Sigmoid pair loss with a learnable or solved boundary, and a style-distance term.

    Args:
        common_dim: columns of the common field; default: three quarters of the embedding.
        preset: "solved" (default), "paper" or "siglip"; sets the arguments left out.
        t0: initial temperature t.
        b0: initial bias b.
        beta: weight of the style distance, if style is "distance".
        learn: which of "t" and "b" are parameters.
        bias: "learn"; "fixed" at b0; or "solve": at every step b is such that the mean of σ(a)
            equals the share of positive pairs, without a gradient.
        pairs: "all": mean over all pairs. "balanced": half the mean over positive pairs plus half
            the mean over negative pairs. "positives": the sum, divided by the number of positives.
        scale: "multiply": a = t r − b, boundary b/t. "divide": a = r/t − b, boundary b·t.
        include_self: whether the pair of a row with itself counts (Eq. 4 includes it).
        margin: m, subtracted from the similarities of positive pairs, so that they have to exceed
            the boundary by m.
        memory: number of past common fields of each class that the rows of a batch are compared
            with as well, in training: n × (n + m) pairs for n rows and m stored ones. `pairs`
            divides by the number of all of them, or of the positive ones among them. The style
            term is that of the batch.
        lr_t: factor of the learning rate of t, if it is learned.
        lr_b: factor of the learning rate of b, if it is learned.
        overlap: columns that belong to both fields.
        normalize: "separate", "joint" or "none"; see `CommonStyleMethod`.
        style: "distance": the printed term. "instance": the views of an image are positive pairs,
            other images of its class negative pairs; off if it is unknown which rows are views of
            one image.
        style_weight: λ, weight of the instance loss. Like all weights below it is relative to the
            positive pairs of the contrast, whatever `pairs` divides them by.
        style_t: t_s, temperature of the instance loss.
        style_scatter: weight of the between-class scatter ratio of the style field.
        style_floor: weight of a floor of the standard deviations of the style field.
        style_decorrelation: weight of the squared correlations of style and common columns.
        gather_across_devices: compare the rows of each process with those of all processes.
        ignore_index: label of rows that are left out, for example -1 for unlabelled rows. Other
            negative labels are errors.
        class_weights: weight of each class; a pair is weighted by the product of its two weights.
        reduction: "mean", or "none" for one value per row, whose mean is the loss.
        gradient_reduction: how the training loop combines the gradients of the processes: "mean"
            (DistributedDataParallel, FSDP, Lightning, Accelerate, Hugging Face Trainer) or "sum".
        group: the processes whose rows are gathered, and for which t and b are kept equal;
            default: all.
    """

    presets = PRESETS
    supports_soft_labels = True

    @classmethod
    def effective_options(cls, preset: str | None, options: Options) -> dict[str, OptionValue]:
        """As in `Method`; `bias` and `learn` follow each other if only one of them is given."""
        values = super().effective_options(preset, options)
        given: Any = options.get("learn"), options.get("bias")  # checked by `resolve_bias`
        bias, learn = resolve_bias(PRESETS[preset or "solved"], *given)
        return values | {"bias": bias, "learn": learn}

    @classmethod
    def recipe_defaults(cls, preset: str | None) -> Mapping[str, Options]:
        """Centre the embeddings for the solved boundary, so that similarities lie around 0."""
        return {"head": {"centre": preset in (None, "solved")}}

    def __init__(  # noqa: PLR0913
        self,
        common_dim: int | None = None,
        *,
        preset: Preset = "solved",
        t0: float | None = None,
        b0: float | None = None,
        beta: float = 1e-3,
        learn: Sequence[str] | None = None,
        bias: Bias | None = None,
        pairs: Weighting | None = None,
        scale: Scale = "multiply",
        include_self: bool = True,
        margin: float = 0.0,
        memory: int = 0,
        lr_t: float = 1.0,
        lr_b: float = 1.0,
        overlap: int = 0,
        normalize: Normalise = "separate",
        style: StyleTerm = "distance",
        style_weight: float = 0.1,
        style_t: float = 10.0,
        style_scatter: float = 0.0,
        style_floor: float = 0.0,
        style_decorrelation: float = 0.0,
        ignore_index: int | None = None,
        class_weights: Sequence[float] | Tensor | None = None,
        reduction: Reduction = "mean",
        gather_across_devices: bool = False,
        gradient_reduction: GradientReduction = "mean",
        group: Group = None,
    ) -> None:
        super().__init__(
            common_dim,
            overlap=overlap,
            normalize=normalize,
            gather_across_devices=gather_across_devices,
            gradient_reduction=gradient_reduction,
            group=group,
        )
        check_one_of("preset", preset, tuple(PRESETS))
        defaults = PRESETS[preset]
        self.pairs: Weighting = pairs or defaults["pairs"]
        check_one_of("pairs", self.pairs, ("all", "balanced", "positives"))
        bias, learned = resolve_bias(defaults, learn, bias)
        self.set_scalars(
            defaults["t0"] if t0 is None else t0,
            defaults["b0"] if b0 is None else b0,
            bias=bias,
            learn=learned,
            scale=scale,
            lr_t=lr_t,
            lr_b=lr_b,
        )
        self.beta, self.include_self = beta, include_self
        self.margin, self.memory = margin, memory
        check_one_of("style", style, ("distance", "instance"))
        self.style, self.style_weight, self.style_t = style, style_weight, style_t
        self.style_scatter, self.style_floor = style_scatter, style_floor
        self.style_decorrelation = style_decorrelation
        check_positive(style_t=style_t)
        check_not_negative(
            beta=beta,
            margin=margin,
            memory=memory,
            style_weight=style_weight,
            style_scatter=style_scatter,
            style_floor=style_floor,
            style_decorrelation=style_decorrelation,
        )
        self.set_pair_options(ignore_index, class_weights, reduction)
        self.bank: MemoryBank | None = None
        self._to_push: tuple[Tensor, Tensor] | None = None
        # No attribute of the module itself, which is slower to set than a small batch can afford.
        self._last_batch = LastBatch()
        self._style_scalars = {"style_pairs": 0.0}  # of the last batch
        self._warned = False

    def pair_parameters(
        self, training_rows: tuple[Tensor, Tensor] | None = None
    ) -> tuple[float, float] | None:
        t, b = float(self.t), float(self.b.detach())
        if self.normalize != "separate":
            return None
        t = t if self.scale == "multiply" else 1 / t
        if training_rows is not None and self.bias == "solve":
            b = solve_bias_of_rows(*training_rows, t)
        return t, b

    def setup(self, task: TaskInfo) -> Self:
        """Create an empty memory bank if `memory` is set."""
        if self.memory:
            weight = like(task.network).detach()
            width = self.width(weight.new_empty(0, task.embedding_dim))
            self.bank = MemoryBank(task.classes, self.memory, width, weight)
        return self

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        image_ids: Tensor | None = None,
        *,
        sample_weights: Tensor | None = None,
        pair_targets: Tensor | None = None,
        pair_weights: Tensor | None = None,
    ) -> Tensor:
        """Return the loss: the sum of `loss_terms`."""
        return total(
            self.loss_terms,
            embeddings,
            labels,
            image_ids,
            sample_weights=sample_weights,
            pair_targets=pair_targets,
            pair_weights=pair_weights,
            traceable=self.traceable,
        )

    def traceable(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        image_ids: Tensor | None = None,
        **options: Tensor | None,
    ) -> bool:
        """As in `PairLoss`; without the terms that need lists of images or classes."""
        extras = self.style_scatter or self.style_floor or self.style_decorrelation or self.memory
        plain = self.style == "distance" and not extras
        return plain and super().traceable(embeddings, labels, **options)

    def loss_terms(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        image_ids: Tensor | None = None,
        *,
        sample_weights: Tensor | None = None,
        pair_targets: Tensor | None = None,
        pair_weights: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return "contrast", the sigmoid loss (at least 0), and the terms of the style field.

        Args:
            embeddings: `(N, D)`, or `(B, V, D)` for V views of B images.
            labels: integers, `(N,)` or `(B,)`; or 0 and 1, `(N, K)`, for several labels per row:
                the target of a pair is then the Jaccard index of its two sets of labels.
            image_ids: integers of the same shape; views of one image have the same. Needed for
                the instance loss of `(N, D)` embeddings.
            sample_weights: `(N,)`, at least 0. A pair is weighted by the product of its two
                weights: a row of weight 2 counts like two equal rows.
            pair_targets: `(N, N)` targets in [0, 1] instead of labels.
            pair_weights: `(N, N)` weights of pairs, or booleans.
        """
        options = (sample_weights, pair_targets, pair_weights)
        if self.needs_targets(labels, *options):
            return self.targeted_terms(embeddings, labels, *options)
        embeddings, labels, image_ids = self.without_ignored(embeddings, labels, image_ids)
        rows, row_labels = flatten(embeddings, labels)
        rows = self.scaled(rows)
        terms = self._terms(rows, row_labels)
        if self.style == "instance":
            terms |= self._instance_term(rows, row_labels, self._image_ids(embeddings, image_ids))
        return terms

    def targeted_terms(
        self, embeddings: Tensor, labels: Tensor | None, *options: Tensor | None
    ) -> dict[str, Tensor]:
        """As in `PairLoss`; some terms of the style field and the memory bank need labels."""
        unsupported = {
            'style="instance"': self.style == "instance",
            "style_scatter": self.style_scatter,
            "style_floor": self.style_floor,
            "style_decorrelation": self.style_decorrelation,
            "memory": self.bank is not None and self.training,
        }
        for name, used in unsupported.items():
            if used:
                raise UserError(f"{name} cannot be combined with targets or weights of pairs")
        return super().targeted_terms(embeddings, labels, *options)

    def row_terms(
        self,
        rows: Tensor,
        references: Tensor,
        targets: PairTargets,
        weights: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """As in `PairLoss`; `pairs` divides by sums of the weights of pairs."""
        common, style = self.fields(rows)
        ref_common, ref_style = (common, style) if references is rows else self.fields(references)
        t, b = self._scalars()
        contrast, b = targeted_sigmoid_loss(
            common,
            ref_common,
            targets,
            t,
            b,
            weighting=self.pairs,
            margin=self.margin,
            mean=self.reduction == "mean",
        )
        self._store(b)
        terms = {"contrast": contrast}
        if self.style == "distance" and self.beta and style.shape[1]:
            distance = targeted_style_distance(style, ref_style, targets)
            terms["style"] = -self.beta * weighted_rows(distance, weights)
        return terms

    def training_step(self, batch: Batch, network: nn.Module) -> dict[str, Tensor]:
        """Run the network on a batch and return the named terms of the loss."""
        return self.batch_terms(network(batch.images).embeddings, batch)

    def batch_terms(self, embeddings: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the terms of a batch, given its embeddings.

        The indices of the images say which views belong together.
        """
        if self.memory:
            after_setup(self, self.bank)
        labels, image_ids = batch.labels.repeat(self.views), batch.indices.repeat(self.views)
        if batch.label_probabilities is None:
            return self.loss_terms(embeddings, labels, image_ids)
        soft = batch.label_probabilities.repeat(self.views, 1)
        return self.loss_with_soft_labels(embeddings, soft, image_ids)

    def after_step(self, network: nn.Module, progress: float) -> None:
        """Add the rows of the last batch to the memory bank."""
        if self.bank is not None and self._to_push is not None:
            self.bank.push(*self._to_push)
            self._to_push = None

    def loss_with_references(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor
    ) -> dict[str, Tensor]:
        """Return the terms over the pairs (row, reference); divisor: rows × references."""
        return self._terms(*flatten(embeddings, labels), *flatten(ref_emb, ref_labels))

    def loss_with_soft_labels(
        self, embeddings: Tensor, label_probabilities: Tensor, image_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return the terms for soft labels p, as MixUp and CutMix make them.

        A pair is positive with probability q_uv = p_u·p_v; `pairs="positives"` divides by Σ q. b is
        solved such that the mean of σ(a) is the mean of q. Style distances to other rows are
        weighted by q; the other style terms use the most probable class. One-hot labels give the
        loss of hard labels.

        Args:
            embeddings: `(N, D)`, or `(B, V, D)` for V views of B images.
            label_probabilities: `(N, K)` or `(B, K)`; rows sum to 1.
            image_ids: as in `loss_terms`.
        """
        if self.memory:
            raise UserError(
                f"memory = {self.memory} cannot be combined with soft labels, because the memory "
                "bank stores rows by class: set memory to 0, or turn off MixUp and CutMix"
            )
        rows, p = flatten_soft_labels(embeddings, label_probabilities)
        rows = self.scaled(rows)
        (common, style), labels = self.fields(rows), p.argmax(1)
        all_labels = self._joined(labels) if self.gathers else labels
        self._last_batch.store(all_labels, None, common.detach(), p)
        terms = {"contrast": self._soft_contrast(common, p)}
        if not style.shape[1]:
            return terms
        if self.style == "distance" and self.beta:
            joined = map(self._joined, (style, p)) if self.gathers else (style, p)
            terms["style"] = -self.beta * soft_style_distance(*joined)
        elif self.style == "instance":
            terms |= self._instance_term(rows, labels, self._image_ids(embeddings, image_ids))
        return terms | self._regularisers(common, style, labels)

    def against(self, *arguments: Tensor) -> dict[str, Tensor]:
        """Deprecated name of `loss_with_references`."""
        return self.loss_with_references(*arguments)

    def listed(self, *arguments: Any) -> dict[str, Tensor]:
        """Deprecated name of `loss_on_pairs`."""
        return self.loss_on_pairs(*arguments)

    def scalars(self) -> dict[str, float]:
        """Return t, b, the boundary, and statistics of the pairs in the last batch."""
        values = super().scalars() | self._last_batch.scalars(self.include_self)
        return values | (self._style_scalars if self.style == "instance" else {})

    def _terms(
        self,
        rows: Tensor,
        labels: Tensor,
        references: Tensor | None = None,
        reference_labels: Tensor | None = None,
    ) -> dict[str, Tensor]:
        gather = self.gathers and references is None
        common, style = self.fields(rows)
        self._last_batch.store(
            gather_rows(labels, group=self.group)[0][0] if gather else labels,
            reference_labels,
            None if traced(common) else common.detach(),
            labels,
        )
        ref_common, ref_style = (None, None) if references is None else self.fields(references)
        if references is None and self.bank is not None and self.training:
            contrast = self._contrast_with_memory(common, labels, self.bank)
        else:
            contrast = self._contrast(
                common,
                labels,
                references=ref_common,
                reference_labels=reference_labels,
                gather=gather,
                group=self.group,
            )
        terms = {"contrast": contrast}
        if not style.shape[1]:
            return terms
        if self.style == "distance" and self.beta:
            distance = style_distance(
                style,
                labels,
                references=ref_style,
                reference_labels=reference_labels,
                gather=gather,
                group=self.group,
            )
            terms["style"] = -self.beta * distance
        if self.style_scatter or self.style_floor or self.style_decorrelation:
            terms |= self._regularisers(common, style, labels)
        return terms

    def _instance_term(
        self, rows: Tensor, labels: Tensor, image_ids: Tensor | None
    ) -> dict[str, Tensor]:
        """Return the instance loss of the style field; nothing if images are unknown."""
        self._style_scalars = {"style_pairs": 0.0}
        _, style = self.fields(rows)
        if image_ids is None or not self.style_weight or not style.shape[1]:
            return {}
        result = instance_loss(
            style, labels, image_ids, self.style_t, gather=self.gathers, group=self.group
        )
        if result.positive and result.negative:
            self._style_scalars = {"style_pairs": float(result.positive), "style_b": result.b}
        elif self.training and not self._warned:
            self._warned = True
            warnings.warn(
                "the style term of a batch is 0, because no image of a class with two images has "
                'two views: use larger batches, or pretrain.batches = "balanced"',
                RuntimeWarning,
                stacklevel=2,
            )
        return {"style": self.style_weight * self._share_of_positives() * result.loss}

    def _regularisers(self, common: Tensor, style: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the terms that keep the class, and the common field, out of the style field."""
        if not (self.style_scatter or self.style_floor or self.style_decorrelation):
            return {}
        if self.gathers:
            common, style, labels = map(self._joined, (common, style, labels))
        share = self._share_of_positives()
        terms = {}
        if self.style_scatter:
            terms["style_scatter"] = self.style_scatter * share * scatter_ratio(style, labels)
        if self.style_floor:
            terms["style_floor"] = self.style_floor * share * variance_floor(style)
        if self.style_decorrelation:
            correlation = field_correlation(common, style)
            terms["style_decorrelation"] = self.style_decorrelation * share * correlation
        return terms

    def _share_of_positives(self) -> float:
        """Return the weight of all positive pairs of the last batch in the contrast."""
        all_pairs, positive, _ = self._last_batch.count(self.include_self)
        return pair_weights(all_pairs, positive, self.pairs)[0] * positive

    def _image_ids(self, embeddings: Tensor, image_ids: Tensor | None) -> Tensor | None:
        """Return the image of each row of `flatten`; None if it is unknown."""
        if image_ids is None:
            if embeddings.dim() == 2:
                return None
            image_ids = torch.arange(len(embeddings), device=embeddings.device)
            if self.gathers:  # each process has images of its own
                image_ids = image_ids * dist.get_world_size(self.group) + dist.get_rank(self.group)
        elif image_ids.shape != embeddings.shape[:1] or image_ids.is_floating_point():
            raise UserError(
                f"image_ids must be {len(embeddings)} integers, one per row of embeddings, got "
                f"{image_ids.dtype} of shape {tuple(image_ids.shape)}"
            )
        views = embeddings.shape[1] if embeddings.dim() == 3 else 1
        return image_ids.to(embeddings.device, torch.long).repeat(views)

    def _contrast(self, common: Tensor, labels: Tensor, **others: Any) -> Tensor:
        t, b = self._scalars()
        contrast, b = sigmoid_pair_loss(
            common,
            labels,
            t,
            b,
            weighting=self.pairs,
            include_self=self.include_self,
            margin=self.margin,
            **others,
        )
        self._store(b)
        return contrast

    def _soft_contrast(self, common: Tensor, p: Tensor) -> Tensor:
        if self.gathers:
            common, p = self._joined(common), self._joined(p)
        t, b = self._scalars()
        contrast, b = soft_sigmoid_loss(
            common,
            p,
            t,
            b,
            weighting=self.pairs,
            include_self=self.include_self,
            margin=self.margin,
        )
        self._store(b)
        return contrast

    def _contrast_with_memory(self, common: Tensor, labels: Tensor, bank: MemoryBank) -> Tensor:
        """Return the contrast of the rows of all processes, with themselves and the memory bank."""
        if self.gathers:
            if len(common) % self.views:
                raise UserError(
                    f"with a memory bank and several processes, the number of rows ({len(common)}) "
                    f"must be a multiple of the number of views ({self.views})"
                )
            # In view-major order, as in one process, so that the same rows are stored.
            common = self._joined(common, self.views)
            labels = self._joined(labels, self.views)
        check_labels(labels, len(bank.pushed))
        self._to_push = common.detach(), labels
        past, past_labels = bank.contents()
        return self._contrast(
            common, labels, references=past, reference_labels=past_labels, include_rows=True
        )

    def _joined(self, rows: Tensor, views: int = 1) -> Tensor:
        return gather_with_gradient(rows, views, self.group)
