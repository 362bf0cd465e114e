"""From documents to the packed examples of pre-training."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from etils import epath

from mhsh.config.schema import DataConfig, to_dict
from mhsh.data import sources
from mhsh.data.entropy import entropy_of_counts
from mhsh.data.pretraining.documents import DocumentCounts, check_split, min_documents, sentences, split_documents, tokenise
from mhsh.data.pretraining.packing import pack
from mhsh.data.seeds import TRAIN_PAIRS, VALIDATION_PAIRS
from mhsh.data.shards import UNCOMPRESSED
from mhsh.data.splits import SPLITS, TRAIN
from mhsh.data.tables import Examples
from mhsh.data.tasks import Item, Log, Task
from mhsh.data.tokenizers.wordpiece import ByteTokenizer, Tokenizer, load_wordpiece, read_vocab, train_wordpiece
from mhsh.errors import UserError
from mhsh.files import expanded
from mhsh.run_folder import WORDPIECE_FILE

# Fields of the data section that only training uses. They decide no byte of the examples.
_ONLY_FOR_TRAINING = ("max_predictions", "mask_fraction", "whole_word_masking")


@dataclasses.dataclass(frozen=True)
class PretrainingTask(Task[Tokenizer]):
    """Documents, each kept once, as examples for masked or causal language models."""

    items: ClassVar[str] = "documents"
    item_size: ClassVar[int] = 1
    item_end: ClassVar[str] = "\n\n"  # documents contain no empty line
    items_per_shard: ClassVar[int] = 1000
    vocab_file: ClassVar[str] = WORDPIECE_FILE
    compression: ClassVar[str] = UNCOMPRESSED  # no array of an example follows from the others
    new_counts = DocumentCounts

    data: DataConfig

    @property
    def min_items(self) -> int:
        """See `documents.min_documents`."""
        return min_documents(self.model)

    def job(self) -> dict[str, Any]:
        """As `Task.job`. A given vocabulary counts by its content, not by its path."""
        fields = {name: value for name, value in to_dict(self.data).items() if name not in _ONLY_FOR_TRAINING}
        if self.data.vocab_path:
            fields["vocab_path"] = self._given_tokenizer().fingerprint
        return {
            "sentencex": importlib.metadata.version("sentencex"),
            "model.objective": self.model.objective,
            "model.next_sentence": self.model.next_sentence,
            "model.vocab_size": self.model.vocab_size,
            **{f"data.{name}": value for name, value in fields.items()},
        }

    def layout(self) -> dict[str, Any]:
        """As `Task.layout`."""
        return {
            "model.objective": self.model.objective,
            "model.next_sentence": self.model.next_sentence,
            "data.tokenizer": self.data.tokenizer,
            "data.lowercase": self.data.lowercase,
            "data.sequence_length": self.data.sequence_length,
        }

    def streams(self) -> Sequence[Iterable[Item]]:
        """The documents of data.source."""
        return [((document,) for document in sources.documents(self.data.source))]

    def split(self, streams: Sequence[Iterable[Item]], counts: DocumentCounts) -> Iterator[tuple[str, Item]]:
        """See `documents.split_documents`."""
        (stream,) = streams
        sizes: Counter[str] = Counter()
        for split, document in split_documents((document for (document,) in stream), self.data, counts):
            sizes[split] += 1
            yield split, (document,)
        check_split(sizes, self.model, self.data, counts)

    def new_tokenizer(self, texts: Iterable[str], log: Log) -> Tokenizer:
        """The vocabulary of data.vocab_path, the bytes, or a WordPiece vocabulary trained on
        `texts`.

        Raises:
          UserError: data.vocab_path does not fit, or model.vocab_size is too small.
        """
        if self.data.vocab_path:
            return self._given_tokenizer()
        if self.data.tokenizer == "bytes":
            return self._fitting(ByteTokenizer(), "data.tokenizer = 'bytes'")
        log("learning a wordpiece vocabulary")
        return train_wordpiece(texts, self.model.vocab_size, self.data.lowercase)

    def read_tokenizer(self, path: epath.PathLike) -> Tokenizer:
        """As `Task.read_tokenizer`, from a vocab.txt."""
        if self.data.tokenizer == "wordpiece":
            return self._fitting(load_wordpiece(path, self.data.lowercase), f"the vocabulary {path}")
        tokenizer = ByteTokenizer()
        if tuple(read_vocab(path)) != tokenizer.vocab:
            raise UserError(f"{path} is not the vocabulary of data.tokenizer = 'bytes'; put it back from a copy")
        return self._fitting(tokenizer, "data.tokenizer = 'bytes'")

    def _given_tokenizer(self) -> Tokenizer:
        path = self.data.vocab_path
        if self.data.tokenizer == "bytes":
            raise UserError(f"data.vocab_path = {path!r} is only for data.tokenizer = 'wordpiece'; empty it for 'bytes'")
        return self.read_tokenizer(expanded(path))

    def _fitting(self, tokenizer: Tokenizer, what: str) -> Tokenizer:
        if tokenizer.vocab_size > self.model.vocab_size:
            raise UserError(
                f"{what} has {tokenizer.vocab_size} tokens, more than model.vocab_size = {self.model.vocab_size}; set "
                f"model.vocab_size to {tokenizer.vocab_size} or more"
            )
        return tokenizer

    def encode(
        self, items: Sequence[Item], split: str, chunk: int, tokenizer: Tokenizer
    ) -> tuple[dict[str, Examples], dict[str, Any]]:
        """As `Task.encode`. Random sentences come from other documents of the chunk.

        The sums are:
          documents, empty_documents: those with tokens, and those without.
          sentences (clm: lines), cut_sentences: those with tokens, and those that were cut.
          rows, positions: R examples, and their R T positions.
          tokens: in examples, with specials and without padding.
          dropped_tokens: at the end of a clm stream, too few for an example.
          token_counts: how often each id occurs in the examples, or (clm) in their targets.
        """
        is_clm, documents = self.model.objective == "clm", [document for (document,) in items]
        tokenised = tokenise(documents, tokenizer, _lines if is_clm else sentences)
        purpose = TRAIN_PAIRS if split == TRAIN else VALIDATION_PAIRS
        packing = pack(tokenised, tokenizer, self.model, self.data, np.random.default_rng((self.data.seed, purpose, chunk)))
        tokens = packing.examples["tokens"]
        num_positions = len(tokens) * self.data.sequence_length
        counted = tokens[:, 1:] if is_clm else tokens
        return {split: packing.examples}, {
            "documents": tokenised.num_documents,
            "empty_documents": len(documents) - tokenised.num_documents,
            "sentences": len(tokenised.sentence_bounds) - 1,
            "cut_sentences": packing.cut_sentences,
            "rows": len(tokens),
            "positions": num_positions,
            "tokens": num_positions if is_clm else int(packing.examples["ends"][:, 1].sum()),
            "dropped_tokens": packing.dropped_tokens,
            "token_counts": np.bincount(counted.reshape(-1), minlength=tokenizer.vocab_size),
        }

    def summarize(self, sums: Mapping[str, Any], split: str, tokenizer: Tokenizer) -> tuple[dict[str, Any], float]:
        """As `Task.summarize`. The entropy is that of clm's targets, or of mlm's tokens without
        specials.

        Added are padding_fraction, of the positions; unknown_fraction, the share of [UNK] in the
        text; used_vocabulary, the share of the vocabulary without specials that occurs.
        """
        if not sums["rows"]:
            raise UserError(
                f"the {sums['documents']} documents for {split} of data.source = {self.data.source!r} fill no row of "
                f"data.sequence_length = {self.data.sequence_length} tokens; shorten the rows, give more text, or change "
                "data.validation_fraction"
            )
        plain = {name: int(value) for name, value in sums.items() if name not in ("positions", "token_counts")}
        counts = sums["token_counts"]
        ordinary, unknown = counts[~tokenizer.is_special], int(counts[tokenizer.unk_id])
        plain |= {
            "padding_fraction": 1 - plain["tokens"] / int(sums["positions"]),
            "unknown_fraction": unknown / max(1, unknown + int(ordinary.sum())),
            "used_vocabulary": float((ordinary > 0).mean()),
        }
        return plain, entropy_of_counts(counts if self.model.objective == "clm" else ordinary)

    def describe(self, counts: Mapping[str, Any]) -> Iterator[str]:
        """As `Task.describe`."""
        yield f"documents read {counts['read']:,}: {counts['empty']:,} empty, {counts['duplicates']:,} duplicates"
        pieces = "lines" if self.model.objective == "clm" else "sentences"
        for split in SPLITS:
            of = counts[split]
            yield (
                f"{split}: {of['documents']:,} documents ({of['empty_documents']:,} without a token left out), {of['sentences']:,} "
                f"{pieces} ({of['cut_sentences']:,} cut), {of['tokens']:,} tokens in {of['rows']:,} rows, "
                f"{of['padding_fraction']:.1%} padding, {of['dropped_tokens']:,} tokens dropped; {of['unknown_fraction']:.3%} of "
                f"the text unknown, {of['used_vocabulary']:.1%} of the vocabulary used"
            )


def _lines(document: str) -> list[str]:
    """The lines with their ends: a causal model reads the text unchanged, and many short texts keep
    all cores busy.
    """
    *lines, last = document.split("\n")
    return [line + "\n" for line in lines] + ([last] if last else [])
