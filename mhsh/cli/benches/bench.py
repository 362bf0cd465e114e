"""mhsh bench: speed, beside other implementations and the limits of the device."""

from __future__ import annotations

import argparse
import math
import signal
import sys
from collections.abc import Callable
from typing import Any

from mhsh.bench.results import BenchResults, write
from mhsh.bench.table import table
from mhsh.cli import early_stop
from mhsh.cli.benches import bench_suite
from mhsh.cli.flags import add_configs
from mhsh.cli.parser import add_command, examples
from mhsh.config.schema import Config
from mhsh.errors import UserError
from mhsh.files import check_new_file

Options = dict[str, Any]
_COUNTS = ("rounds", "repetitions", "seconds", "batches", "sentences", "source_tokens", "steps", "file_sentences")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.epilog = examples(
        "mhsh bench train --config=bert:2l8h --against=bert:16l1h",
        "mhsh bench decode --config=translation:tiny --out=decode.json",
    )
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    train = _add_kind(kinds, "train", "one optimiser step", rounds=7)
    inference = _add_kind(kinds, "inference", "the forward pass, over a grid of shapes", rounds=7)
    inference.add_argument("--batch", default="1,4,16,64", metavar="B,...", help="rows (default: 1,4,16,64)")
    inference.add_argument("--length", metavar="T,...", help="tokens of a row (default: 32, 128, 512, as far as positions reach)")
    for command, seconds in ((train, 1.0), (inference, 0.2)):
        command.add_argument("--seconds", type=float, default=seconds, metavar="S", help=f"of a turn (default: {seconds:g})")
        command.add_argument("--repetitions", type=int, metavar="N", help="in a turn (default: as many as take --seconds)")
        _add_peers(command, "torch-eager, torch-compile, torch-compile-layers")
    _add_kind(kinds, "compile", "tracing and compiling the training step", rounds=5)
    pipeline = _add_kind(kinds, "input", "masked batches from a config's rows", rounds=5)
    pipeline.add_argument("--batches", type=int, default=500, metavar="N", help="of a turn (default: 500)")
    _add_peers(pipeline, "collator, collator-of-ids, loader")
    decode = _add_kind(kinds, "decode", "beam search of a translation model, or the text of a causal one", rounds=5)
    decode.add_argument(
        "--sentences", type=int, default=32, metavar="N", help="or prompts, of one batch of equal lengths (default: 32)"
    )
    decode.add_argument("--source-tokens", type=int, default=25, metavar="N", help="of each of them (default: 25)")
    decode.add_argument("--steps", type=int, default=30, metavar="N", help="tokens to write for each of them (default: 30)")
    decode.add_argument(
        "--file-sentences", type=int, default=256, metavar="N", help="of a file of mixed lengths, translation alone (default: 256)"
    )
    _add_peers(decode, "marian, marian-sorted; of a causal model gpt2")
    bench_suite.add_arguments(add_command(kinds, "suite", "all of it on this machine's device, for hours; it can be cut off"))


def _add_kind(kinds: Any, name: str, help_text: str, rounds: int) -> argparse.ArgumentParser:
    command = add_command(kinds, name, help_text)
    first, second = ("translation:tiny", "translation:tiny_8l1h") if name == "decode" else ("bert:2l8h", "bert:16l1h")
    against = f" --against={second}" if name != "input" else ""
    command.epilog = examples(
        f"mhsh bench {name} --config={first}{against}", f"mhsh bench {name} --config={first} --rounds=3 --out={name}.json"
    )
    add_configs(command, *(["config"] if name == "input" else ["config", "against"]))
    command.add_argument("--rounds", type=int, default=rounds, metavar="N", help=f"turns that count (default: {rounds})")
    command.add_argument("--out", metavar="FILE", help="a new file for the JSON with all times (default: the table alone)")
    return command


def _add_peers(command: argparse.ArgumentParser, names: str) -> None:
    command.add_argument("--peer", metavar="NAME,...", help=f"{names} (the extra `parity`)")


def run(kind: str, config: Config | None = None, against: Config | None = None, out: str | None = None, **options: Any) -> int:
    """Measures, prints the table, and writes the JSON to `out` where it is given. After Ctrl-C 130,
    with nothing written.
    """
    if kind == "suite":
        assert out is not None
        return bench_suite.run(out, **options)
    from mhsh.bench import mhsh_steps

    check_new_file(out)
    for name in _COUNTS:
        if options.get(name) is not None and not 0 < options[name] < math.inf:
            raise UserError(f"--{name.replace('_', '-')}={options[name]}: give a number above 0")
    configs = {name: each for name, each in ((mhsh_steps.CONFIG, config), (mhsh_steps.AGAINST, against)) if each is not None}
    try:
        results = _KINDS[kind](configs, options)
    except KeyboardInterrupt:
        print(f"mhsh bench {kind}: interrupted; nothing is written", file=sys.stderr)
        return early_stop.status() or 128 + signal.SIGINT
    print(table(results), flush=True)  # first: a full disk does not take it
    if out is not None:
        write(results, out)
    else:
        _note("--out=FILE.json keeps all times")
    return 0


def _note(text: str) -> None:
    print(f"mhsh bench: {text}", file=sys.stderr, flush=True)


def _train(configs: dict[str, Config], options: Options) -> BenchResults:
    from mhsh.bench.harness import Schedule
    from mhsh.bench.peers import build
    from mhsh.bench.train import train

    schedule = Schedule(options["rounds"], options["repetitions"], options["seconds"], each=False)
    return train(configs, build.chosen(options["peer"], build.TORCH_PEERS), schedule, _note)


def _inference(configs: dict[str, Config], options: Options) -> BenchResults:
    from mhsh.bench import inference
    from mhsh.bench.harness import Schedule
    from mhsh.bench.peers import build

    schedule = Schedule(options["rounds"], options["repetitions"], options["seconds"], each=True)
    settings = inference.grid(configs, options["batch"], options["length"])
    return inference.inference(configs, build.chosen(options["peer"], build.TORCH_PEERS), settings, schedule, _note)


def _compile(configs: dict[str, Config], options: Options) -> BenchResults:
    from mhsh.bench.compile import compile_step

    return compile_step(configs, options["rounds"], _note)


def _input(configs: dict[str, Config], options: Options) -> BenchResults:
    from mhsh.bench import mhsh_steps
    from mhsh.bench.input import PEERS, input_batches
    from mhsh.bench.peers import build

    chosen = build.chosen(options.pop("peer"), PEERS)
    return input_batches(configs[mhsh_steps.CONFIG], chosen, note=_note, **options)


def _decode(configs: dict[str, Config], options: Options) -> BenchResults:
    from mhsh.bench import decode, generation, mhsh_steps
    from mhsh.bench.peers import build

    if configs[mhsh_steps.CONFIG].model.objective == "clm":
        chosen = build.chosen(options["peer"], generation.PEERS)
        prompts = {"prompts": options["sentences"], "prompt_tokens": options["source_tokens"]}
        return generation.generation(configs, chosen, steps=options["steps"], rounds=options["rounds"], note=_note, **prompts)
    chosen = build.chosen(options.pop("peer"), decode.PEERS)
    return decode.decode(configs, chosen, note=_note, **options)


_KINDS: dict[str, Callable[[dict[str, Config], Options], BenchResults]] = {
    "train": _train,
    "inference": _inference,
    "compile": _compile,
    "input": _input,
    "decode": _decode,
}
