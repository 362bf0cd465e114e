"""Tests of reports as Markdown, read back by a parser of CommonMark."""

from __future__ import annotations

import html
import re

import pytest
from markdown_it import MarkdownIt

from mhsh.report.render.markdown import escape, to_markdown
from mhsh.report.render.table import Table

READ = MarkdownIt("commonmark", {"html": True}).enable("table")
TEXTS = [
    "a | b",
    "<script>alert(1)</script>",
    "*x* _y_ `z`",
    "[a](b) ![c](d)",
    "&amp; $x$ ~~y~~",
    "back\\slash",
    "heads_per_layer _a_ __b__ c_",
    "-0.012 (+1.0 to 2)",
]


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_read_back_as_it_is(text: str) -> None:
    assert READ.render(escape(text)) == f"<p>{html.escape(text, quote=False)}</p>\n"
    page = READ.render(to_markdown([text], {}, [(text, Table(["name", text], [[text, "1"]]))]).decode())
    cells = [html.unescape(cell) for cell in re.findall("<t[hd]>(.*?)</t[hd]>", page)]
    assert cells == ["name", text, text, "1"]
    assert f"<li>{html.escape(text, quote=False)}</li>" in page


def test_a_long_claim_is_one_item_in_lines_of_a_hundred_columns() -> None:
    claim = " ".join(f"word{number}" for number in range(60))
    written = to_markdown([claim, "next"], {"a.png": "picture"}).decode()
    assert max(map(len, written.splitlines())) <= 100
    read = READ.render(written)
    assert read.count("<li>") == 2 and claim in " ".join(read.split()) and '<img src="a.png" alt="picture"' in read
