"""Times training, inference or decoding of one or two configs, in alternating turns."""

from __future__ import annotations

import dataclasses
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from mhsh.bench.results import BenchResults, show, write
from mhsh.cli import early_stop
from mhsh.cli.parser import AgainstFlag, ConfigFlag, Count, Positive
from mhsh.config.schema import Config
from mhsh.errors import UserError
from mhsh.storage.files import check_new_file, check_suffix

if TYPE_CHECKING:
    from mhsh.bench.timing import Schedule

EXAMPLES = (
    "mhsh bench train --config=bert:2l8h --against=bert:16l1h",
    "mhsh bench train --config=bert:2l8h --rounds=3 --out=train.json",
    "mhsh bench inference --config=bert:2l8h --against=bert:16l1h",
    "mhsh bench inference --config=bert:2l8h --batch=1,8 --out=inference.json",
    "mhsh bench decode --config=translation:tiny --against=translation:tiny_8l1h",
    "mhsh bench decode --config=translation:tiny --rounds=3 --out=decode.json",
)


@Parameter(name="*")
@dataclasses.dataclass(frozen=True)
class Turns:
    """How often each config has its turn, and for how long."""

    rounds: Annotated[Count, Parameter(help="timed turns")] = 7
    seconds: Annotated[Positive | None, Parameter(help="the length of a turn; by default 1 for training, 0.2 for inference")] = None
    repetitions: Annotated[Count | None, Parameter(help="steps or passes in a turn; by default as many as take --seconds")] = None

    def schedule(self, seconds: float, singly: bool) -> Schedule:
        """The schedule of these turns, with so many seconds for each by default; `singly` as there.
        Raises UserError where both flags say how long a turn is.
        """
        if self.seconds is not None and self.repetitions is not None:
            raise UserError("--seconds and --repetitions both say how long a turn is; give one of them")
        from mhsh.bench.timing import Schedule

        return Schedule(self.rounds, self.repetitions, self.seconds or seconds, singly)


TURNS = Turns()


def train(*, config: ConfigFlag, against: AgainstFlag | None = None, turns: Turns = TURNS, out: str | None = None) -> int:
    """One optimiser step.

    Args:
      out: a new file for the JSON with all times
    """

    def bench() -> BenchResults:
        from mhsh.bench import steps

        return steps.train(_configs(config, against), turns.schedule(1.0, singly=False), note)

    return run_bench("mhsh bench train", bench, out)


def inference(
    *,
    config: ConfigFlag,
    against: AgainstFlag | None = None,
    batch: str = "1,4,16,64",
    length: str | None = None,
    turns: Turns = TURNS,
    out: str | None = None,
) -> int:
    """The forward pass, over a grid of batches and lengths.

    Args:
      batch: numbers of rows
      length: tokens of a row; by default 32,128,512, as far as positions reach
      out: a new file for the JSON with all times
    """

    def bench() -> BenchResults:
        from mhsh.bench import steps

        configs = _configs(config, against)
        return steps.inference(configs, steps.grid(configs, batch, length), turns.schedule(0.2, singly=True), note)

    return run_bench("mhsh bench inference", bench, out)


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
      rounds: timed turns
      out: a new file for the JSON with all times
    """

    def bench() -> BenchResults:
        from mhsh.bench import decoding

        amounts = decoding.Amounts(sentences, source_tokens, steps, file_sentences or 256)
        return decoding.decode(_configs(config, against), amounts, rounds, note)

    if file_sentences is not None and config.model.objective == "clm":
        raise UserError("--file-sentences is for translation; a causal model goes on with prompts: leave it out")
    return run_bench("mhsh bench decode", bench, out)


KINDS = {"train": train, "inference": inference, "decode": decode}


def _configs(config: Config, against: Config | None) -> dict[str, Config]:
    return {"config": config} | ({} if against is None else {"against": against})


def run_bench(name: str, bench: Callable[[], BenchResults], out: str | None) -> int:
    """Runs a bench called `name`, prints its results and writes them to `out`. Returns the exit
    status. After Ctrl-C nothing is written. Raises UserError where `out` cannot be written.
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
