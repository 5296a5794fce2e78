"""`make audit`: what is said about vulnerabilities if pip-audit could check all, some or none."""

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

CHECKED = {"name": "a", "version": "1", "vulns": []}
UNKNOWN = {"name": "b", "skip_reason": "Dependency not found on PyPI"}
VULNERABLE = CHECKED | {"vulns": [{"id": "X-1", "fix_versions": ["2"], "description": ""}]}


@pytest.fixture(scope="module")
def audit():
    file = Path(__file__).parent.parent / "tools" / "audit.py"
    spec = spec_from_file_location("audit", file)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("output", "lines"),
    [
        (
            {"dependencies": [CHECKED, UNKNOWN]},
            ["1 packages checked, 1 unknown to pip-audit"],
        ),
        (
            {"dependencies": [VULNERABLE]},
            [
                "known vulnerability: a 1: X-1, fixed in 2",
                "1 packages checked, 0 unknown to pip-audit",
            ],
        ),
        (
            {"dependencies": [UNKNOWN]},
            ["not checked: the data that pip-audit reaches know none of 1 packages"],
        ),
        (None, ["not checked: pip-audit cannot reach its data (no output)"]),
    ],
    ids=["some", "vulnerable", "unknown", "no network"],
)
def test_packages_that_were_not_checked_are_not_called_safe(audit, tmp_path, output, lines):
    program = tmp_path / "pip-audit"  # writes what pip-audit would
    text = "" if output is None else json.dumps(output)
    program.write_text(f"#!{sys.executable}\nprint({text!r}, end='')\n")
    program.chmod(0o755)
    assert list(audit.known_vulnerabilities(str(program), tmp_path)) == lines


def test_a_missing_program_is_named(audit, tmp_path):
    (line,) = audit.known_vulnerabilities(str(tmp_path / "none"), tmp_path)
    assert line.startswith("not checked: there is no ")
