"""mhsh bench: how fast, beside what, and how near to what the device can do."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import Any

from mhsh.bench import decode, inference, mhsh_steps
from mhsh.bench.compile import compile_step
from mhsh.bench.harness import Schedule
from mhsh.bench.input import PEERS as INPUT_PEERS
from mhsh.bench.input import input_batches
from mhsh.bench.peers import build
from mhsh.bench.results import BenchResults, write
from mhsh.bench.table import markdown
from mhsh.bench.train import train
from mhsh.config.schema import Config
from mhsh.errors import UserError
from mhsh.files import check_new_file

Options = dict[str, Any]
_COUNTS = ("rounds", "repetitions", "seconds", "batches", "sentences", "source_tokens", "steps", "file_sentences")


def run(kind: str, config: Config, against: Config | None = None, out: str | None = None, **options: Any) -> int:
    """Measures, prints the table, and writes the JSON to `out` where it is given. After Ctrl-C 130,
    with nothing written.
    """
    check_new_file(out)
    for name in _COUNTS:
        if options.get(name) is not None and options[name] <= 0:
            raise UserError(f"--{name.replace('_', '-')}={options[name]}: give a number above 0")
    configs = {name: each for name, each in ((mhsh_steps.CONFIG, config), (mhsh_steps.AGAINST, against)) if each is not None}
    try:
        results = _KINDS[kind](configs, options)
    except KeyboardInterrupt:
        print(f"mhsh bench {kind}: interrupted; nothing is written", file=sys.stderr)
        return 128 + signal.SIGINT
    if out is not None:
        write(results, out)
    print(markdown(results))
    if out is None:
        _note("--out=FILE.json keeps all times")
    return 0


def _note(text: str) -> None:
    print(f"mhsh bench: {text}", file=sys.stderr, flush=True)


def _train(configs: dict[str, Config], options: Options) -> BenchResults:
    schedule = Schedule(options["rounds"], options["repetitions"], options["seconds"], each=False)
    return train(configs, build.chosen(options["peer"], build.TORCH_PEERS), schedule, _note)


def _inference(configs: dict[str, Config], options: Options) -> BenchResults:
    schedule = Schedule(options["rounds"], options["repetitions"], options["seconds"], each=True)
    settings = inference.grid(configs, options["batch"], options["length"])
    return inference.inference(configs, build.chosen(options["peer"], build.TORCH_PEERS), settings, schedule, _note)


def _compile(configs: dict[str, Config], options: Options) -> BenchResults:
    return compile_step(configs, options["rounds"], _note)


def _input(configs: dict[str, Config], options: Options) -> BenchResults:
    chosen = build.chosen(options.pop("peer"), INPUT_PEERS)
    return input_batches(configs[mhsh_steps.CONFIG], chosen, note=_note, **options)


def _decode(configs: dict[str, Config], options: Options) -> BenchResults:
    chosen = build.chosen(options.pop("peer"), decode.PEERS)
    return decode.decode(configs, chosen, note=_note, **options)


_KINDS: dict[str, Callable[[dict[str, Config], Options], BenchResults]] = {
    "train": _train,
    "inference": _inference,
    "compile": _compile,
    "input": _input,
    "decode": _decode,
}
