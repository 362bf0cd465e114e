"""The corpus of pre-training: text read, split by document, tokenised, packed and fingerprinted; masked as it is batched."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import grain
import numpy as np
from etils import epath
from jaxtyping import Float32

from mhsh.config import DataConfig, ModelConfig
from mhsh.data import sources
from mhsh.data.corpus import Corpus, fingerprint_of
from mhsh.data.masking import MaskingRule, mask_row
from mhsh.data.pipeline import Batch, ProcessRows, batches_of_rows
from mhsh.data.rows import Rows, pack
from mhsh.data.seeds import DOCUMENT_SPLIT, MASKING, ROW_ORDER, TRAIN_PAIRS, VALIDATION_MASKING, VALIDATION_PAIRS, derived_seed
from mhsh.data.sentences import sentences
from mhsh.data.token_documents import tokenise
from mhsh.data.tokenizer import ByteTokenizer, Tokenizer, load_wordpiece, read_vocab, train_wordpiece
from mhsh.data.unigram import unigram_entropy
from mhsh.errors import UserError
from mhsh.run_folder import WORDPIECE_FILE


@dataclasses.dataclass(frozen=True)
class SplitCounts:
    """What one side of the split holds."""

    documents: int  # documents with at least one token
    empty_documents: int  # documents of which the tokenizer left nothing
    rows: int  # R
    tokens: int  # tokens in rows, specials among them, padding not
    padding_fraction: float  # of the R T places
    cut_sentences: int  # sentences too long for a row, cut into pieces
    dropped_tokens: int  # at the end of a clm stream, too few for a row


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingCorpus(Corpus):
    """The rows that a run trains and validates on; see `rows.Rows` for the arrays."""

    model: ModelConfig
    data: DataConfig
    tokenizer: Tokenizer
    train: Rows
    validation: Rows
    duplicate_documents: int  # left out, as an equal document is among the others
    train_counts: SplitCounts
    validation_counts: SplitCounts

    @property
    def num_train_rows(self) -> int:
        """R."""
        return len(self.train["inputs"])

    def summary(self) -> dict[str, Any]:
        """The counts as plain numbers, for run.json and for people."""
        return {
            "vocab_size": self.tokenizer.vocab_size,
            "duplicate_documents": self.duplicate_documents,
            "unigram_entropy": self.unigram_entropy,
            "train": dataclasses.asdict(self.train_counts),
            "validation": dataclasses.asdict(self.validation_counts),
        }

    def save_vocab(self, folder: epath.PathLike) -> None:
        """Writes vocab.txt."""
        self.tokenizer.save(epath.Path(folder) / WORDPIECE_FILE)

    def train_steps(self, batch_size: int, rows: ProcessRows | None = None) -> grain.MapDataset[Batch]:
        """As `Corpus.train_steps`; an epoch is each of the R training rows once, and masking is drawn anew in each.

        Returns:
          Batches of int32 `inputs`, `inputs_position`, `inputs_segmentation` [B,T], `token_types` [B,T] and `next_sentence` [B]
          where the model has them, and `targets`; mlm: `targets`, `targets_position` [B,P] and float32 `weights` [B,P]; clm:
          `targets` [B,T] and `weights` [B,T], all 1; with next_sentence `row_weights` [B] float32, all 1.
        """
        stream = self._records(self.train, derived_seed(self.data.seed, MASKING))
        stream = stream.shuffle(seed=derived_seed(self.data.seed, ROW_ORDER)).repeat()

        def finish(batch: Batch, positions: range) -> None:
            self._add_weights(batch, np.ones(len(positions), np.float32))

        return batches_of_rows(stream, len(stream) // batch_size, batch_size, rows, finish)

    def validation_batches(self, batch_size: int, rows: ProcessRows | None = None) -> grain.MapDataset[Batch]:
        """As `Corpus.validation_batches`: ceil(R / B) of them, always masked alike; in filler rows `row_weights` are 0 too."""
        stream = self._records(self.validation, derived_seed(self.data.seed, VALIDATION_MASKING))
        num_rows = len(stream)

        def finish(batch: Batch, positions: range) -> None:
            self._add_weights(batch, (np.array(positions) < num_rows).astype(np.float32))

        return batches_of_rows(stream, -(-num_rows // batch_size), batch_size, rows, finish)

    def _records(self, rows: Rows, seed: int) -> grain.MapDataset[Batch]:
        """One epoch of rows in their own order, masked by random numbers that depend on seed, row and epoch alone."""

        def row_of(index: int) -> Batch:
            return {name: values[index] for name, values in rows.items()}

        # MapDataset.source would do the same, and take twice as long over its read metrics as over reading from memory.
        stream = grain.MapDataset.range(len(rows["inputs"])).map(row_of)
        if self.model.objective == "clm":
            return stream
        rule = MaskingRule.of(self.tokenizer, self.data)
        return stream.random_map(lambda row, rng: mask_row(row, rng, rule), seed=seed)

    def _add_weights(self, batch: Batch, row_weights: Float32[np.ndarray, " B"]) -> None:
        """The weight of each row on each of its predictions, and by itself where the row as a whole is predicted on."""
        if self.model.objective == "clm":
            batch["weights"] = np.ones(batch["targets"].shape, np.float32)
        batch["weights"] *= row_weights[:, None]
        if self.model.next_sentence:
            batch["row_weights"] = row_weights


def load_pretraining(model: ModelConfig, data: DataConfig, saved_vocab: epath.PathLike | None = None) -> PretrainingCorpus:
    """Reads data.source and makes the rows of both splits; equal arguments and text give equal corpora, in every process.

    The tokenizer is that of `saved_vocab` (the vocab.txt of a run folder) where given, else of data.vocab_path, else trained
    on the training documents alone.

    Raises:
      UserError: whatever is wrong with the source, the vocabulary or their fit to the config; a split without rows.
    """
    documents = sources.documents(data.source)
    distinct = list(dict.fromkeys(documents))
    train, validation = split_documents(distinct, data, at_least=2 if model.next_sentence else 1)
    tokenizer = _tokenizer(model, data, train, saved_vocab)
    train_rows, train_counts = _rows(train, tokenizer, model, data, "training", TRAIN_PAIRS)
    validation_rows, validation_counts = _rows(validation, tokenizer, model, data, "validation", VALIDATION_PAIRS)
    eligible = train_rows["targets"] if model.objective == "clm" else train_rows["inputs"]
    if model.objective == "mlm":
        eligible = eligible[~tokenizer.is_special[eligible]]
    return PretrainingCorpus(
        model=model,
        data=data,
        tokenizer=tokenizer,
        train=train_rows,
        validation=validation_rows,
        fingerprint=fingerprint_of(
            [f"vocab {tokenizer.vocab_size}\n".encode(), *(token.encode() + b"\n" for token in tokenizer.vocab)],
            {"train": train_rows, "validation": validation_rows},
        ),
        unigram_entropy=unigram_entropy(eligible),
        duplicate_documents=len(documents) - len(distinct),
        train_counts=train_counts,
        validation_counts=validation_counts,
    )


def split_documents(documents: list[str], data: DataConfig, at_least: int) -> tuple[list[str], list[str]]:
    """Training and validation documents, each in the order given.

    The side of a document hangs on a hash of its content and data.seed: those with the smallest hashes are held out,
    round(validation_fraction n) of n documents, but at least `at_least` on either side. So equal documents (which
    load_pretraining leaves out anyway) could not part, and more text moves few documents to the other side.
    """
    if len(documents) < 2 * at_least:
        raise UserError(
            f"data.source = {data.source!r} holds {len(documents)} different documents; training and validation need "
            f"{at_least} each at least: give more text, or part it into documents by blank lines"
        )
    key = derived_seed(data.seed, DOCUMENT_SPLIT).to_bytes(4, "little")
    digests = [hashlib.blake2b(document.encode("utf-8"), key=key, digest_size=16).digest() for document in documents]
    count = round(data.validation_fraction * len(documents))
    count = min(max(count, at_least), len(documents) - at_least)
    held_out = set(sorted(digests)[:count])
    train = [document for document, digest in zip(documents, digests, strict=True) if digest not in held_out]
    validation = [document for document, digest in zip(documents, digests, strict=True) if digest in held_out]
    return train, validation


def _tokenizer(model: ModelConfig, data: DataConfig, train: list[str], saved_vocab: epath.PathLike | None) -> Tokenizer:
    if saved_vocab is not None and not epath.Path(saved_vocab).exists():
        raise UserError(f"the run's vocabulary {saved_vocab} is missing; put it back from a copy, or start another run folder")
    if data.tokenizer == "bytes":
        if data.vocab_path:
            raise UserError(f"data.vocab_path = {data.vocab_path!r} is only for data.tokenizer = 'wordpiece'; empty it for 'bytes'")
        tokenizer: Tokenizer = ByteTokenizer()
        if saved_vocab is not None and tuple(read_vocab(saved_vocab)) != tokenizer.vocab:
            raise UserError(f"{saved_vocab} is not the vocabulary of data.tokenizer = 'bytes'; put it back from a copy")
        whose = "data.tokenizer = 'bytes'"
    elif saved_vocab is not None or data.vocab_path:
        path = epath.Path(saved_vocab or data.vocab_path).expanduser()
        tokenizer = load_wordpiece(path, data.lowercase)
        whose = f"the vocabulary {path}"
    else:
        return train_wordpiece(train, model.vocab_size, data.lowercase)
    if tokenizer.vocab_size > model.vocab_size:
        raise UserError(
            f"{whose} has {tokenizer.vocab_size} tokens, more than model.vocab_size = {model.vocab_size}; set "
            f"model.vocab_size to {tokenizer.vocab_size} or more"
        )
    return tokenizer


def _rows(
    documents: list[str], tokenizer: Tokenizer, model: ModelConfig, data: DataConfig, split: str, purpose: int
) -> tuple[Rows, SplitCounts]:
    token_documents = tokenise(documents, tokenizer, _lines if model.objective == "clm" else sentences)
    packing = pack(token_documents, tokenizer, model, data, np.random.default_rng((data.seed, purpose)))
    real = packing.rows["inputs_segmentation"]
    if not len(real):
        raise UserError(
            f"the {len(documents)} {split} documents of data.source = {data.source!r} fill no row of data.sequence_length = "
            f"{data.sequence_length} tokens; shorten the rows, give more text, or change data.validation_fraction"
        )
    tokens = int(real.sum())
    return packing.rows, SplitCounts(
        documents=token_documents.num_documents,
        empty_documents=len(documents) - token_documents.num_documents,
        rows=len(real),
        tokens=tokens,
        padding_fraction=1 - tokens / real.size,
        cut_sentences=packing.cut_sentences,
        dropped_tokens=packing.dropped_tokens,
    )


def _lines(document: str) -> list[str]:
    """The lines with their ends: a causal model reads the text as it is, and many short texts spread over the cores."""
    *lines, last = document.split("\n")
    return [line + "\n" for line in lines] + ([last] if last else [])
