"""Tests mirror the packages of the source: src/scs_supcon/data is tested by tests/data."""

from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE, TESTS = ROOT / "src" / "scs_supcon", ROOT / "tests"


def test_every_package_has_tests() -> None:
    packages = [path.parent for path in SOURCE.glob("*/__init__.py")]
    assert len(packages) > 5
    missing = [p.name for p in packages if not list((TESTS / p.name).glob("test_*.py"))]
    assert not missing, f"write tests in tests/ for {', '.join(missing)}"


def test_every_module_at_the_top_has_a_test_file() -> None:
    modules = [path for path in SOURCE.glob("*.py") if path.name != "__main__.py"]
    missing = [p.name for p in modules if not (TESTS / f"test_{p.stem.strip('_')}.py").exists()]
    assert not missing, f"write tests for {', '.join(missing)}"


def test_every_test_folder_belongs_to_a_package() -> None:
    other = {"browser", "golden", "scale"}
    folders = {path.parent.relative_to(TESTS).parts[0] for path in TESTS.glob("*/**/test_*.py")}
    unknown = {name for name in folders - other if not (SOURCE / name).is_dir()}
    assert not unknown, f"no package of the source is tested by {', '.join(sorted(unknown))}"
