"""mhsh bench inference: the forward pass without dropout, over batch sizes and lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mhsh.bench import mhsh_steps
from mhsh.bench.ceilings import ceilings
from mhsh.bench.harness import Measured, Schedule, bench_results, take_turns
from mhsh.bench.peers import build
from mhsh.bench.results import BenchResults
from mhsh.config.schema import Config
from mhsh.errors import UserError

LENGTHS = (32, 128, 512)


def grid(configs: Mapping[str, Config], batch: str, length: str | None) -> list[tuple[int, int]]:
    """(rows, tokens of a row) of every setting, from --batch and --length.

    Without --length these are the LENGTHS that every model has positions for, or the longest that
    every model has.

    Raises:
      UserError: not whole numbers, or a length that a model has no positions for.
    """
    positions = min(config.model.max_positions for config in configs.values())
    fitting = [each for each in LENGTHS if each <= positions] or [positions]
    lengths = whole_numbers("length", length) if length is not None else fitting
    for config in configs.values():
        mhsh_steps.setting_config(config, 1, max(lengths))
    return [(rows, tokens) for rows in whole_numbers("batch", batch) for tokens in lengths]


def whole_numbers(flag: str, text: str) -> list[int]:
    """The whole numbers of a list such as 1,4,16.

    Raises:
      UserError: an item is not a whole number of at least 1.
    """
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise UserError(f"--{flag}={text}: give whole numbers of at least 1, as in --{flag}=1,4,16")
    return [int(part) for part in parts]


def inference(
    configs: Mapping[str, Config],
    torch_peers: Sequence[str],
    settings: Sequence[tuple[int, int]],
    schedule: Schedule,
    note: Callable[[str], None],
) -> BenchResults:
    """Times forward passes of `configs` (by name; the others are compared with the first).

    `settings` are (rows, tokens of a row). The ceilings take their turns in the first of them.

    Raises:
      UserError: a config has no peer, or what they compute is not finite.
    """
    build.require(torch_peers)
    for name, config in configs.items() if torch_peers else ():
        build.check_config(name, config, training=False)
    note("making the models")
    makers: list[Any] = [mhsh_steps.Inference(name, config) for name, config in configs.items()]
    if torch_peers:
        from mhsh.bench.peers.steps import Inference

        makers += [Inference(peer, name, config) for name, config in configs.items() for peer in torch_peers]
    limits = ceilings(configs[mhsh_steps.CONFIG].model.compute_dtype)
    measured, ceiling_results = [], {}
    for number, (rows, length) in enumerate(settings, 1):
        note(f"setting {number} of {len(settings)}: {rows} x {length} tokens")
        candidates = [maker.candidate(rows, length) for maker in makers]
        times = take_turns([*candidates, *(() if ceiling_results else limits)], schedule)
        for candidate in candidates:
            candidate.check()
        ceiling_results = ceiling_results or {limit.name: limit.result(times[limit.name]) for limit in limits}
        measured.append(Measured({"batch": rows, "length": length}, candidates, times))
    options = {"rounds": schedule.rounds, "repetitions": schedule.repetitions, "seconds": schedule.seconds}
    torch = build.torch_environment() if torch_peers else None
    return bench_results("inference", "token", options, configs, measured, ceiling_results, torch)
