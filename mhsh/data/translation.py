"""Translation: sentence pairs, several in an example."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from etils import epath
from jaxtyping import Int32, Int64

from mhsh.config.schema import TranslationDataConfig
from mhsh.data.batches import Batch, Selection
from mhsh.data.corpus import Corpus, Item, Log, StreamedTask
from mhsh.data.pairs import Pair, clean_text, read_pairs, validation_pairs
from mhsh.data.random_numbers import PAIR_SPLIT
from mhsh.data.shards import ZSTD
from mhsh.data.subword import BOS_ID, EOS_ID, SubwordTokenizer, load_subword, train_subword
from mhsh.data.tables import Examples, bounds_of, entropy_of_counts, num_examples
from mhsh.errors import UserError
from mhsh.storage.files import expand_user
from mhsh.storage.run_folder import TOKENIZER_FILE

# Pairs given to the tokenizer at once: enough to keep its threads busy, few enough that its objects
# stay small.
_PAIRS_AT_ONCE = 4096
# Pairs with at most this many tokens on both sides may differ by any ratio: two words are often
# translated by seven.
_SHORT = 10
# Examples that are open for more pairs while pairs are packed. More give fuller examples, and take
# more time a pair.
_OPEN_EXAMPLES = 256


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
    count_names: ClassVar[tuple[str, ...]] = (*StreamedTask.count_names, "in_both_splits")
    split_purpose: ClassVar[int] = PAIR_SPLIT

    data: TranslationDataConfig

    def layout(self) -> dict[str, Any]:
        return {"data.sequence_length": self.data.sequence_length}

    def streams(self) -> Sequence[Iterable[Item]]:
        own = validation_pairs(self.data)
        return [*([] if own is None else [own]), read_pairs(self.data.source)]

    def clean(self, item: Item) -> Item:
        return tuple(clean_text(text) for text in item)

    def new_tokenizer(self, texts: Iterable[str], log: Log) -> SubwordTokenizer:
        if self.data.vocab_path:
            return self.configured_tokenizer()
        log("learning a bpe vocabulary")
        return train_subword(texts, self.model.vocab_size)

    def read_tokenizer(self, path: epath.PathLike) -> SubwordTokenizer:
        return self.check_tokenizer(load_subword(expand_user(path)), f"the vocabulary {path}")

    def encode(self, items: Sequence[Item], split: str, chunk: int, tokenizer: SubwordTokenizer) -> tuple[Examples, dict[str, Any]]:
        """Packed examples. The sums are the counts of `encode_pairs`, `rows` (the examples), the
        `positions` of either side, and `token_counts` (how often each id is a target).
        """
        source, target, counts = encode_pairs(tokenizer, items, self.data)
        examples = pack_pairs(source, target, self.data.sequence_length)
        return examples, counts | {
            "rows": num_examples(examples),
            "positions": examples["inputs"].size,
            "token_counts": np.bincount(target.tokens, minlength=tokenizer.vocab_size),
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

    def make_batch(self, tokenizer: SubwordTokenizer, split: str, examples: Examples, chosen: Selection) -> Batch:
        return examples | {"weights": (examples["targets_segmentation"] > 0) * chosen.weights[:, None]}


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


@dataclasses.dataclass(frozen=True)
class EncodedSide:
    """P sentences of one language as one flat array of n tokens; every sentence ends with [EOS]."""

    tokens: Int32[np.ndarray, " n"]
    bounds: Int64[np.ndarray, " bounds"]  # sentence p is tokens[bounds[p] : bounds[p + 1]]

    @property
    def lengths(self) -> Int64[np.ndarray, " P"]:
        """The tokens of each sentence with its end mark."""
        return np.diff(self.bounds)


def encode_pairs(
    tokenizer: SubwordTokenizer, pairs: Sequence[Item], data: TranslationDataConfig
) -> tuple[EncodedSide, EncodedSide, dict[str, int]]:
    """Both sides of the pairs as ids, with [EOS] after every sentence, without pairs that are too
    long or too unlike; and the counts of `pairs` kept, with `source_tokens` and `target_tokens`,
    and of those left out.

    A pair is `too_long` if a side has more than data.sequence_length tokens. It is `unlike` if the
    longer side has more than data.max_length_ratio times the tokens of the shorter (the rule of
    Moses' clean-corpus-n.perl) and more than 10: for short sentences a ratio means little.
    """
    sources: list[np.ndarray] = []
    targets: list[np.ndarray] = []
    too_long = unlike = 0
    for start in range(0, len(pairs), _PAIRS_AT_ONCE):
        source, target = map(tokenizer.encode_batch, zip(*pairs[start : start + _PAIRS_AT_ONCE], strict=True))
        shorter, longer = np.sort([list(map(len, source)), list(map(len, target))], axis=0)
        fits = longer < data.sequence_length
        alike = (longer <= _SHORT) | (longer <= data.max_length_ratio * shorter)
        too_long += int((~fits).sum())
        unlike += int((fits & ~alike).sum())
        kept = np.flatnonzero(fits & alike)
        sources += [source[index] for index in kept]
        targets += [target[index] for index in kept]
    sides = _join_sentences(sources), _join_sentences(targets)
    counts = {"pairs": len(sources), "too_long": too_long, "unlike": unlike}
    return *sides, counts | {f"{name}_tokens": len(side.tokens) for name, side in zip(("source", "target"), sides, strict=True)}


def pack_pairs(source: EncodedSide, target: EncodedSide, length: int) -> Examples:
    """All pairs in examples of `length` tokens on each side, several in each. The arrays are those
    of a batch, except `weights`.

    First fit: every pair goes to the oldest of at most 256 open examples that has room for both
    sides. Where none has, the fullest is closed and a new one opened. Examples are in the order in
    which they were opened, pairs in an example in that of the sides. Segmentation counts the pairs
    of an example from 1, positions the tokens of a pair's side from 0; 0 is padding.
    """
    example, before = _first_fit(source.lengths, target.lengths, length)
    count = int(example.max()) + 1 if len(example) else 0
    examples: Examples = {}
    for side, prefix, tokens_before in ((source, "inputs", before[1]), (target, "targets", before[2])):
        positions = np.arange(len(side.tokens)) - np.repeat(side.bounds[:-1], side.lengths)
        flat = np.repeat(example * length + tokens_before, side.lengths) + positions
        values = {"": side.tokens, "_position": positions, "_segmentation": np.repeat(before[0] + 1, side.lengths)}
        for suffix, value in values.items():
            filled = np.zeros(count * length, np.int32)
            filled[flat] = value
            examples[prefix + suffix] = filled.reshape(count, length)
    shifted_targets = np.zeros((count, length), np.int32)
    shifted_targets[:, 1:] = examples["targets"][:, :-1]
    is_target = examples["targets_segmentation"] > 0
    begins = (examples["targets_position"] == 0) & is_target
    examples["decoder_inputs"] = np.where(begins, BOS_ID, np.where(is_target, shifted_targets, 0)).astype(np.int32)
    return examples


def _join_sentences(sentences: Sequence[np.ndarray]) -> EncodedSide:
    bounds = bounds_of([len(ids) + 1 for ids in sentences])
    tokens = np.full(bounds[-1], EOS_ID, np.int32)
    is_end = np.zeros(len(tokens), bool)
    is_end[bounds[1:] - 1] = True
    if sentences:
        tokens[~is_end] = np.concatenate(sentences)
    return EncodedSide(tokens, bounds)


def _first_fit(
    source: Int64[np.ndarray, " P"], target: Int64[np.ndarray, " P"], length: int
) -> tuple[Int64[np.ndarray, " P"], Int64[np.ndarray, "3 P"]]:
    """The example of each pair, and the pairs, source and target tokens before the pair in it."""
    examples = np.zeros(len(source), np.int64)
    before = np.zeros((3, len(source)), np.int64)
    # Open examples, the oldest first: their numbers, and their pairs and tokens of both sides.
    number = np.arange(_OPEN_EXAMPLES)
    used = np.zeros((3, _OPEN_EXAMPLES), np.int64)
    source_used, target_used = used[1], used[2]
    num_open = 1
    for pair, (source_length, target_length) in enumerate(zip(source.tolist(), target.tolist(), strict=True)):
        fits = (source_used[:num_open] <= length - source_length) & (target_used[:num_open] <= length - target_length)
        slot = int(fits.argmax())
        if not fits[slot]:
            if num_open == _OPEN_EXAMPLES:
                slot = int((source_used + target_used).argmax())
                newest = number[-1]
                number[slot:-1], used[:, slot:-1] = number[slot + 1 :], used[:, slot + 1 :]
                number[-1], used[:, -1] = newest + 1, 0
            else:
                num_open += 1
            slot = num_open - 1
        examples[pair] = number[slot]
        before[:, pair] = used[:, slot]
        used[0, slot] += 1
        source_used[slot] += source_length
        target_used[slot] += target_length
    return examples, before
