"""How figures look: the style of each curve, and matplotlib's figures for papers as bytes. Equal
input gives equal bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mhsh.text import shorten

PAGE, COLUMN = 6.9, 3.3  # inches: the width of a page of two columns, and of one column
TEXT = 5.5  # of the text of a paper in one column
INK, PAPER, LINE = "#1b1b1b", "#ffffff", "#c9ccd1"
_LEGEND_ROW = 0.122  # inches
_CHARACTER = 0.056  # inches, of the legend's font
_HANDLE = 0.52  # inches, of the sample of a curve and the space around it

# Okabe and Ito's palette without its yellow and black, which vanish on a white or a black page.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
_DASHES = ((), (7, 4), (2, 3), (7, 3, 2, 3), (13, 4))
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
    """How the curve of one run or group looks."""

    color: str
    dash: tuple[int, ...]  # SVG's stroke-dasharray, of lines that are 2 wide; empty: solid
    marker: str  # an SVG path around the origin, 10 units wide
    symbol: str = ""  # the marker as matplotlib calls it

    @property
    def linestyle(self) -> Any:
        """The dash as matplotlib has it, in widths of the line."""
        return (0, tuple(each / 2 for each in self.dash)) if self.dash else "-"


def curve_style(color: int, variant: int = 0) -> CurveStyle:
    """A colour and a marker a shape, of which the first 210 differ with their dashes; and a dash a
    variant of it, such as a length of training.
    """
    dash = _DASHES[(variant + color // len(_COLORS)) % len(_DASHES)]
    symbol, marker = _SYMBOLS[(color + variant // len(_DASHES)) % len(_SYMBOLS)]
    return CurveStyle(_COLORS[color % len(_COLORS)], dash, marker, symbol)


def log_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """The ticks of a logarithmic axis from `low` to `high`: as many of 1 to 9, or 1, 2 and 5, times
    powers of ten as there may be; even steps where fewer than three of these lie inside.
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = (sorted(digit * 10.0**power for power in powers for digit in digits) for digits in (range(1, 10), (1, 2, 5), (1,)))
    inside = ([tick for tick in ticks if low <= tick <= high] for ticks in every)
    found = next((ticks for ticks in inside if len(ticks) <= most), [])
    return found if len(found) > 2 else [tick for tick in MaxNLocator(most).tick_values(low, high) if low <= tick <= high]


@contextlib.contextmanager
def figure_style(serif: bool = False) -> Iterator[None]:
    """Figures that are made inside have fonts for a column of a paper; as `serif` STIX, in which a
    PDF has text that can be selected and edited (type 42).
    """
    settings: dict[str, Any] = {
        **({"font.family": "STIXGeneral", "mathtext.fontset": "stix", "pdf.fonttype": 42} if serif else {}),
        "font.size": 8,
        "axes.titlesize": 8,
        "axes.labelsize": 8,
        **dict.fromkeys(["xtick.labelsize", "ytick.labelsize", "legend.fontsize", "legend.title_fontsize"], 7),
        **dict.fromkeys(["text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"], INK),
        **dict.fromkeys(["figure.facecolor", "axes.facecolor", "savefig.facecolor", "legend.facecolor"], PAPER),
        **dict.fromkeys(["axes.linewidth", "xtick.major.width", "ytick.major.width", "hatch.linewidth"], 0.6),
        **dict.fromkeys(["axes.spines.top", "axes.spines.right", "legend.frameon"], False),
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": LINE,
        "grid.alpha": 0.6,
        "grid.linewidth": 0.4,
        "lines.linewidth": 1.2,
        "lines.markersize": 3.5,
        "errorbar.capsize": 2,
        "legend.handlelength": 3,
        "figure.dpi": 100,
        "savefig.dpi": 240,
    }
    with mpl.rc_context(settings):
        yield


def figure_bytes(figure: Figure, kind: str, author: str) -> bytes:
    """A `png` or an `svg` that names its `author` and no date. A second kind of one figure has the
    layout of the first.
    """
    metadata: dict[str, Any] = {"Software": author} if kind == "png" else {"Creator": author, "Date": None}
    buffer = io.BytesIO()
    with _stable_output(author, figure):
        figure.savefig(buffer, format=kind, metadata=metadata)
    return buffer.getvalue()


def pdf_bytes(figures: Sequence[Figure], author: str) -> bytes:
    """A PDF with a page a figure, that names its `author` and no date."""
    buffer = io.BytesIO()
    with PdfPages(buffer, metadata={"Creator": author, "CreationDate": None}) as pages:
        for figure in figures:
            with _stable_output(author, figure):
                pages.savefig(figure)
    return buffer.getvalue() + f"% {author}\n".encode()  # a comment, after the end


@contextlib.contextmanager
def _stable_output(author: str, figure: Figure) -> Iterator[None]:
    # svg.hashsalt: matplotlib's element names are random without it.
    with mpl.rc_context({"svg.hashsalt": author}), warnings.catch_warnings():
        # A character that the font lacks is drawn as a box; the run is named in full in the report.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font", category=UserWarning)
        if figure.get_layout_engine() is not None:
            _lay_out(figure)
        yield


def _lay_out(figure: Figure) -> None:
    """Places the panels once, at positions of six digits: the solver's last digits differ between
    processes, and with them the names of an SVG's elements.
    """
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        left, bottom, width, height = (round(number, 6) for number in axes.get_position(original=True).bounds)
        axes.set_position((left, bottom, width, height), which="original")


def add_legend(figure: Figure, entries: Sequence[tuple[Artist, str]], caption: str = "", math: bool = False) -> None:
    """Makes the figure taller by a legend below its panels, under a caption of one line, in as many
    columns as fit.

    Args:
      entries: an artist and its label each.
      math: whether `$` in labels encloses formulas; they are then written in full.
    """
    handles, labels = [handle for handle, _ in entries], [label for _, label in entries]
    width, height = figure.get_size_inches()
    most = int((width / (2 if width > COLUMN else 1) - _HANDLE) / _CHARACTER)  # two columns fit on a page
    longest = max((min(most, len(re.sub(r"[$^{}\\]", "", label))) for label in labels), default=1)
    rows = -(-len(labels) // max(1, int(width / (_HANDLE + _CHARACTER * longest))))
    figure.set_size_inches(width, height + _LEGEND_ROW * (rows + bool(caption)))
    legend = figure.legend(
        handles,
        # Names are set afterwards and unparsed: one may hold dollar signs or begin with an
        # underscore.
        [f"entry {number}" for number in range(len(labels))],
        title=shorten(caption, int((width - 0.1) / (0.98 * _CHARACTER))) or None,
        loc="outside lower center",
        ncols=-(-len(labels) // max(1, rows)),
        columnspacing=1.2,
        labelspacing=0.25,
    )
    legend.get_title().set_parse_math(False)
    for entry, label in zip(legend.get_texts(), labels, strict=True):
        entry.set_parse_math(math)
        entry.set_text(label if math else shorten(label, most))
