"""Addresses of images: the supported ones, and those that only a file names."""

import pytest

from scs_supcon.data.remote import PROTOCOLS, check_address, is_address, recorded_source
from scs_supcon.errors import UserError


def test_paths_are_not_addresses():
    for path in ("birds", "./birds", "/data/birds.csv", "C:\\birds", "cub200=/data/cub"):
        assert not is_address(path)
        check_address(path)
        assert recorded_source(path) == path
    for protocol in PROTOCOLS:
        assert is_address(f"{protocol}://bucket/birds")
        check_address(f"{protocol}://bucket/birds")


@pytest.mark.parametrize(
    "address",
    ["file:///etc", "HTTPS://x/y", "s3://a::https://b", "zip::https://b", "://x", "x://y"],
)
def test_other_protocols_and_chains_are_errors(address):
    with pytest.raises(UserError, match=r"begin with https://, .*, hf://, without '::'"):
        check_address(address)


@pytest.mark.parametrize("address", ["https://host/birds", "\\\\host\\birds"])
def test_an_address_in_a_file_must_be_typed(address):
    with pytest.raises(UserError) as error:
        recorded_source(address)
    assert f"add --data {address} to read them from there" in str(error.value)
    with pytest.raises(UserError, match=r"names it: do that$"):
        recorded_source(address, advice="do that")
    assert recorded_source(address, address) == address
    assert recorded_source(address, "birds") == recorded_source("old", "birds") == "birds"
