"""The vocabulary of a checkpoint: from vocab.txt or tokenizer.json, and only where mhsh's WordPiece
does what theirs did.
"""

from __future__ import annotations

import functools
import json

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from mhsh.data.wordpiece import ByteTokenizer, load_wordpiece
from mhsh.errors import UserError
from mhsh.interop.vocabulary import read_vocabulary, write_tokenizer, write_vocabulary
from tests.interop.small_bert import TOKENS, small_tokenizer


def tokenizer_file(folder, **changed):
    """The tokenizer.json that the library writes, some dotted fields replaced."""
    library = tokenizers.Tokenizer(models.WordPiece(vocab={token: n for n, token in enumerate(TOKENS)}, unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer(lowercase=True)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.add_special_tokens(["[CLS]", "[SEP]"])
    fields = json.loads(library.to_str())
    for name, value in changed.items():
        *parents, last = name.split("__")
        where = fields
        for part in parents:
            where = where[part]
        where[last] = value
    (folder / "tokenizer.json").write_text(json.dumps(fields), encoding="utf-8")


ADDED = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)


def vocab_file(folder, tokens=TOKENS):
    (folder / "vocab.txt").write_text("".join(token + "\n" for token in tokens), encoding="utf-8")


def settings(folder, **fields):
    (folder / "tokenizer_config.json").write_text(json.dumps(fields))


NESTED = functools.reduce(lambda inner, _: {"type": "Sequence", "normalizers": [inner]}, range(200), {"type": "Lowercase"})


@pytest.mark.parametrize("lowercase", [True, False])
def test_what_is_written_is_read(tmp_path, lowercase):
    write_vocabulary(tmp_path, small_tokenizer(lowercase), lowercase=lowercase, max_positions=16, masks=True)
    assert read_vocabulary(tmp_path) == (TOKENS, lowercase)
    assert load_wordpiece(tmp_path / "vocab.txt", lowercase).vocab == TOKENS
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["mask_token"] == "[MASK]"


def test_each_file_alone_and_both(tmp_path):
    assert read_vocabulary(tmp_path) is None
    vocab_file(tmp_path)
    assert read_vocabulary(tmp_path) == (TOKENS, None)
    tokenizer_file(tmp_path)
    assert read_vocabulary(tmp_path) == (TOKENS, True)
    (tmp_path / "vocab.txt").unlink()
    assert read_vocabulary(tmp_path) == (TOKENS, True)
    # transformers 5 saves most tokenizers as one class: the content says what it is.
    for name in ("BertTokenizerFast", "TokenizersBackend", "PreTrainedTokenizerFast", "MyTokenizer"):
        settings(tmp_path, do_lower_case=True, tokenizer_class=name, strip_accents=None)
        assert read_vocabulary(tmp_path) == (TOKENS, True)
    content = (tmp_path / "tokenizer.json").read_text(encoding="utf-8")
    (tmp_path / "tokenizer.json").write_text(content.replace('"type": "WordPiece", ', ""), encoding="utf-8")  # as in 2020
    assert read_vocabulary(tmp_path) == (TOKENS, True)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (dict(model={"type": "BPE", "unk_token": "[UNK]", "continuing_subword_prefix": "##"}), "cannot import"),
        (dict(model__unk_token="<unk>"), "the model of tokenizer.json is another than BERT's"),
        (dict(normalizer={"type": "Lowercase"}), "the normalizer of tokenizer.json is another than BERT's: {'type': 'Lowercase'}"),
        (dict(normalizer__handle_chinese_chars=False), "the normalizer of tokenizer.json is another"),
        (dict(pre_tokenizer={"type": "Whitespace"}), "the pre_tokenizer of tokenizer.json is another"),
        (dict(model__vocab={"[PAD]": 0, "a": 2}), "must number all tokens 0, 1, ..."),
        (dict(model__vocab={"[PAD]": 0, "[UNK]": 1}), "and have [PAD], [UNK], [CLS], [SEP], [MASK]"),
        (dict(model__vocab={token: n for n, token in enumerate((*TOKENS, "a\nb"))}), "has the token 'a\\nb'"),
        # A hostile file: a number without end, nesting, an expression that takes for ever.
        (dict(model__vocab={"[PAD]": 1 << 70}), "expected u32"),
        (dict(normalizer=NESTED), "recursion limit exceeded"),
        (dict(pre_tokenizer={"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}), "another"),
        (dict(added_tokens=[ADDED | {"content": "<new>", "id": len(TOKENS)}]), "must number all tokens 0, 1, ..."),
    ],
)
def test_another_tokenizer(tmp_path, changed, message):
    tokenizer_file(tmp_path, **changed)
    with pytest.raises(UserError) as error:
        read_vocabulary(tmp_path)
    assert message in str(error.value) and str(tmp_path) in str(error.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(tokenizer_class="BertJapaneseTokenizer"), "tokenizer_class = 'BertJapaneseTokenizer', none of BertTokenizer, "),
        (dict(tokenizer_class="TokenizersBackend"), "and no tokenizer.json says how it splits a text"),
        (dict(tokenize_chinese_chars=False), "tokenize_chinese_chars or strip_accents other than BERT's"),
        (dict(do_lower_case=True, strip_accents=False), "strip_accents other than BERT's"),
        (dict(do_lower_case="no"), "Expected `bool | null`, got `str` - at `$.do_lower_case`"),
    ],
)
def test_other_settings(tmp_path, fields, message):
    vocab_file(tmp_path)
    settings(tmp_path, **fields)
    with pytest.raises(UserError) as error:
        read_vocabulary(tmp_path)
    assert message in str(error.value)


def test_files_that_disagree(tmp_path):
    tokenizer_file(tmp_path)
    settings(tmp_path, do_lower_case=False)
    with pytest.raises(UserError, match="disagree on lowercase"):
        read_vocabulary(tmp_path)
    settings(tmp_path)
    vocab_file(tmp_path, TOKENS[:-1])
    with pytest.raises(UserError, match="disagree on tokens"):
        read_vocabulary(tmp_path)
    vocab_file(tmp_path)
    (tmp_path / "added_tokens.json").write_text('{"<new>": 18}')
    with pytest.raises(UserError, match="adds the token '<new>'"):
        read_vocabulary(tmp_path)


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), small_tokenizer(), small_tokenizer(lowercase=False)])
def test_marks_in_a_text_are_ordinary_text_as_in_training(tmp_path, tokenizer):
    """With the special tokens registered as transformers does; tests of `parity` ask it itself."""
    write_tokenizer(tmp_path, tokenizer, max_positions=16)
    there = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    there.add_special_tokens([settings[name] for name in ("pad_token", "unk_token", "eos_token")])
    text = "the [SEP] number[PAD] [MASK]"
    assert there.encode(text).ids != tokenizer.encode_batch([text])[0].tolist()
    there.encode_special_tokens = settings["split_special_tokens"]
    assert there.encode(text).ids == tokenizer.encode_batch([text])[0].tolist()
    for masks in (True, False):
        write_vocabulary(tmp_path, small_tokenizer(), lowercase=True, max_positions=16, masks=masks)
        assert json.loads((tmp_path / "tokenizer_config.json").read_text())["split_special_tokens"] == (not masks)
