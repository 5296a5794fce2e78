"""Archives: safe extraction, MD5, and downloads from a local server."""

import hashlib
import io
import os
import tarfile
import threading
import zipfile
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from scs_supcon.data.named import extract as extraction
from scs_supcon.data.named.base import Archive
from scs_supcon.data.named.download import download_named, fetch
from scs_supcon.data.named.extract import extract
from scs_supcon.errors import UserError
from scs_supcon.progress import Display
from tiny_datasets import WRITERS, tiny

QUIET = Display(quiet=True)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def make_tar(path, members, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            else:
                info.type, info.linkname = content
                archive.addfile(info)
    return path


def make_zip(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


@pytest.fixture(params=["tar", "zip"])
def make(request):
    return {"tar": make_tar, "zip": make_zip}[request.param]


def test_files_are_extracted(make, tmp_path):
    archive = make(tmp_path / "a", {"x/y.txt": b"hello", "z.txt": b""})
    extract(archive, tmp_path / "out")
    assert (tmp_path / "out/x/y.txt").read_bytes() == b"hello"
    assert names(tmp_path / "out") == ["x", "z.txt"]
    extract(make(tmp_path / "b", {"x/y.txt": b"again"}), tmp_path / "out")
    assert (tmp_path / "out/x/y.txt").read_bytes() == b"again"


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil", "a\\..\\evil", "C:evil"])
def test_paths_outside_are_rejected(make, name, tmp_path):
    archive = make(tmp_path / "a", {"fine.txt": b"1", name: b"2"})
    with pytest.raises(UserError, match="outside of the folder"):
        extract(archive, tmp_path / "out")
    assert names(tmp_path / "out") == []
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_and_special_files_are_rejected(kind, tmp_path):
    archive = make_tar(tmp_path / "a", {"fine.txt": b"1", "link": (kind, "/etc/passwd")})
    with pytest.raises(UserError, match="link or a special file"):
        extract(archive, tmp_path / "out")
    assert names(tmp_path / "out") == []


def test_a_link_in_a_zip_is_rejected(tmp_path):
    info = zipfile.ZipInfo("link")
    info.external_attr = 0o120777 << 16
    archive = make_zip(tmp_path / "a", {info: "/etc/passwd"})
    with pytest.raises(UserError, match="link or a special file"):
        extract(archive, tmp_path / "out")


def test_the_size_is_limited(make, tmp_path, monkeypatch):
    archive = make(tmp_path / "a", {"zeros": bytes(3 * 2**20)})
    with pytest.raises(UserError, match="larger than"):
        extract(archive, tmp_path / "out", max_bytes=2**20)
    monkeypatch.setattr(extraction, "MAX_FILES", 1)
    with pytest.raises(UserError, match="more than 1 files"):
        extract(make(tmp_path / "b", {"a": b"", "b": b""}), tmp_path / "out")
    assert names(tmp_path / "out") == []


def test_damaged_archives(make, tmp_path):
    archive = make(tmp_path / "a", {"x": os.urandom(50_000)})
    content = archive.read_bytes()
    for damaged in (content[:20_000], b"nonsense", b""):
        archive.write_bytes(damaged)
        with pytest.raises(UserError, match=r"cannot be extracted|contains no files"):
            extract(archive, tmp_path / "out")
    assert names(tmp_path / "out") == []


@pytest.fixture
def packed(tmp_path):
    """A function that packs the tiny copy of a dataset: its description and a folder of files."""

    def pack(name):
        source, files = tmp_path / "source", tmp_path / "files"
        files.mkdir()
        source.mkdir()
        WRITERS[name](source)
        archive = files / f"{name}.tar.gz"
        with tarfile.open(archive, "w:gz") as tar:
            for path in sorted(source.iterdir()):
                tar.add(path, path.name)
        digest = hashlib.md5(archive.read_bytes()).hexdigest()
        url = f"file://{archive}"
        return replace(tiny(name), archives=(Archive(url, md5=digest),)), archive

    return pack


@pytest.fixture
def serve():
    """`serve(folder)` serves a folder on 127.0.0.1 and returns its address."""
    servers = []

    def start(folder):
        class Quiet(SimpleHTTPRequestHandler):
            def log_message(self, *arguments):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("name", list(WRITERS))
def test_download_extract_and_read(name, packed, serve, tmp_path):
    dataset, archive = packed(name)
    url = f"{serve(archive.parent)}/{archive.name}"
    dataset = replace(dataset, archives=(replace(dataset.archives[0], url=url),))
    folder = download_named(dataset, tmp_path / "data", QUIET)
    archive.unlink()
    download_named(dataset, folder, QUIET)  # the archive in the folder is used
    assert (folder / f"{name}.tar.gz").exists()


def test_a_mirror(packed, tmp_path):
    dataset, archive = packed("cub200")
    moved = replace(dataset, archives=(replace(dataset.archives[0], url="https://nowhere/a"),))
    download_named(moved, tmp_path / "data", QUIET, [f"file://{archive}"])
    with pytest.raises(UserError, match=r"1 archives .*2 times"):
        download_named(moved, tmp_path / "data", QUIET, ["a", "b"])


def test_a_damaged_download_leaves_nothing(packed, tmp_path):
    dataset, archive = packed("cifar10")
    archive.write_bytes(archive.read_bytes()[:-1])
    with pytest.raises(UserError, match="its MD5 is"):
        download_named(dataset, tmp_path / "data", QUIET)
    assert names(tmp_path / "data") == []


def test_a_damaged_archive_in_the_folder_is_not_extracted(packed, tmp_path):
    dataset, archive = packed("cifar10")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / archive.name).write_bytes(b"half a file")
    with pytest.raises(UserError, match=r"is damaged or another version.*remove it"):
        download_named(dataset, tmp_path / "data", QUIET)


def test_a_corrupt_archive_without_md5(packed, tmp_path):
    dataset, archive = packed("stanford_dogs")
    archive.write_bytes(archive.read_bytes()[:-2000])
    dataset = replace(dataset, archives=(replace(dataset.archives[0], md5=None),))
    with pytest.raises(UserError, match="cannot be extracted"):
        download_named(dataset, tmp_path / "data", QUIET)
    assert names(tmp_path / "data") == [archive.name]


def test_an_incomplete_archive_is_an_error(packed, tmp_path):
    dataset, _ = packed("cub200")
    with pytest.raises(UserError, match="expected 9"):
        download_named(replace(dataset, train=9), tmp_path / "data", QUIET)


@pytest.mark.parametrize("url", ["file:///nowhere/a.tar", "http://127.0.0.1:9/a.tar"])
def test_an_address_without_an_answer(url, tmp_path):
    with pytest.raises(UserError, match="put it into"):
        fetch(Archive(url), tmp_path / "a.tar", QUIET)
    assert names(tmp_path) == []


def test_other_addresses(tmp_path, serve):
    with pytest.raises(UserError, match="http, https or file"):
        fetch(Archive("ftp://host/a.tar"), tmp_path / "a.tar", QUIET)
    (tmp_path / "big.tar").write_bytes(bytes(1000))
    with pytest.raises(UserError, match="larger than 10 bytes"):
        fetch(Archive(f"{serve(tmp_path)}/big.tar"), tmp_path / "a.tar", QUIET, max_bytes=10)
    with pytest.raises(UserError, match="404"):
        fetch(Archive(f"{serve(tmp_path)}/none.tar"), tmp_path / "a.tar", QUIET)
    assert names(tmp_path) == ["big.tar"]
