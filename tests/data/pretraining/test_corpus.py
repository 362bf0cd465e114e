"""Splits that share no document, fingerprints, unigram entropy, and what is said of text that does
not do.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mhsh.config.schema import to_dict
from mhsh.data.corpus import Corpus
from mhsh.data.load import load_corpus
from mhsh.data.pretraining.task import PretrainingTask
from mhsh.data.tables import Table
from mhsh.data.tokenizers.wordpiece import SPECIALS, Tokenizer
from mhsh.errors import UserError

LAYOUTS = {
    "pairs": {},
    "segments": dict(model__next_sentence=False, model__num_token_types=0),
    "stream": dict(model__objective="clm", model__next_sentence=False, model__num_token_types=0),
}


def load(config: Any, saved_vocab: Path | None = None) -> Corpus[Tokenizer]:
    return PretrainingTask(config.model, config.data).load(saved_vocab)


def rows_of(table: Table) -> dict[str, np.ndarray]:
    return table.all()


def documents_in(corpus: Corpus[Tokenizer], table: Table) -> set[str]:
    """The documents whose names (see `english`) appear whole in the rows."""
    texts = [corpus.tokenizer.decode(row.tolist()) for row in rows_of(table)["tokens"]]
    return {name for text in texts for name in re.findall(r"doc\d+(?= )", text)}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_validation_shares_nothing_with_training(make_config: Any, english_source: str, english: list[str], layout: str) -> None:
    config = make_config(**LAYOUTS[layout], data__source=english_source, data__tokenizer="bytes", data__sequence_length=100)
    corpus = load(config)
    train, validation = documents_in(corpus, corpus.train), documents_in(corpus, corpus.validation)
    assert len(validation) == corpus.counts["validation"]["documents"] > 2
    assert len(train) == corpus.counts["train"]["documents"]
    assert train.isdisjoint(validation)
    assert train | validation == {f"doc{number}" for number in range(len(english))}
    rows = [{tuple(row) for row in rows_of(table)["tokens"].tolist()} for table in (corpus.train, corpus.validation)]
    assert rows[0].isdisjoint(rows[1])


@pytest.mark.parametrize("seed", range(3))
def test_equal_documents_are_one(make_config: Any, english: list[str], tmp_path: Path, seed: int) -> None:
    (tmp_path / "t.txt").write_text("\n\n".join(english[:10] * 3), encoding="utf-8")
    source = f"text:{tmp_path}/t.txt"
    corpus = load(make_config(data__source=source, data__tokenizer="bytes", data__validation_fraction=0.5, data__seed=seed))
    assert (corpus.counts["read"], corpus.counts["empty"], corpus.counts["duplicates"]) == (30, 0, 20)
    train, validation = documents_in(corpus, corpus.train), documents_in(corpus, corpus.validation)
    assert train.isdisjoint(validation)
    assert len(train) + len(validation) == 10


def test_tokenizer_is_trained_on_training_documents_only(make_config: Any, english: list[str], tmp_path: Path) -> None:
    # Characters of one document alone: in the vocabulary just when that document is trained on.
    marked = [*english, "ωψχ " * 50]
    (tmp_path / "t.txt").write_text("\n\n".join(marked), encoding="utf-8")
    sides = {}
    for seed in range(12):
        corpus = load(make_config(data__source=f"text:{tmp_path}/t.txt", data__seed=seed))
        in_vocab = "ω" in corpus.tokenizer.vocab
        unknown = [corpus.counts[split]["unknown_fraction"] > 0 for split in ("train", "validation")]
        sides[in_vocab] = unknown
        assert not unknown[0]
        assert unknown[1] != in_vocab
    assert set(sides) == {True, False}


def test_equal_arguments_equal_corpora(make_config: Any, english_source: str) -> None:
    config = make_config(data__source=english_source)
    corpus = load(config)
    assert re.fullmatch("[0-9a-f]{64}", corpus.fingerprint)
    assert load(config).fingerprint == corpus.fingerprint
    fields = [("seed", 1), ("sequence_length", 50), ("validation_fraction", 0.3), ("lowercase", False), ("tokenizer", "bytes")]
    others = [load(make_config(**{"data__source": english_source, f"data__{name}": value})) for name, value in fields]
    assert len({corpus.fingerprint, *(other.fingerprint for other in others)}) == 6
    code = (
        "import json, sys\nfrom mhsh.config.resolve import from_dict\nfrom mhsh.data.load import load_corpus\n"
        "config = from_dict(json.load(sys.stdin))\nprint(load_corpus(config, None).fingerprint)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(to_dict(config)),
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    assert result.stdout.strip() == corpus.fingerprint


def test_saved_vocabulary_wins(make_config: Any, english_source: str, english: list[str], tmp_path: Path) -> None:
    config = make_config(data__source=english_source)
    trained = load(config)
    trained.tokenizer.save(tmp_path / "run.txt")
    words = sorted({word for text in english for word in re.findall(r"\w+|\.", text.lower())})
    (tmp_path / "words.txt").write_text("".join(token + "\n" for token in [*SPECIALS, *words]))
    other = make_config(data__source=english_source, data__vocab_path=str(tmp_path / "words.txt"))
    assert load(other).tokenizer.vocab == (*SPECIALS, *words)
    restored = load(other, saved_vocab=tmp_path / "run.txt")
    assert restored.tokenizer.vocab == trained.tokenizer.vocab
    assert restored.fingerprint == trained.fingerprint
    trained.save_vocab(tmp_path)
    assert load_corpus(other, tmp_path / "vocab.txt").fingerprint == trained.fingerprint
    with pytest.raises(UserError, match=r"the run's vocabulary .*gone\.txt is missing"):
        load(config, saved_vocab=tmp_path / "gone.txt")
    byte_config = make_config(data__source=english_source, data__tokenizer="bytes")
    load(byte_config).tokenizer.save(tmp_path / "bytes.txt")
    assert load(byte_config, saved_vocab=tmp_path / "bytes.txt").fingerprint == load(byte_config).fingerprint
    with pytest.raises(UserError, match=r"run\.txt is not the vocabulary of data\.tokenizer = 'bytes'"):
        load(byte_config, saved_vocab=tmp_path / "run.txt")


def test_vocabulary_larger_than_the_model(make_config: Any, english_source: str, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"'bytes' has 261 tokens, more than model\.vocab_size = 260; set model\.vocab_size to 261 or more"
    ):
        load(make_config(data__source=english_source, data__tokenizer="bytes", model__vocab_size=260))
    path = tmp_path / "vocab.txt"
    path.write_text("".join(token + "\n" for token in [*SPECIALS, *map(str, range(100))]))
    with pytest.raises(
        UserError, match=r"vocab\.txt has 105 tokens, more than model\.vocab_size = 50; set model\.vocab_size to 105"
    ):
        load(make_config(data__source=english_source, data__vocab_path=str(path), model__vocab_size=50))


def test_bytes_have_no_vocab_path(make_config: Any, english_source: str) -> None:
    with pytest.raises(UserError, match=r"data\.vocab_path = 'v\.txt' is only for data\.tokenizer = 'wordpiece'"):
        load(make_config(data__source=english_source, data__tokenizer="bytes", data__vocab_path="v.txt"))


@pytest.mark.parametrize(
    ("fraction", "next_sentence", "complaint"),
    [
        (0.0, False, r"leaves 0 documents for validation, which needs 1 \(61 read, 0 empty, 1 duplicates, .*_fraction = 0\.0\)"),
        (0.999999, True, r"leaves 0 documents for train, which needs 2"),
        (0.02, True, r"leaves [01] documents for validation, which needs 2"),
    ],
)
def test_too_few_documents_on_a_side(
    make_config: Any, english: list[str], tmp_path: Path, fraction: float, next_sentence: bool, complaint: str
) -> None:
    (tmp_path / "t.txt").write_text("\n\n".join([*english, english[0]]))
    fields = dict(data__source=f"text:{tmp_path}/t.txt", data__validation_fraction=fraction)
    with pytest.raises(UserError, match=complaint):
        load(make_config(**fields, model__next_sentence=next_sentence))


def test_text_that_fills_no_row(make_config: Any, clm_fields: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("a\n\nb\n\nc\n\nd\n")
    fields = dict(data__source=f"text:{tmp_path}/t.txt", data__validation_fraction=0.5)
    with pytest.raises(UserError, match=r"the \d documents for train of .* fill no row of data\.sequence_length = 48 tokens"):
        load(make_config(**clm_fields, **fields))


def test_rows_for_one_batch_at_least(make_config: Any, english_source: str) -> None:
    corpus = load(make_config(data__source=english_source))
    num_rows = len(corpus.train)
    corpus.check_batch(num_rows)
    with pytest.raises(UserError, match=rf"train\.batch_size = {num_rows + 1} is more than the {num_rows} training rows"):
        corpus.check_batch(num_rows + 1)


def test_unigram_entropy_counts_what_is_predicted(make_config: Any, clm_fields: dict[str, Any], tmp_path: Path) -> None:
    # A text of one letter: a masked model has one thing to predict, a causal one also the [SEP]
    # between documents.
    (tmp_path / "t.txt").write_text("\n\n".join("a" * length for length in range(9, 21)))
    fields = dict(data__source=f"text:{tmp_path}/t.txt", data__tokenizer="bytes", data__sequence_length=5, data__max_predictions=1)
    fields["data__validation_fraction"] = 0.5
    assert load(make_config(**fields)).unigram_entropy == 0
    causal = load(make_config(**{**clm_fields, **fields}))
    share = (rows_of(causal.train)["tokens"][:, 1:] == causal.tokenizer.sep_id).mean()
    assert 0 < share < 0.5
    assert causal.unigram_entropy == pytest.approx(-(share * math.log(share) + (1 - share) * math.log(1 - share)))


def test_summary_counts(make_config: Any, english_source: str) -> None:
    corpus = load(make_config(data__source=english_source, data__sequence_length=20, data__lowercase=False))
    tokenizer, summary = corpus.tokenizer, corpus.summary()
    assert summary["vocab_size"] == tokenizer.vocab_size == 400
    assert (summary["read"], summary["empty"], summary["duplicates"]) == (60, 0, 0)
    for split, table in (("train", corpus.train), ("validation", corpus.validation)):
        tokens = rows_of(table)["tokens"]
        real = tokens != tokenizer.pad_id
        counts = summary[split]
        assert counts["rows"] == len(table) == len(real)
        assert counts["tokens"] == real.sum()
        assert counts["padding_fraction"] == pytest.approx(1 - real.mean())
        assert 0 < counts["cut_sentences"] < counts["sentences"]
        assert counts["empty_documents"] == 0
        text = tokens[(tokens >= len(SPECIALS)) | (tokens == tokenizer.unk_id)]
        assert counts["unknown_fraction"] == pytest.approx((text == tokenizer.unk_id).mean())
        used = set(text.tolist()) - {tokenizer.unk_id}
        assert counts["used_vocabulary"] == pytest.approx(len(used) / (tokenizer.vocab_size - len(SPECIALS)))
    assert 0.5 < summary["train"]["used_vocabulary"] <= 1


def test_documents_that_the_tokenizer_leaves_nothing_of_are_counted(make_config: Any, english: list[str], tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("\n\n".join([*english, "\u0085", "\u200b"]), encoding="utf-8")
    corpus = load(make_config(data__source=f"text:{tmp_path}/t.txt"))
    assert sum(corpus.counts[split]["empty_documents"] for split in ("train", "validation")) == 2
    assert sum(corpus.counts[split]["documents"] for split in ("train", "validation")) == 60


@pytest.mark.realdata
def test_wikipedia_with_the_published_vocabulary(make_config: Any, real_data: Path) -> None:
    config = make_config(
        data__source=f"text:{real_data}/wikipedia-en/wiki.valid.txt.xz",
        data__vocab_path=str(real_data / "vocab" / "bert-base-uncased-vocab.txt"),
        data__sequence_length=128,
        model__vocab_size=30522,
    )
    corpus = load(config)
    train = corpus.counts["train"]
    assert train["documents"] + corpus.counts["validation"]["documents"] == 65
    assert train["padding_fraction"] < 0.2
    assert 0.4 < rows_of(corpus.train)["next_sentence"].mean() < 0.6
    assert 0 < train["unknown_fraction"] < 0.005
    assert 0.3 < train["used_vocabulary"] < 1
    assert 6 < corpus.unigram_entropy < 8
