"""Download a named dataset, check the MD5 of its archives, and extract them."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit
from urllib.request import urlopen

from scs_supcon.data.named.base import Archive, NamedDataset, read_named
from scs_supcon.data.named.extract import extract
from scs_supcon.errors import UserError
from scs_supcon.io.atomic import replacing
from scs_supcon.progress import Display

MAX_ARCHIVE = 4 * 2**30
TIMEOUT = 60.0  # seconds without any data
CHUNK = 2**20
SCHEMES = ("https", "http", "file")


def download_named(
    dataset: NamedDataset, folder: Path, display: Display, urls: Sequence[str] = ()
) -> Path:
    """Download and extract a dataset, and read it once to check that it is complete.

    Archives that are already in the folder are used if their MD5 is right, so the same call
    continues after a failure.

    Args:
        dataset: what to download.
        folder: where to; created if needed.
        display: shows progress.
        urls: other addresses of the archives, in their order.

    Returns:
        The folder.

    Raises:
        UserError: an archive cannot be downloaded, is damaged or unsafe, or the dataset is
            incomplete.
    """
    archives = dataset.archives
    if urls:
        if len(urls) != len(archives):
            names = ", ".join(archive.name for archive in archives)
            raise UserError(
                f"{dataset.title} has {len(archives)} archives ({names}), but --url is given "
                f"{len(urls)} times: give one for each, in this order"
            )
        archives = tuple(
            replace(archive, url=url) for archive, url in zip(archives, urls, strict=True)
        )
    folder.mkdir(parents=True, exist_ok=True)
    for archive in archives:
        file = folder / archive.name
        if file.exists():
            check_md5(archive, file)
            display.line(f"{file} is already there")
        else:
            fetch(archive, file, display)
        display.line(f"extracting {file}")
        extract(file, folder)
    read_named(dataset, folder)
    return folder


def fetch(archive: Archive, file: Path, display: Display, max_bytes: int = MAX_ARCHIVE) -> None:
    """Download an archive; the file exists only if it is complete and has the right MD5."""
    scheme = urlsplit(archive.url).scheme
    if scheme not in SCHEMES:
        raise UserError(f"{archive.url} is not an address that starts with http, https or file")
    with display.progress(f"downloading {archive.name} (MiB)") as progress:
        try:
            response = urlopen(archive.url, timeout=TIMEOUT)
        except OSError as error:
            raise _download_error(archive, file, error) from error
        with response, replacing(file) as temporary:
            total = int(response.headers.get("Content-Length") or 0)
            done = 0
            with temporary.open("wb") as target:
                while chunk := _read(response, archive, file):
                    done += len(chunk)
                    if done > max_bytes:
                        raise UserError(f"{archive.url} is larger than {max_bytes:,} bytes")
                    target.write(chunk)
                    progress(done // CHUNK, max(total, done) // CHUNK)
            if done < total:
                reason = f"the connection ended after {done:,} of {total:,} bytes"
                raise _download_error(archive, file, reason)
            check_md5(archive, temporary, source=archive.url)


def _read(response: IO[bytes], archive: Archive, file: Path) -> bytes:
    try:
        return response.read(CHUNK)
    except (OSError, HTTPException) as error:
        raise _download_error(archive, file, error) from error


def _download_error(archive: Archive, file: Path, reason: object) -> UserError:
    return UserError(
        f"{archive.url} cannot be downloaded ({reason}): run the same command again, or download "
        f"it by hand and put it into {file.parent}"
    )


def check_md5(archive: Archive, file: Path, source: str = "") -> None:
    """Raise an error if a file does not have the MD5 that the publisher states."""
    if archive.md5 is None:
        return
    # MD5 is what the publishers state; it detects damaged downloads, not attacks.
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False))
    if digest.hexdigest() != archive.md5:
        raise UserError(
            f"{source or file} is damaged or another version: its MD5 is {digest.hexdigest()}, "
            f"expected {archive.md5}; remove it and download it again"
        )
