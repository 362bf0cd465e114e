"""Times training, inference or decoding of one or two configs, in alternating turns."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

from mhsh.bench.results import BenchResults, show, write
from mhsh.cli import early_stop
from mhsh.cli.parser import AgainstFlag, ConfigFlag, Count, Positive
from mhsh.config.schema import Config
from mhsh.errors import UserError
from mhsh.storage.files import check_new_file, check_suffix

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
    rounds: Count = 7,
    seconds: Positive | None = None,
    repetitions: Count | None = None,
    out: str | None = None,
) -> int:
    """One optimiser step.

    Args:
      rounds: turns that count
      seconds: of a turn; 1 by default
      repetitions: steps in a turn; by default as many as take --seconds
      out: a new file for the JSON with all times
    """

    def bench() -> BenchResults:
        from mhsh.bench import steps, timing

        return steps.train(_configs(config, against), timing.Schedule(rounds, repetitions, seconds or 1.0, singly=False), note)

    _check_turn(seconds, repetitions)
    return measured("mhsh bench train", bench, out)


def inference(
    *,
    config: ConfigFlag,
    against: AgainstFlag | None = None,
    batch: str = "1,4,16,64",
    length: str | None = None,
    rounds: Count = 7,
    seconds: Positive | None = None,
    repetitions: Count | None = None,
    out: str | None = None,
) -> int:
    """The forward pass, over a grid of batches and lengths.

    Args:
      batch: numbers of rows
      length: tokens of a row; by default 32,128,512, as far as positions reach
      rounds: turns that count
      seconds: of a turn; 0.2 by default
      repetitions: passes in a turn; by default as many as take --seconds
      out: a new file for the JSON with all times
    """

    def bench() -> BenchResults:
        from mhsh.bench import steps, timing

        configs = _configs(config, against)
        return steps.inference(
            configs, steps.grid(configs, batch, length), timing.Schedule(rounds, repetitions, seconds or 0.2), note
        )

    _check_turn(seconds, repetitions)
    return measured("mhsh bench inference", bench, out)


def decode(
    *,
    config: ConfigFlag,
    against: AgainstFlag | None = None,
    sentences: Count = 32,
    source_tokens: Count = 25,
    steps: Count = 30,
    file_sentences: Count | None = None,
    rounds: Count = 5,
    out: str | None = None,
) -> int:
    """Beam search of a translation model, or the text of a causal one.

    Args:
      sentences: sentences or prompts, of one batch of equal lengths
      source_tokens: tokens of each of them
      steps: tokens to write for each of them
      file_sentences: sentences of a file of mixed lengths, translation alone; 256 by default
      rounds: turns that count
      out: a new file for the JSON with all times
    """

    def bench() -> BenchResults:
        from mhsh.bench import decoding

        amounts = decoding.Amounts(sentences, source_tokens, steps, file_sentences or 256)
        return decoding.decode(_configs(config, against), amounts, rounds, note)

    if file_sentences is not None and config.model.objective == "clm":
        raise UserError("--file-sentences is for translation; a causal model goes on with prompts: leave it away")
    return measured("mhsh bench decode", bench, out)


KINDS = {"train": train, "inference": inference, "decode": decode}


def _check_turn(seconds: float | None, repetitions: int | None) -> None:
    if seconds is not None and repetitions is not None:
        raise UserError("--seconds and --repetitions both say how long a turn is; give one of them")


def _configs(config: Config, against: Config | None) -> dict[str, Config]:
    return {"config": config} | ({} if against is None else {"against": against})


def measured(name: str, bench: Callable[[], BenchResults], out: str | None) -> int:
    """The exit status of a bench called `name`, with its results printed, and written to `out`.
    After Ctrl-C nothing is written. Raises UserError where `out` cannot be written.
    """
    if out is not None:
        check_suffix("--out", out, "this is JSON", ".json")
    check_new_file("--out", out)
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
