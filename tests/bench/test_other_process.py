"""A contestant in a process of its own: the same facts, real turns, its CPU time, its complaints, and its end."""

from __future__ import annotations

import dataclasses
import os
import signal
from pathlib import Path

import pytest

from mhsh.bench import ours
from mhsh.bench.other_process import OtherProcess
from mhsh.errors import UserError

SMALL = {"model.num_layers": 1, "model.vocab_size": 100, "train.batch_size": 8}


def spawned() -> set[str]:
    """Processes that this one started to run Python functions, by their ids."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {child for child in children if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()}


def test_it_is_the_contestant_that_it_would_be_here(make_config) -> None:
    config = make_config("bert", "2l8h", **SMALL)
    other, here = OtherProcess(ours.training, "config", config), ours.training("config", config)
    there = other.contestant
    for field in ("name", "label", "work", "baseline"):
        assert getattr(there, field) == getattr(here, field)
    assert there.facts["flops"] == here.facts["flops"]
    before = other.cpu_seconds()
    there.run(3)
    once = other.cpu_seconds()
    there.run(3)
    there.check()
    assert before == 0 < once < other.cpu_seconds()


def test_its_complaints_are_raised_here(make_config) -> None:
    config = make_config("bert", "2l8h", **SMALL)
    diverging = dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, learning_rate=1e38, warmup_steps=0))
    contestant = OtherProcess(ours.training, "config", diverging).contestant
    contestant.run(3)
    with pytest.raises(UserError, match="the loss or a gradient is not finite after"):
        contestant.check()
    with pytest.raises(UserError, match=r"--length: 9,999 tokens|--length: 9999 tokens"):
        OtherProcess(ours.cell_config, config, 1, 9999)


def test_an_interrupt_is_not_for_it_and_its_death_is_told_in_one_line(make_config) -> None:
    before = spawned()
    other = OtherProcess(ours.training, "config", make_config("bert", "2l8h", **SMALL))
    (process,) = spawned() - before
    os.kill(int(process), signal.SIGINT)
    other.contestant.run(1)
    os.kill(int(process), signal.SIGKILL)
    with pytest.raises(UserError, match="the process of a peer ended with status -9"):
        other.contestant.run(1)
