"""Runs that are stopped and resumed."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from scs_supcon.training.checkpointing import CheckpointManager, SavePolicy, Stopped


@pytest.fixture
def train_stopped(train_small, monkeypatch):
    """`train_stopped(data, out, step, stage, **options)`: SIGTERM after a step of a stage."""
    often = partial(SavePolicy, every=0.0, at_most=0.0)
    monkeypatch.setattr("scs_supcon.training.checkpointing.SavePolicy", often)

    def run(data: Path, out: Path, step: int, stage: str = "pretrain", **options: Any) -> None:
        after_step = CheckpointManager.after_step

        def interrupt(self, position, terms):
            if self._stage.name == stage and position.global_step == step:
                os.kill(os.getpid(), signal.SIGTERM)
            after_step(self, position, terms)

        with monkeypatch.context() as patch, pytest.raises(Stopped):
            patch.setattr(CheckpointManager, "after_step", interrupt)
            train_small(data, out, **options)

    return run
