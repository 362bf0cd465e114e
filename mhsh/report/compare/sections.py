"""The sections of report.html between its head and its scripts; every string from a run is escaped
here.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from mhsh import outcome
from mhsh.report import estimate
from mhsh.report.compare import fairness, groups, targets
from mhsh.report.compare.comparison import Comparison
from mhsh.report.compare.fairness import LedgerRow
from mhsh.report.compare.figures import GROUPS, RUNS, SPLIT_NAMES, Curves
from mhsh.report.compare.groups import Group
from mhsh.report.compare.measures import AXIS_NAMES, MeasureCell, measure_rows
from mhsh.report.compare.run_columns import COLUMNS
from mhsh.report.compare.unequal_marks import SIGN, unequal
from mhsh.report.render.format import format_list
from mhsh.report.render.static_page import SCROLLING, swatch
from mhsh.report.render.styles import curve_style, run_styles
from mhsh.report.runs import downsample
from mhsh.report.runs.curves import AXES

_EQUAL_WORDS = {True: "equal", False: "differs", None: "not recorded for every run"}


def parts(comparison: Comparison, curves: Curves) -> Mapping[str, str]:
    """What a page holds besides the figure, by the id of its place, in the page's order."""
    return {
        "claim": _claim(comparison),
        "marks": _marks(comparison),
        "controls": "".join(_switches(comparison, curves)),
        "notes": _notes(curves),
        "groups": _groups_section(comparison),
        "runs": _runs_section(comparison),
        "fairness": _fairness_section(comparison),
        "problems": _problems_section(comparison.problems),
        "rules": _rules_section(),
    }


def picture_without_scripts(picture: bytes) -> str:
    """What stands in place of the figure where scripts are off. `picture` is a PNG."""
    encoded = base64.b64encode(picture).decode()
    return f'<noscript><img class="picture" alt="Loss curves" src="data:image/png;base64,{encoded}"></noscript>'


def body(contents: Mapping[str, str], without_scripts: str) -> str:
    """The sections of `parts` in their places, the figure's place among them."""
    before = ("claim",)
    after = ("groups", "runs", "fairness", "problems", "rules")
    figure = (
        '<section aria-labelledby="curves-heading">',
        '<h2 id="curves-heading">Loss curves</h2>',
        f'<div id="marks">{contents["marks"]}</div>',
        f'<form id="controls" class="controls" hidden>{contents["controls"]}</form>',
        '<div id="curves" role="img" aria-label="Loss curves; their numbers are in the tables below"></div>',
        without_scripts,
        f'<div id="notes">{contents["notes"]}</div>',
        "</section>",
    )
    return "\n".join(
        (
            *(f'<div id="{place}">{contents[place]}</div>' for place in before),
            *figure,
            *(f'<div id="{place}">{contents[place]}</div>' for place in after),
        )
    )


def _claim(comparison: Comparison) -> str:
    headline = comparison.headline
    lines = [f"<h1>{escape(headline.title)}</h1>"]
    rest = headline.sentences
    if headline.measure:
        # Where a winner is named, how sure that is and whether it was fair are part of the claim.
        sure, fair, *rest = headline.sentences
        unfair = " unfair-verdict" if any(row.matters for row in comparison.ledger) else ""
        lines += [f'<p class="verdict">{escape(sure)}</p>', f'<p class="verdict{unfair}">{escape(fair)}</p>']
    return "\n".join((*lines, "<ul>", *(f"<li>{escape(sentence)}</li>" for sentence in rest), "</ul>"))


def _marks(comparison: Comparison) -> str:
    return "".join(f'<p class="mark">{SIGN} {escape(line)}</p>' for line in comparison.marks)


def _notes(curves: Curves) -> str:
    lines = (
        "Smoothing draws, at each training row, the mean of it and the rows before it, "
        f"{downsample.SMOOTHING_SHARE:.0%} of the run's rows and at most {downsample.SMOOTHING_MOST}; "
        "validation is never smoothed. "
        "A curve is told by its colour, dash and marker together.",
        *curves.notes,
    )
    return "".join(f'<p class="small">{escape(line)}</p>' for line in lines)


def _switches(comparison: Comparison, curves: Curves) -> Iterable[str]:
    if any(len(group.runs) > 1 for group in comparison.groups):
        names = [(GROUPS, "groups: mean and 95 % interval"), (RUNS, "single runs")]
        yield _radios("curves of", "view", names, curves.view)
    yield _radios("x-axis", "axis", [(axis, AXIS_NAMES[axis]) for axis in AXES], AXES[0])
    yield _radios("loss", "split", list(SPLIT_NAMES.items()), curves.split)
    yield (
        "<fieldset><legend>drawing</legend>"
        + _box("checkbox", "smooth", "on", "smooth training runs", True)
        + _box("checkbox", "log-x", "on", "logarithmic x-axis", False)
        + _box("checkbox", "log-y", "on", "logarithmic loss", False)
        + _box("checkbox", "close", "on", "close-up of the last half", False)
        + "</fieldset>"
    )
    signs = tuple(map(_sign, unequal(comparison)))
    styles = run_styles(group.runs for group in comparison.groups)
    boxes: dict[str, list[str]] = {GROUPS: [], RUNS: []}
    for place, group in enumerate(comparison.groups):
        boxes[GROUPS].append(_box("checkbox", GROUPS, str(place), group.name, True, swatch(curve_style(place)), signs[place]))
        for index in group.runs:
            run = comparison.runs[index]
            if run.drawable:
                boxes[RUNS].append(_box("checkbox", RUNS, str(index), run.name, True, swatch(styles[index]), signs[place]))
    for view, entries in boxes.items():
        yield f'<fieldset data-view="{view}"><legend>{view}</legend>{"".join(entries)}</fieldset>'


def _radios(legend: str, name: str, choices: Sequence[tuple[str, str]], chosen: str) -> str:
    inputs = "".join(_box("radio", name, value, text, value == chosen) for value, text in choices)
    return f"<fieldset><legend>{escape(legend)}</legend>{inputs}</fieldset>"


def _box(kind: str, name: str, value: str, text: str, checked: bool, swatch: str = "", sign: str = "") -> str:
    # autocomplete=off: a reloaded page starts with the switches that its figure starts with.
    state = " checked" if checked else ""
    return (
        f'<label><input type="{kind}" name="{name}" value="{value}" autocomplete="off"{state}> {swatch}{escape(text)}{sign}</label>'
    )


def _groups_section(comparison: Comparison) -> str:
    baseline = comparison.standing.baseline
    headings = "".join(
        f'<th scope="col">{swatch(curve_style(place))}{escape(group.name)}{signs}<br><span class="small">{escape(_seeds(group))}'
        f"{', the baseline' if place == baseline else ''}</span></th>"
        for place, (group, signs) in enumerate(zip(comparison.groups, map(_sign, unequal(comparison)), strict=True))
    )
    rows = "".join(
        f'<tr role="row"><th role="rowheader" scope="row">{escape(row.what)}</th>'
        + "".join(
            f'<td role="cell" data-label="{escape(group.name)}"><span>{_measured(cell)}</span></td>'
            for cell, group in zip(row.cells, comparison.groups, strict=True)
        )
        + "</tr>"
        for row in measure_rows(comparison)
    )
    several = any(len(group.runs) > 1 for group in comparison.groups)
    reading = (
        "A mean over seeds, with its 95 % interval in brackets; below it, the difference to the baseline with its own interval. "
        "Bold is the lowest of its row."
        if several
        else "One seed each, so without intervals; below each value, the difference to the baseline. Bold is the lowest of its row."
    )
    return "\n".join(
        (
            '<section aria-labelledby="groups-heading">',
            '<h2 id="groups-heading">What each group came to</h2>',
            f'<p class="small">{reading}</p>',
            # The roles stay when the small screen's stylesheet takes the table's own display away.
            f'<div class="scroll" {SCROLLING} aria-label="What each group came to"><table class="summary measures" role="table">',
            f'<thead><tr role="row"><th scope="col">measure</th>{headings}</tr></thead>',
            f"<tbody>{rows}</tbody></table></div>",
            "</section>",
        )
    )


def _seeds(group: Group) -> str:
    numbers = ", ".join(map(str, group.seeds))
    return f"seed {numbers}" if len(group.seeds) == 1 else f"{len(group.seeds)} seeds: {numbers}"


def _measured(cell: MeasureCell) -> str:
    value = f"<strong>{escape(cell.value)}</strong>" if cell.lowest else escape(cell.value)
    return f'{value}<br><span class="small">{escape(cell.against)}</span>' if cell.against else value


def _sign(differing: Sequence[str]) -> str:
    """What a legend's entry bears where something that matters is not as in the baseline."""
    return f' <span class="sign">{SIGN} other {escape(format_list(list(differing)))}</span>' if differing else ""


def _runs_section(comparison: Comparison) -> str:
    headings = "".join(f'<th scope="col">{escape(heading)}</th>' for heading, _ in COLUMNS)
    styles = run_styles(group.runs for group in comparison.groups)
    rows = []
    for index, item in enumerate(comparison.summaries):
        cells = "".join(f'<td role="cell" data-label="{escape(name)}">{escape(cell(item))}</td>' for name, cell in COLUMNS[1:])
        rows.append(f'<tr role="row"><th role="rowheader" scope="row">{swatch(styles[index])}{escape(item.name)}</th>{cells}</tr>')
    return "\n".join(
        (
            '<section aria-labelledby="runs-heading">',
            '<h2 id="runs-heading">Every run</h2>',
            f'<div class="scroll" {SCROLLING} aria-label="Numbers of every run"><table class="summary" role="table">',
            f'<thead><tr role="row">{headings}</tr></thead>',
            f"<tbody>{''.join(rows)}</tbody></table></div>",
            '<p class="small">Losses are in nats per predicted token. Device time is training time without compilation.</p>',
            "</section>",
        )
    )


def _fairness_section(comparison: Comparison) -> str:
    names = [group.name for group in comparison.groups]
    if comparison.differences:
        configs = _ledger("Config fields that differ between groups", comparison.differences, names)
    elif len(names) > 1:
        configs = "<p>The configs of all groups are equal in every field.</p>"
    else:
        configs = "<p>There is only one group.</p>"
    return "\n".join(
        (
            '<section aria-labelledby="fairness-heading">',
            '<h2 id="fairness-heading">What was equal, and what was not</h2>',
            _ledger("The fairness ledger", comparison.ledger, names),
            configs,
            "</section>",
        )
    )


def _ledger(title: str, rows: Sequence[LedgerRow], names: Sequence[str]) -> str:
    headings = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("", "equal?", *names))
    body = "".join(
        f'<tr{_ROW_CLASS[row.matters]}><th scope="row">{escape(row.what)}</th><td>{_equality(row)}</td>'
        + "".join(f"<td>{escape(value)}</td>" for value in row.values)
        + "</tr>"
        for row in rows
    )
    table = f'<table class="ledger"><thead><tr>{headings}</tr></thead><tbody>{body}</tbody></table>'
    return f'<h3>{escape(title)}</h3><div class="scroll" {SCROLLING} aria-label="{escape(title)}">{table}</div>'


_ROW_CLASS = {True: ' class="unfair"', False: ""}


def _equality(row: LedgerRow) -> str:
    if row.matters:
        return f'<strong class="sign">{SIGN} differs, and matters</strong>'
    if row.clock:
        return f'<strong class="sign">{SIGN} differs: device seconds are not comparable</strong>'
    return _EQUAL_WORDS[row.equal]


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
        targets.MEASURE_RULE,
        targets.TARGET_RULE,
        targets.AREA_RULE,
        groups.GROUP_RULE,
        groups.BAND_RULE,
        estimate.INTERVAL_RULE,
        estimate.DIFFERENCE_RULE,
        fairness.FAIRNESS_RULE,
        f"A curve of more than {downsample.MOST_POINTS:,} rows, or of fewer where there are many curves, is thinned for drawing, "
        "never for the numbers; spikes and gaps stay.",
    )
    lines = "\n".join(f"<li>{escape(rule)}</li>" for rule in rules)
    heading = '<h2 id="rules-heading">Rules</h2>'
    return f'<section aria-labelledby="rules-heading">{heading}\n<ul class="small">{lines}</ul></section>'
