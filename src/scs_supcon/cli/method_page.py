"""The page docs/methods.md, written from the docstrings of the methods."""

import inspect
import re
import sys
from collections.abc import Iterator

from scs_supcon.methods import Method, available, method_class

HEAD = """# Methods

`scs methods --markdown > docs/methods.md` (`make docs`) writes this page from the docstrings.
[Choosing a method](guide/choosing_a_method.md) helps you choose one. Rows are in view-major
order: view 1 of every image, then view 2. z are embeddings, h features, P_i the other rows of i's
class. "Adapted" means that the original is for other data or could not be found; the text describes
our changes. "Classifier" marks methods that train a classifier in stage 1.

| method | in one line | views | classifier | |
|---|---|---|---|---|
"""


def method_page() -> str:
    """Return the page as Markdown."""
    classes = {name: method_class(name) for name in available()}
    rows = (_row(name, method) for name, method in classes.items())
    sections = (_section(name, method) for name, method in classes.items())
    return HEAD + "\n".join(rows) + "\n\n" + "\n\n".join(sections) + "\n"


def short_description(method: type[Method]) -> str:
    """Return the one-line description of a method, from the first line of its module docstring."""
    return (sys.modules[method.__module__].__doc__ or "").splitlines()[0].partition(": ")[2]


def _row(name: str, method: type[Method]) -> str:
    classifies = "yes" if method.class_logits is not Method.class_logits else ""
    adapted = "adapted" if method.adapted else ""
    cells = (
        f"[`{name}`](#{name})",
        short_description(method),
        str(method.views),
        classifies,
        adapted,
    )
    return f"| {' | '.join(cells)} |"


def _section(name: str, method: type[Method]) -> str:
    text = inspect.getdoc(sys.modules[method.__module__]) or ""
    return "\n".join([f"## {name}", "", text, "", *_arguments(method)]).rstrip()


def _arguments(method: type[Method]) -> Iterator[str]:
    """Yield a list item for each documented argument, with its default."""
    parameters = inspect.signature(method).parameters
    for names, description in _documented_arguments(inspect.getdoc(method) or ""):
        items = [
            f"`{name} = {parameters[name].default!r}`"
            if name in parameters and name != "options"
            else f"`{name}`"
            for name in names.split(", ")
        ]
        yield f"- {', '.join(items)}: {description}"


def _documented_arguments(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names and descriptions in the section "Args:" of a docstring."""
    _, _, below = text.partition("Args:\n")
    for entry in re.split(r"\n(?= {4}\S)", below.rstrip()):
        names, _, description = " ".join(entry.split()).partition(": ")
        if description:
            yield names, description
