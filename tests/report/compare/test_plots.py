"""Tests of the pictures for papers: real files, equal bytes for equal runs, and names that are only
text.
"""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from mhsh.report.compare import plots
from mhsh.report.compare.comparison import Comparison, compare
from mhsh.report.compare.plots import pictures
from mhsh.report.render.figure_files import COLUMN, INK, LINE, PAGE, PAPER, figure_bytes, for_page
from mhsh.report.render.outputs import MARK
from mhsh.verdict.runs import load_runs


def test_equal_runs_make_equal_bytes(four_runs: Comparison) -> None:
    one = pictures(four_runs)
    assert one == pictures(four_runs)
    for kind, start in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        assert one[kind].startswith(start)
        assert MARK.encode() in one[kind][:4096]


def test_on_a_page_ink_and_paper_follow_the_scheme(four_runs: Comparison) -> None:
    drawn = for_page(pictures(four_runs, kinds=("svg",))["svg"]).decode()
    ET.fromstring(drawn)
    for color in (INK, PAPER, LINE):
        assert drawn.count(color) == 1  # in the rule alone
        assert f"var(--c{color[1:]})" in drawn
    assert "@media (prefers-color-scheme: dark)" in drawn


def words_of(svg: bytes) -> list[str]:
    """The texts of matplotlib's SVG, which draws them as paths with a comment each."""
    return re.findall("<!-- (.*?) -->", svg.decode())


def test_groups_are_drawn_with_bands_and_signs(two_groups: Comparison) -> None:
    drawn = pictures(two_groups, kinds=("svg",))["svg"]
    identities = [element.get("id", "") for element in ET.fromstring(drawn).iter()]
    # In each of two panels for each of two groups.
    assert sum(identity.startswith("FillBetweenPolyCollection") for identity in identities) == 4
    words = words_of(drawn)
    for shown in ("training loss", "validation loss", "nats per token", "shallow", "deep \u2260"):
        assert shown in words
    (caption,) = [word for word in words if word.startswith("\u2260")]
    assert caption == "\u2260 not comparable with shallow; mean over seeds, band: 95 % interval"


@pytest.mark.parametrize("width", [PAGE, COLUMN])
@pytest.mark.parametrize(("runs", "entries"), [("four_runs", 5), ("fifty_runs", 16)])
def test_texts_are_readable_and_lie_on_nothing(request, monkeypatch, runs: str, entries: int, width: float) -> None:
    figures: list[Figure] = []

    def kept(figure: Figure, kind: str, author: str) -> bytes:
        figures.append(figure)
        return figure_bytes(figure, kind, author)

    monkeypatch.setattr(plots, "figure_bytes", kept)
    pictures(request.getfixturevalue(runs), width, kinds=("png",))
    (figure,) = figures
    assert figure.get_size_inches()[0] == width
    assert figure.get_size_inches()[1] < 6.5
    (legend,) = figure.legends
    shown = [entry.get_text() for entry in legend.get_texts()]
    assert len(shown) == entries
    assert shown[-1] == "unigram entropy 3.000"
    assert ("36 others, named on the page" in shown) == (runs == "fifty_runs")
    figure.draw_without_rendering()
    inside = figure.bbox.padded(1)
    for label in (*legend.get_texts(), *figure.texts):
        box = label.get_window_extent()
        assert inside.x0 <= box.x0 < box.x1 <= inside.x1, label.get_text()
        assert inside.y0 <= box.y0 < box.y1 <= inside.y1, label.get_text()
        assert label.get_fontsize() >= 7
        assert not any(axes.get_tightbbox().overlaps(box) for axes in figure.axes), label.get_text()


def test_a_png_is_small_and_shows_what_matplotlib_drew(four_runs, monkeypatch) -> None:
    figures: list[tuple[Figure, bytes]] = []

    def kept(figure: Figure, kind: str, author: str) -> bytes:
        drawn = io.BytesIO()
        data = figure_bytes(figure, kind, author)
        figure.savefig(drawn, format=kind)
        figures.append((figure, drawn.getvalue()))
        return data

    monkeypatch.setattr(plots, "figure_bytes", kept)
    png = pictures(four_runs, kinds=("png",))["png"]
    ((_, drawn),) = figures
    assert len(png) < 0.5 * len(drawn)
    ours, theirs = Image.open(io.BytesIO(png)), Image.open(io.BytesIO(drawn))
    assert ours.info["Software"] == "written by mhsh compare"
    assert ours.info["dpi"] == pytest.approx((240, 240), abs=0.01)
    difference = np.abs(np.asarray(ours.convert("RGB"), int) - np.asarray(theirs.convert("RGB"), int))
    assert difference.max() <= 20
    assert difference.mean() < 1
    assert ours.convert("RGB").getpixel((0, 0)) == (255, 255, 255)


def test_names_are_only_text(make_run) -> None:
    names = ("_hidden", "$\\frac$", "a" * 150, "<b>&", "\u6f22\u5b57")
    comparison = compare(
        load_runs([make_run(name, [3.0, 2.0], record={"data": {"unigram_entropy": 2.5 + len(name)}}) for name in names])
    )
    ET.fromstring(pictures(comparison)["svg"])


def test_runs_without_rows_or_without_a_finite_loss_can_be_drawn(make_run) -> None:
    paths = [make_run("none"), make_run("nan", [float("nan")] * 3), make_run("one", [2.0])]
    assert pictures(compare(load_runs(paths)))["png"].startswith(b"\x89PNG")
