"""Tests of speed.html: escaping, its policy, and the page in a real browser."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from pathlib import Path

import pytest

from mhsh.config.schema import Config
from mhsh.report.speed import page as speed_page
from mhsh.report.speed.comparison import read_speed
from mhsh.report.speed.cost import costs
from mhsh.verdict.runs import load_runs
from tests.report.browser import PROGRAM, Browser
from tests.report.speed_files import two_shapes, write

EVIL = ("<script>alert(1)</script>", "$\\frac$ <img src=x onerror=alert(1)> &lt; \"' %{y} \x1b[31m\u202e")


@pytest.fixture(scope="module")
def rendered() -> dict[str, bytes]:
    """The pages that were rendered already; it takes seconds."""
    return {}


@pytest.fixture(params=["plain", "evil"])
def page(request: pytest.FixtureRequest, tmp_path: Path, make_run, shapes: dict[str, Config], rendered: dict[str, bytes]) -> bytes:
    """Of an inference and of a training file, with the device-hours of a run that has some and of
    one that does not.
    """
    if request.param in rendered:
        return rendered[request.param]
    labels = EVIL if request.param == "evil" else ("mhsh 2L8H admin", "mhsh 16L1H admin")
    names = ("<script>alert(2)<", "none<img src=x>") if request.param == "evil" else ("reaches", "does not")
    kinds = ("inference", "train")
    speed = read_speed([write(tmp_path / f"{kind}.json", two_shapes(shapes, kind, labels)) for kind in kinds])
    runs = load_runs([make_run(names[0], [], [3.0, 1.0]), make_run(names[1], [], [3.0, 2.9])]).runs
    rendered[request.param] = speed_page.render(speed, costs(runs, speed.rows, 2.0), 2.0)
    return rendered[request.param]


def test_everything_is_inert_and_in_one_file(page: bytes) -> None:
    text = page.decode()
    assert "<script" not in text and "<img src=x" not in text and "\x1b" not in text and "\u202e" not in text
    assert not re.search(r"""(src|href)=(?!"data:image/svg)""", text.replace("&lt;img src=x", ""))
    assert not re.search(r'\s(style|on\w+)="', text)
    assert "written by mhsh speed" in text[:4096]
    for svg in re.findall(r'base64,([^"]*)"', text):
        assert b"<script" not in base64.b64decode(svg)


@pytest.mark.parametrize("page", ["plain"], indirect=True)
def test_what_it_says(page: bytes) -> None:
    text = page.decode()
    for words in (
        "<h1>Speed in inference and training: 16L1H admin against 2L8H admin</h1>",
        "Training: 16L1H admin is faster than 2L8H admin at 2 of 6 settings, slower at 2, with no significant difference at 2.",
        "At length 32, 2L8H admin overtakes 16L1H admin at batch 2 ",
        "did not reach 2: its lowest validation loss is 2.900",
        "with a probability of 95% or more: of many intervals up to 5% miss it by chance.",
    ):
        assert words in text
    # matplotlib draws letters as shapes, and names each text in a comment.
    (hours,) = re.findall(r'alt="Device-hours[^"]*" src="[^"]*base64,([^"]*)"', text)
    assert b"<!-- reaches on Abacus 7 -->" in base64.b64decode(hours)


@pytest.mark.parametrize("page", ["plain"], indirect=True)
def test_the_policy_lets_its_own_style_pass_and_no_script(page: bytes) -> None:
    text = page.decode()
    match = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    styles = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert match and len(styles) == 1
    hashed = base64.b64encode(hashlib.sha256(styles[0].encode()).digest()).decode()
    policy = html.unescape(match.group(1))
    assert policy == f"default-src 'none'; style-src 'sha256-{hashed}'; img-src data:; base-uri 'none'; form-action 'none'"


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("width", [1280, 400])
def test_in_a_browser(page: bytes, width: int, tmp_path: Path) -> None:
    path = tmp_path / "speed.html"
    path.write_bytes(page)
    with Browser(width, dark=width == 400) as browser:
        browser.call("Page.navigate", url=path.resolve().as_uri())
        for _ in range(200):
            if browser.evaluate("location.protocol === 'file:' && document.readyState === 'complete'"):
                break
            browser.evaluate("new Promise(done => setTimeout(done, 100))")
        browser.evaluate("Promise.all([...document.images].map(image => image.decode()))")
        assert browser.complaints() == []
        assert {address.split(":")[0] for address in browser.requests()} == {"file", "data"}
        assert browser.evaluate("document.images.length") == 13  # two maps, hours, and 2 x 2 and 2 x 3 panels
        assert browser.evaluate("[...document.images].every(image => image.naturalWidth > 100 && image.alt)")
        assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        # The style sheet passed the policy.
        assert browser.evaluate("getComputedStyle(document.querySelector('.pictures')).display") == "flex"
