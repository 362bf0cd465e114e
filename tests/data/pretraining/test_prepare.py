"""Prepared documents are the rows and batches that training makes of the source itself, whatever
the shards.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mhsh.config.schema import Config, to_dict
from mhsh.data.corpus import Corpus
from mhsh.data.load import load_corpus
from mhsh.data.shards import UNCOMPRESSED, StoredTable, write_shard
from mhsh.data.staging import item_text, items_in, stage
from mhsh.data.tokenizers.wordpiece import Tokenizer
from mhsh.errors import UserError
from tests.conftest import ROOT
from tests.data.preparing import (
    invented,
    prepared,
    pretraining_config,
    task_of,
    translation_config,
    with_rows,
    write_documents,
    write_pairs,
)

LAYOUTS: dict[str, dict[str, Any]] = {
    "pairs": {},
    "segments": dict(next_sentence=False, num_token_types=0, whole_word_masking=True),
    "stream": dict(objective="clm", next_sentence=False, num_token_types=0, tokenizer="bytes"),
    "stream of wordpiece": dict(objective="clm", next_sentence=False, num_token_types=2),
}
B = 6


@pytest.fixture(scope="module")
def english_rows(tmp_path_factory: pytest.TempPathFactory, english_source: str) -> Path:
    """The documents of `english`, prepared in one shard a split."""
    folder = tmp_path_factory.mktemp("english") / "out"
    prepared(pretraining_config(source=english_source), folder)
    return folder


def splits_of(config: Config, texts: Iterable[str]) -> list[tuple[str, str]]:
    task = task_of(config)
    return [(split, text) for split, (text,) in task.split([((text,) for text in texts)], dict.fromkeys(task.counted, 0))]


def load(config: Config) -> Corpus[Tokenizer]:
    return load_corpus(config, None)


def assert_same_batches(a: Any, b: Any, steps: list[int]) -> None:
    for step in steps:
        here, there = a[step], b[step]
        assert set(here) == set(there)
        for name in here:
            assert here[name].dtype == there[name].dtype
            np.testing.assert_array_equal(here[name], there[name])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_batches_of_one_shard_are_those_of_the_source(tmp_path, english_source, layout):
    config = pretraining_config(source=english_source, **LAYOUTS[layout])
    summary, _ = prepared(config, tmp_path / "out")
    here, there = load(config), load(with_rows(config, tmp_path / "out"))
    assert there.unigram_entropy == here.unigram_entropy
    assert there.tokenizer.vocab == here.tokenizer.vocab
    assert summary == there.counts == here.counts
    assert there.summary() == here.summary()
    assert len(here.train) == len(there.train) and len(here.validation) == len(there.validation)
    # Into the third epoch.
    last = 2 * len(here.train) // B + 1
    assert_same_batches(here.train_steps(B), there.train_steps(B), [0, 1, last, 10**9])
    assert_same_batches(here.train_steps(B, lambda size: slice(2, 4)), there.train_steps(B, lambda size: slice(2, 4)), [3])
    validation = here.validation_batches(B), there.validation_batches(B)
    assert len(validation[0]) == len(validation[1])
    assert_same_batches(*validation, [*range(len(validation[0]))])


def test_what_training_decides_is_left_to_it(english_rows):
    """Masks and the order of examples depend on the config of the run, not on the preparation's."""
    changed = dict(max_predictions=3, mask_fraction=0.3, whole_word_masking=True, validation_fraction=0.7)
    one = load(with_rows(pretraining_config(**changed), english_rows)).train_steps(B)[0]
    other = load(with_rows(pretraining_config(**changed, seed=5), english_rows)).train_steps(B)[0]
    assert one["targets"].shape == (B, 3)
    assert not np.array_equal(one["inputs_segmentation"], other["inputs_segmentation"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_many_shards_hold_the_documents_of_one(tmp_path, english_source, layout):
    config = pretraining_config(source=english_source, **LAYOUTS[layout])
    prepared(config, tmp_path / "one")
    prepared(config, tmp_path / "many", per_shard=7)
    one, many = (load(with_rows(config, tmp_path / name)) for name in ("one", "many"))
    assert len(StoredTable(tmp_path / "many" / "train").shards) > 4
    assert one.tokenizer.vocab == many.tokenizer.vocab
    for split in ("train", "validation"):
        a, b = one.counts[split], many.counts[split]
        for name in ("documents", "empty_documents", "sentences", "cut_sentences", "unknown_fraction"):
            assert a[name] == b[name], name
        rows = [table.all()["tokens"] for table in (getattr(one, split), getattr(many, split))]
        if layout == "segments":
            assert Counter(map(bytes, rows[0])) == Counter(map(bytes, rows[1]))
        elif config.model.objective == "clm":
            # Each shard drops the end of its own stream; the first token of a stream is no target.
            num_shards = len(StoredTable(tmp_path / "many" / split).shards)
            assert a["tokens"] + a["dropped_tokens"] + 1 == b["tokens"] + b["dropped_tokens"] + num_shards
    assert one.fingerprint != many.fingerprint


def test_random_sentences_come_from_other_documents_of_the_same_shard(tmp_path, english, english_source):
    config = pretraining_config(source=english_source, tokenizer="bytes", sequence_length=120, max_positions=128)
    prepared(config, tmp_path / "out", per_shard=5)
    rows, decode = StoredTable(tmp_path / "out" / "train"), load(with_rows(config, tmp_path / "out")).tokenizer.decode
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
                assert a == b if labels[-1] else a.isdisjoint(b)
        first += shard.count
    assert len(labels) == len(rows) and 0.3 < np.mean(labels) < 0.7


@pytest.mark.parametrize(("count", "sizes"), [(2, [2]), (10, [4, 4, 2]), (12, [4, 4, 4]), (13, [4, 4, 5]), (14, [4, 4, 4, 2])])
@pytest.mark.parametrize("next_sentence", [True, False])
def test_no_shard_is_left_with_a_single_document(tmp_path, count, sizes, next_sentence):
    """A random sentence needs a second one: the shard before takes it."""
    config = pretraining_config(validation_fraction=0.5, next_sentence=next_sentence)
    sides: dict[str, list[str]] = {"train": [], "validation": []}
    for split, text in splits_of(config, map(str, range(200))):
        sides[split].append(text)
    source = write_documents(tmp_path, "t", [*sides["train"][:count], *sides["validation"][:2]])
    task = task_of(pretraining_config(validation_fraction=0.5, next_sentence=next_sentence, source=source))
    (tmp_path / "staging").mkdir()
    found = [chunk.items for chunk in stage(task, tmp_path / "staging", 4).chunks if chunk.split == "train"]
    assert found == (sizes if next_sentence else [4] * (count // 4) + [count % 4] * (count % 4 > 0))


def test_duplicates_are_counted_and_left_out(tmp_path, english):
    config = pretraining_config(source=write_documents(tmp_path, "t", [*english, *english[::-1], english[0]]))
    summary, _ = prepared(config, tmp_path / "out", per_shard=50)
    assert (summary["read"], summary["empty"], summary["duplicates"]) == (121, 0, 61)
    assert summary["train"]["documents"] + summary["validation"]["documents"] == 60


def test_a_vocabulary_can_be_given(tmp_path, english, english_rows):
    path = english_rows / "vocab.txt"
    source = write_documents(tmp_path, "t", english[:40])
    _, said = prepared(pretraining_config(source=source, vocab_path=str(path)), tmp_path / "given")
    assert not any("learning" in line for line in said)
    assert (tmp_path / "given" / "vocab.txt").read_bytes() == path.read_bytes()
    # Its content counts, not its name.
    shutil.copy(path, tmp_path / "copy.txt")
    _, said = prepared(pretraining_config(source=source, vocab_path=str(tmp_path / "copy.txt")), tmp_path / "given")
    assert "is finished" in said[0]
    for fields, complaint in (
        (dict(vocab_size=300), r"has 400 tokens, more than model\.vocab_size = 300"),
        (dict(tokenizer="bytes"), r"is only for data\.tokenizer = 'wordpiece'"),
    ):
        with pytest.raises(UserError, match=complaint):
            prepared(pretraining_config(source=source, vocab_path=str(path), **fields), tmp_path / "other")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (dict(sequence_length=40), r"was prepared with data\.sequence_length = 48, not 40; set it to that, or prepare again"),
        (dict(next_sentence=False), r"was prepared with model\.next_sentence = True, not False"),
        (dict(objective="clm", next_sentence=False), r"was prepared with model\.objective = 'mlm', not 'clm'"),
        (dict(tokenizer="bytes"), r"was prepared with data\.tokenizer = 'wordpiece', not 'bytes'"),
        (dict(lowercase=False), r"was prepared with data\.lowercase = True, not False"),
        (dict(vocab_size=399), r"vocab\.txt has 400 tokens, more than model\.vocab_size = 399"),
    ],
)
def test_rows_of_another_config_are_refused(english_rows, change, complaint):
    with pytest.raises(UserError, match=complaint):
        load(with_rows(pretraining_config(**change), english_rows))


def test_a_vocabulary_beside_prepared_rows_is_refused(tmp_path, english_rows):
    config = with_rows(pretraining_config(), english_rows)
    named = replace(config, data=replace(config.data, vocab_path="v.txt"))
    with pytest.raises(UserError, match=r"data\.vocab_path = 'v\.txt', but data\.source = .* has its own"):
        load(named)
    # The run's own vocabulary must be that of the rows.
    corpus = load(config)
    (tmp_path / "run").mkdir()
    corpus.save_vocab(tmp_path / "run")
    assert load_corpus(config, tmp_path / "run" / "vocab.txt").fingerprint == corpus.fingerprint
    path = tmp_path / "run" / "vocab.txt"
    path.write_bytes(path.read_bytes().replace(b"\nin\n", b"\nout\n"))
    with pytest.raises(UserError, match=r"is not the vocabulary of the run, .*vocab\.txt; put back the folder"):
        load_corpus(config, tmp_path / "run" / "vocab.txt")


def test_rows_of_translation_are_refused_and_the_other_way_round(tmp_path, english_rows):
    source = write_pairs(tmp_path, "text", invented(60, seed=1))
    prepared(translation_config(source=source), tmp_path / "pairs")
    with pytest.raises(UserError, match=r"was prepared with model\.objective = 'translation', not 'mlm'"):
        load(with_rows(pretraining_config(), tmp_path / "pairs"))
    with pytest.raises(UserError, match=r"was prepared with model\.objective = 'mlm', not 'translation'"):
        load_corpus(with_rows(translation_config(), english_rows), None)


def damaged_row(out: Path) -> None:
    path = out / "train" / "00000.arrayrecord"
    content = bytearray(path.read_bytes())
    # Beyond the header of the file, and before its end.
    content[8_000:9_000] = bytes(byte ^ 0x55 for byte in content[8_000:9_000])
    path.write_bytes(bytes(content))


def test_a_damaged_row_is_named_when_a_batch_needs_it(tmp_path, english_rows):
    shutil.copytree(english_rows, tmp_path / "out")
    corpus = load(with_rows(pretraining_config(), tmp_path / "out"))
    damaged_row(tmp_path / "out")  # after it was opened, when all bytes were compared
    steps = corpus.train_steps(1)
    found = 0
    for step in range(len(corpus.train)):
        try:
            steps[step]
        except UserError as error:
            assert str(error).startswith(f"{tmp_path / 'out' / 'train' / '00000.arrayrecord'} is damaged (")
            found += 1
    assert found


def test_validation_rows_replaced_by_training_rows_are_refused(tmp_path, english_rows):
    """As many rows in as many bytes: the index, and so the data fingerprint, stay the same."""
    shutil.copytree(english_rows, tmp_path / "out")
    tables = {split: StoredTable(tmp_path / "out" / split) for split in ("train", "validation")}
    count = len(tables["validation"])
    (tmp_path / "other").mkdir()
    other = write_shard(tmp_path / "other", 0, [tables["train"].take(np.arange(count))], UNCOMPRESSED, "job", {})
    (there,) = tables["validation"].shards
    path = tmp_path / "out" / "validation" / there.name
    assert (other.size, other.count) == (there.size, there.count)
    shutil.copy(tmp_path / "other" / other.name, path)
    assert StoredTable(path.parent).fingerprint == tables["validation"].fingerprint
    with pytest.raises(UserError, match=f"^{path} is damaged: its SHA-256 is not that of the index; put it back from a copy"):
        load(with_rows(pretraining_config(), tmp_path / "out"))


@pytest.mark.parametrize("damage", ["unfinished", "truncated", "no vocabulary"])
def test_a_damaged_folder_is_named(tmp_path, english_rows, damage):
    shutil.copytree(english_rows, tmp_path / "out")
    if damage == "unfinished":
        (tmp_path / "out" / "train" / "index.json").unlink()
        complaint = r"train/index\.json is missing: .* holds no finished rows"
    elif damage == "truncated":
        path = tmp_path / "out" / "validation" / "00000.arrayrecord"
        path.write_bytes(path.read_bytes()[:-1])
        complaint = r"validation/00000\.arrayrecord is damaged"
    else:
        (tmp_path / "out" / "vocab.txt").unlink()
        complaint = r"there is no vocabulary at .*vocab\.txt"
    with pytest.raises(UserError, match=complaint):
        load(with_rows(pretraining_config(), tmp_path / "out"))


@pytest.mark.parametrize(
    ("documents", "fields", "complaint"),
    [
        (["One. Two."] * 9, {}, r"leaves \d documents for (train|validation), which needs 2 \(9 read, 0 empty, 8 duplicates"),
        ([f"{number}" for number in range(40)], dict(LAYOUTS["stream"], sequence_length=1000, max_positions=1000), r"fill no row"),
    ],
)
def test_sources_that_will_not_do(tmp_path, documents, fields, complaint):
    with pytest.raises(UserError, match=complaint):
        prepared(pretraining_config(source=write_documents(tmp_path, "t", documents), **fields), tmp_path / "out")


LINE = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda line: "\n" not in line)


@given(st.lists(st.lists(LINE, min_size=1, max_size=4).map("\n".join), max_size=5, unique=True))
def test_documents_come_out_of_a_chunk_as_they_went_in(documents: list[str]) -> None:
    task = task_of(pretraining_config())
    items = [(document,) for document in documents]
    assert items_in(task, "".join(item_text(task, item) for item in items)) == items


# Prepares, and tells the most memory it ever had, in KB.
PEAK = """
import json, sys
from pathlib import Path
from mhsh.config.resolve import from_dict
from mhsh.data.prepare import prepare
from mhsh.data.pool import run_chunks
from tests.data.preparing import task_of

task = task_of(from_dict(json.loads(sys.argv[1])))
prepare(task, Path(sys.argv[2]), 100, lambda work, chunks: run_chunks(work, chunks, 1, lambda chunk: None), lambda line: None)
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
        done = subprocess.run(
            [sys.executable, "-c", PEAK, json.dumps(to_dict(config)), str(tmp_path / str(number))],
            check=True,
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        peaks.append(int(done.stdout))
    assert peaks[1] - peaks[0] < 8_000, peaks
