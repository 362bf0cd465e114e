"""The plan that fits and does the most tokens a second: its batch and remat policy."""

from __future__ import annotations

import json

import pytest

from mhsh.cli.main import main
from mhsh.errors import UserError
from mhsh.planning import aot
from mhsh.planning.aot import GIB, Topology, compile_report
from mhsh.planning.chips import CHIPS
from mhsh.planning.search import best_plan, largest_batch, least_seconds, plans
from mhsh.training.memory import CANDIDATES

LOCAL = Topology("local:8")
SIZES = {"mesh.data": 8, "mesh.fsdp": 1, "mesh.tensor": 1, "train.batch_size": 16}


@pytest.fixture(scope="module")
def config(make_config):
    return make_config("bert", "2l8h", **SIZES | {"model.remat_policy": "full"})


@pytest.fixture(scope="module")
def auto(make_config):
    return make_config("bert", "2l8h", **SIZES | {"model.remat_policy": "auto"})


def test_what_is_auto_is_tried_and_what_is_named_stands(config, auto):
    def policies(config, kind):
        return tuple(plan.model.remat_policy for plan in plans(config, kind))

    assert policies(auto, "v5e") == CANDIDATES["tpu"]
    assert policies(auto, "local") == CANDIDATES["cpu"]
    assert policies(config, "v5p") == ("full",)


def report_of(plan, *, flops=0.0, moved=0, sent=0, fits=True, topology="v5e:2x4"):
    return {
        "topology": topology,
        "num_devices": 8,
        "batch_size": plan.train.batch_size,
        "remat_policy": plan.model.remat_policy,
        "flops": {"matrix_products": flops},
        "traffic": {"read": moved, "written": moved},
        "collectives": [{"sent_bytes": sent}, {"sent_bytes": sent}],
        "fits": fits,
    }


def test_the_longest_of_products_main_memory_and_links_bounds_a_step(config):
    """v5e: 197 TFLOP/s, 800 GB/s, four links of 50 GB/s."""
    assert least_seconds(report_of(config, flops=197e12)) == pytest.approx(1.0)
    assert least_seconds(report_of(config, moved=200e9)) == pytest.approx(0.5)
    assert least_seconds(report_of(config, sent=300e9)) == pytest.approx(3.0)
    assert least_seconds(report_of(config, flops=197e12, moved=200e9, sent=300e9)) == pytest.approx(3.0)
    assert least_seconds(report_of(config, topology="local:8")) is None
    assert least_seconds({"topology": "v5e:2x4"}) is None


def test_the_plan_with_the_most_tokens_is_found_not_the_one_with_the_largest_batch(auto):
    """Main memory bounds: a step costs 16 GB, and each row one more, with `full` two. A device has
    room for 64 rows of projections, and for as many as 128 with `full`.
    """
    compiled = []

    def measure_plan(plan):
        compiled.append((plan.model.remat_policy, plan.train.batch_size))
        full, rows = plan.model.remat_policy != "projections", plan.train.batch_size
        moved = 8e9 + 0.5e9 * (2 if full else 1) * rows
        return report_of(plan, moved=moved, fits=rows <= (128 if full else 64))

    best, tried = best_plan(auto, "v5e", measure_plan, unit=8)
    assert best is not None
    assert (best["remat_policy"], best["batch_size"]) == ("projections", 64)
    # 64 rows of T tokens cost 80 GB at 800 GB/s, on 8 devices.
    assert best["tokens_per_second"] == pytest.approx(auto.data.sequence_length * 64 / 0.1 / 8)
    assert len(compiled) == len(set(compiled)), "nothing is compiled twice"
    assert {(each["remat_policy"], each["fits"]) for each in tried} == {
        (policy, fit) for policy in CANDIDATES["tpu"] for fit in (True, False)
    }


def test_where_nothing_fits_there_is_no_plan(auto):
    best, tried = best_plan(auto, "v5e", lambda plan: report_of(plan, moved=1, fits=False), unit=8)
    assert best is None and len(tried) > len(CANDIDATES["tpu"])


def test_every_chip_has_a_bound(config):
    for kind in CHIPS:
        assert least_seconds(report_of(config, flops=1e12, topology=f"{kind}:1x1"))


def in_steps_of_a_megabyte(limit):
    """A stand-in for the compiler: a row costs 1 MiB, the limit is `limit` MiB."""

    def measure_batch(config):
        needed = config.train.batch_size * 2**20
        return {"batch_size": config.train.batch_size, "needed_bytes": needed, "fits": needed <= limit * 2**20, "topology": "x"}

    return measure_batch


@pytest.mark.parametrize(("limit", "expected"), [(16, 16), (23, 16), (40, 40), (55, 48), (8, 8), (7, None)])
def test_the_search_finds_the_largest_batch(config, limit, expected):
    best, tried = largest_batch(config, in_steps_of_a_megabyte(limit), unit=8)
    assert (best and best["batch_size"]) == expected
    assert all(report["batch_size"] % 8 == 0 for report in tried)
    assert len(tried) == len({report["batch_size"] for report in tried}), "nothing is compiled twice"


def test_the_search_is_close_and_bounded(config):
    best, tried = largest_batch(config, in_steps_of_a_megabyte(100_003), unit=8, max_tries=30)
    assert best is not None
    assert 100_003 * 15 / 16 <= best["batch_size"] <= 100_003
    assert len(tried) < 20
    assert len(largest_batch(config, in_steps_of_a_megabyte(1e12), unit=8, max_tries=5)[1]) == 5


@pytest.mark.slow
def test_the_search_on_a_compiled_step(config):
    limit = compile_report(config, LOCAL)["needed_bytes"]
    best, tried = largest_batch(config, lambda each: compile_report(each, LOCAL, limit), unit=8)
    assert best is not None
    assert best["batch_size"] == 16
    assert [(report["batch_size"], report["fits"]) for report in tried] == [(16, True), (32, False), (24, False)]


def test_the_search_needs_a_limit(config):
    with pytest.raises(UserError, match="give it with --hbm=GIB"):
        largest_batch(config, lambda each: {"fits": None, "topology": "local:8"}, unit=8)


def test_a_search_prints_its_plans_and_what_it_found(capsys, monkeypatch, config):
    compiled = compile_report(config, LOCAL)

    def fake(config, topology, hbm_bytes):
        needed = config.train.batch_size * GIB
        sizes = {"batch_size": config.train.batch_size, "needed_bytes": needed, "hbm_bytes": hbm_bytes}
        return compiled | sizes | {"remat_policy": config.model.remat_policy, "fits": needed <= hbm_bytes}

    tiny = ["aot", "--config=bert:2l8h", "--config.train.batch_size=8", "--topology=local:8", "--search"]
    monkeypatch.setattr(aot, "measure", fake)
    assert main([*tiny, "--config.model.remat_policy=full", "--hbm=20"]) == 0
    captured = capsys.readouterr()
    assert "best: full, batch 16 (4 compilations)" in captured.out
    assert "fits: 16.00 GiB of 20.00 GiB a device (80%)" in captured.out
    tries = [line.split(":")[0] for line in captured.err.splitlines()]
    assert tries == [f"full, batch {size}" for size in (8, 16, 32, 24)]
    assert main([*tiny, "--hbm=20"]) == 0
    table = capsys.readouterr().out
    assert all(policy in table for policy in CANDIDATES["cpu"])
    assert main([*tiny, "--hbm=1", "--config.model.remat_policy=full", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert not found["found"]
    assert [each["batch_size"] for each in found["search"]] == [8]
