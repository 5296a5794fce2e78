"""The whole model as one module of float32 operations, from bytes to answers, for export.

What `Model` computes in float64 after the encoder is done in float32 here: other runtimes know
little else, and the difference is small beside that of the encoder itself. Temperature, means and
bars are folded together in float64 before they are rounded.
"""

import copy

import torch
from torch import Tensor, nn

from scs_supcon.inference.decision import DecisionRule
from scs_supcon.inference.facts import Facts
from scs_supcon.nn.head import split

OUTPUTS = ("probabilities", "none_of_these", "nearest", "similarity", "common", "style")
TINY = 1e-30  # a shorter row counts as zero, as it does in the model


class Graph(nn.Module):
    """Pixels (n, size, size, 3), bytes, to the tensors named by `outputs`.

    It reproduces `Model.judge` and `Model.fields` of images that were resized and cropped as the
    evaluation view does it.
    """

    mean: Tensor
    std: Tensor
    weight: Tensor
    bias: Tensor
    centre: Tensor
    means: Tensor
    bars: Tensor
    close_weight: Tensor
    close_bias: Tensor

    def __init__(
        self, facts: Facts, encoder: nn.Module, head: nn.Module | None, judge: DecisionRule
    ) -> None:
        super().__init__()
        data = facts.recipe.data
        self.encoder = _plain(encoder, data.image_size)
        self.head = None if head is None else copy.deepcopy(head).float()
        self.whole = facts.readout == "embeddings"
        self.common_dim, self.overlap = facts.recipe.head.common_dim, facts.recipe.head.overlap
        self.trained, self.classes = judge.trained, len(judge.means)
        heat = judge.classifier.temperature
        constants = {
            "mean": 255 * torch.tensor(data.mean, dtype=torch.float64).view(3, 1, 1),
            "std": 255 * torch.tensor(data.std, dtype=torch.float64).view(3, 1, 1),
            "weight": judge.classifier.weight / heat,
            "bias": judge.classifier.bias / heat,
            "centre": judge.centre,
            "means": judge.means,
            "bars": judge.bars,
            "close_weight": judge.sharpness * judge.means,
            "close_bias": -judge.sharpness * judge.tightness / 2,
        }
        for name, value in constants.items():
            self.register_buffer(name, value.detach().cpu().float())
        self.eval().requires_grad_(False)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of what `forward` returns; without fields there is no style."""
        has_style = self.head is not None and not self.whole
        return OUTPUTS if has_style else OUTPUTS[:-1]

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        views = (pixels.permute(0, 3, 1, 2).float() - self.mean) / self.std
        readout, style = self._read_out(self.encoder(views))
        common = _unit(readout - self.centre)
        similarities = common @ self.means.T
        room = similarities - self.bars
        nearest = room.argmax(1)
        answers = (
            self._logits(readout, common).softmax(1),
            room.amax(1) < 0,
            nearest,
            similarities.gather(1, nearest[:, None])[:, 0],
            common,
        )
        return answers if style is None else (*answers, style)

    def _read_out(self, features: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.head is None:
            return features, None
        embeddings = self.head(features)
        if self.whole:
            return _unit(embeddings), None
        common, style = split(embeddings, self.common_dim, self.overlap)
        return _unit(common), _unit(style)

    def _logits(self, readout: Tensor, common: Tensor) -> Tensor:
        logits = readout @ self.weight.T + self.bias
        if self.trained == self.classes:
            return logits
        close = common @ self.close_weight.T + self.close_bias
        known, added = close[:, : self.trained], close[:, self.trained :]
        shift = logits.logsumexp(1) - known.logsumexp(1)
        return torch.cat([logits, added + shift[:, None]], 1)


def _plain(encoder: nn.Module, size: int) -> nn.Module:
    """A copy on the CPU. Some encoders keep what they computed: they begin anew, and keep it."""
    plain = copy.deepcopy(encoder).cpu().to(memory_format=torch.contiguous_format)
    plain.train().eval()
    with torch.no_grad():
        plain(torch.zeros(1, 3, size, size))
    return plain


def _unit(rows: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / length.clamp_min(TINY)
