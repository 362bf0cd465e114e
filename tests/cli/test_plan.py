"""mhsh plan: configs side by side, the time on many chips, and JSON with the same figures."""

from __future__ import annotations

import contextlib
import io
import json
import math

import pytest

from mhsh.cli.main import main
from mhsh.cli.plan import _print
from mhsh.configs import get
from mhsh.models.costs import row_flops, run_cost
from mhsh.planning.ledger import ledger
from mhsh.training.memory import USABLE_SHARE
from mhsh.training.plan import Devices, plan_run

TWINS = ["--config=bert:24l16h", "--config=bert:384l1h", "--config.train.batch_size=16", "--config.mesh.data=16"]
TWINS += ["--config.mesh.fsdp=1", "--hbm=16"]


@pytest.fixture(scope="module")
def planned():
    """The plans as they are printed, and as JSON."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["plan", *TWINS]) == main(["plan", *TWINS, "--json"]) == 0
    words, brace, rest = out.getvalue().partition("{")
    return words, json.loads(brace + rest)["configs"]


@pytest.fixture(scope="module")
def twins(planned):
    return planned[1]


def test_twins_have_the_papers_figures(twins):
    shallow, deep = twins["bert:24l16h"], twins["bert:384l1h"]
    assert (shallow["parameters"]["encoder"], deep["parameters"]["encoder"]) == (302_309_376, 304_521_216)
    assert (shallow["parameters"]["omega"], deep["parameters"]["omega"]) == (24 * 2 * 1024, 384 * 2 * 1024)
    assert shallow["total_heads"] == deep["total_heads"] == 384
    assert shallow["flops_per_step"] == deep["flops_per_step"]
    assert shallow["rows_per_step"] == 16, "an override changes both"


def test_memory_is_told_for_every_remat_policy(twins):
    for one in twins.values():
        assert one["bytes_per_device"]["available"] == 16 * 2**30
        assert one["mesh"] == {"data": 16, "fsdp": 1, "tensor": 1}
        totals = one["total_bytes_by_remat_policy"]
        assert totals[one["remat_policy"]] == one["bytes_per_device"]["total"]
        assert list(totals.values()) == sorted(totals.values(), reverse=True)


def test_as_many_cells_fit_together_as_their_bytes_have_room():
    config = get("evidence:heads", model={"remat_policy": "none"}, mesh={"data": 1, "fsdp": 1, "tensor": 1})
    needed = ledger(config, None, 2**40)["bytes_per_device"]["total"]
    for cells in (1, 3):
        room = math.ceil(cells * needed / USABLE_SHARE)
        assert [ledger(config, None, size)["cells_that_fit_together"] for size in (room - 8, room)] == [cells - 1, cells]
        assert plan_run(config, Devices(1, 1, "cpu", room), cells).count_activations().refusal is None


def test_in_words(planned):
    out, _ = planned
    assert "302.31M" in out and "304.52M" in out and "+0.73%" in out


@pytest.fixture
def one_policy(monkeypatch):
    """Memory is told for one remat policy: each is a second of tracing."""
    monkeypatch.setattr("mhsh.planning.ledger.candidates", lambda platform, shape: ("none",))


@pytest.mark.usefixtures("one_policy")
def test_an_encoder_beside_a_translation_model(capsys):
    assert main(["plan", "--config=bert:2l8h", "--config=translation:tiny"]) == 0
    assert "  decoder " in capsys.readouterr().out


@pytest.mark.usefixtures("one_policy")
def test_tokens_of_a_translation_are_of_both_sides():
    """As those that a run logs."""
    config = get("translation:tiny")
    figures = ledger(config, None, 2**40)
    assert figures["rows_per_step"] * figures["tokens_per_row"] * config.train.num_steps == run_cost(config).tokens
    assert figures["flops_forward_per_row"]["per_token"] * figures["tokens_per_row"] == row_flops(config).total


@pytest.mark.usefixtures("one_policy")
def test_a_narrow_terminal_costs_no_figure(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["plan", "--config=bert:2l8h", "--config.model.remat_policy=none"]) == 0
    assert "…" not in capsys.readouterr().out


@pytest.mark.usefixtures("one_policy")
def test_time_in_words_and_as_json(capsys):
    arguments = ["plan", "--config=bert:2l8h", "--chips=v5p:1,8", "--chips=h100:8"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "TIME 8 H100" in out and "No time here is measured" in out and "dollars" not in out
    assert main([*arguments, "--price=v5p:4.2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    for plan in told["configs"].values():
        assert list(plan["time"]) == ["1 v5p", "8 v5p", "8 h100"]
        for chips, time in plan["time"].items():
            assert 0 < time["step_seconds"][0] < time["step_seconds"][1]
            assert time["chip_hours"][1] == pytest.approx(int(chips.split()[0]) * time["run_hours"][1])
            cost = [pytest.approx(4.2 * hours) for hours in time["chip_hours"]]
            assert time.get("dollars", cost if "h100" in chips else None) == cost
    assert told["assumptions"]


@pytest.mark.usefixtures("one_policy")
def test_a_mesh_of_more_devices_than_are_here(capsys):
    rows = ["--config.mesh.fsdp=16", "--config.train.batch_size=32", "--config.model.remat_policy=none"]
    assert main(["plan", "--config=bert:2l8h", *rows, "--chips=v5e:16", "--hbm=0.001", "--json"]) == 0
    [plan] = json.loads(capsys.readouterr().out)["configs"].values()
    assert plan["mesh"] == {"data": 1, "fsdp": 16, "tensor": 1}
    assert plan["time"]["16 v5e"]["fits"] is False, "what --hbm says holds for the chips, too"


def test_hours_bound_the_price(capsys):
    """A run that ends in time costs what it costs, all others as much as the hours."""
    arguments = ["plan", "--config=bert:2l8h", "--chips=v5p:2", "--price=v5p:4", "--json"]
    assert main(arguments) == 0
    whole = json.loads(capsys.readouterr().out)["configs"]["bert:2l8h"]["time"]["2 v5p"]
    low, high = whole["run_hours"]
    for hours, answer in ((2 * high, "yes"), ((low + high) / 2, "perhaps"), (low / 2, "no")):
        assert main([*arguments, f"--max-hours={hours}"]) == 0
        time = json.loads(capsys.readouterr().out)["configs"]["bert:2l8h"]["time"]["2 v5p"]
        assert time["within"] == f"{answer}, of {hours:g} hours"
        assert time["dollars"] == pytest.approx([4 * 2 * min(each, hours) for each in (low, high)])


def test_what_does_not_fit_is_said_and_what_is_nothing_is_not(capsys):
    _print({name: {"fits": False, "omega": 0, "launches_seconds": (0.0, 0.0), "step_seconds": (1.0, 2.0)} for name in "ab"})
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert rows == [["fits", "no", "no"], ["step", "seconds", *["1.00", "s", "-", "2.00", "s", "1.00", "s", "-", "2.00", "s"]]]
