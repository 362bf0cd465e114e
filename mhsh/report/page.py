"""report.html: one file that opens without a network, in which every string from a run is escaped and only its own scripts run."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources

from plotly.offline import get_plotlyjs

from mhsh import outcome
from mhsh.report import thinning
from mhsh.report.cells import COLUMNS
from mhsh.report.comparison import Comparison
from mhsh.report.curves import AXES
from mhsh.report.fairness import LedgerRow
from mhsh.report.figures import SPLIT_NAMES, Curves, draw_curves
from mhsh.report.looks import look
from mhsh.report.outputs import MARK

_AXIS_NAMES = {"step": "steps", "tokens": "tokens", "flops": "FLOPs", "seconds": "device seconds"}
_EQUAL_WORDS = {True: "equal", False: "differs", None: "not recorded for every run"}
_NOTHING = ""  # a style element that is empty when the policy looks at it, and that plotly.js fills rule by rule


def render(comparison: Comparison, picture: bytes) -> bytes:
    """The page as UTF-8. `picture` is a PNG of the curves, shown where scripts are off."""
    curves = draw_curves(comparison)
    style = _own("page.css")
    plotly = _normal(get_plotlyjs())
    scripts = (plotly, _own("page.js"))
    parts = (
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta name="generator" content="{MARK}">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_policy(scripts, (style, _NOTHING)))}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(comparison.headline.title)}</title>",
        f"<style>{style}</style>",
        _map_styles(plotly),
        "</head>",
        "<body>",
        "<main>",
        _claim(comparison),
        _curves_section(comparison, curves, picture),
        _table_section(comparison),
        _fairness_section(comparison),
        _problems_section(comparison.problems),
        _rules_section(),
        "</main>",
        f'<script type="application/json" id="content">{curves.to_json()}</script>',
        *(f"<script>{_between_tags(script)}</script>" for script in scripts),
        "</body>",
        "</html>",
    )
    return ("\n".join(parts) + "\n").encode()


def _policy(scripts: Iterable[str], styles: Iterable[str]) -> str:
    """Nothing may be loaded; only these very scripts and styles run. Pictures are plotly's own (as data), for its export button."""

    def hashes(texts: Iterable[str]) -> str:
        return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in texts)

    return (
        f"default-src 'none'; script-src {hashes(scripts)}; style-src {hashes(styles)}; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _map_styles(plotly: str) -> str:
    """Empty elements in place of the style sheets that plotly.js would bring along for maps, unless it found theirs by these ids.

    There is no map here, and the policy would have to let any inline style pass for them.
    """
    return "".join(f'<style id="{found}"></style>' for found in re.findall(r'getElementById\("([0-9a-f]{64})"\)', plotly))


def _own(name: str) -> str:
    return _normal(resources.files("mhsh.report").joinpath(name).read_text(encoding="utf-8"))


def _normal(text: str) -> str:
    """The line ends that an HTML parser makes of `text`, so that the hash is that of what the browser sees."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _between_tags(script: str) -> str:
    lowered = script.lower()
    if "</script" in lowered or "<!--" in lowered:
        raise AssertionError("this script would end its own tag; it cannot be inlined as it is")
    return script


def _claim(comparison: Comparison) -> str:
    sentences = "\n".join(f"<li>{escape(sentence)}</li>" for sentence in comparison.headline.sentences)
    return f"<h1>{escape(comparison.headline.title)}</h1>\n<ul>\n{sentences}\n</ul>"


def _curves_section(comparison: Comparison, curves: Curves, picture: bytes) -> str:
    notes = [
        "Smoothing draws, at each training row, the mean of it and the rows before it, "
        f"{thinning.SMOOTHING_SHARE:.0%} of the run's rows and at most {thinning.SMOOTHING_MOST}; validation is never smoothed. "
        "A run is told by its colour, dash and marker together.",
        *curves.notes,
    ]
    switches = (
        _radios("x-axis", "axis", [(axis, _AXIS_NAMES[axis]) for axis in AXES], AXES[0]),
        _radios("loss", "split", list(SPLIT_NAMES.items()), curves.split),
        "<fieldset><legend>drawing</legend>"
        + _box("checkbox", "smooth", "on", "smooth training", True)
        + _box("checkbox", "log-y", "on", "logarithmic loss", False)
        + _box("checkbox", "close", "on", "close-up of the last half", False)
        + "</fieldset>",
        "<fieldset><legend>runs</legend>"
        + "".join(
            _box("checkbox", "run", str(i), run.name, True, look(i).swatch) for i, run in enumerate(comparison.runs) if run.drawable
        )
        + "</fieldset>",
    )
    encoded = base64.b64encode(picture).decode()
    return "\n".join(
        (
            '<section aria-labelledby="curves-heading">',
            '<h2 id="curves-heading">Loss curves</h2>',
            f'<form id="controls" class="controls" hidden>{"".join(switches)}</form>',
            '<div id="curves" role="img" aria-label="Loss curves of all runs; their numbers are in the table below"></div>',
            f'<noscript><img class="picture" alt="Loss curves of all runs" src="data:image/png;base64,{encoded}"></noscript>',
            *(f'<p class="small">{escape(note)}</p>' for note in notes),
            "</section>",
        )
    )


def _radios(legend: str, name: str, choices: Sequence[tuple[str, str]], chosen: str) -> str:
    inputs = "".join(_box("radio", name, value, text, value == chosen) for value, text in choices)
    return f"<fieldset><legend>{escape(legend)}</legend>{inputs}</fieldset>"


def _box(kind: str, name: str, value: str, text: str, checked: bool, swatch: str = "") -> str:
    # autocomplete=off: a reloaded page starts with the switches that its figure starts with.
    state = " checked" if checked else ""
    return f'<label><input type="{kind}" name="{name}" value="{value}" autocomplete="off"{state}> {swatch}{escape(text)}</label>'


def _table_section(comparison: Comparison) -> str:
    headings = "".join(f'<th scope="col">{escape(heading)}</th>' for heading, _ in COLUMNS)
    rows = []
    for index, item in enumerate(comparison.summaries):
        cells = "".join(f'<td role="cell" data-label="{escape(name)}">{escape(cell(item))}</td>' for name, cell in COLUMNS[1:])
        rows.append(f'<tr role="row"><th role="rowheader" scope="row">{look(index).swatch}{escape(item.name)}</th>{cells}</tr>')
    return "\n".join(
        (
            '<section aria-labelledby="table-heading">',
            '<h2 id="table-heading">Numbers</h2>',
            # The roles stay when the small screen's stylesheet takes the table's own display away.
            f'<div class="scroll" {_SCROLLING} aria-label="Numbers of every run"><table class="summary" role="table">',
            f'<thead><tr role="row">{headings}</tr></thead>',
            f"<tbody>{''.join(rows)}</tbody></table></div>",
            '<p class="small">Losses are in nats per predicted token. Device time is training time without compilation.</p>',
            "</section>",
        )
    )


_SCROLLING = 'tabindex="0" role="region"'  # a part that scrolls sideways has to be reachable by keyboard


def _fairness_section(comparison: Comparison) -> str:
    names = [group.name for group in comparison.groups]
    if comparison.differences:
        configs = _ledger("Config fields that differ", comparison.differences, names)
    elif len(names) > 1:
        configs = "<p>The configs of all runs are equal in every field.</p>"
    else:
        configs = "<p>There is only one run.</p>"
    recorded = _ledger("Conditions that the runs recorded", comparison.ledger, names)
    return "\n".join(
        (
            '<section aria-labelledby="fairness-heading">',
            '<h2 id="fairness-heading">What was equal, and what was not</h2>',
            configs,
            f"<details><summary>Data, size, code and hardware of every run</summary>{recorded}</details>",
            "</section>",
        )
    )


def _ledger(title: str, rows: Sequence[LedgerRow], names: Sequence[str]) -> str:
    headings = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("", "equal?", *names))
    body = "".join(
        f'<tr><th scope="row">{escape(row.what)}</th><td>{_EQUAL_WORDS[row.equal]}</td>'
        + "".join(f"<td>{escape(value)}</td>" for value in row.values)
        + "</tr>"
        for row in rows
    )
    table = f'<table class="ledger"><thead><tr>{headings}</tr></thead><tbody>{body}</tbody></table>'
    return f'<h3>{escape(title)}</h3><div class="scroll" {_SCROLLING} aria-label="{escape(title)}">{table}</div>'


def _problems_section(problems: Sequence[str]) -> str:
    if not problems:
        return ""
    lines = "\n".join(f"<li>{escape(line)}</li>" for line in problems)
    heading = '<h2 id="problems-heading">Problems</h2>'
    return f'<section aria-labelledby="problems-heading">{heading}\n<ul class="problems">{lines}</ul></section>'


def _rules_section() -> str:
    rules = (
        outcome.SMOOTHING_RULE,
        outcome.PLATEAU_RULE,
        "The heading compares final validation losses where every run that is ranked has one, else final training losses.",
        f"A curve of more than {thinning.MOST_POINTS:,} rows is thinned for drawing, never for the numbers; spikes and gaps stay.",
    )
    lines = "\n".join(f"<li>{escape(rule)}</li>" for rule in rules)
    heading = '<h2 id="rules-heading">Rules</h2>'
    return f'<section aria-labelledby="rules-heading">{heading}\n<ul class="small">{lines}</ul></section>'
