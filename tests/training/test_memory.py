"""Stage 1 with a memory of past rows."""

import pytest
import torch

from scs_supcon.errors import UserError
from scs_supcon.methods.shared.heads import HeadEnsemble
from scs_supcon.methods.shared.memory_bank import MemoryBank
from scs_supcon.recipe import make_recipe
from scs_supcon.training.pretrain import make_method


def recipe(method="scs_supcon", **pretrain):
    return make_recipe(
        {"data": {"source": "shapes"}, "method": {"name": method}, "pretrain": pretrain}
    )


def test_each_head_has_a_memory_of_its_own():
    several = make_recipe(
        {"data": {"source": "shapes"}, "head": {"heads": 2}, "pretrain": {"memory": 8}}
    )
    method = make_method(several)
    assert isinstance(method, HeadEnsemble)
    embeddings, labels = torch.randn(4, 2, 256), torch.tensor([0, 1, 1, 0])
    method.loss_terms(embeddings, labels)
    for k, member in enumerate(method.methods):
        assert isinstance(member, MemoryBank)
        assert torch.equal(member.queue.contents()[0], embeddings[:, k])


def test_a_memory_needs_a_loss_over_pairs_and_labels():
    with pytest.raises(UserError, match=r"pretrain\.memory"):
        make_method(recipe("byol", memory=8))
    with pytest.raises(UserError, match="memory = 8"):
        recipe(memory=8, mixup=0.4)


@pytest.mark.parametrize("method", ["scs_supcon", "simclr"])
def test_a_stopped_run_ends_with_the_same_bytes(
    method, shapes, train_small, tmp_path, train_stopped, deterministic_files
):
    options = {"settings": ["pretrain.memory=20"], "method": method}
    whole = train_small(shapes, tmp_path / "whole", **options)
    without = train_small(shapes, tmp_path / "without", method=method)
    train_stopped(shapes, tmp_path / "run", step=2, **options)
    train_small(shapes, tmp_path / "run", **options)
    files = deterministic_files(tmp_path / "run")
    assert files == deterministic_files(whole.path)
    assert files != deterministic_files(without.path) | {"recipe.toml": files["recipe.toml"]}
