"""The JSON's figures against hand-computed ones, and the Markdown made of it."""

from __future__ import annotations

import dataclasses
import json
import re

import jax
import pytest

from mhsh.bench.candidate import Candidate
from mhsh.bench.results import cell, check_out, document, write
from mhsh.bench.rounds import Times
from mhsh.bench.table import markdown
from mhsh.errors import UserError
from mhsh.models.costs import PEAK_FLOPS
from tests.conftest import MakeConfig

CEILINGS = {
    "matmul": {"dtype": "float32", "size": 1024, "unit": "FLOP", "work": 8, "turns": [[1.0]], "rate": 1000.0},
    "copy": {"bytes": 64, "unit": "byte", "work": 128, "turns": [[1.0]], "rate": 500.0},
}


def candidate(name: str, work: int, baseline: str | None, **facts: object) -> Candidate:
    return Candidate(name=name, label=f"{name} it is", run=lambda _: None, work=work, baseline=baseline, facts=facts)


def two_contestants() -> tuple[list[Candidate], dict[str, Times]]:
    """`against` does half of the work in 1.5, 3 and 0.5 times the time."""
    candidates = [
        candidate("config", 100, None, flops=400, bytes_accessed=50, parameters=1234, omega=234, devices=1),
        candidate("against", 50, "config", flops=200, bytes_accessed=None, parameters=1000, omega=0, devices=2),
    ]
    times = {
        "config": Times(1, [[2.0, 4.0, 3.0], [2.0], [4.0]], [6.0, 6.0, 6.0]),
        "against": Times(1, [[4.5], [6.0], [2.0]], [12.0, 3.0, 6.0]),
    }
    return candidates, times


@pytest.fixture
def made(make_config: MakeConfig) -> dict:
    candidates, times = two_contestants()
    cells = [cell({"batch": 2, "length": 50}, candidates, times)]
    return document("train", "token", {"rounds": 3}, {"config": make_config("bert", "2l8h")}, cells, CEILINGS, None)


def test_figures_by_hand(made):
    first, second = made["cells"][0]["candidates"]
    assert first["seconds"] == {"median": 3.0, "low": 2.0, "high": 4.0, "confidence": 0.75}  # turns' medians: 3, 2, 4
    assert first["rate"] == 100 / 3 and first["time_ratio"] is None
    assert first["flops_per_second"] == 400 / 3 and first["share_of_matmul"] == 400 / 3 / 1000
    assert first["bytes_per_second"] == 50 / 3 and first["share_of_copy"] == 50 / 3 / 500
    # rounds: 4.5 / 3, 6 / 2, 2 / 4, each twice as much for a unit of work
    assert second["time_ratio"] == {"median": 3.0, "low": 1.0, "high": 6.0, "confidence": 0.75}
    assert second["cpu_ratio"]["median"] == 2.0 and second["best_ratio"] == 2.0
    assert second["flops_per_second"] == 200 / 4.5 / 2  # of one of its devices
    assert second["bytes_per_second"] is None and second["share_of_copy"] is None


def test_a_document_is_json_with_its_surroundings(made, tmp_path):
    out = tmp_path / "bench.json"
    write(made, str(out))
    read = json.loads(out.read_text())
    assert read == made and read["format"] == 1
    assert read["environment"]["devices"]["count"] == jax.device_count() and read["environment"]["cores"] >= 1
    assert read["configs"]["config"]["model"]["num_heads"] == 8
    with pytest.raises(UserError, match="nothing is overwritten"):
        write(made, str(out))


@pytest.mark.parametrize(("dtype", "share"), [("bfloat16", 400 / 3 / 250), ("float32", None)])
def test_share_of_a_public_peak_only_where_it_is_one_of_that_dtype(make_config, monkeypatch, dtype, share):
    monkeypatch.setitem(PEAK_FLOPS, jax.devices()[0].device_kind, 250.0)
    candidates, times = two_contestants()
    configs = {"config": make_config("bert", "2l8h", **{"model.compute_dtype": dtype})}
    found = document("train", "token", {}, configs, [cell({}, candidates, times)], CEILINGS, None)
    assert found["cells"][0]["candidates"][0]["share_of_peak"] == share


def test_the_table(made):
    text = markdown(made)
    lines = text.split("\n")
    rows = [[part.strip() for part in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    title, _, first, second = rows
    assert len({len(row) for row in rows}) == 1
    assert dict(zip(title, first, strict=True)) == {
        "": "config",
        "what": "config it is",
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


def test_a_grid_has_a_row_for_every_cell_and_contestant(make_config):
    candidates, times = two_contestants()
    times = {name: dataclasses.replace(each, turns=each.turns) for name, each in times.items()}
    cells = [cell({"batch": rows, "length": 32}, candidates, times) for rows in (1, 4)]
    text = markdown(document("inference", "token", {}, {"config": make_config("bert", "2l8h")}, cells, CEILINGS, None))
    rows = [line for line in text.split("\n") if re.match(r"\| [14] \|", line)]
    assert [row.split("|")[1:3] for row in rows] == [
        [f" {batch} ", f" {name} "] for batch in (1, 4) for name in ("config", "against")
    ]
    assert "length 32" in text.split("\n")[0] and "batch" not in text.split("\n")[0]


def test_out_is_looked_at_before_anything_is_measured(tmp_path):
    check_out(None)
    check_out(str(tmp_path / "new.json"))
    (tmp_path / "there.json").write_text("{}")
    with pytest.raises(UserError, match="exists, and nothing is overwritten"):
        check_out(str(tmp_path / "there.json"))
    with pytest.raises(UserError, match="there is no folder"):
        check_out(str(tmp_path / "nowhere" / "new.json"))
