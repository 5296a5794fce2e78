"""Tests mirror the packages of the source: src/scs_supcon/data is tested by tests/data.

Signatures name what a dictionary holds: a record is a class, and a tree of unchecked values from a
file is a `ValueTree`.
"""

import ast
from collections.abc import Iterator
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
    other = {"attacks", "browser", "scale"}
    folders = {path.parent.relative_to(TESTS).parts[0] for path in TESTS.glob("*/**/test_*.py")}
    unknown = {name for name in folders - other if not (SOURCE / name).is_dir()}
    assert not unknown, f"no package of the source is tested by {', '.join(sorted(unknown))}"


def untyped_dictionaries(annotation: ast.expr) -> Iterator[str]:
    """Yield the parts of an annotation that are dictionaries of anything, such as `dict`."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    nodes = list(ast.walk(annotation))
    with_types = {id(node.value) for node in nodes if isinstance(node, ast.Subscript)}
    for node in nodes:
        name = ast.unparse(node.value if isinstance(node, ast.Subscript) else node)
        if name not in ("dict", "Mapping", "MutableMapping"):
            continue
        if isinstance(node, ast.Subscript):
            if ast.unparse(node.slice).split(", ")[-1].rstrip(")") in ("Any", "object"):
                yield ast.unparse(node)
        elif id(node) not in with_types:
            yield name


def annotations(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield names and annotations of public functions, and of aliases of types."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[0] != "_":
            arguments = [x for x in ast.walk(node.args) if isinstance(x, ast.arg)]
            for annotation in (*(x.annotation for x in arguments), node.returns):
                if annotation is not None:
                    yield node.name, annotation
    for statement in tree.body:
        value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
        if value is not None and "dict[str, Any]" in ast.unparse(value):
            yield ast.unparse(statement), value


def test_public_signatures_have_no_untyped_dictionaries() -> None:
    example = (
        "def f(a: 'list[dict[str, Any]]', *b: dict) -> Mapping[str, object] | dict[str, int]: ..."
    )
    parts = [
        part
        for _, annotation in annotations(ast.parse(example))
        for part in untyped_dictionaries(annotation)
    ]
    assert parts == ["dict[str, Any]", "dict", "Mapping[str, object]"]
    problems = [
        f"{path.relative_to(ROOT)}: {name}: {part}"
        for path in sorted(SOURCE.rglob("*.py"))
        for name, annotation in annotations(ast.parse(path.read_text(encoding="utf-8")))
        for part in untyped_dictionaries(annotation)
    ]
    assert not problems, "use a small class instead:\n" + "\n".join(problems)
