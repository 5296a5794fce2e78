"""Errors meant for people: what came, what is needed, what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """Something the user can put right. The command line prints its text without a traceback."""


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the closest option, or an empty string."""
    close = get_close_matches(word, list(options), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""
