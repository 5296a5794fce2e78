"""Errors that users can fix. Messages state the problem, what is expected, and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """An error that the user can fix. The command line prints its message without a traceback."""


class NonFiniteError(UserError):
    """A tensor contains NaN or infinity."""


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the closest option, or an empty string."""
    close = get_close_matches(word, list(options), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""
