"""Tests of the ledger of what was equal between the runs."""

from __future__ import annotations

from pathlib import Path

from mhsh.report.fairness import LedgerRow, config_differences, ledger, same_data
from mhsh.report.groups import group_runs
from mhsh.report.runs import load_runs


def rows_of(*paths: Path) -> dict[str, LedgerRow]:
    runs = load_runs(paths).runs
    return {row.what: row for row in ledger(runs, group_runs(runs))}


def test_config_differences_hold_every_differing_field_and_no_other(make_run) -> None:
    paths = [make_run("a"), make_run("b", model={"num_layers": 4, "num_heads": 4}), make_run("c", optimizer={"beta2": 0.98})]
    runs = load_runs(paths).runs
    rows = config_differences(runs, group_runs(runs))
    assert [(row.what, row.values) for row in rows] == [
        ("model.num_layers", ("2", "4", "2")),
        ("model.num_heads", ("8", "4", "8")),
        ("optimizer.beta2", ("0.999", "0.999", "0.98")),
    ]


def test_conditions_say_equal_differs_or_not_recorded(make_run) -> None:
    paths = [make_run("a"), make_run("b", record={"git_revision": "def", "versions": {"jax": "0.10.0", "flax": "0.12"}})]
    rows = rows_of(*paths)
    assert rows["data fingerprint"].equal is True
    assert rows["code revision"].equal is False
    assert rows["code revision"].values == ("abc", "def")
    assert rows["version of flax"].equal is None
    assert rows["version of flax"].values == ("not recorded", "0.12")
    assert rows["parameters: total"].values == ("150000", "150000")


def test_same_data(make_run) -> None:
    a, b = make_run("a"), make_run("b")
    c, d = make_run("c", record={"data": {"fingerprint": "beef"}}), make_run("d", record={"data": None})
    assert same_data(load_runs([a, b]).runs) is True
    assert same_data(load_runs([a, c]).runs) is False
    assert same_data(load_runs([a, d]).runs) is None
    assert same_data(load_runs([a, c, d]).runs) is False
