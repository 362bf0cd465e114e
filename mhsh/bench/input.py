"""mhsh bench input: masked batches a second, beside transformers' collator.

All candidates make masked batches of train.batch_size from the same examples, and may use all
cores:

config: as `mhsh train`: examples are read from the shards in shuffled order and masked, ahead of
  time in a thread.
collator: DataCollatorForLanguageModeling alone. The examples are in memory as lists of ids, as a
  tokenizer gives them, with token types, attention mask and the mask of special tokens, so that its
  batches hold as much as mhsh's; reading and shuffling cost it nothing.
collator-of-ids: the same with the ids alone. It finds the special tokens by itself, and its batches
  have no token types.
loader: the first collator in torch's DataLoader, shuffled, with a worker process a core.

Padding counts as tokens. Where cores are shared with other programs, CPU seconds say more than
time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mhsh.bench import mhsh_steps
from mhsh.bench.harness import Candidate, Measured, Schedule, bench_results, take_turns
from mhsh.bench.peers import build
from mhsh.bench.results import BenchResults
from mhsh.config.schema import Config, DataConfig
from mhsh.data.batches import prefetched
from mhsh.data.load import load_corpus
from mhsh.errors import UserError

PEERS = ("collator", "collator-of-ids", "loader")
CHECKED_BATCHES = 20  # for the share of masked tokens

Batches = Callable[[int], Iterator[Any]]  # so many of them


def input_batches(config: Config, chosen: Sequence[str], *, batches: int, rounds: int, note: Callable[[str], None]) -> BenchResults:
    """Times the input pipeline; a turn is `batches` batches.

    Raises:
      UserError: the config masks nothing, or candidates mask different shares of the tokens.
    """
    _check(config, chosen)
    build.require(chosen)
    note("reading the data")
    corpus = load_corpus(config, None)
    corpus.check_batch(config.train.batch_size)
    steps = corpus.train_steps(config.train.batch_size)
    makers: dict[str, Batches] = {mhsh_steps.CONFIG: lambda count: prefetched(steps, 0, count)}
    if chosen:
        from mhsh.bench.peers.collator import collators

        made = collators(config, corpus)
        makers |= {peer: made[peer] for peer in chosen}
    check_masking({name: _inputs(name, make) for name, make in makers.items()}, corpus.tokenizer.mask_id, corpus.tokenizer.pad_id)
    candidates = [_candidate(name, make, config, batches) for name, make in makers.items()]
    times = take_turns(candidates, Schedule(rounds, 1, 0.0, each=True), note)
    setting = {"batch": config.train.batch_size, "length": config.data.sequence_length, "rows": len(corpus.train)}
    measured, options = [Measured(setting, candidates, times)], {"rounds": rounds, "batches": batches}
    torch = build.torch_environment() if chosen else None
    return bench_results("input", "token", options, {mhsh_steps.CONFIG: config}, measured, {}, torch)


def check_masking(inputs: dict[str, Iterator[np.ndarray]], mask_id: int, pad_id: int) -> None:
    """Raises UserError unless all candidates mask about the same share of their tokens."""
    shares = {}
    for name, arrays in inputs.items():
        seen = list(arrays)
        shares[name] = sum(int((each == mask_id).sum()) for each in seen) / sum(int((each != pad_id).sum()) for each in seen)
    if max(shares.values()) > 1.5 * min(shares.values()):
        listed = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
        raise UserError(f"the shares of masked tokens differ ({listed}); there is nothing to compare")


def _check(config: Config, chosen: Sequence[str]) -> None:
    if config.model.objective != "mlm" or not isinstance(config.data, DataConfig):
        raise UserError(f"mhsh bench input: model.objective = {config.model.objective!r} masks nothing; give bert:VARIANT")
    if chosen and config.data.whole_word_masking:
        raise UserError("--peer: data.whole_word_masking = True needs the words, which a collator does not have; set it to False")


def _inputs(name: str, make: Batches) -> Iterator[np.ndarray]:
    for batch in make(CHECKED_BATCHES):
        yield batch["inputs"] if name == mhsh_steps.CONFIG else batch["input_ids"].numpy()


def _candidate(name: str, make: Batches, config: Config, batches: int) -> Candidate:
    def run(repetitions: int) -> None:
        for _ in range(repetitions):
            made = sum(1 for _ in make(batches))
            if made != batches:
                raise UserError(f"{name} made {made} batches instead of {batches}; there is nothing to compare")

    is_mhsh = name == mhsh_steps.CONFIG
    return Candidate(
        name=name,
        label="mhsh's pipeline" if is_mhsh else f"transformers' collator ({name})",
        run=run,
        work=batches * mhsh_steps.tokens(config, config.train.batch_size),
        baseline=None if is_mhsh else mhsh_steps.CONFIG,
        facts={"config": mhsh_steps.CONFIG, "devices": 1, "implementation": "mhsh" if is_mhsh else "transformers"},
    )
