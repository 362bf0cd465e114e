"""Tests of `mhsh speed`: what it writes and says, what it refuses, and that it needs no jax."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mhsh.cli.reports.speed import run
from mhsh.config.schema import Config
from mhsh.errors import UserError
from tests.cli.light_process import mhsh_without_jax
from tests.report.speed_files import two_shapes, write

Measure = Callable[[str], str]


@pytest.fixture
def measure(tmp_path: Path, make_config: Callable[..., Config]) -> Measure:
    config = make_config("bert", "2l8h")
    return lambda kind: write(tmp_path / f"{kind}.json", two_shapes({"config": config, "against": config}, kind))


def test_all_files_from_the_command_line(measure: Measure, tmp_path: Path) -> None:
    out = tmp_path / "new" / "page.html"
    arguments = ("speed", measure("inference"), measure("train"), "--out", str(out))
    done = mhsh_without_jax(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    names = ["page.csv", "page.html", "page_lines.png", "page_lines.svg", "page_map.png", "page_map.svg"]
    assert sorted(path.name for path in out.parent.iterdir()) == names
    before = {path.name: path.read_bytes() for path in out.parent.iterdir()}
    assert "at 2 of 6 settings, slower at 2, with no significant difference at 2" in " ".join(done.stdout.split())
    assert run([arguments[1], arguments[2]], str(out)) == 0  # its own former files are replaced
    assert {path.name: path.read_bytes() for path in out.parent.iterdir()} == before


def test_a_bad_file_is_one_line_and_nothing_is_written(measure: Measure, tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('{"format": 1, "ki')
    out = tmp_path / "out" / "page.html"
    done = mhsh_without_jax("speed", measure("train"), str(bad), "--out", str(out))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "bad.json is damaged or no JSON" in done.stderr
    assert not out.parent.exists()


def test_nothing_else_is_overwritten(measure: Measure, tmp_path: Path) -> None:
    (tmp_path / "page.csv").write_text("my own numbers")
    with pytest.raises(UserError, match="was not written by mhsh speed"):
        run([measure("train")], str(tmp_path / "page.html"))
    with pytest.raises(UserError, match=r"name it \.html"):
        run([measure("train")], str(tmp_path / "table.csv"))


@pytest.mark.slow  # by default: tests/report/speed, and the page from the command line above
def test_runs_without_device_hours_are_named(measure: Measure, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "page.html"
    with pytest.raises(UserError, match="give both or neither"):
        run([measure("train")], str(out), target=2.0)
    assert run([measure("train")], str(out), [str(tmp_path / "none")], 2.0) == 2
    assert "is no folder" in capsys.readouterr().err
    assert out.exists() and not (tmp_path / "page_cost.png").exists()
