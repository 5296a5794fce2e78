"""SHA-256 digests of files and of Python code."""

import ast
import hashlib
from collections.abc import Iterable
from pathlib import Path

from scs_supcon.errors import UserError
from scs_supcon.io.records import open_record


def file_sha256(path: Path) -> str:
    """Return the SHA-256 digest of a file."""
    try:
        with open_record(path, None, links=True) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def code_sha256(files: Iterable[tuple[str, Path]]) -> str:
    """Return one SHA-256 digest of several Python files, given as (name, path).

    Comments, docstrings, formatting and the order of the files do not affect the digest.
    """
    digest = hashlib.sha256()
    for name, path in sorted(files):
        tree = ast.parse(path.read_bytes())
        _remove_docstrings(tree)
        digest.update(f"{name}\0{ast.unparse(tree)}\0".encode())
    return digest.hexdigest()


def _remove_docstrings(tree: ast.Module) -> None:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [node for node in body if not _is_bare_string(node)] or [ast.Pass()]  # type: ignore[attr-defined]


def _is_bare_string(statement: ast.AST) -> bool:
    """Return whether a statement is a string: a docstring, or a description of an attribute."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
