"""Kills, workers and the moment leave no trace in prepared rows, of either kind; another job's
folder is left alone.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from mhsh.config.schema import Config
from mhsh.data.prepare import prepare
from mhsh.errors import UserError
from tests.data.preparing import (
    invented,
    killed_everywhere,
    prepared,
    pretraining_config,
    run_locally,
    task_of,
    translation_config,
    tree,
    write_documents,
    write_pairs,
)

KINDS = ("translation", "pretraining")


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def config(kind, english_source):
    """A preparation of 1,500 pairs or 60 documents."""
    return translation_config() if kind == "translation" else pretraining_config(source=english_source)


def text_config(kind: str, folder: Path, english: list[str], change: Callable[[str], str] = str) -> Config:
    """A preparation of text of ours, one item of which is changed."""
    if kind == "translation":
        pairs = invented(700, seed=1)
        pairs[500] = (change(pairs[500][0]), pairs[500][1])
        return translation_config(source=write_pairs(folder, "text", pairs))
    return pretraining_config(source=write_documents(folder, "text", [*english[:-1], change(english[-1])]))


def small(kind: str) -> int:
    """Items a shard that make about ten shards."""
    return 150 if kind == "translation" else 7


def test_workers_leave_no_trace(tmp_path, kind, config):
    for workers in (1, 3):
        prepared(config, tmp_path / str(workers), per_shard=small(kind), workers=workers)
    one, three = tree(tmp_path / "1"), tree(tmp_path / "3")
    assert one == three
    assert sum(name.startswith("train/0") for name in one) >= 6
    vocabulary = {"translation": "tokenizer.json", "pretraining": "vocab.txt"}[kind]
    assert {name for name in one if "/0" not in name} == {"prepare.json", vocabulary, "train/index.json", "validation/index.json"}


@pytest.mark.parametrize("stride", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_any_change_of_a_file_and_restarted_it_ends_with_the_same_bytes(tmp_path, kind, english_source, stride):
    if kind == "translation":
        config = translation_config(source="numbers:150", validation_source=write_pairs(tmp_path, "valid", invented(30, seed=3)))
    else:
        config = pretraining_config(source=english_source)
    kills = killed_everywhere(config, tmp_path / "out", per_shard=60 if kind == "translation" else 20, stride=stride)
    assert kills * stride > 30


def test_a_finished_folder_is_verified_and_said_to_be_finished(tmp_path, kind, config):
    summary, said = prepared(config, tmp_path / "out", per_shard=3 * small(kind))
    assert said[0] == f"reading {config.data.source}"
    before = tree(tmp_path / "out")
    again, said = prepared(config, tmp_path / "out", per_shard=3 * small(kind))
    assert again == summary and "is finished" in said[0] and tree(tmp_path / "out") == before
    path = tmp_path / "out" / "train" / "00001.arrayrecord"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"^{path} is damaged"):
        prepared(config, tmp_path / "out", per_shard=3 * small(kind))


def test_rows_below_the_texts_are_not_read_as_text(tmp_path, english):
    write_documents(tmp_path, "text", english)
    config = pretraining_config(source=f"text:{tmp_path}")
    summary, _ = prepared(config, tmp_path / "rows")
    assert summary["read"] == len(english)
    assert prepared(config, tmp_path / "rows")[0] == summary


def test_another_config_into_the_same_folder_is_refused(tmp_path, kind, config, english_source):
    prepared(config, tmp_path / "out")
    before = tree(tmp_path / "out")
    for change, named in (
        (dict(sequence_length=32), r"data.sequence_length is (64|48) there, 32 here"),
        (dict(source="text:other"), r"data.source is '.*' there, 'text:other' here"),
        (dict(vocab_size=401), r"model.vocab_size is 400 there, 401 here"),
        (dict(seed=1), r"data.seed is 0 there, 1 here"),
    ):
        other = translation_config(**change) if kind == "translation" else pretraining_config(**{"source": english_source} | change)
        with pytest.raises(UserError, match=rf"holds rows of another job .*{named}.*choose another --out"):
            prepared(other, tmp_path / "out")
    items = {"translation": "pairs", "pretraining": "documents"}[kind]
    with pytest.raises(UserError, match=f"{items}_per_shard is 1000000 there, 7 here"):
        prepared(config, tmp_path / "out", per_shard=7)
    assert tree(tmp_path / "out") == before


@pytest.mark.parametrize("finished", [True, False])
def test_another_source_under_the_same_name_is_refused(tmp_path, kind, english, finished):
    config = text_config(kind, tmp_path, english)
    with contextlib.nullcontext() if finished else pytest.raises(KeyboardInterrupt):
        work = functools.partial(run_locally, 1) if finished else _interrupted
        prepare(task_of(config), tmp_path / "out", 100, work, lambda line: None)
    before = tree(tmp_path / "out")
    text_config(kind, tmp_path, english, lambda text: text + " x")
    with pytest.raises(UserError, match=r"was begun with other (pairs|documents) than data.source"):
        prepared(config, tmp_path / "out", per_shard=100)
    assert tree(tmp_path / "out") == before
    text_config(kind, tmp_path, english)
    prepared(config, tmp_path / "out", per_shard=100)


def _interrupted(work: Callable[[int], None], chunks: range) -> None:
    work(0)
    raise KeyboardInterrupt


def test_a_source_that_breaks_off_can_be_mended(tmp_path, kind, english):
    config = text_config(kind, tmp_path, english)
    path = tmp_path / ("text.de" if kind == "translation" else "text.txt")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] + b"\xff" + whole[len(whole) // 2 :])
    with pytest.raises(UserError, match=rf"{path} line \d+ is not UTF-8"):
        prepared(config, tmp_path / "out")
    path.write_bytes(whole)
    prepared(config, tmp_path / "out")
    prepared(config, tmp_path / "other")
    assert tree(tmp_path / "out") == tree(tmp_path / "other")


def test_a_damaged_shard_of_an_unfinished_folder_is_written_again(tmp_path, kind, config):
    prepared(config, tmp_path / "whole", per_shard=small(kind))

    def stopped(work: Callable[[int], None], chunks: range) -> None:
        for chunk in chunks[:3]:
            work(chunk)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(task_of(config), tmp_path / "out", small(kind), stopped, lambda line: None)
    (tmp_path / "out" / "train" / "00000.arrayrecord").write_bytes(b"damaged")
    kept = (tmp_path / "out" / "train" / "00001.arrayrecord").stat().st_ino
    prepared(config, tmp_path / "out", per_shard=small(kind))
    assert (tmp_path / "out" / "train" / "00001.arrayrecord").stat().st_ino == kept
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def test_folders_that_will_not_do(tmp_path, config):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").touch()
    with pytest.raises(UserError, match="is not empty and holds no prepared rows"):
        prepared(config, tmp_path / "full")
    with pytest.raises(UserError, match=r"cannot make the folder .*letter.txt"):
        prepared(config, tmp_path / "full" / "letter.txt")


@pytest.mark.parametrize(("next_sentence", "least"), [(True, 2), (False, 1)])
def test_shards_of_too_few_items_are_refused(tmp_path, english_source, next_sentence, least):
    config = pretraining_config(source=english_source, next_sentence=next_sentence)
    with pytest.raises(UserError, match=f"^--per-shard={least - 1} must be {least} or more$"):
        prepared(config, tmp_path / "out", per_shard=least - 1)
    assert not (tmp_path / "out").exists()


def test_two_preparations_into_one_folder_do_not_meet(tmp_path, config):
    def meanwhile(work: Callable[[int], None], chunks: range) -> None:
        with pytest.raises(UserError, match="another mhsh prepare is running in"):
            prepared(config, tmp_path / "out")
        run_locally(1, work, chunks)

    prepare(task_of(config), tmp_path / "out", 10**6, meanwhile, lambda line: None)
