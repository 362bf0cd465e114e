"""The vocabulary of a Hugging Face BERT: vocab.txt or tokenizer.json, and what
tokenizer_config.json says of the text before it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mhsh.data.tokenizers.wordpiece import SPECIALS, WordPieceTokenizer, load_wordpiece
from mhsh.errors import UserError
from mhsh.files import read_object

TOKENIZER_CONFIG_FILE, VOCAB_FILE, TOKENIZER_FILE = "tokenizer_config.json", "vocab.txt", "tokenizer.json"
_ADDED_TOKENS_FILE = "added_tokens.json"
_TOKENIZER_CLASSES = ("BertTokenizer", "BertTokenizerFast")
# What WordPieceTokenizer does, by the names of tokenizer.json. Older files lack the model's type;
# its other fields tell it.
_PARTS = {
    "model": {"unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
    "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
}


class Vocabulary(NamedTuple):
    """What a checkpoint says of its tokens."""

    tokens: tuple[str, ...]  # by id
    lowercase: bool | None  # None: it does not say


def read_vocabulary(folder: Path) -> Vocabulary | None:
    """The vocabulary in a checkpoint's folder; None where there is none.

    Raises:
      UserError: a file is damaged, two disagree, or they describe another tokenizer than BERT's
        WordPiece.
    """
    files = {name: read_object(folder / name) for name in (TOKENIZER_CONFIG_FILE, TOKENIZER_FILE) if (folder / name).exists()}
    settings, whole = files.get(TOKENIZER_CONFIG_FILE, {}), files.get(TOKENIZER_FILE)
    lowercase = settings.get("do_lower_case")
    if lowercase is not None and type(lowercase) is not bool:
        raise UserError(f"{folder / TOKENIZER_CONFIG_FILE} has do_lower_case = {lowercase!r:.40}; it must be true or false")
    tokens: tuple[str, ...] | None = None
    if (folder / VOCAB_FILE).exists():
        tokens = load_wordpiece(folder / VOCAB_FILE, lowercase=True).vocab
    if whole is not None:
        from_whole, lowercase_there = _of_tokenizer_file(whole, folder / TOKENIZER_FILE)
        if tokens is not None and tokens != from_whole:
            raise UserError(f"{folder / VOCAB_FILE} and {TOKENIZER_FILE} hold different tokens; remove the one that is wrong")
        if lowercase is not None and lowercase is not lowercase_there:
            raise UserError(
                f"{folder / TOKENIZER_CONFIG_FILE} has do_lower_case = {lowercase!r}, {TOKENIZER_FILE} has lowercase = "
                f"{lowercase_there!r}; correct the one that is wrong"
            )
        tokens, lowercase = from_whole, lowercase_there
    if tokens is None:
        return None
    _check_settings(settings, lowercase, folder / TOKENIZER_CONFIG_FILE)
    if (folder / _ADDED_TOKENS_FILE).exists():
        added = read_object(folder / _ADDED_TOKENS_FILE)
        _check_added(list(added.items()), tokens, folder / _ADDED_TOKENS_FILE)
    return Vocabulary(tokens, lowercase)


def write_vocabulary(folder: Path, tokenizer: WordPieceTokenizer, *, lowercase: bool, max_positions: int) -> None:
    """vocab.txt and tokenizer_config.json, from which transformers makes a BertTokenizer with the
    same ids for the same text.
    """
    tokenizer.save(folder / VOCAB_FILE)
    settings = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": lowercase,
        "strip_accents": None,  # where the text is lowercased, as here
        "tokenize_chinese_chars": True,
        "model_max_length": max_positions,
        **{f"{token.strip('[]').lower()}_token": token for token in SPECIALS},
    }
    (folder / TOKENIZER_CONFIG_FILE).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _of_tokenizer_file(whole: Mapping[str, Any], path: Path) -> tuple[tuple[str, ...], bool]:
    """Tokens and lowercase of a tokenizer.json."""
    for part, wanted in _PARTS.items():
        given = whole.get(part)
        for name, value in wanted.items():
            there = given.get(name) if isinstance(given, dict) else None
            if there != value:
                raise UserError(
                    f"{path}: {part}.{name} is {there!r:.40}; mhsh has the tokenizer of BERT alone, where it is {value!r}"
                )
    ids = whole["model"].get("vocab")
    if not isinstance(ids, dict) or {(type(number), number) for number in ids.values()} != {(int, n) for n in range(len(ids))}:
        raise UserError(f"{path}: the ids of model.vocab are not 0, 1, ... without a gap; fetch it again")
    tokens = tuple(sorted(ids, key=ids.__getitem__))
    missing = [token for token in SPECIALS if token not in ids]
    unwritable = [token for token in tokens if not token or "\n" in token]
    if missing or unwritable:
        raise UserError(
            f"{path}: model.vocab " + (f"lacks {', '.join(missing)}" if missing else f"has the token {unwritable[0]!r}")
        )
    added = whole.get("added_tokens") or []
    if not isinstance(added, list) or not all(isinstance(each, dict) for each in added):
        raise UserError(f"{path}: added_tokens is no list of tokens; fetch it again")
    _check_added([(each.get("content"), each.get("id")) for each in added], tokens, path)
    normalizer = whole["normalizer"]
    if type(normalizer.get("lowercase")) is not bool:
        raise UserError(
            f"{path}: normalizer.lowercase is {normalizer.get('lowercase')!r:.40}, neither true nor false; fetch it again"
        )
    _check_accents(normalizer.get("strip_accents"), normalizer["lowercase"], path)
    return tokens, normalizer["lowercase"]


def _check_settings(settings: Mapping[str, Any], lowercase: bool | None, path: Path) -> None:
    kind = settings.get("tokenizer_class", _TOKENIZER_CLASSES[0])
    if kind not in _TOKENIZER_CLASSES:
        raise UserError(f"{path} has tokenizer_class = {kind!r}; mhsh has the tokenizer of BERT alone: {_TOKENIZER_CLASSES[0]}")
    if settings.get("tokenize_chinese_chars", True) is not True:
        raise UserError(f"{path} has tokenize_chinese_chars = false; mhsh takes every Chinese character as a word, as BERT does")
    _check_accents(settings.get("strip_accents"), lowercase, path)


def _check_accents(strip: Any, lowercase: bool | None, path: Path) -> None:
    if strip is not None and strip is not lowercase:
        raise UserError(f"{path} has strip_accents = {strip!r:.40}; mhsh strips accents where it lowercases, as BERT does")


def _check_added(added: list[tuple[Any, Any]], tokens: tuple[str, ...], path: Path) -> None:
    """Tokens that were added must stand in the vocabulary: WordPiece knows no others."""
    for token, number in added:
        if type(number) is not int or not 0 <= number < len(tokens) or tokens[number] != token:
            raise UserError(
                f"{path} adds the token {token!r:.40} with id {number!r:.40}, which the vocabulary has not; mhsh cannot make it"
            )
