"""mhsh bench: the speed of one or two configs, in alternating turns."""

from __future__ import annotations

import argparse
import math
import signal
import sys
from collections.abc import Callable
from typing import Any

from mhsh.bench.results import BenchResults, write
from mhsh.bench.table import show
from mhsh.cli import early_stop
from mhsh.cli.flags import add_configs
from mhsh.cli.parser import add_command, examples
from mhsh.config.schema import Config
from mhsh.errors import UserError
from mhsh.files import check_new_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`run` gets the kind, its configs and its numbers."""
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
    decode = _add_kind(kinds, "decode", "beam search of a translation model, or the text of a causal one", rounds=5)
    for name, count, meaning in (
        ("sentences", 32, "or prompts, of one batch of equal lengths"),
        ("source-tokens", 25, "of each of them"),
        ("steps", 30, "tokens to write for each of them"),
        ("file-sentences", 256, "of a file of mixed lengths, translation alone"),
    ):
        decode.add_argument(f"--{name}", type=int, default=count, metavar="N", help=f"{meaning} (default: {count})")


def _add_kind(kinds: Any, name: str, help_text: str, rounds: int) -> argparse.ArgumentParser:
    command = add_command(kinds, name, help_text)
    first, second = ("translation:tiny", "translation:tiny_8l1h") if name == "decode" else ("bert:2l8h", "bert:16l1h")
    command.epilog = examples(
        f"mhsh bench {name} --config={first} --against={second}", f"mhsh bench {name} --config={first} --rounds=3 --out={name}.json"
    )
    add_configs(command, "config", "against")
    command.add_argument("--rounds", type=int, default=rounds, metavar="N", help=f"turns that count (default: {rounds})")
    command.add_argument("--out", metavar="FILE", help="a new file for the JSON with all times (default: the table alone)")
    return command


def run(kind: str, config: Config, against: Config | None, out: str | None, **options: Any) -> int:
    """Measures, prints the table, and writes the JSON to `out`. After Ctrl-C 130, with nothing
    written.
    """
    configs = {"config": config} | ({"against": against} if against is not None else {})
    return measured(f"mhsh bench {kind}", lambda: _KINDS[kind](configs, **options), out, options)


def measured(name: str, bench: Callable[[], BenchResults], out: str | None, options: dict[str, Any]) -> int:
    """The exit status of a bench called `name`, with its results printed, and written to `out`.

    Raises:
      UserError: one of the `options` is a number that is not above 0, or `out` cannot be written.
    """
    check_new_file(out)
    for option, value in options.items():
        if isinstance(value, int | float) and not 0 < value < math.inf:
            raise UserError(f"--{option.replace('_', '-')}={value}: give a number above 0")
    try:
        results = bench()
    except KeyboardInterrupt:
        print(f"{name}: interrupted; nothing is written", file=sys.stderr)
        return early_stop.status() or 128 + signal.SIGINT
    show(results)  # first: a full disk does not take it
    sys.stdout.flush()
    if out is None:
        note("--out=FILE.json keeps all times")
    else:
        write(results, out)
    return 0


def note(text: str) -> None:
    """Says how far it has come."""
    print(f"mhsh bench: {text}", file=sys.stderr, flush=True)


def _train(configs: dict[str, Config], rounds: int, repetitions: int | None, seconds: float) -> BenchResults:
    from mhsh.bench import steps, timing

    return steps.train(configs, timing.Schedule(rounds, repetitions, seconds, singly=False), note)


def _inference(
    configs: dict[str, Config], batch: str, length: str | None, rounds: int, repetitions: int | None, seconds: float
) -> BenchResults:
    from mhsh.bench import steps, timing

    return steps.inference(configs, steps.grid(configs, batch, length), timing.Schedule(rounds, repetitions, seconds), note)


def _decode(configs: dict[str, Config], rounds: int, **amounts: int) -> BenchResults:
    from mhsh.bench import decoding

    return decoding.decode(configs, decoding.Amounts(**amounts), rounds, note)


_KINDS: dict[str, Callable[..., BenchResults]] = {"train": _train, "inference": _inference, "decode": _decode}
