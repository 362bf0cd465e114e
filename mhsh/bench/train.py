"""mhsh bench train: one optimiser step of one or two configs, and of PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mhsh.bench import mhsh_steps
from mhsh.bench.ceilings import ceilings
from mhsh.bench.harness import Measured, Schedule, bench_results, take_turns
from mhsh.bench.peers import build
from mhsh.bench.results import BenchResults
from mhsh.config.schema import Config


def train(
    configs: Mapping[str, Config], torch_peers: Sequence[str], schedule: Schedule, note: Callable[[str], None]
) -> BenchResults:
    """Times the training steps of `configs` (by name; the others are compared with the first).

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
        from mhsh.bench.peers.steps import training_candidate

        for peer in torch_peers:
            note(f"preparing {build.peer_name(peer, name)}")
            candidates.append(training_candidate(peer, name, config))
    times = take_turns([*candidates, *limits], schedule, note)
    for candidate in candidates:
        candidate.check()
    first = configs[mhsh_steps.CONFIG]
    setting = {"batch": first.train.batch_size, "length": first.data.sequence_length}
    return bench_results(
        "train",
        "token",
        {"rounds": schedule.rounds, "repetitions": schedule.repetitions, "seconds": schedule.seconds},
        configs,
        [Measured(setting, candidates, times)],
        {limit.name: limit.result(times[limit.name]) for limit in limits},
        build.torch_environment() if torch_peers else None,
    )
