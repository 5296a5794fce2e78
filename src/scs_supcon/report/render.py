"""The Jinja environment of all pages: one style sheet, and a strict content security policy.

Pages extend `base.html.j2`. They load nothing: style, scripts, data and images are embedded, and
the policy allows only the embedded style and script.
"""

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, TypeAlias

from markupsafe import Markup

from scs_supcon.io.text import printable

if TYPE_CHECKING:
    from jinja2 import Environment


PageVariables: TypeAlias = dict[str, object]
"""Variables of a template: text, numbers, and records that it lists."""


def render_page(template: str, *, scripts: Sequence[str] = (), **context: Any) -> str:
    """Return a page as HTML; all values but `Markup` are escaped.

    Args:
        template: a template of the folder `page`.
        scripts: script files of that folder, in order.
        context: the variables of the template.
    """
    style = packaged_text("page.css")
    script = '"use strict";\n' + "\n".join(packaged_text(name) for name in scripts)
    page = (
        _environment()
        .get_template(template)
        .render(
            style=Markup(style),
            script=Markup(script),
            policy=content_security_policy(style, script),
            **context,
        )
    )
    return printable(page)  # names may contain control characters


def content_security_policy(style: str, script: str) -> str:
    """Return a policy that allows this style, this script and inline images, nothing else."""
    return (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}"
    )


def breakable(name: str) -> Markup:
    """Insert `<wbr>` after `_`, `-` and `/` so that long names can wrap."""
    return Markup("<wbr>").join(re.split(r"(?<=[_/-])", name))


def packaged_text(name: str) -> str:
    """Return the text of a file in the folder `page`."""
    return (resources.files("scs_supcon.report") / "page" / name).read_text(encoding="utf-8")


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("scs_supcon.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = breakable
    return environment


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
