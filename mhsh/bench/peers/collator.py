"""DataCollatorForLanguageModeling of transformers, alone and in torch's DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch  # pyrefly: ignore[missing-import]
import transformers  # pyrefly: ignore[missing-import]

from mhsh.bench.harness import cores
from mhsh.config.schema import Config, DataConfig
from mhsh.data.corpus import Corpus
from mhsh.data.pretraining.packing import full_examples
from mhsh.data.tokenizers.wordpiece import Tokenizer

# Examples that the collator gets over and over: more than any cache holds, few enough for lists.
EXAMPLES_IN_MEMORY = 20_000

Example = dict[str, list[int]]


def collators(config: Config, corpus: Corpus[Tokenizer]) -> dict[str, Callable[[int], Iterator[Any]]]:
    """Functions from a number to so many batches, by peer; see `mhsh.bench.input`."""
    assert isinstance(config.data, DataConfig)
    torch.set_num_threads(cores())
    batch_size = config.train.batch_size
    examples = rows_as_lists(config, corpus)
    ids_alone = [{"input_ids": example["input_ids"]} for example in examples]
    vocab = {token: number for number, token in enumerate(corpus.tokenizer.vocab)}
    tokenizer = transformers.BertTokenizer(vocab=vocab, do_lower_case=config.data.lowercase)
    collate = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=config.data.mask_fraction)

    def collated(of: list[Example]) -> Callable[[int], Iterator[Any]]:
        starts = range(0, len(of) - batch_size + 1, batch_size)
        return lambda count: (collate(of[(start := starts[k % len(starts)]) : start + batch_size]) for k in range(count))

    def loaded(count: int) -> Iterator[Any]:
        sampler = torch.utils.data.RandomSampler(examples, num_samples=count * batch_size)
        loader: Any = torch.utils.data.DataLoader(examples, batch_size, sampler=sampler, num_workers=cores(), collate_fn=collate)
        return iter(loader)

    return {"collator": collated(examples), "collator-of-ids": collated(ids_alone), "loader": loaded}


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
