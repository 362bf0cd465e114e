"""Masked batches a second, beside transformers' collator.

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

from mhsh.bench.results import BenchResults
from mhsh.bench.timing import CONFIG, Candidate, Note, Schedule, bench, cores
from mhsh.config.schema import Config, DataConfig
from mhsh.data.batches import prefetch
from mhsh.data.corpus import Corpus
from mhsh.data.load import load_corpus
from mhsh.data.packing import full_examples
from mhsh.data.wordpiece import Tokenizer
from mhsh.errors import UserError
from mhsh.models.costs import row_tokens

CHECKED_BATCHES = 20  # for the share of masked tokens
# Examples that the collator gets over and over: more than any cache holds, few enough for lists.
EXAMPLES_IN_MEMORY = 20_000

Batches = Callable[[int], Iterator[Any]]  # so many of them
Example = dict[str, list[int]]


def input_batches(config: Config, peers: Sequence[str], *, batches: int, rounds: int, note: Note) -> BenchResults:
    """Times the input pipeline; a turn is `batches` batches.

    Raises:
      UserError: the config masks nothing, or candidates mask different shares of the tokens.
    """
    _check(config, peers)
    note("reading the data")
    corpus = load_corpus(config, None)
    corpus.check_batch(config.train.batch_size)
    steps = corpus.train_steps(config.train.batch_size)
    makers: dict[str, Batches] = {CONFIG: lambda count: prefetch(steps, 0, count)}
    if peers:
        made = collators(config, corpus)
        makers |= {peer: made[peer] for peer in peers}
    check_masking({name: _inputs(name, make) for name, make in makers.items()}, corpus.tokenizer.mask_id, corpus.tokenizer.pad_id)
    candidates = [_candidate(name, make, config, batches) for name, make in makers.items()]
    setting = {"batch": config.train.batch_size, "length": config.data.sequence_length, "rows": len(corpus.train)}
    return bench("input", "token", {CONFIG: config}, [(setting, candidates)], Schedule(rounds), note, batches=batches)


def check_masking(inputs: dict[str, Iterator[np.ndarray]], mask_id: int, pad_id: int) -> None:
    """Raises UserError unless all candidates mask about the same share of their tokens."""
    shares = {}
    for name, arrays in inputs.items():
        seen = list(arrays)
        shares[name] = sum(int((ids == mask_id).sum()) for ids in seen) / sum(int((ids != pad_id).sum()) for ids in seen)
    if max(shares.values()) > 1.5 * min(shares.values()):
        listed = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
        raise UserError(f"the shares of masked tokens differ ({listed}); the times cannot be compared")


def collators(config: Config, corpus: Corpus[Tokenizer]) -> dict[str, Batches]:
    """Functions from a number to so many batches, by peer."""
    import torch  # pyrefly: ignore[missing-import]
    import transformers  # pyrefly: ignore[missing-import]

    assert isinstance(config.data, DataConfig)
    torch.set_num_threads(cores())
    batch_size = config.train.batch_size
    examples = rows_as_lists(config, corpus)
    ids_alone = [{"input_ids": example["input_ids"]} for example in examples]
    vocab = {token: number for number, token in enumerate(corpus.tokenizer.vocab)}
    tokenizer = transformers.BertTokenizer(vocab=vocab, do_lower_case=config.data.lowercase)
    collate = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=config.data.mask_fraction)

    def collate_batches(rows: list[Example]) -> Batches:
        starts = range(0, len(rows) - batch_size + 1, batch_size)
        return lambda count: (collate(rows[(start := starts[k % len(starts)]) : start + batch_size]) for k in range(count))

    def loader_batches(count: int) -> Iterator[Any]:
        sampler = torch.utils.data.RandomSampler(examples, num_samples=count * batch_size)
        loader: Any = torch.utils.data.DataLoader(examples, batch_size, sampler=sampler, num_workers=cores(), collate_fn=collate)
        return iter(loader)

    return {"collator": collate_batches(examples), "collator-of-ids": collate_batches(ids_alone), "loader": loader_batches}


def rows_as_lists(config: Config, corpus: Corpus[Tokenizer]) -> list[Example]:
    """The first examples as tokenizers of transformers give them, padded."""
    numbers = np.arange(min(len(corpus.train), EXAMPLES_IN_MEMORY))
    rows = full_examples(corpus.train.take(numbers), config.model)
    columns = {
        "input_ids": rows["inputs"],
        "token_type_ids": rows.get("token_types", np.zeros_like(rows["inputs"])),
        "attention_mask": rows["inputs_segmentation"],
        "special_tokens_mask": corpus.tokenizer.is_special[rows["inputs"]].astype(np.int32),
    }
    lists = {name: values.tolist() for name, values in columns.items()}
    return [{name: values[row] for name, values in lists.items()} for row in range(len(numbers))]


def _check(config: Config, peers: Sequence[str]) -> None:
    if config.model.objective != "mlm" or not isinstance(config.data, DataConfig):
        raise UserError(f"model.objective = {config.model.objective!r} masks nothing; give bert:VARIANT")


def _inputs(name: str, make: Batches) -> Iterator[np.ndarray]:
    for batch in make(CHECKED_BATCHES):
        yield batch["inputs"] if name == CONFIG else batch["input_ids"].numpy()


def _candidate(name: str, make: Batches, config: Config, batches: int) -> Candidate:
    def run(repetitions: int) -> None:
        for _ in range(repetitions):
            made = sum(1 for _ in make(batches))
            if made != batches:
                raise UserError(f"{name} made {made} batches instead of {batches}; the times cannot be compared")

    is_mhsh = name == CONFIG
    return Candidate(
        name=name,
        label="mhsh's pipeline" if is_mhsh else f"transformers' collator ({name})",
        run=run,
        work=batches * config.train.batch_size * row_tokens(config),
        baseline=None if is_mhsh else CONFIG,
        facts={"config": CONFIG, "devices": 1, "implementation": "mhsh" if is_mhsh else "transformers"},
    )
