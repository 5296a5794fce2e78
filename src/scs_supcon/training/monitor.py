"""What the progress display shows while stage 1 trains: loss, validation accuracy, images/s."""

import time
from collections.abc import Callable, Mapping

SHARE = 0.05  # of the training time that measuring the validation accuracy may take


class StageMonitor:
    """The note beside the progress bar of a stage.

    The validation accuracy is measured after the first epoch and then as often as it takes little
    time. It is shown only: training and results do not depend on it.

    Args:
        epochs: number of epochs.
        images_per_step: size of a batch.
        score: returns the validation accuracy; None if it is not measured.
    """

    def __init__(
        self, epochs: int, images_per_step: int, score: Callable[[], float] | None = None
    ) -> None:
        self._epochs, self._images_per_step, self._score = epochs, images_per_step, score
        self._start = time.monotonic()
        self._steps, self._scoring = 0, 0.0
        self._loss: float | None = None
        self._accuracy: float | None = None

    def after_step(self, terms: Mapping[str, float]) -> None:
        """Take note of the loss terms of a step."""
        self._steps += 1
        loss = sum(terms.values())
        # The mean over about ten steps: single batches scatter.
        self._loss = loss if self._loss is None else 0.9 * self._loss + 0.1 * loss

    def after_epoch(self) -> None:
        """Measure the validation accuracy if there is time."""
        start = time.monotonic()
        if self._score is None or self._scoring > SHARE * (start - self._start):
            return
        self._accuracy = self._score()
        self._scoring += time.monotonic() - start

    def note(self, epoch: int) -> str:
        """Return the note, given the number of completed epochs."""
        parts = [f"epoch {min(epoch + 1, self._epochs)} of {self._epochs}"]
        if self._loss is not None:
            parts.append(f"loss {self._loss:.4g}")
        if self._accuracy is not None:
            parts.append(f"validation accuracy {self._accuracy:.1%}")
        seconds = time.monotonic() - self._start - self._scoring
        if self._steps and seconds > 0:
            parts.append(f"{self._steps * self._images_per_step / seconds:,.0f} images/s")
        return ", ".join(parts)
