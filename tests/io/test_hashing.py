import hashlib

import pytest

from scs_supcon.errors import UserError
from scs_supcon.io.hashing import code_sha256, file_sha256


def test_the_digest_of_a_file_is_the_sha_256_of_its_bytes(tmp_path):
    (tmp_path / "file").write_bytes(b"content" * 100_000)
    assert file_sha256(tmp_path / "file") == hashlib.sha256(b"content" * 100_000).hexdigest()
    with pytest.raises(UserError, match="missing does not exist"):
        file_sha256(tmp_path / "missing")


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ('"""Another docstring."""\n\n# a comment\ndef f(x):\n    return 2 * x  # twice\n', True),
        ('def f(x):\n    "A docstring."\n    return 2*x\n', True),
        ("def f(x):\n    return 3 * x\n", False),
        ("def f(x, y=1):\n    return 2 * x\n", False),
    ],
)
def test_only_changes_of_the_code_itself_change_the_digest(tmp_path, text, same):
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text("def f(x):\n    return 2 * x\n")
    after.write_text(text)
    digests = {code_sha256([("module.py", file)]) for file in (before, after)}
    assert len(digests) == 1 + (not same)


def test_the_digest_depends_on_the_names_of_the_files_but_not_on_their_order(tmp_path):
    files = [(name, tmp_path / name) for name in ("a.py", "b.py")]
    for name, file in files:
        file.write_text(f"x = {name!r}\n")
    assert code_sha256(files) == code_sha256(reversed(files))
    (_, a), (_, b) = files
    assert code_sha256(files) != code_sha256([("a.py", b), ("b.py", a)])
