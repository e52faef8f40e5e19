"""HTML from the templates in templates/: what is filled in is escaped."""

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup


@cache
def environment() -> Environment:
    """The templates of this package."""
    return Environment(
        loader=PackageLoader("tkpr.reporting"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render(template: str, **values: Any) -> Markup:
    """Fill in a template; text is escaped, the result of another template is not.

    Args:
        template: a file of templates/.
        **values: what it needs.

    >>> render("table.html", heads=["method"], rows=[[("a < b", "")]]).count("a &lt; b")
    1
    """
    return Markup(environment().get_template(template).render(**values))
