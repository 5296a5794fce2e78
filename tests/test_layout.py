"""Tests mirror the source: src/scs_supcon/a/b.py is tested by tests/a/test_b.py."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE, TESTS = ROOT / "src" / "scs_supcon", ROOT / "tests"

EXCEPT = {"__main__.py"}  # one call, made by every test that starts the command


def has_behaviour(module: Path) -> bool:
    """Whether it defines anything, rather than handing on the names of others."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    return any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in tree.body)


def test_every_module_with_behaviour_has_its_tests() -> None:
    modules = sorted(SOURCE.rglob("*.py"))
    assert {path.relative_to(SOURCE).as_posix() for path in modules} >= EXCEPT
    expected = {
        module.relative_to(SOURCE).as_posix(): f"test_{module.stem.strip('_')}.py"
        for module in modules
        if has_behaviour(module)
    }
    missing = [
        name
        for name, test in expected.items()
        if name not in EXCEPT and not (TESTS / name).with_name(test).exists()
    ]
    assert not missing, f"write tests for {', '.join(missing)}"
