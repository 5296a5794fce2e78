import hashlib

from scs_supcon.io.hashes import file_digest


def test_the_digest_of_a_file_is_the_sha_256_of_its_bytes(tmp_path):
    (tmp_path / "file").write_bytes(b"content" * 100_000)
    assert file_digest(tmp_path / "file") == hashlib.sha256(b"content" * 100_000).hexdigest()
