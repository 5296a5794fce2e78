"""The note of the progress display: loss, validation accuracy when there is time, images/s."""

import pytest

from scs_supcon.training import monitor as monitor_module
from scs_supcon.training.monitor import StageMonitor


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(monitor_module.time, "monotonic", lambda: now[0])

    def move(seconds):
        now[0] += seconds

    return move


def test_loss_accuracy_and_speed_are_shown(clock):
    accuracies = iter((0.5, 0.75))

    def score():
        clock(1.0)
        return next(accuracies)

    monitor = StageMonitor(epochs=4, images_per_step=32, score=score)
    assert monitor.note(0) == "epoch 1 of 4"
    clock(2.0)
    monitor.after_step({"common": 1.0, "style": 0.5})
    assert monitor.note(0) == "epoch 1 of 4, loss 1.5, 16 images/s"
    monitor.after_epoch()
    assert "validation accuracy 50.0%, 16 images/s" in monitor.note(1)
    clock(2.0)
    monitor.after_step({"common": 0.5})
    monitor.after_epoch()
    assert "validation accuracy 50.0%" in monitor.note(2), "measured again only if it costs little"
    clock(30.0)
    monitor.after_epoch()
    assert monitor.note(4).startswith("epoch 4 of 4, loss 1.4, validation accuracy 75.0%, ")


def test_without_validation_images_there_is_no_accuracy(clock):
    monitor = StageMonitor(epochs=1, images_per_step=8)
    clock(1.0)
    monitor.after_step({"loss": 2.0})
    monitor.after_epoch()
    assert monitor.note(1) == "epoch 1 of 1, loss 2, 8 images/s"
