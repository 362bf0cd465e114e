"""The flags of a step: what they become, and that the compiler gets them."""

from __future__ import annotations

import pytest

from mhsh.errors import UserError
from mhsh.training.xla_flags import compiler_options, flags_in_force, numeric_flags
from tests.training.states import train_step_of


def test_what_they_become(monkeypatch):
    assert compiler_options("none", "cpu") == compiler_options("recommended", "cpu") == {}
    assert compiler_options("recommended", "NVIDIA H200") == {"xla_gpu_enable_latency_hiding_scheduler": True}
    assert compiler_options("--xla_a=true  --xla_b=2", "cpu") == {"xla_a": True, "xla_b": "2"}
    monkeypatch.setenv("XLA_FLAGS", "--xla_c=3")
    monkeypatch.delenv("LIBTPU_INIT_ARGS", raising=False)
    assert flags_in_force("--xla_a=1", "cpu") == {"step": {"xla_a": "1"}, "XLA_FLAGS": "--xla_c=3", "LIBTPU_INIT_ARGS": ""}


def test_flags_that_change_numbers(monkeypatch):
    """An unknown flag counts; the step's own win over those of the environment."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/x --xla_gpu_deterministic_ops --xla_unknown=3 --xla_a=1")
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_enable_async_collective_fusion=true --xla_allow_excess_precision=false")
    assert numeric_flags("--xla_a=2 --xla_cpu_enable_fast_math=true --xla_gpu_enable_latency_hiding_scheduler=true", "cpu") == {
        "xla_a": "2",
        "xla_allow_excess_precision": "false",
        "xla_cpu_enable_fast_math": "true",
        "xla_gpu_deterministic_ops": "true",
        "xla_unknown": "3",
    }


@pytest.mark.parametrize(("flags", "said"), [("fast", "'fast' is no flag"), ("--xla_a", "is no flag"), (" ", "' ' is no flag")])
def test_what_is_no_flag_is_named(flags, said):
    with pytest.raises(UserError, match=rf"train\.xla_flags.*{said}.*give none, recommended, or flags"):
        compiler_options(flags, "cpu")


def test_the_compiler_gets_them(make_config):
    """It knows the first, and says what is wrong with the others."""

    def with_flags(flags):
        return make_config("bert", "2l8h", **{"train.xla_flags": flags, "model.num_layers": 1})

    assert train_step_of(with_flags("--xla_cpu_enable_fast_math=false")).as_text()
    with pytest.raises(UserError, match=r"train\.xla_flags: No such compile option: 'xla_of_nobody'"):
        train_step_of(with_flags("--xla_of_nobody=true"))
    with pytest.raises(UserError, match=r"train\.xla_flags: While setting option xla_cpu_enable_fast_math, '7' is not"):
        train_step_of(with_flags("--xla_cpu_enable_fast_math=7"))
