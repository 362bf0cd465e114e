"""Sentences without a loss, and the three layouts: literal rows, and no token lost or invented."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from mhsh.config.schema import Config
from mhsh.data.packing import (
    TokenDocuments,
    cut_long_sentences,
    full_examples,
    pack,
    sentences,
    split_limit,
    tokenise,
)
from mhsh.data.wordpiece import SPECIALS, ByteTokenizer, WordPieceTokenizer
from mhsh.errors import UserError
from tests.data.preparing import CLM, pretraining_config

# What sentence rules turn on, and white space that is not a plain space.
AWKWARD = [*'.!?()"\n\r\x85\u2028\u2019\xa0\u2026B', "Mr.", "U.S.", "J.", "e.g."]

TOKENIZER = ByteTokenizer()
CLS, SEP, PAD = TOKENIZER.cls_id, TOKENIZER.sep_id, TOKENIZER.pad_id
A, B, C, D, E = (5 + ord(character) for character in "ABCDE")
SINGLE = dict(next_sentence=False, max_predictions=1)


def lines(document: str) -> list[str]:
    return document.split("\n")


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ("Dr. Smith met J. R. R. Tolkien. He paid $3.50.", ["Dr. Smith met J. R. R. Tolkien. ", "He paid $3.50."]),
        ("It was 5 p.m. on Jan. 5th. Was it? Yes!", ["It was 5 p.m. on Jan. 5th. ", "Was it? ", "Yes!"]),
        ("Title\nFirst. Second.\nThird", ["Title\n", "First. ", "Second.\n", "Third"]),
        ("One.\n\n \nTwo.\n", ["One.\n\n \n", "Two.\n"]),
        (" \n\nOne.", [" \n\nOne."]),
        ("", []),
        ("\n", ["\n"]),
    ],
)
def test_sentences_end_where_a_reader_sees_it(document: str, expected: list[str]) -> None:
    assert sentences(document) == expected


@pytest.mark.parametrize("space", ["\u0085", "\u00a0", "\u2009", "\u2028", "\u3000"])
def test_a_white_space_of_several_bytes_after_an_initial(space: str) -> None:
    document = f"John B{space}. came. He left."
    assert sentences(document) == [f"John B{space}. came. ", "He left."]


@given(st.lists(st.one_of(st.sampled_from(AWKWARD), st.text(max_size=4))).map(" ".join))
def test_sentences_lose_nothing(document: str) -> None:
    found = sentences(document)
    assert "".join(found) == document
    assert all(found)
    assert len(found) <= 1 or not any(sentence.isspace() for sentence in found)
    assert not any("\n" in sentence.rstrip() for sentence in found[1:])


def as_lists(documents: TokenDocuments) -> list[list[list[int]]]:
    return [
        [
            documents.tokens[documents.sentence_bounds[s] : documents.sentence_bounds[s + 1]].tolist()
            for s in range(documents.document_bounds[d], documents.document_bounds[d + 1])
        ]
        for d in range(documents.num_documents)
    ]


def test_bounds_literal() -> None:
    documents = tokenise(["ab\nc", "", "\nd\n"], ByteTokenizer(), lines)
    assert documents.tokens.tolist() == [5 + ord(character) for character in "abcd"]
    assert documents.tokens.dtype == np.int32
    assert documents.sentence_bounds.tolist() == [0, 2, 3, 4]  # empty sentences are left out
    assert documents.document_bounds.tolist() == [0, 2, 3]  # and the document that has no other


@given(st.lists(st.lists(st.text("abc", max_size=12), min_size=1, max_size=5), max_size=5), st.integers(1, 6))
def test_cutting_parts_long_sentences_and_nothing_else(texts: list[list[str]], longest: int) -> None:
    documents = tokenise(["\n".join(sentences) for sentences in texts], ByteTokenizer(), lines)
    before = as_lists(documents)
    assert before == [
        filled for sentences in texts if (filled := [[5 + ord(character) for character in text] for text in sentences if text])
    ]
    cut, count = cut_long_sentences(documents, longest)
    assert as_lists(cut) == [
        [sentence[start : start + longest] for sentence in document for start in range(0, len(sentence), longest)]
        for document in before
    ]
    assert count == sum(len(sentence) > longest for document in before for sentence in document)


def packed(texts: list[str], config: Config, seed: int = 0) -> tuple[dict[str, np.ndarray], list[int], int, int]:
    """The rows in full, the tokens of the documents, and how many were cut and dropped."""
    documents = tokenise(texts, TOKENIZER, lines)
    examples, cut, dropped = pack(documents, TOKENIZER, config.model, config.data, np.random.default_rng(seed))
    return full_examples(examples, config.model), documents.tokens.tolist(), cut, dropped


def segments(rows: dict[str, np.ndarray], row: int) -> tuple[list[int], list[int]]:
    """The tokens of A and B, found by the specials alone."""
    inputs = rows["inputs"][row]
    first, second = np.flatnonzero(inputs == SEP)
    return inputs[1:first].tolist(), inputs[first + 1 : second].tolist()


def test_pair_rows_literal() -> None:
    config = pretraining_config(tokenizer="bytes", sequence_length=9)
    found = {}
    for seed in range(30):
        rows, *_ = packed(["A\nB", "C\nDE"], config, seed)
        assert set(rows) == {"inputs", "inputs_position", "inputs_segmentation", "token_types", "next_sentence"}
        assert all(values.dtype == np.int32 for values in rows.values())
        found[tuple(rows["inputs"][0].tolist())] = {name: values[0].tolist() for name, values in rows.items()}
    true_pair = found.pop((CLS, A, SEP, B, SEP, PAD, PAD, PAD, PAD))
    assert true_pair["inputs_position"] == [0, 1, 2, 3, 4, 0, 0, 0, 0]
    assert true_pair["inputs_segmentation"] == [1, 1, 1, 1, 1, 0, 0, 0, 0]
    assert true_pair["token_types"] == [0, 0, 0, 1, 1, 0, 0, 0, 0]
    assert true_pair["next_sentence"] == 1
    other = found.pop((CLS, A, SEP, C, D, E, SEP, PAD, PAD))  # from the start of the other document
    assert other["token_types"] == [0, 0, 0, 1, 1, 1, 1, 0, 0]
    assert other["next_sentence"] == 0
    from_middle = found.pop((CLS, A, SEP, D, E, SEP, PAD, PAD, PAD))
    assert from_middle["next_sentence"] == 0
    assert not found


def test_half_of_the_pairs_are_true() -> None:
    texts = ["\n".join(["abcdefg"] * 400) for _ in range(5)]
    rows, *_ = packed(texts, pretraining_config(tokenizer="bytes", sequence_length=48))
    labels = rows["next_sentence"]
    # A sum of fair coins but for the last rows of a document; five standard deviations.
    assert abs(labels.mean() - 0.5) < 5 * 0.5 / np.sqrt(len(labels)) + 5 / len(labels)


@hypothesis_settings(deadline=None)
@given(
    st.lists(st.lists(st.text("abc", min_size=1, max_size=30), min_size=1, max_size=6), min_size=2, max_size=5),
    st.integers(5, 24),
    st.integers(0, 100),
)
def test_pairs_always_fit(texts: list[list[str]], length: int, seed: int) -> None:
    config = pretraining_config(tokenizer="bytes", sequence_length=length, max_predictions=1)
    rows, given_tokens, cut, _ = packed(["\n".join(sentences) for sentences in texts], config, seed)
    lengths = rows["inputs_segmentation"].sum(1)
    np.testing.assert_array_equal(rows["inputs_segmentation"], np.arange(length) < lengths[:, None])
    np.testing.assert_array_equal(rows["inputs"] == PAD, rows["inputs_segmentation"] == 0)
    assert cut == sum(len(text) > (length - 3) // 2 for sentences in texts for text in sentences)
    tokens: list[int] = []
    for row, label in enumerate(rows["next_sentence"].tolist()):
        a, b = segments(rows, row)
        assert len(a) + len(b) + 3 == lengths[row]
        assert rows["token_types"][row].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1) + [0] * (length - lengths[row])
        tokens += a + b if label else a
    assert tokens == given_tokens


def test_single_segments_literal() -> None:
    config = pretraining_config(tokenizer="bytes", sequence_length=6, **SINGLE)
    rows, _, cut, _ = packed(["AB\nC\nD", "E", "ABCDE\nA"], config)
    assert set(rows) == {"inputs", "inputs_position", "inputs_segmentation", "token_types"}
    assert rows["inputs"].tolist() == [
        [CLS, A, B, C, D, SEP],
        [CLS, E, SEP, PAD, PAD, PAD],  # rows do not cross documents
        [CLS, A, B, C, D, SEP],  # a sentence longer than a row is cut
        [CLS, E, A, SEP, PAD, PAD],
    ]
    assert rows["inputs_position"].tolist()[1] == [0, 1, 2, 0, 0, 0]
    assert rows["inputs_segmentation"].tolist()[1] == [1, 1, 1, 0, 0, 0]
    assert not rows["token_types"].any()
    assert cut == 1


@hypothesis_settings(deadline=None)
@given(st.lists(st.lists(st.text("abc", min_size=1, max_size=20), min_size=1, max_size=6), max_size=5), st.integers(3, 16))
def test_single_segments_lose_nothing_and_are_full(texts: list[list[str]], length: int) -> None:
    fields = dict(tokenizer="bytes", sequence_length=length, num_token_types=0)
    rows, tokens, *_ = packed(["\n".join(sentences) for sentences in texts], pretraining_config(**fields, **SINGLE))
    assert set(rows) == {"inputs", "inputs_position", "inputs_segmentation"}
    ordinary = rows["inputs"] >= 5
    assert rows["inputs"][ordinary].tolist() == tokens
    assert (rows["inputs"][:, :1] == CLS).all()
    assert ((rows["inputs"] == SEP).sum(1) == 1).all()


def test_stream_rows_literal() -> None:
    config = pretraining_config(**CLM, sequence_length=3)
    rows, *_, dropped = packed(["AB", "CD", "E"], config)  # A B | C D | E | : 8 tokens of stream
    assert rows["inputs"].tolist() == [[A, B, SEP], [C, D, SEP]]
    assert rows["targets"].tolist() == [[B, SEP, C], [D, SEP, E]]
    assert rows["inputs_position"].tolist() == [[0, 1, 2]] * 2
    assert rows["inputs_segmentation"].tolist() == [[1, 1, 1]] * 2
    assert dropped == 1  # the last [SEP]
    assert set(rows) == {"inputs", "inputs_position", "inputs_segmentation", "targets"}


@hypothesis_settings(deadline=None)
@given(st.lists(st.text("abc", min_size=1, max_size=20), max_size=6), st.integers(1, 9))
def test_stream_rows_are_the_stream(texts: list[str], length: int) -> None:
    config = pretraining_config(**{**CLM, "num_token_types": 2}, sequence_length=length)
    rows, *_, dropped = packed(texts, config)
    stream = [number for text in texts for number in [*TOKENIZER.encode_batch([text])[0].tolist(), SEP]]
    kept = len(stream) - dropped
    assert dropped <= length
    assert [*stream[: min(kept, 1)], *rows["targets"].reshape(-1).tolist()] == stream[:kept]
    assert rows["inputs"].reshape(-1).tolist() == stream[: max(0, kept - 1)]
    assert len(rows["inputs"]) == max(0, len(stream) - 1) // length
    assert rows["token_types"].shape == rows["inputs"].shape
    assert not rows["token_types"].any()


@pytest.mark.parametrize(("next_sentence", "smallest"), [(True, 5), (False, 3)])
def test_rows_too_short_for_their_specials(next_sentence: bool, smallest: int) -> None:
    fields = dict(next_sentence=next_sentence, max_predictions=1)
    config = pretraining_config(**fields, sequence_length=smallest - 1)
    with pytest.raises(UserError, match=rf"data\.sequence_length = {smallest - 1} has no room .*: {smallest} or more"):
        split_limit(config.model, config.data)
    config = pretraining_config(**fields, sequence_length=smallest)
    assert split_limit(config.model, config.data) == 1


def test_random_sentences_need_a_second_document() -> None:
    with pytest.raises(
        UserError, match=r"model\.next_sentence = True needs text in two documents .* has 1; raise data\.validation_fraction"
    ):
        packed(["A\nB", ""], pretraining_config(tokenizer="bytes", sequence_length=9))


@pytest.mark.parametrize(("vocab_size", "dtype"), [(2**16, np.uint16), (2**16 + 1, np.int32)])
def test_rows_are_kept_in_as_few_bytes_as_their_ids_need(vocab_size: int, dtype: type) -> None:
    tokenizer = WordPieceTokenizer([*SPECIALS, *map(str, range(vocab_size - len(SPECIALS)))], lowercase=True)
    last = vocab_size - 1
    documents = tokenise([f"{last - 5} 0\n{last - 5}", "1\n2 3"], tokenizer, lines)
    pairs = pretraining_config(sequence_length=9, vocab_size=vocab_size)
    stream = pretraining_config(**CLM, sequence_length=3, vocab_size=vocab_size)
    for config, fields in ((pairs, {"tokens", "ends", "next_sentence"}), (stream, {"tokens"})):
        rows, *_ = pack(documents, tokenizer, config.model, config.data, np.random.default_rng(0))
        assert set(rows) == fields
        assert rows["tokens"].dtype == dtype and rows["tokens"].max() == last
        assert all(values.dtype == np.int32 and values.flags.c_contiguous for values in full_examples(rows, config.model).values())
