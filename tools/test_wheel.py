"""Test an installed wheel: version, package data, the loss, one small run with its report."""

import importlib.metadata
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import scs_supcon

assert "site-packages" in scs_supcon.__file__, f"not the installed package: {scs_supcon.__file__}"
assert importlib.metadata.version("scs-supcon") == scs_supcon.__version__
loss = scs_supcon.SCSSupCon(common_dim=6)
value = loss(torch.randn(12, 8, requires_grad=True), torch.arange(12) % 3)
value.backward()

with tempfile.TemporaryDirectory() as folder:
    run = Path(folder) / "run"
    options = ["--out", str(run), "--epochs", "1", "--set", "probe.epochs=2", "--workers", "0"]
    scs = [sys.executable, "-m", "scs_supcon"]
    subprocess.run([*scs, "train", "digits", *options], check=True)
    subprocess.run([*scs, "evaluate", str(run)], check=True)
    listed = subprocess.run([*scs, "reproduce"], check=True, capture_output=True, text=True).stdout
    assert "table8_ablation" in listed
    assert (run / "report.html").stat().st_size > 100_000
print(f"scs-supcon {scs_supcon.__version__}: the wheel works")
