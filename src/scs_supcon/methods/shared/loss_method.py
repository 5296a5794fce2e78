"""Any loss as a method: a module that is called as `loss(embeddings, labels)`.

```python
from pytorch_metric_learning.losses import TripletMarginLoss
from scs_supcon import LossMethod


class Triplet(LossMethod):
    loss_class = TripletMarginLoss
```

Saved as `my_losses.py`, it is trained with `--method ./my_losses.py:Triplet`. The arguments of the
loss are options of the method: `--set method.options.margin=0.1`.
"""

import inspect
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from scs_supcon.errors import UserError
from scs_supcon.methods.shared.base import Method, TaskInfo, flatten

# Arguments of losses with a vector for each class, as pytorch-metric-learning calls them.
FROM_TASK = {"num_classes": "classes", "embedding_size": "embedding_dim"}


class LossMethod(Method):
    """A method whose loss is another module: two views of each image, then a linear classifier.

    A subclass sets `loss_class`. Hooks and attributes of `Method` can be overridden, such as
    `views = 1`. The arguments `num_classes` and `embedding_size` of the loss, if it has them, are
    taken from the task.

    Attributes:
        loss_class: the class of the loss. Calling a loss with embeddings `(N, D)` and integer
            labels `(N,)` returns a scalar.
    """

    loss_class: ClassVar[type[nn.Module]]

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Give the constructor the arguments of the loss."""
        super().__init_subclass__(**arguments)
        loss_class = vars(cls).get("loss_class")
        if loss_class is None:
            return
        if not (isinstance(loss_class, type) and issubclass(loss_class, nn.Module)):
            raise UserError(
                f"{cls.__name__}.loss_class is {loss_class!r}, expected a class of torch.nn.Module"
            )
        parameters = list(inspect.signature(loss_class.__init__).parameters.values())

        def __init__(self: LossMethod, **options: Any) -> None:
            LossMethod.__init__(self, **options)

        __init__.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        cls.__init__ = __init__  # type: ignore[method-assign]

    def __init__(self, **options: Any) -> None:
        super().__init__()
        if not hasattr(self, "loss_class"):
            raise UserError(
                f"{type(self).__name__} has no loss_class: set it to the class of your loss, for "
                "example loss_class = TripletMarginLoss"
            )
        self._options = options
        arguments = inspect.signature(self.loss_class.__init__).parameters
        self._from_task = {
            name: field
            for name, field in FROM_TASK.items()
            if name in arguments and name not in options
        }
        self.loss = None if self._from_task else self.loss_class(**options)

    def setup(self, task: TaskInfo) -> Self:
        """Create a loss that depends on the number of classes or columns."""
        if self._from_task:
            sizes = {name: getattr(task, field) for name, field in self._from_task.items()}
            self.loss = self.loss_class(**sizes, **self._options)
        return self

    def loss_terms(self, embeddings: Tensor, labels: Tensor | None) -> dict[str, Tensor]:
        """Return the loss as one term."""
        if self.loss is None:
            missing = ", ".join(self._from_task)
            raise UserError(f"{type(self).__name__} needs {missing}: give it, or call setup(task)")
        rows, labels = flatten(embeddings, labels)
        value = self.loss(rows, labels)
        if not isinstance(value, Tensor) or value.numel() != 1:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise UserError(
                f"{self.loss_class.__name__} returned {shape}, expected one number as a tensor"
            )
        return {"loss": value.reshape(())}
