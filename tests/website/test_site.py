"""The site as it is built, in a real browser."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.report.browser import PROGRAM, Browser

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("index", "tutorial", "design", "config", "commands", "sample", "api/models")

# Stands in for these by default: test_pages.py, of the links and the navigation.
pytestmark = [pytest.mark.slow, pytest.mark.skipif(PROGRAM is None, reason="no chromium")]


class _Silent(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a server of the site, built with every warning an error."""
    pytest.importorskip("material", reason="needs the docs extra")
    folder = tmp_path_factory.mktemp("site")
    for command in (["website.pages", "build/docs"], ["mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]):
        subprocess.run([sys.executable, "-m", *command], cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Silent, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_pages_fit_and_ask_no_other_host(address: str, width: int, dark: bool) -> None:
    with Browser(width, dark=dark) as browser:
        for page in PAGES:
            _open(browser, f"{address}/{page}.html")
            assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{page} is wider than {width} px"
            assert browser.evaluate("document.body.dataset.mdColorScheme") == ("slate" if dark else "default")
        assert {request for request in browser.requests() if not request.startswith((address, "data:"))} == set()
        assert browser.complaints() == []


def test_formulas_are_formulas(address: str) -> None:
    with Browser(1280) as browser:
        _open(browser, f"{address}/design.html")
        assert browser.evaluate("document.querySelectorAll('math[display=block] mfrac').length") == 2
        assert not browser.evaluate("document.body.innerText.includes('\\\\frac')")


def test_the_search_finds_a_function(address: str) -> None:
    with Browser(1280) as browser:
        _open(browser, f"{address}/index.html")
        browser.evaluate("document.querySelector('.md-search__input').focus()")
        browser.call("Input.insertText", text="closed_form_omega")
        browser.wait("!!document.querySelector('.md-search-result__link')")
        found = "[...document.querySelectorAll('.md-search-result__link')].map(link => link.href)"
        assert any("api/models.html" in link for link in browser.evaluate(found))


def _open(browser: Browser, address: str) -> None:
    browser.call("Page.navigate", url=address)
    browser.wait(f"document.readyState === 'complete' && location.href.startsWith({address!r})")
