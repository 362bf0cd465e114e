"""Bench files: medians and intervals, what is written, and the table."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

from mhsh.bench.results import CONFIDENCE, WIDTH, BenchResults, Interval, coverage, median_interval, ratios, show, write
from mhsh.errors import UserError
from tests.bench.test_timing import made
from tests.conftest import MakeConfig


def test_coverage_is_that_of_all_ways_to_fall_on_either_side():
    """Each value is above or below the median with probability 1/2: the 2^n cases, counted."""
    for n in range(1, 11):
        below = [sum(case) for case in itertools.product((0, 1), repeat=n)]
        for k in range(1, (n + 1) // 2 + 1):
            assert coverage(n, k) == pytest.approx(sum(k <= count <= n - k for count in below) / 2**n, abs=1e-12)


def test_estimates_by_hand():
    assert median_interval([3.0, 1.0, 2.0]) == Interval(2.0, 1.0, 3.0, 0.75)
    assert median_interval([5.0]) == Interval(5.0, 5.0, 5.0, 0.0)
    assert median_interval([4.0, 1.0, 3.0, 2.0]) == Interval(2.5, 1.0, 4.0, 0.875)
    # of nine, the second smallest and the second largest: 96.1 %
    assert median_interval([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]) == Interval(5.0, 2.0, 8.0, 1 - 20 / 512)


@pytest.mark.parametrize("n", [6, 9, 15, 30])
def test_intervals_hold_the_true_median_as_often_as_they_say(n):
    """Of a skewed distribution, 4,000 times; within four standard deviations of the count."""
    draws = np.random.default_rng(n).exponential(size=(4_000, n))
    found = [median_interval(row.tolist()) for row in draws]
    promised = found[0].confidence
    held = np.mean([each.low <= np.log(2) <= each.high for each in found])
    assert promised >= CONFIDENCE
    assert abs(held - promised) < 4 * np.sqrt(promised * (1 - promised) / 4_000)


def test_ratios_are_of_the_same_round():
    """A machine that becomes ten times slower in the middle changes no ratio."""
    load = np.array([1.0, 1.0, 10.0, 10.0, 10.0])
    assert ratios((3 * load).tolist(), (2 * load).tolist()) == [1.5] * 5
    with pytest.raises(ValueError):
        ratios([1.0], [1.0, 2.0])


def test_what_is_written_is_all(tmp_path: Path, make_config: MakeConfig) -> None:
    results, out = made(make_config), tmp_path / "bench.json"
    write(results, str(out))
    assert msgspec.json.decode(out.read_bytes(), type=BenchResults) == results
    with pytest.raises(UserError, match="exists"):
        write(results, str(out))


def test_memory_is_all_that_has_to_fit_at_once(make_config: MakeConfig) -> None:
    candidate = made(make_config).cells[0].candidates[0]
    candidate.memory = {"arguments": 30, "temporaries": 20, "peak": 40}
    assert candidate.memory_bytes == 50  # on a CPU the peak leaves out the temporaries
    candidate.memory = {"peak": 40}
    assert candidate.memory_bytes == 40
    candidate.memory = {}
    assert candidate.memory_bytes is None


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
