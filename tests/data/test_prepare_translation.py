"""Prepared rows are those that training makes of the source itself; kills, workers and the moment leave no trace in them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mhsh.config import Config, from_dict, to_dict
from mhsh.data.prepare_translation import prepare
from mhsh.data.shards import open_rows
from mhsh.data.translation import load_translation
from mhsh.data.translation_tokenizer import load_tokenizer
from mhsh.data.workers import run_chunks
from mhsh.errors import UserError
from tests.conftest import ROOT, load_fields

MODEL = dict(
    objective="translation",
    vocab_size=400,
    max_positions=64,
    positions="learned",
    num_token_types=0,
    next_sentence=False,
    num_layers=1,
    num_decoder_layers=1,
    heads_per_layer=0,
)
DATA = dict(
    source="numbers:1500",
    validation_source="",
    tokenizer="bpe",
    vocab_path="",
    sequence_length=64,
    layout="packed",
    max_length_ratio=2.0,
    validation_fraction=0.1,
    validation_sentences=0,
    seed=0,
)


def translation_config(vocab_size: int = 400, **data: Any) -> Config:
    fields = {section: load_fields("bert", "2l8h")[section] for section in ("model", "optimizer", "train", "mesh")}
    return from_dict(fields | {"model": fields["model"] | MODEL | {"vocab_size": vocab_size}, "data": DATA | data})


def prepared(config: Config, out: Path, pairs_per_shard: int = 10**6, workers: int = 1) -> tuple[dict[str, Any], list[str]]:
    """The summary, and what was said on the way."""
    said: list[str] = []
    run: Callable[..., None] = functools.partial(run_locally, workers)
    return prepare(config, out, pairs_per_shard, run, said.append), said


def run_locally(workers: int, work: Callable[[int], None], chunks: range) -> None:
    run_chunks(work, chunks, workers, lambda chunk: None)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def invented(count: int, seed: int) -> list[tuple[str, str]]:
    """Pairs of made-up sentences, some empty, some twice, some of very unlike length, some too long."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefghäöüß", k=rng.randint(1, 6))) for _ in range(200)]

    def sentence() -> str:
        return " ".join(rng.choices(words, k=rng.choice((0, 1, 4, 6, 8, 12, 40))))

    pairs = [(sentence(), sentence()) for _ in range(count)]
    return pairs + pairs[::10]


def write_pairs(folder: Path, name: str, pairs: list[tuple[str, str]]) -> str:
    for side, language in enumerate(("en", "de")):
        (folder / f"{name}.{language}").write_text("".join(pair[side] + "\n" for pair in pairs), encoding="utf-8")
    return f"text:{folder / name}.en,{folder / name}.de"


@pytest.fixture
def text(tmp_path):
    return write_pairs(tmp_path, "text", invented(700, seed=1))


def with_rows(config: Config, folder: Path) -> Config:
    data = dataclasses.replace(config.data, source=f"arrayrecord:{folder}", validation_source="", vocab_path="")
    return dataclasses.replace(config, data=data)


@pytest.mark.parametrize("layout", ["packed", "bucketed"])
@pytest.mark.parametrize("kind", ["numbers", "held out", "validation source"])
def test_prepared_rows_are_those_of_the_source(tmp_path, text, layout, kind):
    fields: dict[str, Any] = {"numbers": {}, "held out": dict(source=text), "validation source": dict(source=text)}[kind]
    if kind == "validation source":
        # Some of its pairs are in the training text too.
        fields["validation_source"] = write_pairs(tmp_path, "valid", invented(700, seed=1)[:20] + invented(50, seed=2))
    config = translation_config(layout=layout, **fields)
    summary, _ = prepared(config, tmp_path / "out")
    here = load_translation(config.model, config.data)
    there = load_translation(config.model, with_rows(config, tmp_path / "out").data)
    assert there.unigram_entropy == here.unigram_entropy
    assert there.tokenizer.fingerprint == here.tokenizer.fingerprint
    assert summary == there.counts == here.counts
    if kind == "validation source":
        assert summary["in_both_splits"] > 0
    for split in ("train", "validation"):
        a, b = getattr(here, split).rows, getattr(there, split).rows
        assert len(a) == len(b) > 0
        for index in range(len(a)):
            assert set(a[index]) == set(b[index])
            for name in a[index]:
                np.testing.assert_array_equal(a[index][name], b[index][name])
    for step in (0, 7):
        for (name, a), b in zip(sorted(here.train_steps(4)[step].items()), sorted(there.train_steps(4)[step].items()), strict=True):
            assert name == b[0]
            np.testing.assert_array_equal(a, b[1])


def pairs_in(rows: Any) -> Counter[tuple[tuple[int, ...], tuple[int, ...]]]:
    found: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
    for index in range(len(rows)):
        row = rows[index]
        for number in range(1, int(row["inputs_segmentation"].max()) + 1):
            source, target = (tuple(row[side][row[f"{side}_segmentation"] == number].tolist()) for side in ("inputs", "targets"))
            found[source, target] += 1
    return found


@pytest.mark.parametrize("layout", ["packed", "bucketed"])
def test_many_shards_hold_the_pairs_of_one(tmp_path, text, layout):
    config = translation_config(source=text, layout=layout)
    prepared(config, tmp_path / "one")
    prepared(config, tmp_path / "many", pairs_per_shard=20)
    for split in ("train", "validation"):
        one, many = open_rows(tmp_path / "one" / split), open_rows(tmp_path / "many" / split)
        assert len(one.shards) == 1 and len(many.shards) > 1
        assert pairs_in(one) == pairs_in(many)
        assert one.meta["unigram_entropy"] == many.meta["unigram_entropy"]
        for name in ("pairs", "too_long", "unlike", "source_tokens", "target_tokens"):
            assert one.meta["counts"][split][name] == many.meta["counts"][split][name]


def test_one_and_four_workers_give_the_same_bytes(tmp_path):
    config = translation_config()
    for workers in (1, 4):
        prepared(config, tmp_path / str(workers), pairs_per_shard=100, workers=workers)
    one, four = tree(tmp_path / "1"), tree(tmp_path / "4")
    assert one == four
    assert sum(name.startswith("train/0") for name in one) >= 10
    assert {name for name in one if "/0" not in name} == {
        "prepare.json",
        "tokenizer.json",
        "train/index.json",
        "validation/index.json",
    }


# Prepares once whole; then again and again, killed by SIGKILL before the n-th change of a file, and started anew to its end.
# A fork has all modules imported: hundreds of starts in seconds. The hook hears of a call before it happens.
KILLED_EVERYWHERE = """
import functools, json, os, shutil, signal, sys
from pathlib import Path
from mhsh.config import from_dict
from mhsh.data.prepare_translation import prepare
from mhsh.data.workers import run_chunks

folder, config, stride = Path(sys.argv[1]), from_dict(json.loads(sys.argv[2])), int(sys.argv[3])
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir"}


def run(work, chunks):
    run_chunks(work, chunks, 1, lambda chunk: None)


def child(out, moment):
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    seen = 0

    def hook(event, arguments):
        nonlocal seen
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if (event in CHANGES or writes) and str(out) in str(arguments[0]):
            seen += 1
            if seen == moment:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    try:
        prepare(config, out, 60, run, lambda line: None)
    except BaseException as error:
        print("failed", repr(error), flush=True)
        os._exit(1)
    os._exit(0)


def tree(out):
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


assert child(folder / "whole", 0) == 0
whole = tree(folder / "whole")
moment, kills = 1, 0
while True:
    out = folder / str(moment)
    code = child(out, moment)
    if code == 0:
        break
    assert code == -signal.SIGKILL, (moment, code)
    kills += 1
    if kills % 5 == 0:
        # Killed once more on the way, at another moment.
        child(out, 1 + kills % 7)
    assert child(out, 0) == 0, moment
    found = tree(out)
    assert found == whole, (moment, {name for name in {**found, **whole} if found.get(name) != whole.get(name)})
    shutil.rmtree(out)
    moment += stride
print(kills)
"""


@pytest.mark.parametrize("stride", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_any_change_of_a_file_and_restarted_it_ends_with_the_same_bytes(tmp_path, stride):
    config = translation_config(source="numbers:150", validation_source=write_pairs(tmp_path, "valid", invented(30, seed=3)))
    done = subprocess.run(
        [sys.executable, "-c", KILLED_EVERYWHERE, str(tmp_path / "out"), json.dumps(to_dict(config)), str(stride)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout) * stride > 30


def test_a_finished_folder_is_verified_and_said_to_be_finished(tmp_path):
    config = translation_config()
    summary, said = prepared(config, tmp_path / "out", pairs_per_shard=500)
    assert said[0] == "reading numbers:1500"
    before = tree(tmp_path / "out")
    again, said = prepared(config, tmp_path / "out", pairs_per_shard=500)
    assert again == summary and "is finished" in said[0] and tree(tmp_path / "out") == before
    path = tmp_path / "out" / "train" / "00001.arrayrecord"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"^{path} is damaged"):
        prepared(config, tmp_path / "out", pairs_per_shard=500)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (dict(sequence_length=32), r"data.sequence_length is 64 there, 32 here"),
        (dict(source="numbers:1501"), r"data.source is 'numbers:1500' there, 'numbers:1501' here"),
        (dict(vocab_size=401), r"model.vocab_size is 400 there, 401 here"),
        (dict(seed=1), r"data.seed is 0 there, 1 here"),
    ],
)
def test_another_config_into_the_same_folder_is_refused(tmp_path, change, named):
    prepared(translation_config(), tmp_path / "out")
    before = tree(tmp_path / "out")
    with pytest.raises(UserError, match=rf"holds rows of another job .*{named}.*choose another --out"):
        prepared(translation_config(**change), tmp_path / "out")
    with pytest.raises(UserError, match="pairs_per_shard is 1000000 there, 7 here"):
        prepared(translation_config(), tmp_path / "out", pairs_per_shard=7)
    assert tree(tmp_path / "out") == before


@pytest.mark.parametrize("finished", [True, False])
def test_another_source_under_the_same_name_is_refused(tmp_path, text, finished):
    config = translation_config(source=text)
    work = run_locally if finished else _interrupted
    with contextlib.nullcontext() if finished else pytest.raises(KeyboardInterrupt):
        prepare(config, tmp_path / "out", 100, functools.partial(work, 1), lambda line: None)
    before = tree(tmp_path / "out")
    pairs = invented(700, seed=1)
    pairs[500] = (pairs[500][0] + " x", pairs[500][1])
    write_pairs(tmp_path, "text", pairs)
    with pytest.raises(UserError, match=r"was begun with other sentence pairs than data.source"):
        prepared(config, tmp_path / "out", pairs_per_shard=100)
    assert tree(tmp_path / "out") == before
    write_pairs(tmp_path, "text", invented(700, seed=1))
    prepared(config, tmp_path / "out", pairs_per_shard=100)


def _interrupted(workers: int, work: Callable[[int], None], chunks: range) -> None:
    work(0)
    raise KeyboardInterrupt


def test_a_source_that_breaks_off_can_be_mended(tmp_path, text):
    path = tmp_path / "text.de"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] + b"\xff" + whole[len(whole) // 2 :])
    config = translation_config(source=text)
    with pytest.raises(UserError, match=f"{path} is not UTF-8"):
        prepared(config, tmp_path / "out")
    path.write_bytes(whole)
    prepared(config, tmp_path / "out")
    prepared(config, tmp_path / "other")
    assert tree(tmp_path / "out") == tree(tmp_path / "other")


def test_a_damaged_shard_of_an_unfinished_folder_is_written_again(tmp_path):
    config = translation_config()
    prepared(config, tmp_path / "whole", pairs_per_shard=300)

    def stopped(work: Callable[[int], None], chunks: range) -> None:
        for chunk in chunks[:3]:
            work(chunk)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(config, tmp_path / "out", 300, stopped, lambda line: None)
    (tmp_path / "out" / "train" / "00000.arrayrecord").write_bytes(b"damaged")
    kept = (tmp_path / "out" / "train" / "00001.arrayrecord").stat().st_ino
    prepared(config, tmp_path / "out", pairs_per_shard=300)
    assert (tmp_path / "out" / "train" / "00001.arrayrecord").stat().st_ino == kept
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def test_a_vocabulary_can_be_given(tmp_path, text):
    prepared(translation_config(), tmp_path / "numbers")
    path = tmp_path / "numbers" / "tokenizer.json"
    config = translation_config(source=text, vocab_path=str(path))
    prepared(config, tmp_path / "text")
    assert (tmp_path / "text" / "tokenizer.json").read_bytes() == path.read_bytes()
    # Its content counts, not its name.
    shutil.copy(path, tmp_path / "copy.json")
    _, said = prepared(translation_config(source=text, vocab_path=str(tmp_path / "copy.json")), tmp_path / "text")
    assert "is finished" in said[0]
    with pytest.raises(UserError, match=r"more than model.vocab_size = 300"):
        prepared(translation_config(300, source=text, vocab_path=str(path)), tmp_path / "small")
    with pytest.raises(UserError, match=r"is a bpe vocabulary, but data.tokenizer = 'unigram'"):
        prepared(translation_config(source=text, vocab_path=str(path), tokenizer="unigram"), tmp_path / "unigram")


def test_unigram_vocabularies_are_prepared_too(tmp_path):
    for name in "ab":
        prepared(translation_config(tokenizer="unigram"), tmp_path / name, pairs_per_shard=1000)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    assert load_tokenizer(tmp_path / "a" / "tokenizer.json").kind == "unigram"


def test_folders_and_sources_that_will_not_do(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").touch()
    with pytest.raises(UserError, match="is not empty and holds no prepared rows"):
        prepared(translation_config(), tmp_path / "full")
    with pytest.raises(UserError, match=r"cannot make the folder .*letter.txt"):
        prepared(translation_config(), tmp_path / "full" / "letter.txt")
    with pytest.raises(UserError, match="--pairs-per-shard=0"):
        prepared(translation_config(), tmp_path / "out", pairs_per_shard=0)
    with pytest.raises(UserError, match=r"makes rows for model.objective = 'translation'"):
        prepared(from_dict(load_fields("bert", "2l8h")), tmp_path / "out")
    source = write_pairs(tmp_path, "long", [("a " * 90, "b " * 90)] * 20)
    with pytest.raises(UserError, match=r"leaves no pairs for validation \(20 read, 0 empty, 19 duplicates\)"):
        prepared(translation_config(source=source), tmp_path / "out")
    with pytest.raises(UserError, match=r"leaves no pair for train: 1 are longer than data.sequence_length = 64"):
        prepared(translation_config(source=source, validation_source="numbers:100"), tmp_path / "long")


def test_two_preparations_into_one_folder_do_not_meet(tmp_path):
    config = translation_config()

    def meanwhile(work: Callable[[int], None], chunks: range) -> None:
        with pytest.raises(UserError, match="another mhsh prepare is at work in"):
            prepared(config, tmp_path / "out")
        run_locally(1, work, chunks)

    prepare(config, tmp_path / "out", 10**6, meanwhile, lambda line: None)
