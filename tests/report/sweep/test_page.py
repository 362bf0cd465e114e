"""Tests of sweep.html and its files: nothing runs, nothing is loaded, everything is escaped,
readable without colour.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import html
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mhsh.cli.reports import sweep_report
from mhsh.errors import UserError
from tests.conftest import ROOT, load_fields
from tests.report.browser import PROGRAM, Browser
from tests.sweeps import FAILED, write_sweep

EVIL = "<script>alert(1)</script>"
REASON = f"mhsh: {EVIL} \x1b[31m=1+1"


@pytest.fixture(scope="module")
def fields() -> dict[str, Any]:
    return load_fields("evidence", "heads")


@pytest.fixture(scope="module")
def quality(fields: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of two depths and two sources, one of them named to do harm, whose cells fail with a
    harmful reason.
    """
    path = tmp_path_factory.mktemp("sweeps") / "quality"
    axes = [f"source=stdlib,text:{EVIL}", "heads_per_layer=8,1", "seed=0,1"]
    names = [cell.name for cell in write_sweep(path, fields, axes, {}).read_plan().cells]
    ends = dict(zip(names, (2.5, 2.6, 2.4, 2.45, FAILED, FAILED), strict=False))
    return reported(write_sweep(path, fields, axes, ends, REASON).path)


@pytest.fixture(scope="module")
def stability(fields: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    ends = {
        "scheme-post_ln_num_layers-6_learning_rate-0.001": 2.0,
        "scheme-post_ln_num_layers-6_learning_rate-0.01": 3.2,
        "scheme-post_ln_num_layers-12_learning_rate-0.001": math.nan,
        "scheme-post_ln_num_layers-12_learning_rate-0.01": FAILED,
    }
    axes = ["scheme=post_ln,admin", "depth=6,12", "lr=1e-3,1e-2"]
    return reported(write_sweep(tmp_path_factory.mktemp("sweeps") / "stability", fields, axes, ends, REASON).path)


def reported(path: Path) -> Path:
    assert sweep_report.run(str(path)) == 0
    return path


def test_the_files(quality: Path, stability: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Its own former files are replaced.
    assert sweep_report.run(str(quality)) == 0 and sweep_report.run(str(stability)) == 0
    said = capsys.readouterr().out
    assert "source = stdlib: lowest final validation loss at heads_per_layer = 1: 2.425" in said
    assert "post_ln: 1 of 4 squares converged, 1 diverged, 1 plateaued, 1 failed" in said
    for path, picture in ((quality, "quality_heads_per_layer"), (stability, "stability_map"), (quality, "curves")):
        assert (path / f"{picture}.png").read_bytes().startswith(b"\x89PNG")
        assert b"<svg" in (path / f"{picture}.svg").read_bytes()
    for path in (quality, stability):
        assert '<a href="comparison.html">' in (path / "sweep.html").read_text(encoding="utf-8")
        assert (path / "comparison.html").exists()
    # Only numbers make an axis of quality, and the map's own two make none.
    assert not (quality / "quality_source.png").exists()
    assert not (stability / "quality_num_layers.png").exists()


def test_nothing_from_outside_becomes_markup(quality: Path) -> None:
    text = (quality / "sweep.html").read_text(encoding="utf-8")
    assert "<script" not in text.lower()
    assert "text:&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "exit status 2: mhsh: &lt;script&gt;" in text
    assert "\x1b" not in text
    assert not re.search(r"""(src|href)=(?!["'](data:image/svg|comparison.html"))""", text)
    assert not re.search(r"""\s(style|on\w+)=""", text)


def test_the_policy_lets_only_its_own_style_in(stability: Path) -> None:
    text = (stability / "sweep.html").read_text(encoding="utf-8")
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert html.unescape(policy) == (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    )


def test_squares_are_told_by_letter_word_and_pattern(stability: Path) -> None:
    text = (stability / "sweep.html").read_text(encoding="utf-8")
    for letter, verdict, figure in (("C", "converged", "2.000"), ("P", "plateaued", "3.200"), ("D", "diverged", "not finite")):
        square = (
            f'<td class="square-{verdict}"><span class="plate"><span class="letter">{letter}</span> {verdict}<br>{figure}</span>'
        )
        assert text.count(square) == 1
    assert text.count('<span class="letter">F</span> failed') == 1
    assert text.count('<span class="letter">-</span> not run') == 4
    assert "8 cells: 1 diverged, 1 plateaued, 1 converged, 1 failed, 4 not run" in text
    assert "has left the unigram plateau if and only if" in text  # the rule


def test_the_tables_of_numbers(quality: Path) -> None:
    rows = list(csv.DictReader((quality / "sweep.csv").read_text(encoding="utf-8").splitlines()))
    assert [row["final_validation_loss"] for row in rows] == ["2.5", "2.6", "2.4", "2.45", "", "", "", ""]
    assert [row["verdict"] for row in rows] == ["converged"] * 4 + ["failed"] * 2 + ["not run"] * 2
    assert rows[0]["data.source"] == "stdlib" and rows[0]["planned_flops"] == "3000"
    fields = json.loads((quality / "sweep.json").read_text(encoding="utf-8"))
    assert fields["cells"][4]["reason"].startswith("exit status 2: mhsh: <script>")
    point = fields["quality"][0]["lines"][0]["points"][1]
    assert point["quality"]["mean"] == pytest.approx(2.425)
    assert point["against_first"]["mean"] == pytest.approx(-0.125)
    assert fields["quality"][0]["lines"][1]["points"][0]["quality"] is None


def test_a_formula_in_the_csv_is_text(fields: dict[str, Any], tmp_path: Path) -> None:
    path = write_sweep(tmp_path / "s", fields, ["source==1+1,@x,stdlib"], {}).path
    sweep_report.run(str(path))
    rows = csv.DictReader((path / "sweep.csv").read_text(encoding="utf-8").splitlines())
    assert [row["data.source"] for row in rows] == ["'=1+1", "'@x", "stdlib"]


def test_no_sweep_no_report(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no sweep"):
        sweep_report.run(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_it_never_imports_jax() -> None:
    code = (
        "import mhsh.cli.reports.sweep_report, sys; sys.exit(bool({'jax', 'flax', 'optax', 'orbax', 'grain'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.skipif(PROGRAM is None, reason="no Chromium")
@pytest.mark.parametrize(("width", "dark"), [(360, True), (1280, False)])
def test_in_a_browser(quality: Path, stability: Path, width: int, dark: bool) -> None:
    for path in (quality, stability):
        with Browser(width, dark=dark) as browser:
            browser.call("Page.navigate", url=(path / "sweep.html").resolve().as_uri())
            browser.evaluate("new Promise(done => document.readyState == 'complete' ? done() : addEventListener('load', done))")
            assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")  # only its tables scroll sideways
            assert browser.evaluate("[...document.images].every(image => image.naturalWidth > 0)")
            assert browser.evaluate("document.scripts.length") == 0
            browser.screenshot(path / f"sweep-{width}.png")
            assert browser.complaints() == []
