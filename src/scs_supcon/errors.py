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


def unknown_method(name: str, names: Iterable[str]) -> UserError:
    """Return the error for a method that is not among `names`."""
    names = list(names)
    return UserError(
        f"unknown method {name!r}{did_you_mean(name, names) or '.'} "
        f"Available: {', '.join(names)}, or module:Class for a method outside scs-supcon"
    )
