"""How runs and groups are told apart in the figures: colour, dash and marker together, so that none
of them is needed alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mhsh.report.compare.groups import Group

# Okabe and Ito's palette without its yellow and black, which vanish on a white or a black page.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
# plotly's name, matplotlib's name, SVG's stroke-dasharray
_DASHES = (
    ("solid", "-", "none"),
    ("dash", "--", "7 4"),
    ("dot", ":", "2 3"),
    ("dashdot", "-.", "7 3 2 3"),
    ("longdash", (0, (8, 3)), "13 4"),
)
# plotly's name, matplotlib's name, an SVG path around the origin, 10 units wide
_SYMBOLS = (
    ("circle", "o", "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z"),
    ("square", "s", "M-4 -4h8v8h-8z"),
    ("diamond", "D", "M0 -6l5 6l-5 6l-5 -6z"),
    ("triangle-up", "^", "M0 -5l5 9h-10z"),
    ("cross", "P", "M-2 -5h4v3h3v4h-3v3h-4v-3h-3v-4h3z"),
    ("triangle-down", "v", "M0 5l5 -9h-10z"),
)
# matplotlib's name, plotly's name: what tells bands apart where they lie over each other
_HATCHES = (("///", "/"), ("\\\\\\", "\\"), ("oo", "."), ("xx", "x"), ("---", "-"), ("|||", "|"))


@dataclasses.dataclass(frozen=True)
class Look:
    """The look of the curves of one run or group, in plotly's and in matplotlib's words, and as a
    small SVG for a legend.
    """

    color: str
    dash: str
    symbol: str
    linestyle: str | tuple[int, tuple[int, ...]]
    marker: str
    hatch: str  # matplotlib's pattern of the band
    pattern: str  # plotly's
    swatch: str  # an SVG element without style attributes, which a content security policy would refuse


def look(place: int, family: int | None = None) -> Look:
    """The look of the run or group at a place; the first 210 are all different, neighbours in all
    three ways.

    Runs of one `family`, which is the place of their group, share its colour, and differ in dash
    and marker.
    """
    color = _COLORS[(place if family is None else family) % len(_COLORS)]
    dash, linestyle, dasharray = _DASHES[place % len(_DASHES)]
    symbol, marker, path = _SYMBOLS[place % len(_SYMBOLS)]
    hatch, pattern = _HATCHES[place % len(_HATCHES)]
    swatch = (
        '<svg class="swatch" width="48" height="14" viewBox="-24 -7 48 14" aria-hidden="true">'
        f'<path d="M-24 0H24" fill="none" stroke="{color}" stroke-width="2" stroke-dasharray="{dasharray}"/>'
        f'<path d="{path}" fill="{color}"/></svg>'
    )
    return Look(color, dash, symbol, linestyle, marker, hatch, pattern, swatch)


def run_looks(groups: Sequence[Group]) -> dict[int, Look]:
    """The look of every run by its place: the colour of its group, so that a figure of all runs
    still shows the groups.
    """
    return {run: look(run, place) for place, group in enumerate(groups) for run in group.runs}
