"""Head training on features that are mapped to a file and are not loaded as a whole."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def test_a_run_on_mapped_features_has_the_same_bytes(
    shapes, weights, train_small, tmp_path, monkeypatch
):
    settings = ["head.heads=2", "fusion.whitened=true", "fusion.folds=2"]
    options = {"encoder": "tiny", "weights": weights, "frozen": True, "settings": settings}
    options |= {"cache": tmp_path / "cache", "method": "scs_supcon"}
    results = []
    for name, limit in (("memory", "1"), ("mapped", "0")):
        monkeypatch.setenv("SCS_FEATURE_MEMORY", limit)
        run = train_small(shapes, tmp_path / name, **options)
        results.append((run.path / "model" / "weights.safetensors").read_bytes())
    assert results[0] == results[1]


@pytest.mark.skipif(sys.platform != "linux", reason="the limit counts private memory on Linux only")
def test_batches_are_read_with_less_memory_than_the_features_take(tmp_path):
    # A new process: this one may have freed memory that its allocator kept.
    script = Path(__file__).parents[1] / "limited_memory.py"
    result = subprocess.run(
        [sys.executable, script, tmp_path],
        env={**os.environ, "SCS_FEATURE_MEMORY": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
