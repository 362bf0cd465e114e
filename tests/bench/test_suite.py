"""mhsh bench suite: its stages exist as commands, and it goes on where it stopped."""

from __future__ import annotations

import json

import pytest

from mhsh.bench.suite import SIZES, Outcome, Stage, outcome, run_suite, stages
from mhsh.cli.parser import build_parser
from mhsh.configs import take_config
from mhsh.errors import UserError

# Real commands that need no jax: the first ends well, the second does not.
GOOD = Stage("good", "ends well", ("--version",))
BAD = Stage("bad", "is no command", ("trian",))
ELSEWHERE = Stage("elsewhere", "needs another device", ("--version",), "there is none")


def told(chosen, folder):
    found = []
    assert run_suite(chosen, folder, lambda stage, ended: found.append((stage.name, ended and ended.state))) is None
    return found


def test_what_is_done_is_not_done_again(tmp_path):
    chosen = [BAD, ELSEWHERE, GOOD]
    assert told(chosen, tmp_path) == [("bad", None), ("bad", "failed"), ("elsewhere", "not here"), ("good", None), ("good", "done")]
    failed = outcome(BAD, tmp_path)
    assert failed is not None
    assert failed.reason.startswith("exit status 2: mhsh: there is no command 'trian'")
    assert outcome(ELSEWHERE, tmp_path) is None
    assert told(chosen, tmp_path) == [("bad", None), ("bad", "failed"), ("elsewhere", "not here"), ("good", "done")]
    assert (tmp_path / "good.log").read_text().startswith("mhsh ")


def test_a_damaged_state_is_named(tmp_path):
    (tmp_path / "good.state.json").write_text(json.dumps({"state": "done"}))
    with pytest.raises(UserError, match=r"good\.state\.json is damaged; delete it"):
        outcome(GOOD, tmp_path)
    (tmp_path / "good.state.json").write_text(json.dumps({"state": "done", "seconds": 2, "reason": ""}))
    assert outcome(GOOD, tmp_path) == Outcome("done", 2.0, "")


@pytest.mark.parametrize("size", list(SIZES))
@pytest.mark.parametrize("device_kind", ["cpu", "NVIDIA H200", "TPU v5 lite"])
def test_every_stage_is_a_command_with_valid_configs(size, device_kind):
    for stage in stages(SIZES[size], device_kind):
        options, rest = build_parser(stage.arguments[0]).parse_known_args(
            [*stage.arguments, "--workdir=x" if stage.is_run else "--out=x"]
        )
        for name in ("config", "against"):
            _, rest = take_config(name, getattr(options, name, None), rest)
        assert rest == [], stage.name


def test_what_cannot_run_here_says_why():
    missing = {stage.name: stage.missing for stage in stages(SIZES["full"], "NVIDIA H200")}
    assert not missing["train-large"] and not missing["train-flags"]
    on_a_tpu = {stage.name: stage.missing for stage in stages(SIZES["full"], "TPU v5 lite")}
    assert on_a_tpu["train-flags"] == "no flags are recommended for TPU v5 lite"
