"""The vocabulary of a Hugging Face BERT: vocab.txt or tokenizer.json, and what
tokenizer_config.json says of the text before it; and the tokenizer.json of a language model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import msgspec
import tokenizers
from msgspec import Struct
from tokenizers import models, normalizers, pre_tokenizers

from mhsh.data.wordpiece import PAD, SEP, SPECIALS, UNK, ByteTokenizer, Tokenizer, WordPieceTokenizer, load_wordpiece
from mhsh.errors import UserError
from mhsh.interop.weights import wrap_file_errors
from mhsh.storage.files import read_object
from mhsh.storage.questions import exists

TOKENIZER_CONFIG_FILE, VOCAB_FILE, TOKENIZER_FILE = "tokenizer_config.json", "vocab.txt", "tokenizer.json"
ADDED_TOKENS_FILE = "added_tokens.json"


# Whose vocab.txt says all.
_BERTS = ("BertTokenizer", "BertTokenizerFast")


class Vocabulary(NamedTuple):
    """The tokens of a checkpoint."""

    tokens: tuple[str, ...]  # by id
    lowercase: bool | None  # None: it does not say


class _Settings(Struct):
    """tokenizer_config.json, as far as it changes the ids of a text."""

    tokenizer_class: str = "BertTokenizer"
    do_lower_case: bool | None = None
    tokenize_chinese_chars: bool | None = None
    strip_accents: bool | None = None


def read_vocabulary(folder: Path) -> Vocabulary | None:
    """The vocabulary in a checkpoint's folder, if any. Raises UserError where a file is damaged,
    two disagree, or they describe another tokenizer than BERT's WordPiece.
    """
    with wrap_file_errors(folder, "mhsh has the tokenizer of BERT alone: correct the file that is wrong"):
        settings = _Settings()
        if exists(folder / TOKENIZER_CONFIG_FILE):
            settings = msgspec.convert(read_object(folder / TOKENIZER_CONFIG_FILE), _Settings)
        said = [Vocabulary((), settings.do_lower_case)]
        if exists(folder / VOCAB_FILE):
            said.append(Vocabulary(load_wordpiece(folder / VOCAB_FILE, lowercase=True).vocab, None))
        if exists(folder / TOKENIZER_FILE):  # says all; transformers 5 gives most of them one class
            said.append(_parse_tokenizer(folder / TOKENIZER_FILE))
        elif settings.tokenizer_class not in _BERTS:
            raise ValueError(
                f"{TOKENIZER_CONFIG_FILE} has tokenizer_class = {settings.tokenizer_class!r:.60}, none of {', '.join(_BERTS)}, and "
                f"no {TOKENIZER_FILE} says how it splits a text"
            )
        vocabularies = {tokens for tokens, _ in said if tokens}
        cases = {lowercase for _, lowercase in said if lowercase is not None}
        if len(vocabularies) > 1 or len(cases) > 1:
            differ = "tokens" if len(vocabularies) > 1 else "lowercase"
            raise ValueError(f"{TOKENIZER_CONFIG_FILE}, {VOCAB_FILE} and {TOKENIZER_FILE} disagree on {differ}")
        if not vocabularies:
            return None
        tokens, lowercase = next(iter(vocabularies)), next(iter(cases), None)
        if settings.tokenize_chinese_chars is False or settings.strip_accents not in (None, lowercase):
            raise ValueError(f"{TOKENIZER_CONFIG_FILE} has tokenize_chinese_chars or strip_accents other than BERT's")
        added = read_object(folder / ADDED_TOKENS_FILE) if exists(folder / ADDED_TOKENS_FILE) else {}
        if new := sorted(set(added) - set(tokens)):
            raise ValueError(f"{ADDED_TOKENS_FILE} adds the token {new[0]!r:.40}, which WordPiece cannot make")
    return Vocabulary(tokens, lowercase)


def _parse_tokenizer(path: Path) -> Vocabulary:
    """Tokens and lowercase of a tokenizer.json; raises ValueError where it is not BERT's."""
    text = json.dumps(read_object(path))  # refuses what is not a JSON object
    try:
        tokenizer = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises no narrower one
        raise UserError(f"cannot import {path}: {error}; fetch it again") from error
    model, normalizer = tokenizer.model, tokenizer.normalizer
    parts = {
        "model": isinstance(model, models.WordPiece)
        and (model.unk_token, model.continuing_subword_prefix, model.max_input_chars_per_word) == (UNK, "##", 100),
        "normalizer": isinstance(normalizer, normalizers.BertNormalizer)
        and (normalizer.clean_text, normalizer.handle_chinese_chars) == (True, True)
        and normalizer.strip_accents in (None, normalizer.lowercase),
        "pre_tokenizer": isinstance(tokenizer.pre_tokenizer, pre_tokenizers.BertPreTokenizer),
    }
    for part, is_berts in parts.items():
        if not is_berts:
            raise ValueError(f"the {part} of {TOKENIZER_FILE} is another than BERT's: {json.loads(text).get(part)!r:.80}")
    ids = tokenizer.get_vocab(with_added_tokens=True)
    tokens = tuple(sorted(ids, key=ids.__getitem__))
    numbers = [ids[token] for token in tokens]
    own = tokenizer.get_vocab_size(with_added_tokens=False)
    if numbers != list(range(own)) or not {*SPECIALS} <= ids.keys():
        raise ValueError(f"model.vocab of {TOKENIZER_FILE} must number all tokens 0, 1, ..., and have {', '.join(SPECIALS)}")
    if unwritable := [token for token in tokens if not token or "\n" in token]:
        raise ValueError(f"{TOKENIZER_FILE} has the token {unwritable[0]!r}, which no line of a {VOCAB_FILE} can be")
    return Vocabulary(tokens, normalizer.lowercase)


def write_vocabulary(folder: Path, tokenizer: WordPieceTokenizer, *, lowercase: bool, max_positions: int, masks: bool) -> None:
    """vocab.txt and tokenizer_config.json, from which transformers makes a BertTokenizer with the
    same ids for the same text. With `masks`, [MASK] in a text is the mask, as `fill` reads it;
    transformers reads it so only together with [SEP] and the others.
    """
    tokenizer.save(folder / VOCAB_FILE)
    settings = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": lowercase,
        "strip_accents": None,  # where the text is lowercased, as here
        "tokenize_chinese_chars": True,
        "model_max_length": max_positions,
        "split_special_tokens": not masks,
        **{f"{token.strip('[]').lower()}_token": token for token in SPECIALS},
    }
    (folder / TOKENIZER_CONFIG_FILE).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a language model, from its tokenizer.json. Raises UserError where the file
    is missing or damaged, or is another tokenizer than those that mhsh has.
    """
    path, byte_tokenizer = folder / TOKENIZER_FILE, ByteTokenizer()
    if not exists(path):
        raise UserError(f"{path} does not exist; without it the weights mean nothing: put the one they were trained with there")
    parts, own = read_object(path), json.loads(byte_tokenizer.to_library().to_str())
    if all(parts.get(part) == own[part] for part in ("model", "normalizer", "pre_tokenizer")):
        return byte_tokenizer
    with wrap_file_errors(path, "mhsh has bytes and BERT's WordPiece alone, so that it cannot train or read this model's text"):
        vocabulary = _parse_tokenizer(path)
    return WordPieceTokenizer(vocabulary.tokens, bool(vocabulary.lowercase))


def write_tokenizer(folder: Path, tokenizer: Tokenizer, *, max_positions: int) -> None:
    """tokenizer.json and tokenizer_config.json, from which transformers makes a tokenizer with the
    same ids for the same text: no token begins or ends it.
    """
    (folder / TOKENIZER_FILE).write_text(tokenizer.to_library().to_str(pretty=True) + "\n", encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_positions,
        "split_special_tokens": True,  # "[SEP]" in a text is ordinary text, as in training
        "pad_token": PAD,
        "unk_token": UNK,
        "eos_token": SEP,
    }
    (folder / TOKENIZER_CONFIG_FILE).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
