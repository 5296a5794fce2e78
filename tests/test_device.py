"""Device, workers and cache."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from scs_supcon.device import Compute, cores, find_compute, first_process, has_gpu, torch_device
from scs_supcon.errors import UserError


def test_only_missing_values_get_defaults(monkeypatch):
    compute = find_compute("cpu", 3, "here", offline=True)
    assert compute == Compute("cpu", 3, Path("here"), offline=True)
    monkeypatch.setenv("SCS_CACHE", "from-the-environment")
    compute = find_compute()
    assert compute == Compute("auto", cores(), Path("from-the-environment"), offline=False)
    assert compute.workers >= 1


@pytest.mark.parametrize("device", ["cpu:1", "cpu:x", "cuda:x", "cuda:", "auto:0", "mps:0"])
def test_impossible_devices_are_errors(device):
    with pytest.raises(
        UserError, match=f"unknown device '{device}': use auto, cpu, cuda, cuda:1 or mps"
    ):
        find_compute(device)


def test_workers_must_not_be_negative():
    with pytest.raises(UserError, match=r"--workers must be 0 .* or more, got -1"):
        find_compute(workers=-1)


def test_features_are_cached_in_the_users_cache_folder_by_default(monkeypatch):
    monkeypatch.delenv("SCS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "xdg")
    assert find_compute().cache == Path("xdg/scs-supcon/features")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert find_compute().cache == Path.home() / ".cache/scs-supcon/features"


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="not on this system")
def test_only_cores_that_this_process_may_use_count():
    assert cores() == len(os.sched_getaffinity(0))


def test_a_cpu_is_not_a_gpu():
    assert not has_gpu("cpu")
    assert has_gpu("cuda:1")
    assert has_gpu("mps")
    assert torch_device("cuda:1") == "cuda:1"
    assert torch_device("auto") == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize(("rank", "first"), [(None, True), ("0", True), ("1", False)])
def test_the_first_process_has_rank_0(rank, first, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    assert first_process() == first


PAGE_FAULTS = """
import resource, sys
from scs_supcon.device import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    len(b"x" * int(sys.argv[2]))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a property of glibc")
def test_freed_memory_is_used_again():
    def page_faults(mode):
        command = [sys.executable, "-c", PAGE_FAULTS, mode, str(2**26)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert page_faults("default") > 10 * page_faults("keep")
