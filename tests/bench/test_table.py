"""Tests of bench results as Markdown."""

from __future__ import annotations

import re

from mhsh.bench.table import markdown
from tests.bench.test_harness import made


def test_the_table(make_config):
    text = markdown(made(make_config, [{"batch": 2, "length": 50}]))
    lines = text.split("\n")
    rows = [[part.strip() for part in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    title, _, first, second = rows
    assert len({len(row) for row in rows}) == 1
    assert dict(zip(title, first, strict=True)) == {
        "": "config",
        "what": "config label",
        "time": "3.00 s",
        "interval": "2.00 s to 4.00 s",
        "tokens/s": "33.3",
        "time ratio": "",
        "CPU ratio": "",
        "best ratio": "",
        "FLOP/s": "133",
        "of matmul": "13.3%",
        "B/s by XLA": "16.7",
        "of copy": "3.3%",
        "parameters (of them omega)": "1,234 (234)",
    }
    assert dict(zip(title, second, strict=True))["time ratio"] == "3.000 (1.000 to 6.000)"
    assert "batch 2, length 50" in lines[0] and "75.0%" in lines[-1] and "that of config" in lines[-1]


def test_a_grid_has_a_row_for_every_setting_and_candidate(make_config):
    text = markdown(made(make_config, [{"batch": rows, "length": 32} for rows in (1, 4)]))
    rows = [line for line in text.split("\n") if re.match(r"\| [14] \|", line)]
    assert [row.split("|")[1:3] for row in rows] == [
        [f" {batch} ", f" {name} "] for batch in (1, 4) for name in ("config", "against")
    ]
    assert "length 32" in text.split("\n")[0] and "batch" not in text.split("\n")[0]
