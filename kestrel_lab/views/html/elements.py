"""HTML pages, tables and paragraphs from Jinja2 templates: all text is escaped unless it is `Markup`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kestrel_lab.core.sanitize import AS_TEXT, sanitize_text

if TYPE_CHECKING:
    from jinja2 import Environment

_TEMPLATES = Path(__file__).parent / "templates"


@cache
def template_environment(folder: Path = _TEMPLATES) -> Environment:
    """Return the templates of `folder`, which may import `elements.html`; shows hidden characters."""
    # Loading jinja2 takes some 30 ms, too long for an import of this package.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    found = Environment(
        loader=FileSystemLoader([folder, _TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        finalize=lambda value: (
            value
            if isinstance(value, Markup) or ((text := str(value)).isascii() and text.isprintable())
            else sanitize_text(text)
        ),
    )
    found.globals["as_text"] = Markup(AS_TEXT)  # a constant  # noqa: S704
    return found


def template_macros(template: str, folder: Path = _TEMPLATES, **given: Any) -> Any:
    """Return the macros of a template as functions that return `Markup`; `given` are its other names."""
    return template_environment(folder).get_template(template, globals=given).module


def html_page(title: str, body_html: str) -> str:
    """Return one self-contained document around `body_html`, which must already be safe.

    The style is inside, scripts and remote loads are forbidden, and it is light or dark as the reader
    prefers.
    """
    return str(
        template_environment().get_template("page.html").render(title=title, body=safe_markup(body_html))
    )


def headline_html(text: str) -> str:
    """Return a `<p>` in bold, the heading of a table."""
    return str(template_macros("elements.html").headline(text))


def paragraph_html(text: str) -> str:
    """Return a `<p>` of plain text."""
    return str(template_macros("elements.html").paragraph(text))


def pre_html(text: str) -> str:
    """Return a `<pre>` of text that is laid out by its own lines."""
    return str(template_macros("elements.html").pre(text))


def table_html(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a `<table>` with a heading row; every cell is shown as text, numbers to the right."""
    return str(template_macros("elements.html").table(columns, rows))


def safe_markup(html: str) -> Any:
    """Return HTML that this package made as `Markup`, which templates print as it is."""
    from markupsafe import Markup

    return Markup(html)  # its callers pass what templates and drawings gave  # noqa: S704
