"""A page without scripts: one file that opens without a network, in which every string is
escaped.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from importlib import resources
from typing import Any

from mhsh.report.render.html import _environment
from mhsh.report.render.styles import CurveStyle

SCROLLING = 'tabindex="0" role="region"'  # a part that scrolls sideways has to be reachable by keyboard


def static_page(title: str, author: str, style_sheets: Sequence[str], parts: Sequence[str]) -> bytes:
    """The page as UTF-8: `title` (text) as its heading, `parts` (HTML) below it, in the look of
    these style sheets of this folder.

    `author` says who wrote it. Only its own styles and pictures within it (data:) are let pass by
    its policy.
    """
    texts = [resources.files("mhsh.report").joinpath(name).read_text(encoding="utf-8") for name in style_sheets]
    # As an HTML parser reads them, so that the hash is that of what the browser sees.
    style = "".join(texts).replace("\r\n", "\n").replace("\r", "\n")
    hashed = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{hashed}'; img-src data:; base-uri 'none'; form-action 'none'"
    lines = (
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta name="generator" content="{author}">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>",
        f"<style>{style}</style>",
        "</head>",
        "<body>",
        "<main>",
        f"<h1>{escape(title)}</h1>",
        *parts,
        "</main>",
        "</body>",
        "</html>",
    )
    return ("\n".join(lines) + "\n").encode()


def section(heading: str, content: str) -> str:
    """A part of the page with its heading (text) over its content (HTML)."""
    return f'<section aria-label="{escape(heading)}">\n<h2>{escape(heading)}</h2>\n{content}\n</section>'


def bullets(lines: Sequence[str], kind: str = "") -> str:
    """A list of texts, or nothing; `kind` is its class."""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    start = f'<ul class="{kind}">' if kind else "<ul>"
    return f"{start}{items}</ul>" if lines else ""


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], label: str) -> str:
    """A table of texts that scrolls by itself, a cell a heading; the first one heads its row."""
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    # The roles stay when the small screen's stylesheet takes the table's own display away.
    return (
        f'<div class="scroll" {SCROLLING} aria-label="{escape(label)}"><table class="summary" role="table">'
        f'<thead><tr role="row">{head}</tr></thead><tbody>{"".join(_row(headings, row) for row in rows)}</tbody></table></div>'
    )


def _row(headings: Sequence[str], texts: Sequence[str]) -> str:
    cells = "".join(
        f'<td role="cell" data-label="{escape(heading)}">{escape(text)}</td>'
        for heading, text in zip(headings[1:], texts[1:], strict=True)
    )
    return f'<tr role="row"><th role="rowheader" scope="row">{escape(texts[0])}</th>{cells}</tr>'


def swatch(style: CurveStyle) -> str:
    """A piece of a curve in its style, for legends."""
    macros: Any = _environment().get_template("render/macros.html").make_module()
    return str(macros.swatch(style))


def picture(content: bytes, media_type: str, text: str) -> str:
    """A picture within the page, `text` in its place where it is not seen."""
    # An image runs no scripts and has its styles to itself: the page's policy need not let them
    # pass.
    encoded = base64.b64encode(content).decode()
    return f'<img class="picture" alt="{escape(text)}" src="data:{media_type};base64,{encoded}">'
