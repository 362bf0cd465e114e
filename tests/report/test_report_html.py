"""Tests of a Report's page: escaping, its policy, its pieces."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
from html import unescape
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markupsafe import escape

from mhsh.report.html import to_html
from mhsh.report.report import MARK, Column, Report, Row, Table, TableCell
from mhsh.text import sanitize
from tests.report.reports import EVIL, content_of, planted_report


def without_scripts(text: str) -> str:
    """The page without its scripts, whose own text holds all kinds of things."""
    return re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)


def test_the_page_is_one_small_file_with_everything_in_it(report: Report) -> None:
    text = to_html(report).decode()
    own = without_scripts(text)
    assert len(text) < 200_000
    assert not re.search(r"""(src|href)=(?!["']?data:)""", own)
    assert "http:" not in own and "https:" not in own
    assert MARK in text[:4096]
    for words in (report.title, *report.summary, *report.problems, *report.rules, "How sure", "a note on", "Every run", "dropout"):
        assert str(escape(words)) in own
    assert to_html(report) == to_html(planted_report())


def test_the_order_is_answer_problems_groups_curves_figures_tables(report: Report) -> None:
    own = without_scripts(to_html(report).decode())
    ids = [f'id="{name}"' for name in ("controls", "curves", "figures", "table1-fold")]
    signs = ["<h1>", "is cut short", 'aria-label="Results"', *ids, "A rule"]
    assert [own.index(sign) for sign in signs] == sorted(own.index(sign) for sign in signs)
    assert 'aria-label="Results"' not in own[own.index("<details") :][own.index("id=") :].split("</details>")[0]


class Elements(HTMLParser):
    """The elements of a page with the names of their attributes, and its text."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.text: list[str] = []
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@settings(max_examples=30, deadline=None)
@given(st.tuples(st.text(min_size=1), st.text(min_size=1)).filter(lambda names: names[0] != names[1]))
def test_no_name_makes_an_element(names: tuple[str, str]) -> None:
    page = Elements(to_html(planted_report(names, rows=10)))
    assert page.tags == Elements(to_html(planted_report(("a", "b"), rows=10))).tags
    assert sanitize(f"{names[0]} ended lowest") in page.text


@pytest.mark.parametrize("live", [False, True])
def test_names_stay_inert_in_what_the_scripts_read(live: bool) -> None:
    text = to_html(planted_report(EVIL), live).decode()
    assert not any(sign in without_scripts(text) for sign in ("\u202e", "\x1b"))
    data = text[text.index('id="content">') + 13 : text.index("</script>", text.index('id="content">'))]
    assert "<" not in data and "&" not in data
    assert [group["name"] for group in content_of(text)["groups"]] == list(EVIL)


def test_the_policy_names_the_very_scripts_and_styles_of_the_page(report: Report) -> None:
    for live, asks in ((False, "'none'"), (True, "'self'")):
        text = to_html(report, live).decode()
        match = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
        assert match
        policy = unescape(match.group(1))
        assert policy.startswith("default-src 'none'; script-src 'sha256-") and f"connect-src {asks};" in policy
        assert "unsafe" not in policy
        for tag in ("script", "style"):
            for content in re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL):
                assert base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() in policy
        assert ('fetch("/"' in text) == live


def test_a_report_without_curves_is_a_page(report: Report) -> None:
    text = to_html(dataclasses.replace(report, curves=None)).decode()
    assert 'id="curves"' not in text and 'data-points="0"' in text and report.title in text


@pytest.mark.parametrize("size", [1e-300, 3e-12, 0.02, 4e12])
def test_differences_of_any_size_have_a_scale(size: float) -> None:
    row = Row(("b", TableCell("", value=size, low=0.0, high=size)))
    table = Table("", (Column("group"), Column("difference", numeric=True, forest=True)), (row,))
    text = to_html(Report("", tables=(table,))).decode()
    (shown,) = re.findall(r">\+(\S+)</text>", text)
    assert size / 2.5 <= float(shown.replace("\u2212", "-")) <= size
