"""The colour, dash and marker of each run or group. None of them is needed alone."""

from __future__ import annotations

import dataclasses

# Okabe and Ito's palette without its yellow and black, which vanish on a white or a black page.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
# matplotlib's name, SVG's stroke-dasharray
_DASHES = (
    ("-", "none"),
    ("--", "7 4"),
    (":", "2 3"),
    ("-.", "7 3 2 3"),
    ((0, (8, 3)), "13 4"),
)
# matplotlib's name, an SVG path around the origin, 10 units wide
_SYMBOLS = (
    ("o", "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z"),
    ("s", "M-4 -4h8v8h-8z"),
    ("D", "M0 -6l5 6l-5 6l-5 -6z"),
    ("^", "M0 -5l5 9h-10z"),
    ("P", "M-2 -5h4v3h3v4h-3v3h-4v-3h-3v-4h3z"),
    ("v", "M0 5l5 -9h-10z"),
)


@dataclasses.dataclass(frozen=True)
class CurveStyle:
    """How the curve of one run or group looks, in the words of matplotlib and SVG."""

    color: str
    linestyle: str | tuple[int, tuple[int, ...]]
    marker: str
    dash_array: str  # SVG's stroke-dasharray
    marker_path: str  # an SVG path around the origin, 10 units wide


def curve_style(index: int, color_index: int | None = None) -> CurveStyle:
    """The style of the run or group at `index`. The first 210 are all different.

    Neighbours differ in colour, dash and marker. Runs with an equal `color_index`, which is that of
    their group, share its colour.
    """
    linestyle, dash_array = _DASHES[index % len(_DASHES)]
    marker, marker_path = _SYMBOLS[index % len(_SYMBOLS)]
    color = _COLORS[(index if color_index is None else color_index) % len(_COLORS)]
    return CurveStyle(color, linestyle, marker, dash_array, marker_path)
