"""Where a run computes."""

import os
from pathlib import Path

import pytest
import torch

from scs_supcon.device import cores, find_compute, first_process, has_gpu, torch_device
from scs_supcon.errors import UserError


def test_what_is_asked_for_is_kept_and_the_rest_filled_in(monkeypatch):
    place = find_compute("cpu", 3, "here", offline=True)
    assert (place.device, place.workers, place.cache, place.offline) == (
        *("cpu", 3, Path("here")),
        True,
    )
    monkeypatch.setenv("SCS_CACHE", "from-the-environment")
    place = find_compute()
    assert (place.device, place.cache, place.offline) == (
        *("auto", Path("from-the-environment")),
        False,
    )
    assert place.workers == cores() >= 1


@pytest.mark.parametrize("device", ["cpu:1", "cpu:x", "cuda:x", "cuda:", "auto:0"])
def test_devices_that_cannot_be_are_refused(device):
    with pytest.raises(UserError, match=f"no device '{device}': use auto, cpu, cuda or cuda:1"):
        find_compute(device)


def test_workers_are_not_negative():
    with pytest.raises(UserError, match="--workers is -1: give 0"):
        find_compute(workers=-1)


def test_without_a_word_features_go_to_the_users_cache(monkeypatch):
    monkeypatch.delenv("SCS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "kept")
    assert find_compute().cache == Path("kept/scs-supcon/features")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert find_compute().cache == Path.home() / ".cache/scs-supcon/features"


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system does not tell")
def test_cores_are_those_this_process_may_use():
    assert cores() == len(os.sched_getaffinity(0))


def test_a_cpu_is_not_a_gpu():
    assert not has_gpu("cpu")
    assert has_gpu("cuda:1")
    assert torch_device("cuda:1") == "cuda:1"
    assert torch_device("auto") == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize(("rank", "first"), [(None, True), ("0", True), ("1", False)])
def test_only_the_first_process_speaks(rank, first, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    assert first_process() == first
