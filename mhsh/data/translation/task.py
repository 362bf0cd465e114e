"""Translation: sentence pairs, several in an example."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from etils import epath

from mhsh.config.schema import TranslationDataConfig
from mhsh.data.batches import Batch, Selection
from mhsh.data.corpus import Corpus, Item, Log, StreamedTask
from mhsh.data.random_numbers import PAIR_SPLIT
from mhsh.data.shards import ZSTD
from mhsh.data.tables import Examples, entropy_of_counts, num_examples
from mhsh.data.tokenizers.subword import SubwordTokenizer, load_subword, train_subword
from mhsh.data.translation.packing import encode_pairs, pack_pairs
from mhsh.data.translation.pairs import Pair, clean_text, read_pairs, validation_pairs
from mhsh.errors import UserError
from mhsh.files import expanded
from mhsh.run_folder import TOKENIZER_FILE


@dataclasses.dataclass(frozen=True)
class TranslationTask(StreamedTask[SubwordTokenizer]):
    """Sentence pairs, cleaned and split, as examples of both sides. An epoch has each pair once.

    Batches have int32 `inputs`, `inputs_position`, `inputs_segmentation` [B,S], `decoder_inputs`,
    `targets`, `targets_position`, `targets_segmentation` [B,T], and float32 `weights` [B,T], 1
    where there is a target.
    """

    items: ClassVar[str] = "pairs"
    items_per_shard: ClassVar[int] = 20_000
    vocab_file: ClassVar[str] = TOKENIZER_FILE
    compression: ClassVar[str] = ZSTD  # seven arrays that repeat each other
    counted: ClassVar[tuple[str, ...]] = (*StreamedTask.counted, "in_both_splits")
    split_purpose: ClassVar[int] = PAIR_SPLIT

    data: TranslationDataConfig

    def layout(self) -> dict[str, Any]:
        return {"data.layout": self.data.layout, "data.sequence_length": self.data.sequence_length}

    def streams(self) -> Sequence[Iterable[Item]]:
        own = validation_pairs(self.data)
        return [*([] if own is None else [own]), read_pairs(self.data.source)]

    def clean(self, item: Item) -> Item:
        return tuple(clean_text(text) for text in item)

    def new_tokenizer(self, texts: Iterable[str], log: Log) -> SubwordTokenizer:
        if self.data.vocab_path:
            return self.given_tokenizer()
        log("learning a bpe vocabulary")
        return train_subword(texts, self.model.vocab_size)

    def read_tokenizer(self, path: epath.PathLike) -> SubwordTokenizer:
        return self.fitting(load_subword(expanded(path)), f"the vocabulary {path}")

    def encode(self, items: Sequence[Item], split: str, chunk: int, tokenizer: SubwordTokenizer) -> tuple[Examples, dict[str, Any]]:
        """Packed examples. The sums are the counts of `encode_pairs`, `rows` (the examples), the
        `positions` of either side, and `token_counts` (how often each id is a target).
        """
        encoded, counts = encode_pairs(tokenizer, items, self.data)
        examples = pack_pairs(encoded, self.data.sequence_length)
        return examples, counts | {
            "rows": num_examples(examples),
            "positions": examples["inputs"].size,
            "token_counts": np.bincount(encoded.target.tokens, minlength=tokenizer.vocab_size),
        }

    def summarize(self, sums: Mapping[str, Any], split: str, tokenizer: SubwordTokenizer) -> tuple[dict[str, Any], float]:
        """The sums with the padding fractions, of the positions, and the entropy of the targets."""
        if not sums["pairs"]:
            raise UserError(
                f"data.source = {self.data.source!r} leaves no pair for {split}: {sums['too_long']} are longer than "
                f"data.sequence_length = {self.data.sequence_length} and {sums['unlike']} differ by more than "
                f"data.max_length_ratio = {self.data.max_length_ratio}; give more pairs, or change these, "
                "data.validation_source or data.validation_fraction"
            )
        plain = {name: int(value) for name, value in sums.items() if name not in ("positions", "token_counts")}
        plain |= {f"{side}_padding_fraction": 1 - plain[f"{side}_tokens"] / int(sums["positions"]) for side in ("source", "target")}
        return plain, entropy_of_counts(sums["token_counts"])

    def batch_maker(self, tokenizer: SubwordTokenizer, split: str) -> Callable[[Examples, Selection], Batch]:
        def make(examples: Examples, chosen: Selection) -> Batch:
            return examples | {"weights": (examples["targets_segmentation"] > 0) * chosen.weights[:, None]}

        return make


def decoded_validation(corpus: Corpus[SubwordTokenizer], count: int | None) -> list[Pair]:
    """The first `count` pairs of the validation examples (None: all), as text again."""
    pairs: list[Pair] = []
    for number in range(len(corpus.validation)):
        example = {name: values[0] for name, values in corpus.validation.take(np.array([number])).items()}
        for segment in range(1, int(example["inputs_segmentation"].max()) + 1):
            if len(pairs) == count:
                return pairs
            sides = (example[side][example[f"{side}_segmentation"] == segment] for side in ("inputs", "targets"))
            # Every sentence ends with its end mark.
            pairs.append(Pair(*(corpus.tokenizer.decode(side[:-1].tolist()) for side in sides)))
    return pairs
