"""The figures of docs/study/seeds.md and stability.md that no command of mhsh prints."""

from __future__ import annotations

import re
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import poisson

from benchmarks import stability
from benchmarks.repeats import pairs, part_means, repeat_shares
from benchmarks.stability import holm, rate_per_thousand

ROOT = Path(__file__).resolve().parents[2]


def test_a_repeat_has_followed_the_token_before_it_earlier_in_its_row() -> None:
    rows = np.random.default_rng(0).integers(5, size=(20, 40))
    neighbours = [[(row[place], row[place + 1]) for place in range(39)] for row in rows.tolist()]
    slow = [sum(row[place] in row[:place] for place in range(39)) / 39 for row in neighbours]
    assert repeat_shares(pairs(rows)) == pytest.approx(slow)
    assert repeat_shares(pairs(np.array([[1, 2, 3, 1, 2], [1, 1, 1, 1, 1]]))) == pytest.approx([1 / 4, 3 / 4])


def test_parts_are_those_of_validation() -> None:
    # Five batches of two rows in two parts: three batches, then two.
    assert part_means(np.arange(10.0), 5, 2) == pytest.approx([2.5, 7.5])


def test_the_interval_of_a_count_is_exact() -> None:
    rate, low, high = map(float, re.findall(r"[0-9.]+", rate_per_thousand(4, 1000)))
    assert rate == 4
    assert poisson.sf(3, low) == pytest.approx(0.025, abs=0.003)
    assert poisson.cdf(4, high) == pytest.approx(0.025, abs=0.003)
    assert rate_per_thousand(0, 1000) == "0.0 (0.0 to 3.7)"


def test_holm_rejects_in_steps() -> None:
    # By hand: the least of four times 4, the next times 3, the third no less than the second.
    assert holm([0.03, 0.01, 0.2, 0.031]) == pytest.approx([0.09, 0.04, 0.2, 0.09])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "stages, more",
    [
        (["steady", "steady_own"], []),
        (["trained", "trained_muon", "decoder", "decoder_kv", "multi30k_whole"], [f"--losses={ROOT / 'docs/study/runs.csv'}"]),
    ],
)
def test_every_row_that_is_printed_stands_on_the_page(stages, more, tmp_path, monkeypatch, capsys):
    for stage in stages:
        with tarfile.open(ROOT / f"docs/study/runs/{stage}.tar.xz") as kept:
            kept.extractall(tmp_path, filter="data")
    monkeypatch.setattr(sys, "argv", ["stability", *(str(tmp_path / stage) for stage in stages), *more])
    stability.main()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(tuple(f"| {stage}, " for stage in stages))]
    page = (ROOT / "docs/study/stability.md").read_text(encoding="utf-8").splitlines()
    assert len(rows) >= 3 and not [row for row in rows if row not in page]
