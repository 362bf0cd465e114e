"""Bench results as text for a terminal."""

from __future__ import annotations

import re

import pytest

from mhsh.bench.results import WIDTH, BenchResults, show
from tests.bench.test_timing import made


def shown(results: BenchResults, capsys: pytest.CaptureFixture[str]) -> tuple[str, list[list[str]], str]:
    """The head, the cells of the table with its titles first, and the explanation."""
    show(results)
    text = capsys.readouterr().out
    assert max(map(len, text.split("\n"))) <= WIDTH
    head, table, foot = text.strip("\n").split("\n\n")
    return head, [re.split(r"  +", line.strip()) for line in table.split("\n")], " ".join(foot.split())


def test_the_table(make_config, capsys):
    head, (titles, config, against), foot = shown(made(make_config, [{"batch": 2, "length": 50}]), capsys)
    assert titles == ["TIME", "INTERVAL", "TOKENS/S", "RATIO", "CPU"]
    assert config == ["config", "3.00 s", "2.00 s to 4.00 s", "33.3", "-", "-"]
    assert against == ["against", "4.50 s", "2.00 s to 6.00 s", "11.1", "3.000 (1.000 to 6.000)", "2.00"]
    assert "config: config label, 1,234 parameters (234 of them omega)" in head
    assert "batch 2, length 50" in head.split("\n")[0] and "75.0%" in foot


def test_a_grid_has_a_row_for_every_setting_and_candidate(make_config, capsys):
    head, (titles, *rows), _ = shown(made(make_config, [{"batch": rows, "length": 32} for rows in (1, 4)]), capsys)
    assert titles[0] == "BATCH"
    assert [row[:2] for row in rows] == [[batch, name] for batch in "14" for name in ("config", "against")]
    assert "length 32" in head.split("\n")[0] and "batch" not in head.split("\n")[0]
