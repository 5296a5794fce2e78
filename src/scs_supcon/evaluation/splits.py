"""Names of splits for people."""

from scs_supcon.data.splits import NO_TEST_SPLIT as UNTESTED
from scs_supcon.data.splits import SPLIT_TITLES as PARTS

__all__ = ["PARTS", "UNTESTED"]
