"""What a kill at one moment left behind."""

import torch

from scs_supcon.runs.checkpoint_io import Checkpoint, remove_incomplete, write_checkpoint


def test_a_checkpoint_that_was_to_be_removed_is_removed_by_the_next_start(tmp_path):
    """A run was killed after the last checkpoint of a stage, before the one that it replaces."""
    kept = {}
    for number in range(3):
        write_checkpoint(tmp_path, "linear", Checkpoint({"a": torch.ones(1)}, {"number": number}))
        kept |= {file: file.read_bytes() for file in tmp_path.iterdir()}
    expected = {file.name for file in tmp_path.iterdir()}
    for file, content in kept.items():
        file.write_bytes(content)
    assert {file.name for file in tmp_path.iterdir()} > expected
    remove_incomplete(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == expected
