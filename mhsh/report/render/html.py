"""Pages from jinja2 templates: one file that opens without a network.

Every value that a template prints is escaped. A page's content security policy admits its own
styles and scripts by their hashes, and nothing else.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mhsh.verdict.words import format_names


def render(template: str, **values: Any) -> Markup:
    """The HTML of a template, named by its path below mhsh/report, such as `sweep/page.html`."""
    return Markup(_environment().get_template(template).render(values))


def render_page(
    template: str,
    *,
    title: str,
    author: str,
    styles: Sequence[str],
    scripts: Sequence[str] = (),
    pictures: str = "data:",
    connect: str = "'none'",
    **values: Any,
) -> bytes:
    """A whole page as UTF-8, from a template that extends `render/page.html`.

    Args:
      template: its path below mhsh/report.
      title: the page's title and, unless the template says otherwise, its heading.
      author: the program that writes the page.
      styles: the texts of its style sheets.
      scripts: the texts of its scripts, in the order in which they run.
      pictures: the policy's sources of pictures.
      connect: the policy's targets of requests.
      values: what else the template prints.

    Raises:
      ValueError: a script holds what would end its own element.
    """
    for script in scripts:
        if "</script" in script.lower() or "<!--" in script:
            raise ValueError("this script would end its own element, so it cannot be inlined")
    style = "".join(styles)
    policy = [
        "default-src 'none'",
        *([f"script-src {_hashes(scripts)}"] if scripts else []),
        f"style-src {_hashes([style])}",
        f"img-src {pictures}",
        *([f"connect-src {connect}"] if scripts else []),
        "base-uri 'none'",
        "form-action 'none'",
    ]
    frame = {
        "title": title,
        "author": author,
        "policy": "; ".join(policy),
        "style": Markup(style),
        "scripts": list(map(Markup, scripts)),
    }
    return render(template, **frame, **values).encode()


def read_asset(name: str) -> str:
    """A style sheet or script of the package, named by its path below mhsh/report."""
    return normalize_lines(resources.files("mhsh.report").joinpath(name).read_text(encoding="utf-8"))


def normalize_lines(text: str) -> str:
    """`text` with the line ends that an HTML parser makes, so that its hash is the browser's."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def data_uri(content: bytes, media_type: str) -> str:
    """The address of a picture that lies within the page itself."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("mhsh.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"data_uri": data_uri, "names": format_names}
    return environment


def _hashes(texts: Iterable[str]) -> str:
    return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in texts)
