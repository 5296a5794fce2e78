"""Tables of features in memory and in mapped files."""

import os
import resource

import numpy as np
import pytest

from scs_supcon.data.feature_table import empty_table, feature_memory
from scs_supcon.errors import UserError
from scs_supcon.io.records import memory_bytes


def test_a_large_table_is_mapped_to_a_file_without_a_name(monkeypatch, tmp_path):
    monkeypatch.setenv("SCS_FEATURE_MEMORY", "0.001")
    small, large = (empty_table((n, 2, 8), tmp_path) for n in (10, 100_000))
    assert not isinstance(small, np.memmap)
    assert isinstance(large, np.memmap)
    assert large.dtype == np.float32
    large[:] = 1
    assert large.sum() == large.size
    assert not list(tmp_path.iterdir()), "the system removes it with the process"


def test_the_limit_is_a_share_of_the_memory_unless_it_is_given(monkeypatch):
    monkeypatch.delenv("SCS_FEATURE_MEMORY", raising=False)
    assert feature_memory() == memory_bytes() // 4
    monkeypatch.setenv("SCS_FEATURE_MEMORY", "1.5")
    assert feature_memory() == 3 * 2**29
    for text in ("many", "-1", "nan", "inf"):
        monkeypatch.setenv("SCS_FEATURE_MEMORY", text)
        with pytest.raises(UserError, match="must be a number of GiB"):
            feature_memory()


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="needs posix_fallocate")
def test_a_full_disk_is_an_error_before_anything_is_computed(monkeypatch, tmp_path):
    monkeypatch.setenv("SCS_FEATURE_MEMORY", "0")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    try:
        with pytest.raises(UserError, match="cannot write"):
            empty_table((2**20, 4), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
