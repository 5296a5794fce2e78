"""Large batches in micro-batches: the gradient of the whole batch.

Run by pytest this file starts itself as `test_micro_batch.py RANK WORLD FOLDER`, one per rank.
"""

import copy
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from scs_supcon import SCSSupCon, SupCon, large_batch_step
from scs_supcon.errors import UserError
from scs_supcon.nn.encoder import build_encoder
from scs_supcon.nn.network import in_micro_batches


def gradients(encoder: nn.Module, images: Tensor, size: int) -> tuple[Tensor, list[Tensor]]:
    """Return features, and gradients of a loss on all pairs."""
    encoder.zero_grad()
    torch.manual_seed(3)
    features = in_micro_batches(encoder, images, size)
    z = nn.functional.normalize(features.to(images.dtype), dim=1)
    (z @ z.T).exp().mean().backward()
    return features.detach(), [p.grad.clone() for p in encoder.parameters() if p.grad is not None]


@pytest.mark.parametrize("size", [1, 4, 5, 6, 100])
@pytest.mark.parametrize("name", ["tiny", "convnext_atto"])
def test_micro_batches_equal_the_whole_batch_without_batch_statistics(name: str, size: int) -> None:
    encoder = build_encoder(name, small_stem=name != "tiny", in_size=16).double()
    images = torch.randn(11, 3, 16, 16, dtype=torch.float64)
    whole, chunked = (gradients(encoder, images, at_once) for at_once in (0, size))
    torch.testing.assert_close(chunked, whole, rtol=1e-9, atol=1e-13)
    assert len(whole[1]) == len(list(encoder.parameters()))


def test_only_the_features_are_kept_until_the_backward_pass() -> None:
    encoder = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    images = torch.randn(12, 3, 9, 9)
    batch_sizes: list[int] = []
    encoder[0].register_forward_hook(lambda _m, inputs, _out: batch_sizes.append(len(inputs[0])))
    saved_sizes: list[int] = []

    def record_size(tensor: Tensor) -> Tensor:
        saved_sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record_size, lambda tensor: tensor):
        value = in_micro_batches(encoder, images, 4).square().sum()
    assert max(saved_sizes, default=0) <= images.numel()
    assert batch_sizes == [4, 4, 4]
    value.backward()
    assert batch_sizes == [4] * 6, "each micro-batch is encoded twice"


def test_micro_batches_differ_by_at_most_one_image() -> None:
    """Thirteen images, four at a time: a single last one would have no batch statistics."""
    encoder = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    sizes: list[int] = []
    encoder.register_forward_hook(lambda _m, inputs, _out: sizes.append(len(inputs[0])))
    in_micro_batches(encoder, torch.randn(13, 3), 4)
    assert sizes == [4, 3, 3, 3]
    assert in_micro_batches(encoder.eval(), torch.randn(0, 3), 4).shape == (0, 4)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics_are_updated_once(momentum: float | None) -> None:
    def make() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=momentum), nn.ReLU())

    images = torch.randn(12, 3)
    chunked, by_hand = make(), make()
    gradients(chunked, images, 4)
    for chunk in images.split(4):
        by_hand(chunk)
    for name, buffer in by_hand.named_buffers():
        torch.testing.assert_close(chunked.get_buffer(name), buffer)
    norm = chunked[1]
    assert isinstance(norm, nn.BatchNorm1d) and norm.momentum == momentum
    assert norm.num_batches_tracked is not None and int(norm.num_batches_tracked) == 3


def test_batch_statistics_are_those_of_a_micro_batch() -> None:
    """Compare with micro-batches encoded one after the other."""
    encoder = build_encoder("resnet18", small_stem=True, in_size=16).double()
    other = copy.deepcopy(encoder)
    images = torch.randn(8, 3, 16, 16, dtype=torch.float64)
    features, results = gradients(encoder, images, 4)
    expected = torch.cat([other(chunk) for chunk in images.split(4)])
    z = nn.functional.normalize(expected, dim=1)
    (z @ z.T).exp().mean().backward()
    torch.testing.assert_close(features, expected.detach())
    expected_gradients = [p.grad for p in other.parameters() if p.grad is not None]
    torch.testing.assert_close(results, expected_gradients, rtol=1e-8, atol=1e-12)


def test_both_passes_drop_the_same_units() -> None:
    images = torch.randn(8, 3)
    encoder = nn.Sequential(nn.Linear(3, 50), nn.Dropout(0.5))
    torch.manual_seed(3)
    features = in_micro_batches(encoder, images, 4)
    state = torch.get_rng_state()
    features.sum().backward()
    assert torch.equal(state, torch.get_rng_state()), "the second pass draws no random numbers"
    derivative = (features != 0).float() * 2  # of a column by its bias: 2 unless dropped
    torch.testing.assert_close(encoder[0].bias.grad, derivative.sum(0))


def test_micro_batches_work_under_autocast() -> None:
    encoder = build_encoder("tiny", small_stem=False, in_size=16)
    images = torch.randn(6, 3, 16, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        whole, chunked = (
            in_micro_batches(encoder, images, size).float().mean(1) for size in (0, 2)
        )
    results = []
    for value in (whole, chunked):  # backward passes run outside of autocast, as in training
        encoder.zero_grad()
        value.square().sum().backward()
        results.append([p.grad.clone() for p in encoder.parameters() if p.grad is not None])
    torch.testing.assert_close(results[1], results[0], rtol=0.05, atol=1e-3)


def test_without_gradients_there_is_no_second_pass() -> None:
    encoder = nn.Linear(3, 4)
    images = torch.randn(7, 3)
    with torch.no_grad():
        torch.testing.assert_close(in_micro_batches(encoder, images, 2), encoder(images))


def make_encoder(*extra: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 8), *extra).double()


def make_batch(rows: int = 23) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(1)
    inputs = torch.randn(rows, 6, generator=source, dtype=torch.float64)
    return inputs, torch.randint(4, (rows,), generator=source)


def parameter_gradients(*modules: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for m in modules for p in m.parameters() if p.grad is not None]


@pytest.mark.parametrize("micro_batch", [1, 5, 8, 23, 100])
@pytest.mark.parametrize("preset", ["solved", "learned"])
def test_a_large_batch_step_has_the_gradient_of_the_whole_batch(preset, micro_batch) -> None:
    results = []
    for size in (None, micro_batch):
        encoder, loss = make_encoder(), SCSSupCon(preset=preset, beta=0.1)
        if size is None:
            value = loss(encoder(make_batch()[0]), make_batch()[1])
            value.backward()
        else:
            value = large_batch_step(encoder, loss, make_batch(), size)
        assert not value.requires_grad or size is None
        results.append((value.detach(), parameter_gradients(encoder, loss)))
    torch.testing.assert_close(results[1], results[0], rtol=1e-12, atol=1e-15)
    assert len(results[0][1]) == (4 if preset == "solved" else 6)


def test_gradients_are_added_and_both_passes_drop_the_same_units() -> None:
    encoder = make_encoder(nn.Dropout(0.5), nn.BatchNorm1d(8))
    inputs, labels = make_batch(12)
    torch.manual_seed(2)
    large_batch_step(encoder, SupCon(), (inputs, labels), 4)
    state = torch.get_rng_state()
    by_hand = make_encoder(nn.Dropout(0.5), nn.BatchNorm1d(8))
    torch.manual_seed(2)
    rows = torch.cat([by_hand(chunk) for chunk in inputs.split(4)])
    assert torch.equal(state, torch.get_rng_state()), "the second pass draws no random numbers"
    SupCon()(rows, labels).backward()
    first = parameter_gradients(by_hand)
    torch.testing.assert_close(parameter_gradients(encoder), first, rtol=1e-10, atol=1e-13)
    for name, buffer in by_hand.named_buffers():
        torch.testing.assert_close(encoder.get_buffer(name), buffer)
    torch.manual_seed(2)
    large_batch_step(encoder, SupCon(), (inputs, labels), 4)
    twice = [2 * grad for grad in first]
    torch.testing.assert_close(parameter_gradients(encoder), twice, rtol=1e-10, atol=1e-13)


def test_a_function_may_encode() -> None:
    encoder, other = make_encoder(), make_encoder()
    inputs, labels = make_batch()
    large_batch_step(lambda x: encoder(2 * x), SupCon(), (inputs, labels), 7)
    SupCon()(other(2 * inputs), labels).backward()
    torch.testing.assert_close(parameter_gradients(encoder), parameter_gradients(other))


def test_autocast_and_a_scaled_loss() -> None:
    inputs, labels = (x.float() if x.is_floating_point() else x for x in make_batch())
    results = []
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for size in (4, 23):
        encoder = make_encoder().float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            large_batch_step(
                encoder,
                SupCon(),
                (inputs, labels),
                size,
                backward=lambda value: scaler.scale(value).backward(),
            )
        results.append(parameter_gradients(encoder))
    whole = make_encoder().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = SupCon()(whole(inputs), labels)
    value.backward()
    expected = [8 * grad for grad in parameter_gradients(whole)]
    for result in results:
        for grad, reference in zip(result, expected, strict=True):
            assert (grad - reference).norm() < 0.02 * reference.norm()


@pytest.mark.parametrize("micro_batch", [0, -2])
def test_a_micro_batch_has_inputs(micro_batch: int) -> None:
    with pytest.raises(UserError, match="micro_batch"):
        large_batch_step(make_encoder(), SupCon(), make_batch(), micro_batch)


def test_two_processes_have_the_gradients_of_one(
    on_ranks: Callable[[str, int], list[dict[str, np.ndarray]]],
) -> None:
    encoder, loss = make_encoder(), SCSSupCon(preset="learned")
    loss(encoder(make_batch()[0]), make_batch()[1]).backward()
    expected = parameter_gradients(encoder, loss)
    for rank in on_ranks(__file__, 2):
        assert rank["reductions"] == len(list(encoder.parameters()))
        for k, grad in enumerate(expected):
            np.testing.assert_allclose(rank[str(k)], grad.numpy(), rtol=1e-10, atol=1e-14)


def run_rank(rank: int, world: int, folder: Path) -> None:
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    encoder, loss = make_encoder(), SCSSupCon(preset="learned", gather_across_devices=True)
    parallel = DistributedDataParallel(encoder)
    reduced: list[int] = []

    def count(_: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        reduced.append(len(bucket.parameters()))
        buffer = bucket.buffer() / world
        work = dist.all_reduce(buffer, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    parallel.register_comm_hook(None, count)
    part = slice(0, 9) if rank == 0 else slice(9, 23)
    inputs, labels = make_batch()
    large_batch_step(parallel, loss, (inputs[part], labels[part]), 4)
    grads = {str(k): x.numpy() for k, x in enumerate(parameter_gradients(encoder, loss))}
    np.savez(folder / f"{rank}.npz", reductions=sum(reduced), **grads)
    dist.destroy_process_group()


if __name__ == "__main__":
    run_rank(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
