"""How numbers are put into words."""

from collections.abc import Iterable


def p_text(p: float) -> str:
    """Return `p = 0.0026`, or `p < 0.0001` where further digits would only look exact."""
    return "p < 0.0001" if p < 1e-4 else f"p = {p:.2g}"


def join(words: Iterable[str]) -> str:
    """Return `a, b and c`; nothing for no words."""
    *rest, last = list(words) or [""]
    return f"{', '.join(rest)} and {last}" if rest else last


def verdict(p: float, alpha: float) -> str:
    """Say whether p is below alpha without claiming that a large p shows equality."""
    return "more than chance explains" if p < alpha else "chance alone could explain it"
