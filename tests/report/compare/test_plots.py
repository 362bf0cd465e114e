"""Tests of the pictures for papers: real files, equal bytes for equal runs, and names that are only
text.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from mhsh.report.compare.comparison import Comparison, compare
from mhsh.report.compare.plots import picture
from mhsh.report.render.outputs import MARK
from mhsh.report.runs.loading import load_runs


@pytest.mark.parametrize(("kind", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_equal_runs_make_equal_bytes(four_runs: Comparison, kind: str, start: bytes) -> None:
    one, other = picture(four_runs, kind), picture(four_runs, kind)
    assert one == other
    assert one.startswith(start)
    assert MARK.encode() in one[:4096]


def test_groups_are_drawn_with_bands_and_signs_and_in_equal_bytes(two_groups: Comparison) -> None:
    one, other = picture(two_groups, "svg"), picture(two_groups, "svg")
    assert one == other
    root = ET.fromstring(one)
    identities = [element.get("id", "") for element in root.iter()]
    # A band is a fill and its hatched edge, in each of two panels for each of two groups.
    assert sum(identity.startswith("FillBetweenPolyCollection") for identity in identities) == 8
    words = one.decode()
    for shown in ("shallow", "deep \u2260", "\u2260 Not equal: dropout", "validation loss (mean and 95 % interval)"):
        assert f"<!-- {shown}" in words
    assert picture(two_groups) == picture(two_groups)


def test_names_are_only_text(make_run) -> None:
    names = ("_hidden", "$\\frac$", "a" * 150, "<b>&", "\u6f22\u5b57")
    comparison = compare(
        load_runs([make_run(name, [3.0, 2.0], record={"data": {"unigram_entropy": 2.5 + len(name)}}) for name in names])
    )
    ET.fromstring(picture(comparison, "svg"))
    assert picture(comparison).startswith(b"\x89PNG")


def test_runs_without_rows_or_without_a_finite_loss_can_be_drawn(make_run) -> None:
    paths = [make_run("none"), make_run("nan", [float("nan")] * 3), make_run("one", [2.0])]
    assert picture(compare(load_runs(paths))).startswith(b"\x89PNG")
