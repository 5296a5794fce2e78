"""Addresses of images. One is contacted only if the user types it: files are written by anyone."""

from pathlib import Path

from scs_supcon.errors import UserError

# fsspec knows others, which read local files, run commands or lead to further addresses.
PROTOCOLS = ("https", "http", "s3", "gs", "gcs", "az", "abfs", "hf")


def is_address(source: str | Path) -> bool:
    """Return whether a source is an address, such as s3://bucket/birds, and not a path."""
    return "://" in str(source)


def check_address(source: str) -> None:
    """Raise an error for an address with another protocol, or several, such as zip::https."""
    if is_address(source) and (source.partition("://")[0] not in PROTOCOLS or "::" in source):
        raise UserError(
            f"images cannot be read from {source}: the address must begin with "
            f"{', '.join(f'{name}://' for name in PROTOCOLS)}, without '::'"
        )


def recorded_source(recorded: str, typed: str | None = None, advice: str = "") -> str:
    """Return where images are: what the user has typed, else what a recipe or table says.

    Raises:
        UserError: only a file names the address (or network path); `advice` is its last part.
    """
    if typed is None and (is_address(recorded) or recorded.startswith("\\\\")):
        raise UserError(
            f"the images are at {recorded}, which is not contacted because only a file names it: "
            + (advice or f"add --data {recorded} to read them from there")
        )
    return recorded if typed is None else typed
