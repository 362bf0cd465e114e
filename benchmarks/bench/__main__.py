"""Times mhsh beside PyTorch, transformers and the device's own limits, and what no user waits for:
compiling, and the input pipeline alone.

  python -m benchmarks.bench train     --config=bert:12l12h --peer=torch-eager,torch-compile
  python -m benchmarks.bench train     --config=bert:384l1h --variant=model.scan_unroll=1
  python -m benchmarks.bench inference --config=bert:24l16h --batch=1,4 --peer=torch-eager
  python -m benchmarks.bench decode    --config=translation:6l8h --peer=marian,marian-sorted
  python -m benchmarks.bench input     --config=bert:12l12h --peer=collator,loader [--batches=500]
  python -m benchmarks.bench compile   --config=bert:24l16h --against=bert:384l1h

The flags of `mhsh bench` hold here too. Peers need the `parity` extra. train and inference also
time a big matrix product in the same turns. A --variant is --config with other fields
(FIELD=VALUE,FIELD=VALUE), a candidate more.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.bench import peers
from benchmarks.bench.ceilings import ceilings, set_apart
from benchmarks.bench.compile import compile_step
from benchmarks.bench.input import input_batches
from mhsh.bench import decoding, steps
from mhsh.bench.results import BenchResults
from mhsh.bench.timing import AGAINST, CONFIG, Candidate, Schedule, bench
from mhsh.cli.bench import note, run_bench
from mhsh.cli.start import restart_with_huge_pages
from mhsh.config.schema import Config
from mhsh.configs import parse_config, take_changes, take_config
from mhsh.errors import UserError

Configs = Mapping[str, Config]


def main(arguments: Sequence[str]) -> int:
    """Measures, prints the table, and writes --out; its exit status."""
    try:
        kind, configs, chosen, out, options = parse(arguments)
        peers.require(chosen)
        return run_bench(f"benchmarks.bench {kind}", lambda: _bench(kind, configs, chosen, **options), out)
    except UserError as error:
        print(f"benchmarks.bench: {error}", file=sys.stderr)
        return 2


def parse(arguments: Sequence[str]) -> tuple[str, Configs, list[str], str | None, dict[str, Any]]:
    """The kind, the configs, the peers, --out, and the other options.

    Raises:
      UserError: a config, a peer or an argument does not exist.
    """
    known, rest = _parser().parse_known_args(arguments)
    options = vars(known)
    kind, out, variants = options.pop("kind"), options.pop("out"), options.pop("variant")
    if variants and kind != "train":
        raise UserError(f"--variant goes with train, not with {kind}")
    spec, (changes, rest) = options.pop(CONFIG), take_changes(CONFIG, rest)
    configs = {CONFIG: parse_config(CONFIG, spec, changes)}
    against, rest = take_config(AGAINST, options.pop(AGAINST), rest)
    configs |= {AGAINST: against} if against is not None else {}
    for variant in variants:
        more, _ = take_changes(CONFIG, [f"--{CONFIG}.{change}" for change in variant.split(",")])
        configs[variant] = parse_config(CONFIG, spec, [*changes, *more])
    if rest:
        raise UserError(f"{rest[0]} is not an argument of {kind}")
    return kind, configs, peers.parse_peers(options.pop("peer"), peers.PEERS[kind]), out, options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("kind", choices=tuple(peers.PEERS))
    for name in ("config", "against", "peer", "out", "length"):
        parser.add_argument(f"--{name}", required=name == "config")
    parser.add_argument("--variant", action="append", default=[])
    parser.add_argument("--batch", default="1,4,16,64")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn")
    for name, default in (("rounds", 5), ("repetitions", None), ("batches", 500)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("sentences", 32), ("source-tokens", 25), ("steps", 30), ("file-sentences", 256)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser


def _bench(kind: str, configs: Configs, chosen: Sequence[str], **options: Any) -> BenchResults:
    rounds, repetitions, seconds = (options[name] for name in ("rounds", "repetitions", "seconds"))
    if kind == "compile":
        return compile_step(configs, rounds, note)
    if kind == "input":
        results = input_batches(configs[CONFIG], chosen, batches=options["batches"], rounds=rounds, note=note)
    elif kind == "train":
        results = _train(configs, chosen, Schedule(rounds, repetitions, seconds, singly=False))
    elif kind == "inference":
        grid = steps.grid(configs, options["batch"], options["length"])
        results = _inference(configs, chosen, grid, Schedule(rounds, repetitions, seconds))
    else:
        amounts = decoding.Amounts(**{name: options[name] for name in decoding.Amounts._fields})
        results = _decode(configs, chosen, amounts, rounds)
    if chosen:
        results.environment["torch"] = peers.torch_environment()
    return results


def _train(configs: Configs, chosen: Sequence[str], schedule: Schedule) -> BenchResults:
    _check(configs, chosen, training=True)
    products, limits = ceilings(configs[CONFIG].model.compute_dtype)
    with ThreadPoolExecutor() as pool:  # a GPU's compiler takes a minute for a program, and half of one core
        candidates = list(pool.map(lambda item: steps.training_candidate(*item, note), configs.items()))
    for name, config in configs.items() if chosen else ():
        from benchmarks.bench.pytorch import training_candidate

        candidates += [training_candidate(peer, name, config) for peer in chosen]
    cells = [(steps.train_setting(configs), [*candidates, *products])]
    results = bench("train", "token", configs, cells, schedule, note)
    set_apart(results, limits)
    return results


def _inference(configs: Configs, chosen: Sequence[str], grid: Sequence[tuple[int, int]], schedule: Schedule) -> BenchResults:
    _check(configs, chosen, training=False)
    makers: list[Any] = [steps.Inference(name, config) for name, config in configs.items()]
    for name, config in configs.items() if chosen else ():
        from benchmarks.bench.pytorch import TorchInference

        makers += [TorchInference(peer, name, config) for peer in chosen]
    products, limits = ceilings(configs[CONFIG].model.compute_dtype)
    cells = ((setting, [*candidates, *products]) for setting, candidates in steps.inference_cells(makers, grid, note))
    results = bench("inference", "token", configs, cells, schedule, note)
    set_apart(results, limits)
    return results


def _decode(configs: Configs, chosen: Sequence[str], amounts: decoding.Amounts, rounds: int) -> BenchResults:
    for config in configs.values() if chosen else ():
        peers.check_decoding(config, chosen)
    settings = decoding.workloads(configs, amounts)
    note("making the models")
    writers: dict[tuple[str, str], decoding.Write] = {}
    for name, config in configs.items():
        writers[name, ""] = decoding.writer(config)
        for peer in chosen:
            from benchmarks.bench.writers import Writer

            writers[name, peer] = Writer(peer, config)
    cells = [(work.setting, list(_decoding_candidates(configs, writers, work))) for work in settings]
    return decoding.decoding_results(configs, cells, amounts, rounds, note)


def _decoding_candidates(
    configs: Configs, writers: Mapping[tuple[str, str], decoding.Write], work: decoding.Workload
) -> Iterable[Candidate]:
    for (name, peer), write in writers.items():
        if not peer:
            yield decoding.candidate(write, work, **steps.candidate_fields(name, configs[name], 1))
        elif peer != "marian-sorted" or work.setting["setting"] == "file":  # equal lengths need no order
            from benchmarks.bench.writers import IMPLEMENTATIONS

            facts = {"config": name, "devices": 1, "implementation": IMPLEMENTATIONS[peer]}
            title = peers.label(configs[name], IMPLEMENTATIONS[peer], peer)
            yield decoding.candidate(write, work, peers.peer_name(peer, name), label=title, baseline=name, facts=facts)


def _check(configs: Configs, chosen: Sequence[str], training: bool) -> None:
    for name, config in configs.items() if chosen else ():
        peers.check_config(name, config, training=training)


if __name__ == "__main__":
    restart_with_huge_pages()
    sys.exit(main(sys.argv[1:]))
