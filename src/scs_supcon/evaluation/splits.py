"""Which part of the data a number was measured on, in words."""

PARTS = {"test": "test", "val": "validation"}
UNTESTED = (
    "There is no test part: the same validation images chose the head and the temperature, so "
    "the numbers flatter."
)
