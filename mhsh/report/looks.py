"""How runs are told apart in the figures: colour, dash and marker together, so that none of them is needed alone."""

from __future__ import annotations

import dataclasses

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


@dataclasses.dataclass(frozen=True)
class Look:
    """The look of one run's curves, in plotly's and in matplotlib's words, and as a small SVG for a legend."""

    color: str
    dash: str
    symbol: str
    linestyle: str | tuple[int, tuple[int, ...]]
    marker: str
    swatch: str  # an SVG element without style attributes, which a content security policy would refuse


def look(index: int) -> Look:
    """The look of the index-th run; the first 210 are all different, neighbours in all three ways."""
    color = _COLORS[index % len(_COLORS)]
    dash, linestyle, dasharray = _DASHES[index % len(_DASHES)]
    symbol, marker, path = _SYMBOLS[index % len(_SYMBOLS)]
    swatch = (
        '<svg class="swatch" width="48" height="14" viewBox="-24 -7 48 14" aria-hidden="true">'
        f'<path d="M-24 0H24" fill="none" stroke="{color}" stroke-width="2" stroke-dasharray="{dasharray}"/>'
        f'<path d="{path}" fill="{color}"/></svg>'
    )
    return Look(color, dash, symbol, linestyle, marker, swatch)
