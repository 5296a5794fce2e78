"""docs/methods.md: every method as its own docstrings tell it."""

import inspect
import re
import sys
from collections.abc import Iterator

from scs_supcon.methods import Method, available, method_class

HEAD = """# Methods

Made from the docstrings by `scs methods --markdown > docs/methods.md` (`make docs`); which one to
take is on [a page of its own](which_method.md). Rows are view-major; z are embeddings, h features,
P_i the other rows of i's class. "Adapted" means that the original is for other data or could not be
found, and that the text says what is ours.

| method | in one line | views | own classifier | |
|---|---|---|---|---|
"""


def method_page() -> str:
    """The page as Markdown."""
    classes = {name: method_class(name) for name in available()}
    rows = (_row(name, made) for name, made in classes.items())
    sections = (_section(name, made) for name, made in classes.items())
    return HEAD + "\n".join(rows) + "\n\n" + "\n\n".join(sections) + "\n"


def one_line(made: type[Method]) -> str:
    """What follows the name in the first line of a method's file."""
    return (sys.modules[made.__module__].__doc__ or "").splitlines()[0].partition(": ")[2]


def _row(name: str, made: type[Method]) -> str:
    classifies = "yes" if made.class_logits is not Method.class_logits else ""
    adapted = "adapted" if made.adapted else ""
    cells = f"[`{name}`](#{name})", one_line(made), str(made.views), classifies, adapted
    return f"| {' | '.join(cells)} |"


def _section(name: str, made: type[Method]) -> str:
    text = inspect.getdoc(sys.modules[made.__module__]) or ""
    return "\n".join([f"## {name}", "", text, "", *_arguments(made)]).rstrip()


def _arguments(made: type[Method]) -> Iterator[str]:
    """The arguments as a list, with their defaults."""
    known = inspect.signature(made).parameters
    for names, meaning in _documented(inspect.getdoc(made) or ""):
        told = [
            f"{name} = {known[name].default!r}" if name in known and name != "options" else name
            for name in names.split(", ")
        ]
        yield f"- {', '.join(f'`{one}`' for one in told)}: {meaning}"


def _documented(text: str) -> Iterator[tuple[str, str]]:
    """Names and meanings below "Args:"; a longer meaning goes on further in."""
    _, _, below = text.partition("Args:\n")
    for entry in re.split(r"\n(?= {4}\S)", below.rstrip()):
        names, _, meaning = " ".join(entry.split()).partition(": ")
        if meaning:
            yield names, meaning
