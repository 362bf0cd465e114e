"""Tests of a Report's page in a real browser: what its scripts draw, and how it is used."""

from __future__ import annotations

import base64
import dataclasses
import itertools
import json
import re
import shutil
import subprocess
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from mhsh.report.curves import difference_lines, group_lines
from mhsh.report.html import to_html
from mhsh.report.report import Point, Points, Reference, Report, Series
from tests.report.browser import PROGRAM, Browser
from tests.report.reports import EVIL, content_of, planted_report

IN_BROWSER = pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine")
NAMES = "[...document.querySelectorAll('.plot')][0].chart.lines.map(line => line.name)"
LINES = "[...document.querySelectorAll('.plot')][0].chart.lines"


def opened(browser: Browser, report: Report, folder: Path, hash: str = "") -> str:
    """Writes the page, opens it and waits until its figures are drawn. Its address."""
    path = folder / "report.html"
    path.write_bytes(to_html(report))
    address = path.resolve().as_uri()
    browser.call("Page.navigate", url=address + hash)
    browser.wait("!!document.body && document.body.dataset.ready === 'true'")
    return address


def choose(browser: Browser, **fields: str | bool) -> None:
    """Sets switches by their names, as a reader does."""
    for name, value in fields.items():
        prop = "checked" if isinstance(value, bool) else "value"
        browser.evaluate(
            f"(f => {{ f.{prop} = {json.dumps(value)}; f.dispatchEvent(new Event('input', {{bubbles: true}})); }})"
            f"(document.getElementById('switches').elements['{name.replace('_', '-')}'])"
        )


def show_metric(browser: Browser, key: str) -> None:
    browser.evaluate(f"document.querySelector('input[name=metric][value={key}]').click()")


def drag(browser: Browser, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Draws a box over the first plot, in shares of its area."""
    area = browser.evaluate(
        "(r => [r.left, r.top, r.width, r.height])(document.querySelector('.plot .u-over').getBoundingClientRect())"
    )
    places = [(area[0] + x * area[2], area[1] + y * area[3]) for x, y in (start, end)]
    kinds = ("mouseMoved", "mousePressed", "mouseMoved", "mouseReleased")
    for kind, (x, y) in zip(kinds, (places[0], places[0], places[1], places[1]), strict=True):
        browser.call(
            "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=int(kind != "mouseReleased"), clickCount=1
        )


@IN_BROWSER
def test_a_view_its_address_and_its_pictures(report: Report, tmp_path: Path) -> None:
    """The cheap one of the tests in a browser: one page, one browser."""
    curves = report.curves
    assert curves is not None
    with Browser(1280) as browser:
        address = opened(browser, report, tmp_path)
        assert browser.evaluate("document.getElementById('curves').getBoundingClientRect().top") < 500
        # It opens on the means of the validation loss, as the files beside it show them.
        for view, lines_of in (("groups", group_lines), ("difference", difference_lines)):
            choose(browser, view=view)
            for split in ("validation", "train"):
                choose(browser, split=split)
                expected = [line for place in (0, 1) for line in lines_of(curves, place, split)]
                drawn = browser.evaluate(f"{LINES}.map(l => [l.x, l.y, l.low, l.high])")
                assert len(drawn) == len(expected) == (2 if view == "groups" else 1)
                for ours, theirs in zip(expected, drawn, strict=True):
                    np.testing.assert_allclose(np.array(theirs, dtype=float), np.array(ours), rtol=1e-9, atol=1e-12)
        # A difference shows zero and all of its band, also where the baseline is hidden.
        choose(browser, view="difference", split="validation", hide="0,1,2")
        (low, high), bands = browser.evaluate(
            f"[document.querySelector('.plot').chart.o.ranges.y, {LINES}.flatMap(l => [...l.low, ...l.high])]"
        )
        assert low < min(0, *bands) and high > max(0, *bands)
        choose(browser, hide="")
        # A value is where its line ends, also inside the plot, and nothing joins it to the edge.
        shapes = (
            "report.shapes(p.chart.plot, [{...p.chart.lines[0], x: [5, 9, 12], y: [0.1, 0.1, 0.11], low: null}], p.chart.o).free"
        )
        ends = browser.evaluate(
            f"(p => {shapes}.map(s => [s.text, s.x - p.chart.plot.valToPos(12, 'x')]))(document.querySelector('.plot'))"
        )
        assert [text for text, _ in ends] == ["+0.110"] and 0 < ends[0][1] < 12
        # A logarithmic axis has several ticks, and not only at powers of ten.
        choose(browser, view="groups", log_x=True, log_y=True)
        ticks = browser.evaluate("document.querySelector('.plot').chart.plot.axes.map(axis => axis._splits)")
        assert all(3 <= len(each) <= 20 for each in ticks) and ticks[0][0] >= 10
        # A band goes down to the frame where its end is not above zero, and leaves out a gap.
        y = "y: [2, 2, null, 2, 2], high: [2.3, 2.3, null, 2.3, 2.3], low: [2.2, -1, null, 2.2, 2.2]"
        line = f"{{...p.chart.lines[0], x: [5, 9, 12, 14, 15], {y}}}"
        bands = browser.evaluate(
            f"(p => report.shapes(p.chart.plot, [{line}], p.chart.o).clipped.filter(s => s.fill && s.opacity).map(s => s.d))"
            "(document.querySelector('.plot'))"
        )
        corners = [re.findall(r"[ML]\S+ (\S+?)(?=L|$)", piece) for piece in bands[0].split("Z")[:-1]]
        height = browser.evaluate("document.querySelector('.plot').chart.plot.over.clientHeight")
        assert len(bands) == 1 and [[float(y) > height for y in piece] for piece in corners] == [[False] * 3 + [True], [False] * 4]
        choose(browser, log_x=False, log_y=False)
        # A loss near 0 has digits, and a huge one no zeros.
        numbers = browser.evaluate("[2.5, -0.1, 0, 2.34e-5, 2e12].map(loss => report.metricNumber('loss', loss, 3))")
        assert numbers == ["2.500", "\u22120.100", "0.000", "2.340e-5", "2T"]
        # What says that there is nothing goes when there is something.
        choose(browser, search="no such run")
        nothing = "(o => o.hidden ? '' : o.textContent)(document.querySelector('.plot output'))"
        assert browser.evaluate(nothing) == "None of the runs shown logged this."
        choose(browser, search="")
        assert browser.evaluate(nothing) == ""
        # Rows are sorted by the numbers behind them.
        sorts = "document.querySelector('#claim .first table [data-sort=\"0\"]').click()"
        names = "[...document.querySelectorAll('#claim .first tbody th')].map(th => th.textContent.trim())"
        before = browser.evaluate(names)
        assert [browser.evaluate(f"{sorts}, {names}") for _ in range(2)] == [before, before[::-1]]  # 6 before 24
        # The first screen's y-axis shows the lines, not their bands.
        choose(browser, view="groups", split="validation")
        low, high = browser.evaluate("document.querySelector('.plot').chart.o.ranges.y")
        assert 2.0 < low < 2.11 and 2.4 < high < 2.55
        # A box zooms in both directions, Escape shows the whole.
        drag(browser, (0.2, 0.2), (0.7, 0.6))
        x, y = browser.evaluate("(r => [r.x, r.y])(document.querySelector('.plot').chart.o.ranges)")
        assert x == pytest.approx([14, 24], abs=0.2) and y == pytest.approx(
            [high - 0.6 * (high - low), high - 0.2 * (high - low)], abs=0.01
        )
        browser.evaluate("document.querySelector('[data-does=whole]').click()")
        drag(browser, (0.2, 0.5), (0.7, 0.5))
        assert browser.evaluate("[report.state().x.map(Math.round), report.state().y]") == [[14, 24], {"": None}]
        browser.evaluate("document.querySelector('[data-does=whole]').click()")
        assert browser.evaluate("location.href") == address
        # Metrics side by side.
        choose(browser, split="train")
        show_metric(browser, "grad_norm")
        values = browser.evaluate("[...document.querySelectorAll('#curves .plot')].map(p => [p.metric, p.chart.lines[0].y[0]])")
        assert [name for name, _ in values] == ["loss", "grad_norm"] and values[1][1] == 1
        show_metric(browser, "grad_norm")
        choose(
            browser, axis="tokens", view="runs", split="train", smoothing="4", search="num_layers>6 num_layers<13 seed", log_y=True
        )
        assert browser.evaluate(NAMES) == [f"24x1 admin seed {seed}" for seed in range(3)]
        assert browser.evaluate("document.getElementById('smoothing-words').textContent") == "mean of 4 rows"
        raw, smoothed = browser.evaluate(f"(l => [l.raw.y, l.y])({LINES}[0])")
        assert smoothed[9] == pytest.approx(sum(raw[6:10]) / 4)
        assert browser.evaluate("[...document.querySelectorAll('tr[data-run]')].map(row => row.hidden)") == [True] * 3 + [False] * 3
        told = browser.evaluate("location.hash")
        svg = browser.evaluate("report.svg()")
        png = browser.evaluate(
            "report.png().then(blob => new Promise(done => {"
            " const reader = new FileReader(); reader.onload = () => done(reader.result); reader.readAsDataURL(blob); }))"
        )
        assert browser.complaints() == []
        assert all(each.startswith(("file:", "blob:", "data:")) for each in browser.requests())
    assert told == "#split=train&axis=tokens&view=runs&smoothing=4&search=num_layers%3E6+num_layers%3C13+seed&log-y=1"
    root = ElementTree.fromstring(svg)
    texts = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"24x1 admin seed 1", "training tokens", "training loss, nats per token"} <= set(texts)
    content = base64.b64decode(png.split(",")[1])
    assert content.startswith(b"\x89PNG") and int.from_bytes(content[16:20]) == 2 * int(root.attrib["width"])


@pytest.mark.slow
@IN_BROWSER
def test_final_values_stand_beside_the_curves_and_do_not_collide(tmp_path: Path) -> None:
    report = planted_report([f"{layers}x1 admin" for layers in range(1, 13)])
    with Browser(1280) as browser:
        opened(browser, report, tmp_path)
        texts = "report.shapes(p.chart.plot, p.chart.lines, p.chart.o).free.filter(s => s.text).map(s => [s.text, s.y])"
        ends = browser.evaluate(f"(p => {texts})(document.querySelector('.plot'))")
        assert len(ends) == 12 and ends[0][0] == "2.110 1x1 admin"
        heights = sorted(height for _, height in ends)
        assert min(b - a for a, b in itertools.pairwise(heights)) >= 14 - 1e-6
        numbers = [3.0, 1.0, 1.5, 40.0, 41.0]
        assert browser.evaluate(f"report.spread({numbers}, 4, 2, 43)") == [9, 2, 5, 39, 43]
        assert browser.complaints() == []


@pytest.mark.slow
@IN_BROWSER
def test_an_address_opens_the_view_that_was_sent(report: Report, tmp_path: Path) -> None:
    sent = "#split=train&axis=seconds&view=runs&hide=0%2C4&x=1%2C2.5&y=loss%3A2%2C3&open=conditions-fold"
    with Browser(1280) as browser:
        opened(browser, report, tmp_path, sent)
        assert browser.evaluate(NAMES) == [f"6x4 post_ln seed {seed}" for seed in (1, 2)] + [f"24x1 admin seed {s}" for s in (0, 2)]
        assert browser.evaluate("(r => [r.x, r.y])(document.querySelector('.plot').chart.o.ranges)") == [[1, 2.5], [2, 3]]
        assert browser.evaluate("document.getElementById('conditions-fold').open")
        assert set(browser.evaluate("location.hash.slice(1)").split("&")) == set(sent[1:].split("&"))
        browser.evaluate("location.hash = '#view=runs&by=model.num_layers'")
        browser.wait(f"{NAMES}.length === 6")
        assert browser.evaluate(f"new Set({LINES}.map(line => line.color)).size") == 2
        assert browser.evaluate(NAMES)[0] == "6x4 post_ln seed 0 (6)"
        choose(browser, view="groups")
        assert browser.evaluate(NAMES) == ["model.num_layers = 6", "model.num_layers = 12"]
        # The y-axis by hand.
        change = "f.value = '1.5'; f.dispatchEvent(new Event('change', {bubbles: true}))"
        browser.evaluate(f"(f => {{ {change}; }})(document.querySelector('[data-end]'))")
        assert browser.evaluate("document.querySelector('.plot').chart.o.ranges.y[0]") == 1.5
        # Nonsense is not a view.
        browser.evaluate("location.hash = '#metric.none=1&x=b&y=loss&hide=x&smoothing=-3&view=none'")
        browser.wait(f"{NAMES}.length === 2")
        assert browser.complaints() == []


@pytest.mark.slow
@IN_BROWSER
@pytest.mark.parametrize("width", [1280, 800, 400])
@pytest.mark.parametrize("names", [("6x4 post_ln", "24x1 admin"), EVIL], ids=["plain", "evil"])
def test_in_a_browser(names: tuple[str, ...], width: int, tmp_path: Path) -> None:
    report = planted_report(names)
    with Browser(width, dark=width == 400) as browser:
        address = opened(browser, report, tmp_path)
        assert browser.evaluate("document.getElementById('curves').getBoundingClientRect().top") < (560 if width == 1280 else 1100)
        for view in ("difference", "runs", "groups"):
            choose(browser, view=view, split="train")
            for axis in ("tokens", "seconds"):
                choose(browser, axis=axis)
        choose(browser, view="runs", log_x=True, log_y=True, raw=False, smoothing="8")
        show_metric(browser, "grad_norm")
        browser.evaluate("document.querySelector('#legend input').click()")
        browser.evaluate("document.querySelector('[data-does=end]').click()")
        browser.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
        assert browser.complaints() == []
        assert browser.requests() == [address]
        assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert browser.evaluate(f"{NAMES}.length") == 3 * len(names) - 1
        assert browser.evaluate("document.querySelector('.plot').chart.plot.scales.x.distr") == 3


@pytest.mark.slow
@IN_BROWSER
def test_the_page_is_used_by_keyboard_alone(report: Report, tmp_path: Path) -> None:
    with Browser(1280) as browser:
        opened(browser, report, tmp_path)
        reached = []
        while not reached or (reached[-1] != "search" and len(reached) < 40):
            browser.press("Tab", 9)
            reached.append(
                browser.evaluate("(e => e.name || e.dataset.does || e.className || e.type || e.tagName)(document.activeElement)")
            )
            if reached[-1] == "axis":
                browser.press("ArrowDown", 40)
            if reached[-1] == "plot":
                browser.press("End", 35)
                read = browser.evaluate("document.querySelector('.plot output').innerText")
                browser.press("+", 187, "+")
                zoomed = browser.evaluate("report.state().x")
            if reached[-1] == "checkbox":
                browser.press(" ", 32, " ")
        switches = ["split", "axis", "view", "by", "png", "svg", "plot", "checkbox", "checkbox", "search"]
        assert [each or "SUMMARY" for each in reached if each not in ("button", "scroll ")] == [
            "small",
            "scroll first",
            "SUMMARY",
            *switches,
        ]
        assert browser.evaluate("report.state().axis") == "tokens"
        assert read.startswith("15,360 tokens \u2014 validation loss, nats per token") and "24x1 admin\t2.2" in read
        assert zoomed[0] > 5000
        assert browser.evaluate(NAMES) == []


@pytest.mark.slow
@IN_BROWSER
def test_figures_are_read_where_there_are_no_curves(report: Report, tmp_path: Path) -> None:
    with Browser(800) as browser:
        opened(browser, dataclasses.replace(report, curves=None), tmp_path)
        browser.evaluate("document.querySelector('[data-points]').focus()")
        for key, code in (("End", 35), ("Escape", 27), ("ArrowLeft", 37)):
            browser.press(key, code)
        read = browser.evaluate("document.querySelector('[data-points] output').innerText")
        assert read.startswith("0.001953 \u2014 final validation loss") and "6x4 post_ln: 3 seeds\t2.9 (2.76 to 3.18)" in read
        assert browser.complaints() == []


@pytest.mark.slow
@IN_BROWSER
def test_an_interval_that_is_open_goes_on_to_the_frame_and_is_read_so(report: Report, tmp_path: Path) -> None:
    ends = [(1.9, None), (None, 2.1), (None, None)]
    points = (*(Point(2.0**place, 2.0, *each, is_open=True) for place, each in enumerate(ends)), Point(8.0, 2.0))
    figure = Points("Open", "x", "y", (Series("a", points),), (Reference(0.0, "zero"),))
    with Browser(800) as browser:
        opened(browser, dataclasses.replace(report, curves=None, points=(figure,)), tmp_path)
        bars = browser.evaluate(
            "(p => report.shapes(p.chart.plot, p.chart.lines, p.chart.o).free.filter(s => s.width).map(s => s.d))"
            "(document.querySelector('.plot'))"
        )
        height = browser.evaluate("document.querySelector('.plot').chart.plot.over.clientHeight")
        spans = [re.findall(r"M\S+ (\S+?)V([^M]+)", bar)[0] for bar in bars]
        assert [high == "0" for _, high in spans] == [True, False, True]
        assert [low == str(height) for low, _ in spans] == [False, True, True]
        read = browser.evaluate(
            "(p => p.chart.lines[0].x.map(x => (p.chart.plot.setCursor({ left: p.chart.plot.valToPos(x, 'x'), top: 9 }),"
            " p.querySelector('output').innerText.split('\\t').pop())))(document.querySelector('.plot'))"
        )
        assert read == ["2 (at least 1.9)", "2 (up to 2.1)", "2 (no bound)", "2"] and browser.complaints() == []


@pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js on this machine")
def test_a_difference_is_drawn_against_every_axis(report: Report) -> None:
    """Shapes have unequal parameters, and hence no place in common of tokens a parameter."""
    content = content_of(to_html(report).decode())
    for place, run in enumerate(content["runs"]):
        run["curves"]["validation"]["rows"]["x"]["tokens_per_parameter"] = 1.01 if place < 3 else 1.0
    axes = [*content["axes"], "tokens_per_parameter"]
    lines = "report.lines({axis, split: 'validation', view: 'difference', by: '', smoothing: 0}, 'loss', () => true)"
    program = f"""
        global.window = {{}};
        {resources.files("mhsh.report").joinpath("page", "lines.js").read_text(encoding="utf-8")}
        const report = window.report;
        report.content = {json.dumps(content)};
        console.log(JSON.stringify({json.dumps(axes)}.map(axis => {lines}.map(line => line.y.filter(y => y !== null).length))));
    """
    done = subprocess.run(["node", "-"], input=program, capture_output=True, text=True, check=True)
    (of_steps,), (of_tokens,), (of_seconds,), (of_share,) = json.loads(done.stdout)
    assert of_steps == of_tokens == 3 and of_seconds >= 3 and of_share >= 3


@pytest.mark.slow
@IN_BROWSER
def test_fifty_runs_hold(tmp_path: Path) -> None:
    report = planted_report([f"{layers}x1 admin" for layers in range(1, 11)], seeds=5, rows=200)
    assert len(to_html(report)) < 800_000
    with Browser(1280) as browser:
        opened(browser, report, tmp_path)
        assert browser.evaluate("document.getElementById('curves').getBoundingClientRect().top") < 620
        choose(browser, view="runs")
        assert browser.evaluate(f"{NAMES}.length") == 50
        browser.evaluate("document.getElementById('table1-fold').open = true")
        heights = browser.evaluate("[...document.querySelectorAll('tr[data-run]')].map(row => row.offsetHeight)")
        assert len(heights) == 50 and max(heights) < 40  # one line each
        choose(browser, search="num_layers=12")
        assert browser.evaluate("document.getElementById('found').textContent") == "5 of 50 runs"
        assert browser.complaints() == []
