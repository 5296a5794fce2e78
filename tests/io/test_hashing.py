import hashlib

import pytest

from scs_supcon.errors import UserError
from scs_supcon.io.hashing import code_sha256, file_sha256


def test_the_digest_of_a_file_is_the_sha_256_of_its_bytes(tmp_path):
    (tmp_path / "file").write_bytes(b"content" * 100_000)
    assert file_sha256(tmp_path / "file") == hashlib.sha256(b"content" * 100_000).hexdigest()
    with pytest.raises(UserError, match=r"cannot read .*missing: No such file"):
        file_sha256(tmp_path / "missing")


def test_the_digest_of_code_ignores_comments_docstrings_and_format(tmp_path):
    def digest(code):
        (tmp_path / "a.py").write_text(code)
        return code_sha256([("a.py", tmp_path / "a.py")])

    plain = digest("def f(x):\n    return x + 1\n")
    assert digest('"""Module."""\ndef f( x ):\n    "Text."\n    return x+1  # why\n') == plain
    assert digest("def f(x):\n    return x + 2\n") != plain
