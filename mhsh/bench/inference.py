"""mhsh bench inference: the forward pass without dropout over a grid of batch sizes and lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mhsh.bench import mhsh_steps
from mhsh.bench.candidate import whole_numbers
from mhsh.bench.ceilings import ceilings
from mhsh.bench.peers import build
from mhsh.bench.results import cell, document
from mhsh.bench.rounds import Plan, take_turns
from mhsh.config.schema import Config

LENGTHS = (32, 128, 512)


def grid(configs: Mapping[str, Config], batch: str, length: str | None) -> list[tuple[int, int]]:
    """(rows, tokens of a row) of every cell, from --batch and --length; without the latter, those
    of LENGTHS (or else the data.sequence_length) that every model has positions for.

    Raises:
      UserError: no numbers, or a length that a model has no positions for.
    """
    positions = min(config.model.max_positions for config in configs.values())
    fitting = [each for each in LENGTHS if each <= positions] or [positions]
    lengths = whole_numbers("length", length) if length is not None else fitting
    for config in configs.values():
        mhsh_steps.cell_config(config, 1, max(lengths))
    return [(rows, tokens) for rows in whole_numbers("batch", batch) for tokens in lengths]


def inference(
    configs: Mapping[str, Config],
    torch_peers: Sequence[str],
    cells: Sequence[tuple[int, int]],
    plan: Plan,
    note: Callable[[str], None],
) -> dict[str, Any]:
    """The document of `configs` (by name, the first is what the others are compared with), each
    with its peers, a cell for each of `cells`. The ceilings are measured in the turns of the first
    cell.

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
    found, summaries = [], {}
    for number, (rows, length) in enumerate(cells, 1):
        note(f"cell {number} of {len(cells)}: {rows} x {length} tokens")
        candidates = [maker.candidate(rows, length) for maker in makers]
        times = take_turns([*candidates, *(() if summaries else limits)], plan)
        for candidate in candidates:
            candidate.check()
        summaries = summaries or {limit.name: limit.summary(times[limit.name]) for limit in limits}
        found.append(cell({"batch": rows, "length": length}, candidates, times))
    settings = {"rounds": plan.rounds, "repetitions": plan.repetitions, "seconds": plan.seconds}
    environment = build.torch_environment() if torch_peers else None
    return document("inference", "token", settings, configs, found, summaries, environment)
