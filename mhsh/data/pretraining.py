"""Pre-training: documents packed into examples, which are masked when they are batched."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from etils import epath

from mhsh.config.entries import SOURCES
from mhsh.config.schema import DataConfig
from mhsh.data.batches import Batch, Selection
from mhsh.data.corpus import Item, Log, StreamedTask
from mhsh.data.documents import document_rule, documents
from mhsh.data.masking import mask_examples
from mhsh.data.packing import full_examples, pack, sentences, tokenise
from mhsh.data.random_numbers import DOCUMENT_SPLIT, MASKING, TRAIN_PAIRS, VALIDATION_MASKING, VALIDATION_PAIRS, derived_seed, keys
from mhsh.data.shards import UNCOMPRESSED
from mhsh.data.tables import TRAIN, Examples, entropy_of_counts
from mhsh.data.wordpiece import ByteTokenizer, Tokenizer, check_known, load_wordpiece, read_vocab, train_wordpiece, unknown_fraction
from mhsh.errors import UserError
from mhsh.storage.run_folder import WORDPIECE_FILE


@dataclasses.dataclass(frozen=True)
class PretrainingTask(StreamedTask[Tokenizer]):
    """Documents, each kept once, as examples for masked or causal language models.

    See packing.py for the arrays of an example. Batches have int32 `inputs`, `inputs_position`,
    `inputs_segmentation` [B,T], and `token_types` [B,T] and `next_sentence` [B] where the model has
    them. mlm: int32 `targets`, `targets_position` [B,P] and float32 `weights` [B,P]. clm: int32
    `targets` [B,T] and float32 `weights` [B,T]. With `next_sentence` also float32 `row_weights`
    [B], 0 where an example only fills a batch.
    """

    items: ClassVar[str] = "documents"
    items_per_shard: ClassVar[int] = 1000
    vocab_file: ClassVar[str] = WORDPIECE_FILE
    unknown_remedy: ClassVar[str] = "take --config.data.tokenizer=bytes, which knows all, or name another --config.data.vocab_path"
    compression: ClassVar[str] = UNCOMPRESSED  # no array of an example follows from the others
    training_only_fields: ClassVar[tuple[str, ...]] = ("max_predictions", "mask_fraction")
    split_purpose: ClassVar[int] = DOCUMENT_SPLIT

    data: DataConfig

    @property
    def min_items(self) -> int:
        """A random next sentence comes from another document."""
        return 2 if self.model.next_sentence else 1

    def job(self) -> dict[str, Any]:
        recorded = SOURCES.record(self.data.source.partition(":")[0])
        return {
            "sentencex": importlib.metadata.version("sentencex"),
            **self.layout(),
            # The content of the file that a user's own source is from.
            **({"data.source.sha256": recorded[0]["sha256"]} if recorded else {}),
            **super().job(),
        }

    def layout(self) -> dict[str, Any]:
        return {
            "model.objective": self.model.objective,
            "model.next_sentence": self.model.next_sentence,
            "data.tokenizer": self.data.tokenizer,
            "data.lowercase": self.data.lowercase,
            "data.sequence_length": self.data.sequence_length,
        }

    def streams(self) -> Sequence[Iterable[Item]]:
        return [((document,) for document in documents(self.data.source))]

    def item_rule(self) -> str:
        return f"{document_rule(self.data.source)}: "

    def new_tokenizer(self, texts: Iterable[str], log: Log) -> Tokenizer:
        if self.data.vocab_path:
            return self.configured_tokenizer()
        if self.data.tokenizer == "bytes":
            return self.check_tokenizer(ByteTokenizer(), "data.tokenizer = 'bytes'")
        log("learning a wordpiece vocabulary")
        return train_wordpiece(texts, self.model.vocab_size, self.data.lowercase)

    def read_tokenizer(self, path: epath.PathLike) -> Tokenizer:
        if self.data.tokenizer == "wordpiece":
            return self.check_tokenizer(load_wordpiece(path, self.data.lowercase), f"the vocabulary {path}")
        tokenizer = ByteTokenizer()
        if tuple(read_vocab(path)) != tokenizer.vocab:
            raise UserError(
                f"{path} is not the vocabulary of data.tokenizer = 'bytes'; put it back from a copy, or empty data.vocab_path"
            )
        return self.check_tokenizer(tokenizer, "data.tokenizer = 'bytes'")

    def encode(self, items: Sequence[Item], split: str, chunk: int, tokenizer: Tokenizer) -> tuple[Examples, dict[str, Any]]:
        """Packed examples. Random sentences come from other documents of the chunk.

        The sums are:
          documents, empty_documents: those with tokens, and those without.
          sentences (clm: lines), cut_sentences: those with tokens, and those that were cut.
          rows, positions: R examples, and their R T positions.
          tokens: in examples, with specials and without padding.
          dropped_tokens: at the end of a clm stream, too few for an example.
          characters, unknown_characters: as `count_unknown`.
          token_counts: how often each id occurs in the examples, or (clm) in their targets.
        """
        is_clm, texts = self.model.objective == "clm", [text for (text,) in items]
        tokenised = tokenise(texts, tokenizer, _lines if is_clm else sentences)
        purpose = TRAIN_PAIRS if split == TRAIN else VALIDATION_PAIRS
        rng = np.random.default_rng((self.data.seed, purpose, chunk))
        examples, cut_sentences, dropped_tokens = pack(tokenised, tokenizer, self.model, self.data, rng)
        tokens = examples["tokens"]
        num_positions = len(tokens) * self.data.sequence_length
        counted = tokens[:, 1:] if is_clm else tokens
        return examples, {
            "documents": tokenised.num_documents,
            "empty_documents": len(texts) - tokenised.num_documents,
            "sentences": len(tokenised.sentence_bounds) - 1,
            "cut_sentences": cut_sentences,
            "rows": len(tokens),
            "positions": num_positions,
            "tokens": num_positions if is_clm else int(examples["ends"][:, 1].sum()),
            "dropped_tokens": dropped_tokens,
            **tokenised.unknown_counts,
            "token_counts": np.bincount(counted.reshape(-1), minlength=tokenizer.vocab_size),
        }

    def summarize(self, sums: Mapping[str, Any], split: str, tokenizer: Tokenizer) -> tuple[dict[str, Any], float]:
        """The sums, and the entropy of clm's targets, or of mlm's tokens without specials.

        Added are padding_fraction, of the positions; unknown_fraction, the share of [UNK] in the
        text; unknown_character_fraction, that of characters; used_vocabulary, the share of the
        vocabulary without specials that occurs.
        """
        if not sums["rows"]:
            raise UserError(
                f"the {sums['documents']} documents for {split} of data.source = {self.data.source!r} fill no row of "
                f"data.sequence_length = {self.data.sequence_length} tokens; shorten the rows, give more text, or change "
                "data.validation_fraction"
            )
        left_out = ("positions", "characters", "unknown_characters", "token_counts")
        plain = {name: int(value) for name, value in sums.items() if name not in left_out}
        counts = sums["token_counts"]
        ordinary, unknown = counts[~tokenizer.is_special], int(counts[tokenizer.unk_id])
        if split == TRAIN:
            check_known(sums, f"data.source = {self.data.source!r}", self.unknown_remedy)
        plain |= {
            "padding_fraction": 1 - plain["tokens"] / int(sums["positions"]),
            "unknown_fraction": unknown / max(1, unknown + int(ordinary.sum())),
            "unknown_character_fraction": unknown_fraction(sums),
            "used_vocabulary": float((ordinary > 0).mean()),
        }
        return plain, entropy_of_counts(counts if self.model.objective == "clm" else ordinary)

    def make_batch(self, tokenizer: Tokenizer, split: str, examples: Examples, chosen: Selection) -> Batch:
        """The masking depends on data.seed, the examples' numbers and the epoch alone."""
        batch = full_examples(examples, self.model)
        if self.model.objective == "clm":
            batch["weights"] = np.ones(batch["targets"].shape, np.float32)
        else:
            seed = derived_seed(self.data.seed, MASKING if split == TRAIN else VALIDATION_MASKING)
            batch |= mask_examples(batch["inputs"], keys(seed, chosen.numbers, chosen.epochs), tokenizer, self.data)
        batch["weights"] *= chosen.weights[:, None]
        if self.model.next_sentence:
            batch["row_weights"] = chosen.weights
        return batch


def _lines(document: str) -> list[str]:
    """The lines with their ends: a causal model reads the text unchanged, and many short texts keep
    all cores busy.
    """
    *lines, last = document.split("\n")
    return [line + "\n" for line in lines] + ([last] if last else [])
