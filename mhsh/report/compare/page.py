"""report.html: one file that opens without a network, in which every string from a run is escaped
and only its own scripts run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources

from plotly.offline import get_plotlyjs

from mhsh.report.compare import sections
from mhsh.report.compare.comparison import Comparison
from mhsh.report.compare.figures import Curves, draw_curves
from mhsh.report.render.outputs import MARK

_NOTHING = ""  # a style element that is empty when the policy looks at it, and that plotly.js fills rule by rule


def render(comparison: Comparison, picture: bytes) -> bytes:
    """The page as UTF-8. `picture` is a PNG of the curves, shown where scripts are off."""
    curves = draw_curves(comparison)
    main = sections.body(sections.parts(comparison, curves), sections.picture_without_scripts(picture))
    return _document(comparison.headline.title, main, curves.to_json(), ("compare/page.js",), connect="'none'")


def render_live(comparison: Comparison, curves: Curves) -> bytes:
    """The page as UTF-8 for a server: it asks for each `update` and takes it over, and its reader
    stays where he is. `curves` are those of the comparison, drawn once for both.
    """
    asking = '<p id="live">Live: this page refreshes itself while the runs train.</p>'
    main = asking + sections.body(sections.parts(comparison, curves), "<noscript><p>The curves need scripts.</p></noscript>")
    return _document(comparison.headline.title, main, curves.to_json(), ("compare/page.js", "compare/watch.js"), connect="'self'")


def update(comparison: Comparison, curves: Curves) -> bytes:
    """What changes in a page of `render_live`, as JSON: its title, its parts by their places (as
    HTML), and its figure.
    """
    fields = {"title": comparison.headline.title, "parts": dict(sections.parts(comparison, curves))}
    return f'{json.dumps(fields)[:-1]}, "content": {curves.to_json()}}}'.encode()


def _document(title: str, main: str, content: str, own_scripts: Sequence[str], connect: str) -> bytes:
    style = _own("render/page.css")
    plotly = _normal(get_plotlyjs())
    scripts = (plotly, *map(_own, own_scripts))
    lines = (
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta name="generator" content="{MARK}">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_policy(scripts, (style, _NOTHING), connect))}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<link rel="icon" href="data:,">',
        f"<title>{escape(title)}</title>",
        f"<style>{style}</style>",
        _map_styles(plotly),
        "</head>",
        "<body>",
        "<main>",
        main,
        "</main>",
        f'<script type="application/json" id="content">{content}</script>',
        *(f"<script>{_between_tags(script)}</script>" for script in scripts),
        "</body>",
        "</html>",
    )
    return ("\n".join(lines) + "\n").encode()


def _policy(scripts: Iterable[str], styles: Iterable[str], connect: str) -> str:
    """Nothing may be loaded; only these very scripts and styles run. Pictures are plotly's own (as
    data), for its export button.
    """

    def hashes(texts: Iterable[str]) -> str:
        return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in texts)

    return (
        f"default-src 'none'; script-src {hashes(scripts)}; style-src {hashes(styles)}; "
        f"img-src data: blob:; connect-src {connect}; base-uri 'none'; form-action 'none'"
    )


def _map_styles(plotly: str) -> str:
    """Empty elements in place of the style sheets that plotly.js would bring along for maps, unless
    it found theirs by these ids.

    There is no map here, and the policy would have to let any inline style pass for them.
    """
    return "".join(f'<style id="{found}"></style>' for found in re.findall(r'getElementById\("([0-9a-f]{64})"\)', plotly))


def _own(name: str) -> str:
    return _normal(resources.files("mhsh.report").joinpath(name).read_text(encoding="utf-8"))


def _normal(text: str) -> str:
    """The line ends that an HTML parser makes of `text`, so that the hash is that of what the
    browser sees.
    """
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _between_tags(script: str) -> str:
    lowered = script.lower()
    if "</script" in lowered or "<!--" in lowered:
        raise AssertionError("this script would end its own tag; it cannot be inlined as it is")
    return script
