"""Times training, inference or decoding of one or two configs, in alternating turns."""

from __future__ import annotations

import math
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from mhsh.bench.results import BenchResults, show, write
from mhsh.cli import early_stop
from mhsh.cli.parser import AgainstFlag, ConfigFlag
from mhsh.config.schema import Config
from mhsh.errors import UserError
from mhsh.files import check_new_file

EXAMPLES = (
    "mhsh bench train --config=bert:2l8h --against=bert:16l1h",
    "mhsh bench train --config=bert:2l8h --rounds=3 --out=train.json",
    "mhsh bench inference --config=bert:2l8h --against=bert:16l1h",
    "mhsh bench inference --config=bert:2l8h --batch=1,8 --out=inference.json",
    "mhsh bench decode --config=translation:tiny --against=translation:tiny_8l1h",
    "mhsh bench decode --config=translation:tiny --rounds=3 --out=decode.json",
)


def train(
    *,
    config: ConfigFlag,
    against: AgainstFlag | None = None,
    rounds: int = 7,
    seconds: float = 1.0,
    repetitions: int | None = None,
    out: str | None = None,
) -> int:
    """One optimiser step.

    Args:
      rounds: turns that count
      seconds: of a turn
      repetitions: steps in a turn; by default as many as take --seconds
      out: a new file for the JSON with all times
    """

    def bench() -> BenchResults:
        from mhsh.bench import steps, timing

        return steps.train(_configs(config, against), timing.Schedule(rounds, repetitions, seconds, singly=False), note)

    return measured("mhsh bench train", bench, out, {"rounds": rounds, "seconds": seconds, "repetitions": repetitions})


def inference(
    *,
    config: ConfigFlag,
    against: AgainstFlag | None = None,
    batch: str = "1,4,16,64",
    length: str | None = None,
    rounds: int = 7,
    seconds: float = 0.2,
    repetitions: int | None = None,
    out: str | None = None,
) -> int:
    """The forward pass, over a grid of batches and lengths.

    Args:
      batch: numbers of rows
      length: tokens of a row; by default 32,128,512, as far as positions reach
      rounds: turns that count
      seconds: of a turn
      repetitions: passes in a turn; by default as many as take --seconds
      out: a new file for the JSON with all times
    """

    def bench() -> BenchResults:
        from mhsh.bench import steps, timing

        configs = _configs(config, against)
        return steps.inference(configs, steps.grid(configs, batch, length), timing.Schedule(rounds, repetitions, seconds), note)

    return measured("mhsh bench inference", bench, out, {"rounds": rounds, "seconds": seconds, "repetitions": repetitions})


def decode(
    *,
    config: ConfigFlag,
    against: AgainstFlag | None = None,
    sentences: int = 32,
    source_tokens: int = 25,
    steps: int = 30,
    file_sentences: int = 256,
    rounds: int = 5,
    out: str | None = None,
) -> int:
    """Beam search of a translation model, or the text of a causal one.

    Args:
      sentences: sentences or prompts, of one batch of equal lengths
      source_tokens: tokens of each of them
      steps: tokens to write for each of them
      file_sentences: sentences of a file of mixed lengths, translation alone
      rounds: turns that count
      out: a new file for the JSON with all times
    """
    amounts = {"sentences": sentences, "source_tokens": source_tokens, "steps": steps, "file_sentences": file_sentences}

    def bench() -> BenchResults:
        from mhsh.bench import decoding

        return decoding.decode(_configs(config, against), decoding.Amounts(**amounts), rounds, note)

    return measured("mhsh bench decode", bench, out, {"rounds": rounds, **amounts})


KINDS = {"train": train, "inference": inference, "decode": decode}


def _configs(config: Config, against: Config | None) -> dict[str, Config]:
    return {"config": config} | ({} if against is None else {"against": against})


def measured(name: str, bench: Callable[[], BenchResults], out: str | None, numbers: Mapping[str, Any]) -> int:
    """The exit status of a bench called `name`, with its results printed, and written to `out`.
    After Ctrl-C nothing is written.

    Raises:
      UserError: one of the `numbers` is not above 0, or `out` cannot be written.
    """
    check_new_file("--out", out)
    for option, value in numbers.items():
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
