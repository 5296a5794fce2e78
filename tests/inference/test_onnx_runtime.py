"""Every import of onnxruntime comes after the variable that forbids its telemetry."""

import ast
from pathlib import Path

import scs_supcon

SOURCE = Path(scs_supcon.__file__).parent


def imports(file: Path) -> bool:
    """Return whether a file imports onnxruntime."""
    nodes = list(ast.walk(ast.parse(file.read_text())))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return any(name.split(".")[0] == "onnxruntime" for name in names)


def test_one_function_imports_it():
    files = {file for file in SOURCE.rglob("*.py") if imports(file)}
    one = SOURCE / "inference" / "onnx_runtime.py"
    assert one in files
    for file in files - {one}:  # parts of the library, after a call of the function
        text = file.read_text()
        assert text.index("    import_onnxruntime()\n") < text.index("from onnxruntime import"), (
            file
        )
