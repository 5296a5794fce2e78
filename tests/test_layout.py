"""Tests mirror the source: src/scs_supcon/a/b.py is tested by tests/a/test_b.py."""

from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE, TESTS = ROOT / "src" / "scs_supcon", ROOT / "tests"

# Names only, nothing that could be wrong by itself.
EXCEPT = {
    "data/__init__.py",
    "encoders/__init__.py",
    "pairs/__init__.py",
    "results/__init__.py",
    "results/statistics/__init__.py",
    "run_folder/__init__.py",
}


def test_every_module_has_its_tests() -> None:
    modules = {path.relative_to(SOURCE) for path in SOURCE.rglob("*.py")}
    assert {Path(name) for name in EXCEPT} <= modules, "an exception that is not there"
    missing = [
        str(module)
        for module in sorted(modules - {Path(name) for name in EXCEPT})
        if not (TESTS / module.parent / f"test_{module.stem.strip('_')}.py").exists()
    ]
    assert not missing, "write tests for these"
