"""Tokenizers for encoders and language models: WordPiece (trained or loaded) and UTF-8 bytes."""

from __future__ import annotations

import abc
import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers
from etils import epath
from jaxtyping import Bool, Int32
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from mhsh.data.text_files import read_vocabulary
from mhsh.errors import UserError
from mhsh.storage.files import write_atomically

PAD, UNK, CLS, SEP, MASK = SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_CONTINUATION = "##"
# Words of more characters are [UNK], as in BERT's tokenization.py.
_LONGEST_WORD = 100
# A text that loses half of its characters is not what a model should learn.
_MOST_UNKNOWN = 0.5
# Like BERT's trainer; small vocabularies keep fewer, to leave room for words.
_MOST_CHARACTERS = 1000


class Tokenizer(abc.ABC):
    """Maps text to ids of a vocabulary of V tokens, which has the five special tokens."""

    def __init__(self, vocab: Sequence[str], rules: str) -> None:
        """`rules` names everything but the vocabulary that decides how text becomes ids."""
        self._rules = rules
        self.vocab: tuple[str, ...] = tuple(vocab)  # the token of every id
        ids = {token: number for number, token in enumerate(self.vocab)}
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (ids[token] for token in SPECIALS)

    @property
    def vocab_size(self) -> int:
        """V, the number of tokens; ids run from 0 to V - 1."""
        return len(self.vocab)

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hex, over everything that decides how text becomes ids."""
        return hashlib.sha256("\n".join((self._rules, *self.vocab)).encode("utf-8")).hexdigest()

    @functools.cached_property
    def is_special(self) -> Bool[np.ndarray, " V"]:
        """True for the five special tokens, by id."""
        special = np.zeros(self.vocab_size, bool)
        special[[self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id]] = True
        return special

    @functools.cached_property
    def ordinary_ids(self) -> Int32[np.ndarray, " n"]:
        """The ids of all other tokens."""
        return np.flatnonzero(~self.is_special).astype(np.int32)

    @abc.abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[Int32[np.ndarray, " n"]]:
        """The ids of each text, without special tokens; "[SEP]" in a text is ordinary text."""

    def unknown_characters(self, texts: Sequence[str]) -> int:
        """The number of characters that are in words that become [UNK]."""
        return 0

    @abc.abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; special tokens are shown by name."""

    @abc.abstractmethod
    def to_library(self) -> tokenizers.Tokenizer:
        """An equal tokenizer of the library `tokenizers`, whose file is a tokenizer.json."""

    def save(self, path: epath.PathLike) -> None:
        """Writes a vocab.txt: UTF-8, one token per line, in the order of ids."""
        write_atomically(path, "".join(token + "\n" for token in self.vocab))


class WordPieceTokenizer(Tokenizer):
    """WordPiece as published with BERT.

    White space and punctuation separate words; each word becomes its longest known pieces, from
    left to right.

    Source: Devlin et al., arXiv 1810.04805, section 3, and the tokenization.py released with it.
    """

    def __init__(self, vocab: Sequence[str], lowercase: bool) -> None:
        """`lowercase` also strips accents, as in BERT's uncased models."""
        super().__init__(vocab, f"wordpiece lowercase={lowercase}")
        self.lowercase = lowercase
        model = models.WordPiece(
            vocab={token: number for number, token in enumerate(self.vocab)},
            unk_token=UNK,
            max_input_chars_per_word=_LONGEST_WORD,
            continuing_subword_prefix=_CONTINUATION,
        )
        self._encoder = _encoder(model, lowercase)

    def encode_batch(self, texts: Sequence[str]) -> list[Int32[np.ndarray, " n"]]:
        # On all cores unless TOKENIZERS_PARALLELISM=false.
        encodings = self._encoder.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def encode_with_spans(self, texts: Sequence[str]) -> list[tuple[Int32[np.ndarray, " n"], Int32[np.ndarray, "n 2"]]]:
        """The ids of each text, and the span of each token: characters start to stop - 1."""
        encodings = self._encoder.encode_batch(list(texts), add_special_tokens=False)
        return [(np.array(encoding.ids, np.int32), np.array(encoding.offsets, np.int32).reshape(-1, 2)) for encoding in encodings]

    def unknown_characters(self, texts: Sequence[str]) -> int:
        encoded = self.encode_with_spans(texts)
        return sum(int(np.diff(spans[ids == self.unk_id]).sum()) for ids, spans in encoded)

    def to_library(self) -> tokenizers.Tokenizer:
        copy = tokenizers.Tokenizer.from_str(self._encoder.to_str())
        copy.decoder = decoders.WordPiece(_CONTINUATION, cleanup=False)
        return copy

    def decode(self, ids: Iterable[int]) -> str:
        """The words with single spaces between them: the original spaces are not known."""
        return " ".join(self.vocab[number] for number in ids).replace(" " + _CONTINUATION, "")


class ByteTokenizer(Tokenizer):
    """The 256 bytes of UTF-8 as tokens: ids 0 to 4 are the specials, byte b has id 5 + b."""

    def __init__(self) -> None:
        super().__init__((*SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256))), "bytes")

    def encode_batch(self, texts: Sequence[str]) -> list[Int32[np.ndarray, " n"]]:
        return [np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int32) + len(SPECIALS) for text in texts]

    def to_library(self) -> tokenizers.Tokenizer:
        # Without a character in the vocabulary, each falls back to its bytes.
        vocab = {token: number for number, token in enumerate(self.vocab)}
        encoder = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token=UNK, byte_fallback=True))
        encoder.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
        return encoder

    def decode(self, ids: Iterable[int]) -> str:
        """The text; invalid UTF-8, such as half a character, becomes U+FFFD."""
        first_byte = len(SPECIALS)
        parts = (bytes([number - first_byte]) if number >= first_byte else self.vocab[number].encode() for number in ids)
        return b"".join(parts).decode("utf-8", errors="replace")


def count_unknown(texts: Sequence[str], ids: Sequence[Int32[np.ndarray, " _"]], tokenizer: Tokenizer) -> dict[str, int]:
    """The `characters` of texts with these ids, without spaces, and the `unknown_characters` among
    them: those in words that become [UNK]. A share by tokens would hide a word of 10,000 letters.
    """
    lacking = [text for text, own in zip(texts, ids, strict=True) if (own == tokenizer.unk_id).any()]
    return {
        "characters": sum(len(text) - text.count(" ") for text in texts),
        "unknown_characters": tokenizer.unknown_characters(lacking),
    }


def check_known(counted: Mapping[str, Any], what: str, remedy: str) -> None:
    """Raises UserError, with the remedy, where half of what `count_unknown` counted is unknown."""
    fraction = unknown_fraction(counted)
    if fraction >= _MOST_UNKNOWN:
        raise UserError(
            f"{fraction:.0%} of the characters of {what} are in words that the vocabulary has no pieces for, and would be lost as "
            f"{UNK}; {remedy}"
        )


def unknown_fraction(counted: Mapping[str, Any]) -> float:
    """The share of unknown characters in what `count_unknown` counted; 0 where nothing was, as in
    older shards.
    """
    return float(counted.get("unknown_characters", 0) / max(1, counted.get("characters", 0)))


def train_wordpiece(texts: Iterable[str], vocab_size: int, lowercase: bool) -> WordPieceTokenizer:
    """A WordPiece vocabulary of at most `vocab_size` tokens; equal texts give equal results.

    The trainer of `tokenizers` merges equally frequent pairs by the numbers of their characters,
    which change from process to process, so the characters are numbered here. The order: specials,
    characters, ## characters, pieces in the order of merging. `texts` are iterated over twice;
    memory grows with the number of different words. Raises UserError where `vocab_size` has no room
    for the characters alone.
    """
    limit = min(_MOST_CHARACTERS, max(64, vocab_size // 16))
    characters = _frequent_characters(texts, limit, lowercase)
    words = pre_tokenizers.BertPreTokenizer()
    inside_words = [character for character in characters if len(words.pre_tokenize_str(f"a{character}a")) == 1]
    given = [*SPECIALS, *characters, *(_CONTINUATION + character for character in inside_words)]
    if vocab_size <= len(given):
        raise UserError(
            f"model.vocab_size = {vocab_size} is too small to train a WordPiece vocabulary on this text: its characters alone "
            f"take {len(given)} tokens; set model.vocab_size to {2 * len(given)} or more, or data.tokenizer = 'bytes'"
        )
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=given,
        initial_alphabet=characters,
        limit_alphabet=len(characters),
        continuing_subword_prefix=_CONTINUATION,
        show_progress=False,
    )
    encoder = _encoder(models.WordPiece(unk_token=UNK), lowercase)
    encoder.train_from_iterator(texts, trainer)
    learnt = encoder.get_vocab(with_added_tokens=True)
    return WordPieceTokenizer(sorted(learnt, key=learnt.__getitem__), lowercase)


def load_wordpiece(path: epath.PathLike, lowercase: bool) -> WordPieceTokenizer:
    """The tokenizer of a vocab.txt, such as those published with BERT. Raises UserError where it
    cannot be read, has an empty line or a token twice, or lacks a special token.
    """
    tokens = read_vocab(path)
    seen: dict[str, int] = {}
    for line, token in enumerate(tokens, 1):
        if not token:
            raise UserError(f"{path} line {line} is empty; a vocab.txt has a token in every line")
        if token in seen:
            raise UserError(f"{path} has the token {token!r} twice, in lines {seen[token]} and {line}; each needs its own id")
        seen[token] = line
    missing = [token for token in SPECIALS if token not in seen]
    if missing:
        raise UserError(f"{path} lacks {', '.join(missing)}; a BERT vocabulary has {' '.join(SPECIALS)}, each on a line of its own")
    return WordPieceTokenizer(tokens, lowercase)


def read_vocab(path: epath.PathLike) -> list[str]:
    """The tokens of a vocab.txt, by id. Raises UserError if it cannot be read."""
    lines = read_vocabulary(path, "vocab.txt").split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def _encoder(model: models.WordPiece, lowercase: bool) -> tokenizers.Tokenizer:
    # Special tokens are not registered: the library would then find "[SEP]" inside a text.
    encoder = tokenizers.Tokenizer(model)
    encoder.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=lowercase
    )
    encoder.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return encoder


def _frequent_characters(texts: Iterable[str], limit: int, lowercase: bool) -> list[str]:
    """The `limit` most frequent characters after normalisation (of equals the lower), sorted."""
    normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    counts = np.zeros(0x110000, np.int64)
    for text in texts:
        # astype, as bincount wants signed integers
        codes = np.frombuffer(normalizer.normalize_str(text).encode("utf-32-le"), np.uint32).astype(np.int64)
        present = np.bincount(codes) if len(codes) else np.zeros(0, np.int64)
        counts[: len(present)] += present
    counts[[code for code in range(0x3001) if chr(code).isspace()]] = 0
    order = np.argsort(-counts, kind="stable")[:limit]
    return sorted(chr(code) for code in order if counts[code])
