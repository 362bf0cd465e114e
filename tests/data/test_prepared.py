"""Prepared rows, of documents and of pairs, are those that training makes of the source itself,
whatever the shards; rows of another config, damaged ones and replaced ones are refused.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mhsh.config.schema import Config, to_dict
from mhsh.data.load import load_corpus
from mhsh.data.prepare import read_chunk, stage
from mhsh.data.shards import StoredTable
from mhsh.data.subword import train_subword
from mhsh.errors import UserError
from tests.data.conftest import printed
from tests.data.preparing import (
    LAYOUTS,
    digest,
    invented,
    prepared,
    pretraining_config,
    task_of,
    translation_config,
    with_rows,
    write_documents,
    write_pairs,
)

PRETRAINING = LAYOUTS | {"stream of wordpiece": dict(objective="clm", next_sentence=False, num_token_types=2)}
TRANSLATION: dict[str, dict[str, Any]] = {
    "packed": {},
    "numbers": dict(source="numbers:1500"),
    "validation source": dict(validation_source="valid"),
}
B = 6


@pytest.fixture
def config(request, tmp_path, english_source) -> Config:
    """The config of a name in PRETRAINING or TRANSLATION."""
    if request.param in PRETRAINING:
        return pretraining_config(source=english_source, **PRETRAINING[request.param])
    fields = {"source": write_pairs(tmp_path, "text", invented(700, seed=1))} | TRANSLATION[request.param]
    if "validation_source" in fields:
        # Some of its pairs are in the training text too.
        fields["validation_source"] = write_pairs(tmp_path, "valid", invented(700, seed=1)[:20] + invented(50, seed=2))
    return translation_config(**fields)


@pytest.fixture(scope="module")
def english_rows(tmp_path_factory: pytest.TempPathFactory, english_source: str) -> Path:
    """The documents of `english`, prepared in one shard a split."""
    folder = tmp_path_factory.mktemp("english") / "out"
    prepared(pretraining_config(source=english_source), folder)
    return folder


@pytest.mark.parametrize("config", [*PRETRAINING, *TRANSLATION], indirect=True)
def test_batches_of_one_shard_are_those_of_the_source(tmp_path, config):
    summary, _ = prepared(config, tmp_path / "out")
    here, there = load_corpus(config, None), load_corpus(with_rows(config, tmp_path / "out"), None)
    assert there.tokenizer.fingerprint == here.tokenizer.fingerprint
    assert summary == there.counts == here.counts
    assert there.summary() == here.summary()
    if getattr(config.data, "validation_source", ""):
        assert summary["in_both_splits"] > 0
    # Into the third epoch.
    for step in (0, 1, 2 * len(here.train) // B + 1, 10**9):
        assert digest(here.train_steps(B)[step]) == digest(there.train_steps(B)[step])
    assert digest(here.train_steps(B, slice(2, 4))[3]) == digest(there.train_steps(B, slice(2, 4))[3])
    assert [*map(digest, here.validation_batches(B))] == [*map(digest, there.validation_batches(B))]


def pairs_in(table: StoredTable) -> Counter[tuple[tuple[int, ...], ...]]:
    pairs: Counter[tuple[tuple[int, ...], ...]] = Counter()
    examples = table.all()
    for row in range(len(table)):
        for number in range(1, int(examples["inputs_segmentation"][row].max()) + 1):
            sides = (examples[side][row][examples[f"{side}_segmentation"][row] == number] for side in ("inputs", "targets"))
            pairs[tuple(tuple(side.tolist()) for side in sides)] += 1
    return pairs


@pytest.mark.parametrize("config", [*PRETRAINING, "packed"], indirect=True)
def test_many_shards_hold_the_items_of_one(tmp_path, config):
    prepared(config, tmp_path / "one")
    prepared(config, tmp_path / "many", per_shard=7 if config.model.objective != "translation" else 20)
    for split in ("train", "validation"):
        one, many = (StoredTable(tmp_path / name / split) for name in ("one", "many"))
        num_shards = len(many.shards)
        assert len(one.shards) == 1 < num_shards
        a, b = one.meta["counts"][split], many.meta["counts"][split]
        same = {"documents", "empty_documents", "sentences", "cut_sentences", "unknown_fraction", "pairs", "too_long", "unlike"}
        for name in (same | {"source_tokens", "target_tokens"}) & a.keys():
            assert a[name] == b[name], name
        if config.model.objective == "translation":
            assert pairs_in(one) == pairs_in(many)
            assert one.meta["unigram_entropy"] == many.meta["unigram_entropy"]
        elif config.model.objective == "clm":
            # Each shard drops the end of its stream; the first token of a stream is not a target.
            assert a["tokens"] + a["dropped_tokens"] + 1 == b["tokens"] + b["dropped_tokens"] + num_shards
        elif not config.model.next_sentence:
            rows = [Counter(map(bytes, table.all()["tokens"])) for table in (one, many)]
            assert rows[0] == rows[1]


def splits_of(config: Config, texts: Any) -> list[tuple[str, str]]:
    task = task_of(config)
    return [(split, text) for split, (text,) in task.split([((text,) for text in texts)], dict.fromkeys(task.count_names, 0))]


def test_random_sentences_come_from_other_documents_of_the_same_shard(tmp_path, english, english_source):
    config = pretraining_config(source=english_source, tokenizer="bytes", sequence_length=120)
    prepared(config, tmp_path / "out", per_shard=5)
    rows = StoredTable(tmp_path / "out" / "train")
    decode = load_corpus(with_rows(config, tmp_path / "out"), None).tokenizer.decode
    train = [text for split, text in splits_of(config, english) if split == "train"]
    labels, first = [], 0
    for number, shard in enumerate(rows.shards):
        # The last shard has one more, where one would be left alone.
        chunk = train[5 * number :][: 5 if number + 1 < len(rows.shards) else 6]
        names = set(re.findall(r"doc\d+", " ".join(chunk)))
        examples = rows.take(np.arange(first, first + shard.count))
        for tokens, label in zip(examples["tokens"].tolist(), examples["next_sentence"].tolist(), strict=True):
            a, b = (set(re.findall(r"doc\d+(?= )", part)) for part in decode(tokens).split("[SEP]")[:2])
            assert a | b <= names
            labels.append(label)
            if a and b:
                assert a == b if label else a.isdisjoint(b)
        first += shard.count
    assert len(labels) == len(rows) and 0.3 < np.mean(labels) < 0.7


@pytest.mark.parametrize(("count", "sizes"), [(2, [2]), (12, [4, 4, 4]), (13, [4, 4, 5]), (14, [4, 4, 4, 2])])
@pytest.mark.parametrize("next_sentence", [True, False])
def test_no_shard_is_left_with_a_single_document(tmp_path, count, sizes, next_sentence):
    """A random sentence needs a second one: the shard before takes it."""
    fields = dict(validation_fraction=0.5, next_sentence=next_sentence)
    sides: dict[str, list[str]] = {"train": [], "validation": []}
    for split, text in splits_of(pretraining_config(**fields), map(str, range(200))):
        sides[split].append(text)
    source = write_documents(tmp_path, "t", [*sides["train"][:count], *sides["validation"][:2]])
    (tmp_path / "staging").mkdir()
    chunks = stage(task_of(pretraining_config(source=source, **fields)), tmp_path / "staging", 4).chunks
    expected = sizes if next_sentence else [4] * (count // 4) + [count % 4] * (count % 4 > 0)
    assert [chunk.items for chunk in chunks if chunk.split == "train"] == expected


@pytest.mark.parametrize("kind", ["pretraining", "translation"])
def test_a_vocabulary_can_be_given(tmp_path, english, english_rows, kind):
    if kind == "pretraining":
        make, source, path = pretraining_config, write_documents(tmp_path, "t", english[:40]), english_rows / "vocab.txt"
    else:
        make, source, path = translation_config, write_pairs(tmp_path, "t", invented(300, seed=1)), tmp_path / "tokenizer.json"
        train_subword([text for pair in invented(99, seed=4) for text in pair], 400).save(path)
    _, said = prepared(make(source=source, vocab_path=str(path)), tmp_path / "given")
    assert not any("learning" in line for line in said)
    assert (tmp_path / "given" / path.name).read_bytes() == path.read_bytes()
    # Its content counts, not its name.
    shutil.copy(path, tmp_path / "copy")
    _, said = prepared(make(source=source, vocab_path=str(tmp_path / "copy")), tmp_path / "given")
    assert "is finished" in said[0]
    complaints = {r"has 400 tokens, more than model\.vocab_size = 300": dict(vocab_size=300)}
    if kind == "pretraining":
        complaints[r"is not the vocabulary of data\.tokenizer = 'bytes'; .* or empty data\.vocab_path"] = dict(tokenizer="bytes")
    for complaint, fields in complaints.items():
        with pytest.raises(UserError, match=complaint):
            prepared(make(source=source, vocab_path=str(path), **fields), tmp_path / "other")


def test_rows_of_another_config_or_kind_are_refused(tmp_path, english_rows):
    for change, complaint in (
        (dict(sequence_length=40), r"was prepared with data\.sequence_length = 48, not 40; set it to that, or prepare again"),
        (dict(objective="clm", next_sentence=False), r"was prepared with model\.objective = 'mlm', not 'clm'"),
        (dict(tokenizer="bytes"), r"was prepared with data\.tokenizer = 'wordpiece', not 'bytes'"),
        (dict(vocab_size=399), r"vocab\.txt has 400 tokens, more than model\.vocab_size = 399"),
    ):
        with pytest.raises(UserError, match=complaint):
            load_corpus(with_rows(pretraining_config(**change), english_rows), None)
    prepared(translation_config(source=write_pairs(tmp_path, "text", invented(60, seed=1))), tmp_path / "pairs")
    for config, folder, complaint in (
        (pretraining_config(), tmp_path / "pairs", "model.objective = 'translation', not 'mlm'"),
        (translation_config(), english_rows, "model.objective = 'mlm', not 'translation'"),
        (translation_config(sequence_length=32), tmp_path / "pairs", "data.sequence_length = 64, not 32"),
    ):
        with pytest.raises(UserError, match=f"was prepared with {complaint}"):
            load_corpus(with_rows(config, folder), None)
    config = with_rows(translation_config(), tmp_path / "pairs")
    named = replace(config, data=replace(config.data, validation_source="numbers"))
    with pytest.raises(UserError, match=r"data\.validation_source = 'numbers', but .* has its own"):
        load_corpus(named, None)


def test_the_vocabulary_is_that_of_the_rows(tmp_path, english_rows):
    config = with_rows(pretraining_config(), english_rows)
    named = replace(config, data=replace(config.data, vocab_path="v.txt"))
    with pytest.raises(UserError, match=r"data\.vocab_path = 'v\.txt', but data\.source = .* has its own"):
        load_corpus(named, None)
    corpus = load_corpus(config, None)
    corpus.save_vocab(tmp_path)
    assert load_corpus(config, tmp_path / "vocab.txt").fingerprint == corpus.fingerprint
    path = tmp_path / "vocab.txt"
    path.write_bytes(path.read_bytes().replace(b"\nin\n", b"\nout\n"))
    with pytest.raises(UserError, match=r"is not the vocabulary of the run, .*vocab\.txt; put back the folder"):
        load_corpus(config, tmp_path / "vocab.txt")


@pytest.mark.parametrize("name", ["vocab.txt", "validation"])
def test_parts_of_two_preparations_are_no_whole(tmp_path, english_source, english_rows, name):
    """As of a copy over another folder that was interrupted."""
    config = pretraining_config(source=english_source)
    prepared(replace(config, model=replace(config.model, vocab_size=390), data=replace(config.data, seed=1)), tmp_path / "other")
    shutil.copytree(english_rows, tmp_path / "out", ignore=shutil.ignore_patterns(name))
    (shutil.copytree if name == "validation" else shutil.copy)(tmp_path / "other" / name, tmp_path / "out" / name)
    for act in (lambda: load_corpus(with_rows(config, tmp_path / "out"), None), lambda: prepared(config, tmp_path / "out")):
        with pytest.raises(UserError, match=rf"out/{name} is of another preparation than {tmp_path}/out/train; copy all of one"):
            act()


def test_a_copy_without_the_vocabulary(tmp_path, english_source, english_rows):
    config = pretraining_config(source=english_source)
    shutil.copytree(english_rows, tmp_path / "out", ignore=shutil.ignore_patterns("vocab.txt"))
    for act in (lambda: load_corpus(with_rows(config, tmp_path / "out"), None), lambda: prepared(config, tmp_path / "out")):
        with pytest.raises(
            UserError, match=r"out/vocab\.txt is missing; put it back from a copy .* or prepare into another folder"
        ):
            act()


def test_a_damaged_row_is_named_when_a_batch_needs_it(tmp_path, english_rows):
    shutil.copytree(english_rows, tmp_path / "out")
    corpus = load_corpus(with_rows(pretraining_config(), tmp_path / "out"), None)
    path = tmp_path / "out" / "train" / "00000.arrayrecord"
    content = bytearray(path.read_bytes())  # damaged after it was opened, when all bytes were compared
    content[8_000:9_000] = bytes(byte ^ 0x55 for byte in content[8_000:9_000])
    path.write_bytes(bytes(content))
    steps, named = corpus.train_steps(1), 0
    for step in range(len(corpus.train)):
        try:
            steps[step]
        except UserError as error:
            assert str(error).startswith(f"{path} is damaged (")
            named += 1
    assert named
    with pytest.raises(UserError, match=f"^{path} is damaged: its SHA-256 is not that of the index; put it back from a copy"):
        load_corpus(with_rows(pretraining_config(), tmp_path / "out"), None)


def test_sources_that_will_not_do(tmp_path):
    documents = write_documents(tmp_path, "d", [f"{number}" for number in range(40)])
    pairs = write_pairs(tmp_path, "p", [("a " * 90, "b " * 90)] * 20)
    long = dict(sequence_length=128)
    for number, (config, complaint) in enumerate(
        (
            (pretraining_config(source=documents, **PRETRAINING["stream"] | long), r"documents for train of .* fill no row of"),
            (translation_config(source=pairs), r"leaves 0 pairs for validation, which needs 1 \(20 read, 0 empty, 19 duplicates"),
            (
                translation_config(source=pairs, validation_source="numbers:100"),
                r"leaves no pair for train: 1 are longer than data\.",
            ),
        )
    ):
        with pytest.raises(UserError, match=complaint):
            prepared(config, tmp_path / str(number))


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), max_size=5, unique=True))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_documents_come_out_of_a_chunk_as_they_went_in(tmp_path, documents: list[str]) -> None:
    task = task_of(pretraining_config(validation_fraction=0.5, next_sentence=False))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(task), "streams", lambda task: [[(text,) for text in [*documents, *map(str, range(1000, 1040))]]])
        staged = stage(task, tmp_path, 7)
    items = [text for chunk in staged.chunks for (text,) in read_chunk(tmp_path, chunk)]
    assert set(items) == {*documents, *map(str, range(1000, 1040))} and len(items) == len(set(items))


# Prepares, and tells the most memory it ever had, in KB.
PEAK = """
import json, sys
from pathlib import Path
from mhsh.config.resolve import from_dict
from tests.data.preparing import prepared

prepared(from_dict(json.loads(sys.argv[1])), Path(sys.argv[2]), 100)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus(tmp_path):
    """Eight times the text, which is 21 MB more of it, and several times that as tokens."""
    words = ["".join(pair) for pair in itertools.product("bdfglmnprst", "aeiou")]
    rng = random.Random(0)
    peaks = []
    for number, count in enumerate((1000, 8000)):
        documents = [" ".join(rng.choices(words, k=1000)).replace("ba ", "ba. ") for _ in range(count)]
        config = pretraining_config(source=write_documents(tmp_path, f"t{number}", documents), vocab_size=200)
        peaks.append(int(printed(PEAK, json.dumps(to_dict(config)), str(tmp_path / str(number)))))
    assert peaks[1] - peaks[0] < 8_000, peaks
