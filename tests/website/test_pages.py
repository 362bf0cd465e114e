"""The pages as they lie in the repository: their links, and their places on the site."""

from __future__ import annotations

import importlib.util
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from website import api, architecture

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("**/*.md")])
GENERATED = {"commands.md", "sample.md", "tutorial.md", *(f"api/{name}.md" for name in api.PAGES)}
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.M | re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere_on_a_git_host(page: Path) -> None:
    for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if target.startswith(("https://", "http://")):
            continue
        file, _, anchor = target.partition("#")
        other = (page.parent / file).resolve() if file else page
        assert other.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in _anchors(other), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lists_are_lists_in_python_markdown_too(page: Path) -> None:
    """It joins a list to the paragraph before it, and takes two spaces for no level."""
    lines = FENCE.sub("", page.read_text(encoding="utf-8")).split("\n")
    for before, line in itertools.pairwise(lines):
        if item := re.match(r"( *)([-*]|\d+\.) ", line):
            assert len(item[1]) % 4 == 0, line
            assert not before or before.startswith((" ", "#", *"-*0123456789")), line


def test_every_page_has_its_place_in_the_navigation() -> None:
    in_navigation = list(_pages_of(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    assert len(in_navigation) == len(set(in_navigation))
    assert set(in_navigation) == {str(page.relative_to(DOCS)) for page in DOCS.glob("**/*.md")} | GENERATED


def test_the_python_reference_names_modules_that_exist() -> None:
    for page in api.PAGES.values():
        for module in page.modules:
            assert importlib.util.find_spec(f"mhsh.{module}") is not None
            assert f"::: mhsh.{module}\n" in api.page_markdown(page)


def test_the_picture_of_the_architecture_is_what_the_code_imports() -> None:
    drawn = architecture.draw(architecture.transitive_reduction(architecture.imports()))
    assert drawn == (DOCS / "architecture.svg").read_text(encoding="utf-8"), "python -m website.architecture docs/architecture.svg"


def test_an_arrow_that_a_longer_path_implies_is_left_out() -> None:
    graph = {"a": {"b", "c", "d"}, "b": {"c"}, "c": {"d"}, "d": set(), "e": {"d"}}
    assert architecture.transitive_reduction(graph) == {"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": set(), "e": {"d"}}


def _anchors(page: Path) -> set[str]:
    """The anchors that Git hosts and Python-Markdown give to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def _pages_of(navigation: Any) -> Iterator[str]:
    if isinstance(navigation, str):
        yield navigation
    else:
        for entry in navigation.values() if isinstance(navigation, dict) else navigation:
            yield from _pages_of(entry)
