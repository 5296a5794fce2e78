"""Train a linear classifier of the features together with any method.

    L = (1 − κ) L_method − κ (1/n) Σ_i log softmax(W h_i + a)_{y_i}

h are the features, W and a are the classifier. A pair loss compares an image with the few others in
its batch, cross-entropy with all classes: an encoder learns faster from both than from pairs alone.
"""

from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.methods.shared.base import Batch, Method, ParameterGroup
from scs_supcon.methods.shared.classifier import ClassifierOnFeatures
from scs_supcon.methods.shared.heads import HeadEnsemble, SharedOutput
from scs_supcon.methods.shared.wrapper import MethodWrapper


class WithClassifier(ClassifierOnFeatures, MethodWrapper):
    """A method, and a classifier of the features whose cross-entropy is added to its loss.

    `loss_terms` are those of the method alone, because there are no features to classify.

    Args:
        method: the method; it must not train a classifier of its own.
        share: κ, the share of the cross-entropy in the loss.
    """

    def __init__(self, method: Method, share: float) -> None:
        super().__init__(method)
        member = method.methods[0] if isinstance(method, HeadEnsemble) else method
        member = member.method if isinstance(member, MethodWrapper) else member
        if isinstance(member, ClassifierOnFeatures) or member.uses_taps:
            raise UserError(
                f"pretrain.cross_entropy = {share:g} cannot be used with {type(member).__name__}, "
                "which trains a classifier of its own or needs taps: set it to 0"
            )
        self.share = share
        self.gather_across_devices = member.gather_across_devices
        self.gradient_reduction, self.group = member.gradient_reduction, member.group

    def training_step(self, batch: Batch, network: nn.Module) -> dict[str, Tensor]:
        output = SharedOutput(network, batch.images)
        terms = self.method.training_step(batch, output)
        loss = self.classification_loss(output(batch.images).features, batch)
        scaled = {name: (1 - self.share) * term for name, term in terms.items()}
        return scaled | {"classify": self.share * loss}

    def param_groups(self, lr: float, weight_decay: float = 0.0) -> list[ParameterGroup]:
        """Return the groups of the method, and of the classifier with weight decay."""
        groups = self.method.param_groups(lr, weight_decay)
        if self.classifier is None:
            return groups
        weight, bias = self.classifier.weight, self.classifier.bias
        return [
            *groups,
            {"params": [weight], "lr": lr, "weight_decay": weight_decay},
            {"params": [bias], "lr": lr, "weight_decay": 0.0},
        ]
