"""Tests of report.html: escaping, the content security policy, and the page in a real browser."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import pytest

from mhsh.report import page, plots
from mhsh.report.comparison import Comparison, compare
from mhsh.report.outputs import MARK
from mhsh.report.runs import load_runs
from tests.report.browser import PROGRAM, Browser

# Folder names that mean something to HTML, to plotly and to templates; the second one's shown name holds `</script>`.
EVIL = ("<script>alert(1)", "a<", "<img src=x onerror=alert(1)>", "$x$ %{y} {{z}} ${1} &lt; <a href='javascript:alert(1)'>")


@pytest.fixture
def evil(make_run) -> Comparison:
    names = (EVIL[0], f"{EVIL[1]}/script><script>alert(2)", "b/script><script>alert(2)", *EVIL[2:])
    paths = [make_run(name, [3.0 - 0.02 * i for i in range(20)], [2.9, 2.6 + 0.01 * n]) for n, name in enumerate(names)]
    return compare(load_runs(paths))


def rendered(comparison: Comparison) -> str:
    return page.render(comparison, plots.picture(comparison)).decode()


def without_plotly(text: str) -> str:
    """The page without the script of plotly.js, whose own text holds all kinds of things."""
    return text.replace(max(re.findall(r"<script>(.*?)</script>", text, re.DOTALL), key=len), "")


def test_the_page_is_one_file_with_everything_in_it(four_runs: Comparison) -> None:
    text = rendered(four_runs)
    own = without_plotly(text)
    assert len(own) < 2_000_000 < len(text)
    assert not re.search(r"""(src|href)=(?!["']?data:)""", own)
    assert "http:" not in own
    assert "https:" not in own
    assert MARK in text[:4096]


def test_the_page_says_what_the_summary_says(four_runs: Comparison) -> None:
    text = without_plotly(rendered(four_runs))
    for words in (
        "<h1>shallow ended lowest: final validation loss 2.250",
        "no error bar",
        "on the unigram plateau",
        "not ranked: diverged",
        "is cut short in line 33",
        "model.num_layers",
        "unigram entropy of its training text minus 0.1 nats",
        "mean over the last 10 %",
    ):
        assert words in text


def test_names_stay_inert(evil: Comparison) -> None:
    text = without_plotly(rendered(evil))
    assert "<script>alert" not in text
    assert "</script><script>" not in text.replace("\n", "").replace("</script><script></script>", "")
    assert "<img src=x" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert "javascript:alert(1)&#x27;&gt;" in text


def test_the_policy_names_the_very_scripts_and_styles_of_the_page(four_runs: Comparison) -> None:
    text = rendered(four_runs)
    match = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert match
    policy = match.group(1).replace("&#x27;", "'")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    for tag in ("script", "style"):
        for content in re.findall(rf"<{tag}(?: id=[^>]*)?>(.*?)</{tag}>", text, re.DOTALL):
            assert base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() in policy


def test_equal_runs_make_equal_bytes(four_runs: Comparison) -> None:
    assert rendered(four_runs) == rendered(four_runs)


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("case", ["four_runs", "evil"])
def test_in_a_browser(case: str, width: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    comparison: Comparison = request.getfixturevalue(case)
    path = tmp_path / "report.html"
    path.write_text(rendered(comparison), encoding="utf-8")
    with Browser(width, dark=width == 400) as browser:
        browser.open(path)
        for switch in ("flops", "validation", "tokens", "seconds", "train"):
            browser.evaluate(f"document.querySelector('input[value={switch}]').click()")
        for switch in ("smooth", "log-y", "close"):
            browser.evaluate(f"document.querySelector('input[name={switch}]').click()")
        browser.evaluate("document.querySelector('input[name=run]').click()")
        browser.evaluate("new Promise(done => setTimeout(done, 300))")
        assert browser.complaints() == []
        assert browser.requests() == [path.resolve().as_uri()]
        assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert browser.evaluate("document.title") == comparison.headline.title
        shown = browser.evaluate("document.getElementById('curves').data.filter(t => t.visible && t.yaxis !== 'y2').length")
        assert shown == len(comparison.runs) - 1
        assert browser.evaluate("document.getElementById('curves').layout.xaxis.title.text").startswith("device seconds")
        buttons = browser.evaluate("[...document.querySelectorAll('.modebar-btn')].map(b => b.dataset.title).join()")
        assert "Zoom" in buttons
        assert "Share" not in buttons
