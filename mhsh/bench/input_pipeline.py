"""mhsh bench input: masked batches a second from a config's rows, beside
DataCollatorForLanguageModeling of transformers.

Everything makes masked batches of train.batch_size of the same rows, with all cores at its
disposal:

config: what `mhsh train` does: rows read from the shards in shuffled order, masked, made ahead of
  time by a thread.
collator: DataCollatorForLanguageModeling alone. The rows lie in memory, as the lists of ids that a
tokenizer gives, with token types, attention mask and the mask of special tokens, so that a batch
holds what ours does; reading and shuffling cost it nothing. collator-of-ids: the same with the ids
alone; it finds the special tokens by itself, and its batches have no token types.
loader: the first collator in torch's DataLoader, shuffled, with a worker process a core.

Tokens are places of the rows, padding among them. Where cores are shared, wall time says little:
then look at the CPU seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mhsh.bench import mhsh_steps
from mhsh.bench.candidate import Candidate
from mhsh.bench.peers import build
from mhsh.bench.results import cell, document
from mhsh.bench.rounds import Plan, take_turns
from mhsh.config.schema import Config, DataConfig
from mhsh.data.batches import prefetched
from mhsh.data.load import load_corpus
from mhsh.data.pretraining.corpus import PretrainingCorpus
from mhsh.errors import UserError

PEERS = ("collator", "collator-of-ids", "loader")
BATCHES_LOOKED_AT = 20  # for the share of tokens that are masked

Batches = Callable[[int], Iterator[Any]]  # so many of them


def input_batches(
    config: Config, chosen: Sequence[str], *, batches: int, rounds: int, note: Callable[[str], None]
) -> dict[str, Any]:
    """The document; a turn is `batches` batches.

    Raises:
      UserError: the config's rows are not masked as they are batched, or somebody masks another
        share of them.
    """
    _check(config, chosen)
    build.require(chosen)
    note("reading the rows")
    corpus = load_corpus(config, None)
    assert isinstance(corpus, PretrainingCorpus)
    corpus.check_batch(config.train.batch_size)
    steps = corpus.train_steps(config.train.batch_size)
    makers: dict[str, Batches] = {mhsh_steps.CONFIG: lambda count: prefetched(steps, 0, count)}
    if chosen:
        from mhsh.bench.peers.collator import collators

        made = collators(config, corpus)
        makers |= {peer: made[peer] for peer in chosen}
    check_masking({name: _inputs(name, make) for name, make in makers.items()}, corpus.tokenizer.mask_id, corpus.tokenizer.pad_id)
    candidates = [_contestant(name, make, config, batches) for name, make in makers.items()]
    times = take_turns(candidates, Plan(rounds, 1, 0.0, each=True), note)
    setting = {"batch": config.train.batch_size, "length": config.data.sequence_length, "rows": len(corpus.train)}
    found = [cell(setting, candidates, times)]
    environment = build.torch_environment() if chosen else None
    return document("input", "token", {"rounds": rounds, "batches": batches}, {mhsh_steps.CONFIG: config}, found, {}, environment)


def check_masking(inputs: dict[str, Iterator[np.ndarray]], mask_id: int, pad_id: int) -> None:
    """Raises UserError where somebody does not do the work: all mask about the same share of the
    tokens of their batches.
    """
    shares = {}
    for name, arrays in inputs.items():
        seen = list(arrays)
        shares[name] = sum(int((each == mask_id).sum()) for each in seen) / sum(int((each != pad_id).sum()) for each in seen)
    if max(shares.values()) > 1.5 * min(shares.values()):
        listed = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
        raise UserError(f"the shares of masked tokens differ ({listed}); there is nothing to compare")


def _check(config: Config, chosen: Sequence[str]) -> None:
    if config.model.objective != "mlm" or not isinstance(config.data, DataConfig):
        raise UserError(f"mhsh bench input: model.objective = {config.model.objective!r} masks nothing; give configs/bert.py")
    if chosen and config.data.whole_word_masking:
        raise UserError("--peer: data.whole_word_masking = True needs to know where a text's tokens stood; set it to False")


def _inputs(name: str, make: Batches) -> Iterator[np.ndarray]:
    for batch in make(BATCHES_LOOKED_AT):
        yield batch["inputs"] if name == mhsh_steps.CONFIG else batch["input_ids"].numpy()


def _contestant(name: str, make: Batches, config: Config, batches: int) -> Candidate:
    def run(repetitions: int) -> None:
        for _ in range(repetitions):
            made = sum(1 for _ in make(batches))
            if made != batches:
                raise UserError(f"{name} has made {made} batches instead of {batches}; there is nothing to compare")

    is_ours = name == mhsh_steps.CONFIG
    return Candidate(
        name=name,
        label="mhsh's pipeline" if is_ours else f"transformers' collator ({name})",
        run=run,
        work=batches * mhsh_steps.tokens(config, config.train.batch_size),
        baseline=None if is_ours else mhsh_steps.CONFIG,
        facts={"config": mhsh_steps.CONFIG, "implementation": "mhsh" if is_ours else "transformers"},
    )
