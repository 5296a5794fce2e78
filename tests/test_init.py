"""The public names of the package, and the modules that importing them loads."""

import subprocess
import sys

import pytest

import scs_supcon

HEAVY = ("timm", "torchvision", "sklearn", "pandas", "matplotlib", "pydantic", "lightning_fabric")


def test_importing_a_loss_loads_no_optional_package() -> None:
    code = "import sys; from scs_supcon import SCSSupCon; print(*sys.modules, sep='\\n')"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    modules = result.stdout.split()
    loaded = {name.partition(".")[0] for name in modules}
    assert {"torch", "scs_supcon"} <= loaded
    assert not loaded & set(HEAVY)
    assert "torch._dynamo" not in modules  # the compiler doubles the import time


def test_every_public_name_can_be_imported() -> None:
    assert sorted(scs_supcon.__all__) == list(scs_supcon.__all__)
    for name in scs_supcon.__all__:
        assert getattr(scs_supcon, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'SCSSupConn'"):
        _ = scs_supcon.SCSSupConn


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [("train", "pydantic", "train"), ("compare", "scipy", "train,paper")],
)
def test_a_missing_package_is_explained(name: str, package: str, extra: str) -> None:
    code = f"import sys; sys.modules['{package}'] = None; import scs_supcon; scs_supcon.{name}"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    last = result.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: scs_supcon.{name} needs {package}, which is not")
    assert f"scs-supcon[{extra}]" in last
