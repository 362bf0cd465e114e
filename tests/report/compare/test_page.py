"""Tests of report.html: escaping, the content security policy, and the page in a real browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import pytest
from markupsafe import escape

from mhsh.report.compare import page, plots
from mhsh.report.compare.chart import describe_chart
from mhsh.report.compare.comparison import Comparison, compare
from mhsh.report.render.outputs import MARK
from mhsh.verdict.curves import AXES
from mhsh.verdict.runs import load_runs
from tests.report.browser import PROGRAM, Browser

# Folder names that mean something to HTML and to templates; the second one's shown name
# holds `</script>`.
EVIL = ("<script>alert(1)", "a<", "<img src=x onerror=alert(1)>", "$x$ %{y} {{z}} ${1} &lt; <a href='javascript:alert(1)'>")


@pytest.fixture
def evil(make_run) -> Comparison:
    names = (EVIL[0], f"{EVIL[1]}/script><script>alert(2)", "b/script><script>alert(2)", *EVIL[2:])
    paths = [make_run(name, [3.0 - 0.02 * i for i in range(20)], [2.9, 2.6 + 0.01 * n]) for n, name in enumerate(names)]
    return compare(load_runs(paths))


@pytest.fixture
def evil_groups(make_run) -> Comparison:
    """Two groups of two seeds whose names, data, devices and library versions mean something to
    HTML; the data differ.
    """
    paths = [
        make_run(
            f"{name} shape {seed}",
            [3.0 - 0.02 * i - 0.01 * seed for i in range(20)],
            [2.9, 2.6 + 0.1 * group + 0.01 * seed],
            training={"seed": seed},
            model={"residual": ("post_ln", "admin")[group]},
            record={
                "data": {"fingerprint": f"</script><script>alert(3)</script>{group}", "unigram_entropy": 2.95},
                "devices": EVIL[2],
                "versions": {"<b>%{y}</b>": "</td>", "jax": EVIL[0]},
                "parameters": {"total": 1000, "<i>": 1000 + group},
            },
        )
        for group, name in enumerate((EVIL[0], EVIL[2]))
        for seed in range(2)
    ]
    return compare(load_runs(paths))


def rendered(comparison: Comparison) -> str:
    return page.render(comparison, plots.pictures(comparison)["png"]).decode()


def without_scripts(text: str) -> str:
    """The page without its scripts, whose own text holds all kinds of things."""
    return re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)


def test_the_page_is_one_file_with_everything_in_it(four_runs: Comparison) -> None:
    text = rendered(four_runs)
    own = without_scripts(text)
    assert len(text) < 400_000
    assert not re.search(r"""(src|href)=(?!["']?data:)""", own)
    assert "http:" not in own
    assert "https:" not in own
    assert MARK in text[:4096]


def test_the_page_says_what_the_summary_says(four_runs: Comparison) -> None:
    text = without_scripts(rendered(four_runs))
    for words in (
        "<h1>stuck and diverged did not train; shallow and cut did, within 0.650 nats per predicted token",
        "no error bar",
        "on the unigram plateau",
        "not ranked: diverged",
        "is cut short in line 33",
        "model.num_layers",
        "unigram entropy of its training text minus 0.1 nats",
        "mean over the last 10 %",
    ):
        assert words in text


@pytest.mark.parametrize("case", ["evil", "evil_groups"])
def test_names_stay_inert(case: str, request: pytest.FixtureRequest) -> None:
    text = without_scripts(rendered(request.getfixturevalue(case)))
    assert "<script>alert" not in text
    assert "</script><script>" not in text.replace("\n", "").replace("</script><script></script>", "")
    assert "<img src=x" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert not re.search(r"<(b|i|img src=x[^>]*|/td></td)>", text)


def test_the_evil_is_there_in_words(evil: Comparison, evil_groups: Comparison) -> None:
    assert [group.name for group in evil_groups.groups] == [f"{EVIL[0]} shape", f"{EVIL[2]} shape"]
    text = without_scripts(rendered(evil_groups))
    for value in ("</script><script>alert(3)</script>0", EVIL[2], "version of <b>%{y}</b>", "</td>", "<i> parameters"):
        assert str(escape(value)) in text
    assert "javascript:alert(1)&#39;&gt;" in without_scripts(rendered(evil))


def test_the_order_is_claim_chart_problems_groups_runs_conditions_rules(four_runs: Comparison) -> None:
    text = without_scripts(rendered(four_runs))
    places = [
        text.index(f'id="{name}"')
        for name in ("claim", "controls", "curves", "legend", "more", "problems", "groups", "runs", "fairness", "rules")
    ]
    assert places == sorted(places)


def test_what_matters_is_told_first_in_the_table_and_in_the_conditions(two_groups: Comparison) -> None:
    text = without_scripts(rendered(two_groups))
    claim, groups, fairness = (
        text[text.index(f'id="{part}"') : text.index(f'id="{after}"')]
        for part, after in (("claim", "controls"), ("groups", "runs"), ("fairness", "rules"))
    )
    assert '<details class="verdict unfair-verdict" id="verdict-fold">\n<summary>Not comparable: different dropout' in claim
    assert "<li>Not equal: dropout: " in claim
    assert "How sure: " in claim
    assert groups.count('title="other dropout than the baseline"') == 1
    assert fairness[fairness.index("<tbody>") :].startswith(
        '<tbody>\n<tr class="unfair"><th scope="row">dropout</th><td><strong class="sign">\u2260 losses are not comparable'
    )


def test_the_ledger_shows_differences_and_folds_the_rest(two_groups: Comparison) -> None:
    text = without_scripts(rendered(two_groups))
    conditions = text[text.index('id="conditions-fold"') : text.index('id="config-fold"')]
    shown, folded = conditions.split('<details id="conditions-all-fold">')
    assert "dropout" in shown and "data fingerprint" not in shown
    assert "data fingerprint" in folded and ">dropout<" not in folded
    config = text[text.index('id="config-fold"') :].split('<details id="config-all-fold">')
    assert "<strong>2</strong>" in config[0] and "model.num_layers" in config[0] and "optimizer.beta2" in config[1]


def test_no_sentence_stands_a_dozen_times_and_no_number_is_overlong(four_runs: Comparison) -> None:
    text = without_scripts(rendered(four_runs))
    content = re.sub(r"<script.*?</script>|<style.*?</style>|<img[^>]*>|<meta[^>]*>", "", text, flags=re.DOTALL)
    words = [unescape(each).strip() for each in re.findall(r">([^<>]+)<", content)]
    often = [each for each in set(words) if len(each.split()) > 4 and words.count(each) > len(four_runs.runs)]
    assert often == []
    assert not re.search(r"[0-9a-f]{64}|\d\.\d{7}", content)


def test_the_live_page_may_ask_its_server_and_no_other(four_runs: Comparison) -> None:
    live, kept = page.render_live(four_runs, describe_chart(four_runs)).decode(), rendered(four_runs)
    assert "connect-src &#39;self&#39;;" in live
    assert "connect-src &#39;none&#39;;" in kept
    assert "/update" in live
    assert "/update" not in without_scripts(kept)


def test_the_pieces_are_the_parts_and_the_figure_of_the_page(two_groups: Comparison) -> None:
    curves = describe_chart(two_groups)
    live = page.render_live(two_groups, curves).decode()
    pieces = {name: json.loads(piece) for name, piece in page.pieces(two_groups, curves).items()}
    assert pieces["title"] == two_groups.headline.title
    for place, html in [(name.removeprefix("part "), piece) for name, piece in pieces.items() if name.startswith("part ")]:
        assert f'id="{place}"' in live
        assert html in live
    content = re.search(r'<script type="application/json" id="content">(.*?)</script>', live)
    assert content is not None
    whole = json.loads(content.group(1))
    assert [pieces[f"run {place}"] for place in range(len(two_groups.runs))] == whole.pop("runs")
    assert {name.removeprefix("content "): piece for name, piece in pieces.items() if name.startswith("content ")} == whole


def test_the_policy_names_the_very_scripts_and_styles_of_the_page(four_runs: Comparison) -> None:
    text = rendered(four_runs)
    match = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert match
    policy = unescape(match.group(1))
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    for tag in ("script", "style"):
        for content in re.findall(rf"<{tag}(?: id=[^>]*)?>(.*?)</{tag}>", text, re.DOTALL):
            assert base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() in policy


def test_equal_runs_make_equal_bytes(four_runs: Comparison) -> None:
    assert rendered(four_runs) == rendered(four_runs)


IN_BROWSER = pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine")


def choose(browser: Browser, **fields: str | bool) -> None:
    """Sets switches by their names, as a reader does."""
    for name, value in fields.items():
        prop = "checked" if isinstance(value, bool) else "value"
        browser.evaluate(
            f"(f => {{ f.{prop} = {json.dumps(value)}; f.dispatchEvent(new Event('input', {{bubbles: true}})); }})"
            f"(document.getElementById('switches').elements['{name.replace('_', '-')}'])"
        )


NAMES = "report.view().lines.map(line => line.name)"


@IN_BROWSER
def test_a_view_its_address_and_its_pictures(two_groups: Comparison, tmp_path: Path) -> None:
    """The cheap one of the tests in a browser: one page, one browser."""
    path = tmp_path / "report.html"
    path.write_text(rendered(two_groups), encoding="utf-8")
    with Browser(1280) as browser:
        browser.open(path)
        assert browser.evaluate("document.getElementById('curves').getBoundingClientRect().top") < 500
        assert browser.evaluate(NAMES) == ["shallow", "deep"]
        # The mean and its interval are those of the tables and of curves.png.
        for axis in AXES:
            choose(browser, axis=axis)
            band = two_groups.groups[1].bands["train"][axis]
            x, y, low, high = browser.evaluate("(l => [l.x, l.y, l.low, l.high])(report.view().lines[1])")
            assert x == pytest.approx(band.x, rel=1e-6) and y == pytest.approx(band.mean, rel=1e-5)
            assert low == pytest.approx(band.low, rel=1e-5) and high == pytest.approx(band.high, rel=1e-5)
        choose(browser, axis="tokens", view="runs", smoothing="4", search="num_layers>2 seed=1", log_y=True)
        assert browser.evaluate(NAMES) == ["deep seed 1"]
        assert browser.evaluate("document.getElementById('smoothing-words').textContent") == "mean of 4 rows"
        raw, smoothed = browser.evaluate("(l => [l.raw.y, l.y])(report.view().lines[0])")
        assert smoothed[9] == pytest.approx(sum(raw[6:10]) / 4)
        assert browser.evaluate("[...document.querySelectorAll('tr[data-run]')].map(row => row.hidden)") == [True] * 4 + [
            False,
            True,
        ]
        address = browser.evaluate("location.href")
        svg = browser.evaluate("report.svg()")
        png = browser.evaluate(
            "report.png().then(blob => new Promise(done => {"
            " const reader = new FileReader(); reader.onload = () => done(reader.result); reader.readAsDataURL(blob); }))"
        )
        assert browser.complaints() == []
        assert browser.requests()[0] == path.resolve().as_uri()
        assert all(each.startswith(("file:", "blob:", "data:")) for each in browser.requests())
    assert address.endswith("#axis=tokens&view=runs&smoothing=4&search=num_layers%3E2+seed%3D1&log-y=1")
    root = ElementTree.fromstring(svg)
    texts = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "deep seed 1 \u2260" in texts and "training tokens" in texts and "training loss, nats per token" in texts
    content = base64.b64decode(png.split(",")[1])
    assert content.startswith(b"\x89PNG") and int.from_bytes(content[16:20]) == 2 * int(root.attrib["width"])


@pytest.mark.slow
@IN_BROWSER
def test_an_address_opens_the_view_that_was_sent(two_groups: Comparison, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(rendered(two_groups), encoding="utf-8")
    sent = path.resolve().as_uri() + "#split=validation&axis=seconds&view=runs&hide=0%2C4&zoom=1%2C2.5&open=config-fold"
    with Browser(1280) as browser:
        browser.visit(sent)
        assert browser.evaluate(NAMES) == ["shallow seed 1", "shallow seed 2", "deep seed 0", "deep seed 2"]
        assert browser.evaluate("[report.view().plot.scales.x.min, report.view().plot.scales.x.max]") == [1, 2.5]
        assert browser.evaluate("document.getElementById('config-fold').open")
        assert set(browser.evaluate("location.hash.slice(1)").split("&")) == set(sent.split("#")[1].split("&"))
        browser.evaluate("location.hash = '#view=runs&by=model.num_layers'")
        browser.wait(f"{NAMES}.length === 6")
        assert browser.evaluate("new Set(report.view().lines.map(line => line.color)).size") == 2
        assert browser.evaluate(NAMES)[0] == "shallow seed 0 (2)"
        choose(browser, view="groups")
        assert browser.evaluate(NAMES) == ["model.num_layers = 2", "model.num_layers = 16"]
        # Nonsense is not a view.
        browser.evaluate("location.hash = '#metric=none&zoom=b&hide=x&smoothing=-3'")
        browser.wait(f"{NAMES}.length === 2")
        assert browser.complaints() == []


@pytest.mark.slow
@IN_BROWSER
@pytest.mark.parametrize("width", [1280, 800, 400])
@pytest.mark.parametrize("case", ["four_runs", "two_groups", "evil", "evil_groups"])
def test_in_a_browser(case: str, width: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    comparison: Comparison = request.getfixturevalue(case)
    path = tmp_path / "report.html"
    path.write_text(rendered(comparison), encoding="utf-8")
    with Browser(width, dark=width == 400) as browser:
        browser.open(path)
        assert browser.evaluate("document.getElementById('curves').getBoundingClientRect().top") < (500 if width == 1280 else 800)
        choose(browser, view="runs")
        for name in ("flops", "tokens", "seconds"):
            choose(browser, axis=name)
        choose(browser, split="validation")
        choose(browser, split="train", log_x=True, log_y=True, raw=False, smoothing="8")
        browser.evaluate("document.querySelector('#legend input').click()")
        browser.evaluate("document.querySelector('[data-does=end]').click()")
        browser.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
        assert browser.complaints() == []
        assert browser.requests() == [path.resolve().as_uri()]
        assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert browser.evaluate("document.title") == comparison.headline.title
        assert browser.evaluate(f"{NAMES}.length") == len(comparison.runs) - 1
        assert browser.evaluate("report.view().plot.axes[0].label") == "device seconds of training (compilation excluded)"
        assert browser.evaluate("report.view().plot.scales.x.distr") == 3


@pytest.mark.slow
@IN_BROWSER
def test_the_page_is_used_by_keyboard_alone(two_groups: Comparison, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(rendered(two_groups), encoding="utf-8")
    with Browser(1280) as browser:
        browser.open(path)
        reached = []
        for _ in range(24):
            browser.press("Tab", 9)
            reached.append(
                browser.evaluate("(e => e.name || e.id || e.dataset.does || e.type || e.tagName)(document.activeElement)")
            )
            if reached[-1] == "axis":
                browser.press("ArrowDown", 40)
            if reached[-1] == "curves":
                browser.press("End", 35)
                read = browser.evaluate("document.getElementById('reading').innerText")
                browser.press("+", 187, "+")
                zoomed = browser.evaluate("report.view().state.zoom")
            if reached[-1] == "checkbox":
                browser.press(" ", 32, " ")
            if reached[-1] == "search":
                break
        expected = [
            "SUMMARY",
            "SUMMARY",
            "metric",
            "split",
            "axis",
            "view",
            "by",
            "smoothing",
            "curves",
            "checkbox",
            "checkbox",
            "search",
        ]
        assert reached == expected
        assert browser.evaluate("report.view().state.axis") == "tokens"
        assert read.startswith("15,360 tokens \u2014 training loss, nats per token") and "deep\t2.2" in read
        assert zoomed[0] > 5000
        assert browser.evaluate(NAMES) == []


@pytest.mark.slow
@IN_BROWSER
def test_fifty_runs_hold(make_run, tmp_path: Path) -> None:
    """test_a_view_its_address_and_its_pictures stands in for it."""
    paths = [
        make_run(
            f"run-{layers}-{seed}",
            [4 - 0.01 * i for i in range(200)],
            [3.0, 2.5],
            model={"num_layers": layers},
            training={"seed": seed},
        )
        for layers in range(1, 11)
        for seed in range(5)
    ]
    path = tmp_path / "report.html"
    path.write_text(rendered(compare(load_runs(paths))), encoding="utf-8")
    assert path.stat().st_size < 800_000
    with Browser(1280) as browser:
        browser.open(path)
        assert browser.evaluate("document.getElementById('curves').getBoundingClientRect().top") < 500
        choose(browser, view="runs")
        assert browser.evaluate(f"{NAMES}.length") == 50
        browser.evaluate("document.getElementById('runs-fold').open = true")
        heights = browser.evaluate("[...document.querySelectorAll('tr[data-run]')].map(row => row.offsetHeight)")
        assert len(heights) == 50 and max(heights) < 40  # one line each
        choose(browser, search="num_layers<=2")
        assert browser.evaluate("document.getElementById('found').textContent") == "10 of 50 runs"
        assert browser.complaints() == []
