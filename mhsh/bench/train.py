"""mhsh bench train: one optimiser step, of one config, of another, and of PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mhsh.bench import mhsh_steps
from mhsh.bench.ceilings import ceilings
from mhsh.bench.peers import build
from mhsh.bench.results import cell, document
from mhsh.bench.rounds import Plan, take_turns
from mhsh.config.schema import Config


def train(configs: Mapping[str, Config], torch_peers: Sequence[str], plan: Plan, note: Callable[[str], None]) -> dict[str, Any]:
    """The document of `configs` (by name, the first is what the others are compared with), each
    with its peers.

    Raises:
      UserError: a config has no peer, or what they compute is not finite.
    """
    build.require(torch_peers)
    for name, config in configs.items() if torch_peers else ():
        build.check_config(name, config, training=True)
    limits = ceilings(configs[mhsh_steps.CONFIG].model.compute_dtype)
    candidates = []
    for name, config in configs.items():
        note(f"compiling {name}")
        candidates.append(mhsh_steps.training(name, config))
    for name, config in configs.items() if torch_peers else ():
        from mhsh.bench.peers.steps import training_contestant

        for peer in torch_peers:
            note(f"preparing {build.peer_name(peer, name)}")
            candidates.append(training_contestant(peer, name, config))
    times = take_turns([*candidates, *limits], plan, note)
    for candidate in candidates:
        candidate.check()
    first = configs[mhsh_steps.CONFIG]
    setting = {"batch": first.train.batch_size, "length": first.data.sequence_length}
    return document(
        "train",
        "token",
        {"rounds": plan.rounds, "repetitions": plan.repetitions, "seconds": plan.seconds},
        configs,
        [cell(setting, candidates, times)],
        {limit.name: limit.summary(times[limit.name]) for limit in limits},
        build.torch_environment() if torch_peers else None,
    )
