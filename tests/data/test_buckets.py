"""Every source read from a bucket equals the same read from a disk, and so do prepared rows that
were copied there. An emulator of Google Cloud Storage stands in for Google's own.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import fsspec
import pyarrow
import pytest
from etils import epath
from msgspec.structs import replace
from pyarrow import parquet

from mhsh.data import local_shards
from mhsh.data.documents import documents
from mhsh.data.glue import find_file, find_task, read_glue
from mhsh.data.load import load_corpus
from mhsh.data.local_shards import local_copy
from mhsh.data.pairs import read_pairs
from mhsh.data.shards import StoredTable, read_index, shards_of, write_index
from mhsh.data.squad import read_squad
from mhsh.data.subword import load_subword
from mhsh.data.text_files import matching_files
from mhsh.data.wordpiece import load_wordpiece
from mhsh.errors import Unavailable, UserError
from mhsh.storage import bucket as bucket_client
from tests.buckets import emulator
from tests.clusters import free_port
from tests.conftest import ROOT
from tests.data.preparing import (
    invented,
    prepared,
    pretraining_config,
    task_of,
    translation_config,
    tree,
    with_rows,
    write_pairs,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    with emulator(tmp_path_factory.mktemp("emulator") / "log", "data") as address:
        yield address


@pytest.fixture
def bucket(server, tmp_path, monkeypatch) -> str:
    """An empty folder in the emulator's bucket, for this test; and an empty cache."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server)
    monkeypatch.setenv("NO_GCE_CHECK", "true")  # no machine of Google's is asked for a login
    monkeypatch.setenv("MHSH_CACHE", str(tmp_path / "cache"))
    return f"gs://data/{tmp_path.name}"


def objects():
    return fsspec.filesystem("gs", use_listings_cache=False)


def put(folder: Path, bucket: str) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            objects().pipe_file(f"{bucket}/{path.relative_to(folder)}", path.read_bytes())


def rows_there(config, folder: Path, bucket: str, per_shard: int = 10**6) -> epath.Path:
    """Rows prepared into `folder`, and a copy of them in the bucket."""
    prepared(config, folder, per_shard)
    put(folder, f"{bucket}/out")
    return epath.Path(f"{bucket}/out/train")


def written(folder: Path, english: list[str]) -> Path:
    """A folder with files of every kind of source."""
    (folder / "texts" / "deep").mkdir(parents=True)
    parts = ["\n\n".join(english[start::4]) + "\n" for start in range(4)]
    (folder / "texts" / "b.txt").write_text(parts[0], encoding="utf-8")
    (folder / "texts" / "deep" / "a.txt.gz").write_bytes(gzip.compress(parts[1].encode()))
    (folder / "texts" / "a.txt.xz").write_bytes(lzma.compress(parts[2].encode()))
    (folder / "texts" / "c.md").write_bytes(pyarrow.compress(bz2.compress(parts[3].encode()), "zstd", asbytes=True))
    (folder / "texts" / ".hidden").write_text("no")
    table = pyarrow.table({"text": [*english, None], "doc": [*({"body": text.encode()} for text in english), None]})
    parquet.write_table(table, folder / "c.parquet", row_group_size=7)
    (folder / "t.jsonl").write_text("".join(json.dumps({"doc": {"body": text}}) + "\n" for text in english))
    write_pairs(folder, "pairs", invented(50, seed=2))
    (folder / "CoLA").mkdir()
    (folder / "CoLA" / "dev.tsv").write_text("".join(f"s\t{number % 2}\t\tNumber {number}.\n" for number in range(9)))
    answer = {"id": "1", "question": "What?", "answers": [{"text": "sat", "answer_start": 8}]}
    content = {"data": [{"title": "T", "paragraphs": [{"context": "The cat sat.", "qas": [answer]}]}]}
    (folder / "squad.json").write_text(json.dumps(content))
    return folder


def test_every_source_is_read_as_from_a_disk(bucket, tmp_path, english):
    here = str(written(tmp_path / "files", english))
    put(tmp_path / "files", bucket)
    of_texts = ("text:{}/texts/b.txt", "text:{}/texts/**/*.txt*", "text:{}/*/*.txt*", "text:{}/texts", "lines:{}/texts/")
    of_columns = ("parquet:{}/*.parquet", "parquet:{}:doc.body")
    for source in (*of_texts, "files:{}/texts", "jsonl:{}/*.jsonl:doc.body", *of_columns):
        found = list(documents(source.format(bucket)))
        assert found == list(documents(source.format(here))) and len(found) >= 4, source
    names = [[str(path).removeprefix(root) for path in matching_files(f"{root}/**/*.txt*", "x")] for root in (bucket, here)]
    assert names[0] == names[1] and len(names[0]) == 3
    assert [path.name for path in matching_files(f"{bucket}/texts/*", "x")] == ["a.txt.xz", "b.txt", "c.md"]  # hidden ones are not
    assert [*read_pairs(f"text:{bucket}/pairs.en,{bucket}/pairs.de")] == [*read_pairs(f"text:{here}/pairs.en,{here}/pairs.de")]
    task = find_task("cola")
    assert read_glue(task, find_file(task, bucket, "dev.tsv")) == read_glue(task, find_file(task, here, "dev.tsv"))
    assert read_squad(f"{bucket}/squad.json") == read_squad(f"{here}/squad.json")


def test_what_mhsh_has_written_among_the_texts_is_not_text(bucket):
    """A run's vocab.txt, and the folder of prepared rows; a config.json of another program marks
    nothing.
    """
    run, rows = b'{"schema": 7, "mhsh": "0.1.0"}', b'{"tokenizers": "0.22"}'
    contents = {"a.txt": b"a", "runs/one/config.json": run, "runs/one/vocab.txt": b"v", "rows/prepare.json": rows}
    contents |= {"rows/train/x.txt": b"x", "model/config.json": b"{}", "model/b.txt": b"b"}
    for name, content in contents.items():
        objects().pipe_file(f"{bucket}/texts/{name}", content)
    found = matching_files(f"{bucket}/texts/**/*.txt", "data.source")
    assert [str(path).removeprefix(f"{bucket}/texts/") for path in found] == ["a.txt", "model/b.txt"]
    assert found == matching_files(f"{bucket}/texts", "data.source", "*.txt")
    named = matching_files(f"{bucket}/texts/runs/one/**", "data.source")
    assert [path.name for path in named] == ["config.json", "vocab.txt"]
    with pytest.raises(UserError, match=r"which \*\* leaves out"):
        matching_files(f"{bucket}/texts/**/x.txt", "data.source")


@pytest.mark.parametrize(
    "kind", [pytest.param("translation", marks=pytest.mark.slow), "pretraining"]
)  # on a disk: test_prepare.py, both
def test_rows_in_a_bucket_are_those_of_a_disk(bucket, tmp_path, english_source, kind, capsys):
    config = translation_config() if kind == "translation" else pretraining_config(source=english_source)
    rows_there(config, tmp_path / "out", bucket, 300 if kind == "translation" else 7)
    there = load_corpus(with_rows(config, f"{bucket}/out"), None)
    copied = capsys.readouterr().out
    assert copied.count("\n") == 2 and f"B of {bucket}/out/train to {tmp_path / 'cache'}" in copied
    here = load_corpus(with_rows(config, tmp_path / "out"), None)
    assert there.fingerprint == here.fingerprint and there.unigram_entropy == here.unigram_entropy
    for name, values in there.train_steps(4)[3].items():
        assert (values == here.train_steps(4)[3][name]).all()
    # Vocabularies, as data.vocab_path names them.
    load = load_subword if kind == "translation" else lambda path: load_wordpiece(path, lowercase=True)
    name = task_of(config).vocab_file
    assert load(f"{bucket}/out/{name}").fingerprint == load(tmp_path / "out" / name).fingerprint
    given = translation_config if kind == "translation" else pretraining_config
    vocab_path = f"{bucket}/out/{name}"
    assert (
        load_corpus(given(source=config.data.source, vocab_path=vocab_path), None).tokenizer.vocab_size
        == there.tokenizer.vocab_size
    )


def test_copies_are_whole_or_made_again(bucket, tmp_path, english_source, capsys, monkeypatch):
    config = pretraining_config(source=english_source)
    folder = rows_there(config, tmp_path / "out", bucket, 7)
    copy = local_copy(folder)
    assert copy == tmp_path / "cache" / "data" / read_index(folder)["fingerprint"]
    table = StoredTable(copy)
    local_shards.verify(copy)
    with monkeypatch.context() as patched:  # what was compared when it was copied is not read again
        patched.setattr(local_shards, "check_shard", lambda folder, shard: pytest.fail(f"{shard.name} is read again"))
        local_shards.verify_once(copy, table.shards)
    capsys.readouterr()
    before = tree(copy)
    kept = (copy / "00000.arrayrecord").stat().st_ino
    (copy / "00001.arrayrecord").unlink()
    (copy / "00002.arrayrecord").write_bytes(b"cut short")
    (copy / ".00001.arrayrecord.0.tmp").touch()  # of a killed copy
    assert local_copy(folder) == copy and tree(copy) == before
    assert capsys.readouterr().out.startswith("copying 262 kB of gs://")
    assert (copy / "00000.arrayrecord").stat().st_ino == kept
    assert local_copy(folder) == copy and capsys.readouterr().out == ""


def test_an_index_writes_nothing_outside_of_the_copy(bucket, tmp_path, english_source):
    folder = rows_there(pretraining_config(source=english_source), tmp_path / "out", bucket)
    index = read_index(folder)
    shard = replace(shards_of(index)[0], name="../../../escaped")
    write_index(tmp_path, [shard], index["meta"])
    objects().put_file(str(tmp_path / "index.json"), f"{folder}/index.json")
    with pytest.raises(UserError, match=r"index\.json is damaged \(Expected `str` matching regex .* at `\$\.shards\[0\]\.name`"):
        local_copy(folder)


def test_one_process_of_a_machine_copies_and_the_others_wait(bucket, tmp_path, english_source):
    rows_there(pretraining_config(source=english_source), tmp_path / "out", bucket, 5)
    program = (
        "import sys; from etils import epath; from mhsh.data.local_shards import local_copy; local_copy(epath.Path(sys.argv[1]))"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", program, f"{bucket}/out/train"], cwd=ROOT, stdout=-1, stderr=-1, text=True)
        for _ in range(2)
    ]
    results = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0] * 2, results
    assert "".join(out for out, _ in results).count("copying") == 1 and not any(err for _, err in results)


def test_what_is_wrong_with_a_bucket_of_rows_is_one_line(bucket, tmp_path, english_source, monkeypatch):
    config = pretraining_config(source=english_source)
    folder = rows_there(config, tmp_path / "out", bucket, 7)
    shard = f"{bucket}/out/train/00001.arrayrecord"
    content = objects().cat_file(shard)
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
        with pytest.raises(UserError, match=r"cannot copy .*: it takes \d+ kB, and 10\.0 B are free; set MHSH_CACHE to a folder"):
            local_copy(folder)
    objects().pipe_file(shard, content[:-1] + b"x")
    with pytest.raises(UserError, match=rf"^{shard} is damaged: its SHA-256 is not that of the index"):
        local_copy(folder)
    objects().rm_file(shard)
    with pytest.raises(UserError, match=rf"cannot copy .*no such object or bucket \({shard}\); check the bucket"):
        local_copy(folder)
    objects().rm_file(f"{bucket}/out/train/index.json")
    with pytest.raises(UserError, match=r"train/index\.json is missing: .* holds no finished rows"):
        load_corpus(with_rows(config, f"{bucket}/out"), None)
    objects().pipe_file(f"{bucket}/out/train/index.json", b'{"fingerprint": "a"}')
    with pytest.raises(UserError, match=r"train/index\.json is damaged"):
        load_corpus(with_rows(config, f"{bucket}/out"), None)
    monkeypatch.setenv("MHSH_CACHE", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    objects().pipe_file(f"{bucket}/out/train/index.json", objects().cat_file(f"{bucket}/out/validation/index.json"))
    with pytest.raises(UserError, match=r"cannot copy .* to .*/file/data/.*: Not a directory .*; set MHSH_CACHE"):
        local_copy(folder)


def test_bad_inputs_in_a_bucket_are_one_line(bucket):
    objects().pipe_file(f"{bucket}/latin.txt", b"caf\xe9\n")
    objects().pipe_file(f"{bucket}/broken.txt.gz", b"\x1f\x8b no gzip")
    objects().pipe_file(f"{bucket}/no.parquet", b"PAR1 and nothing else PAR1")
    for source, complaint in (
        (
            f"text:{bucket}/none*.txt",
            rf"^data\.source = 'text:{bucket}/none\*\.txt' matches no file; correct the bucket or the glob",
        ),
        ("text:gs://nowhere/*.txt", "the bucket gs://nowhere does not exist; make it, or correct the name"),
        ("text:gs://", "^gs:// names no bucket; write gs://BUCKET/NAME"),
        (f"text:{bucket}/latin.txt", rf"^{bucket}/latin\.txt line 1 is not UTF-8"),
        (f"text:{bucket}/broken.txt.gz", rf"^{bucket}/broken\.txt\.gz is damaged and cannot be unpacked"),
        (f"parquet:{bucket}/*.parquet", rf"^{bucket}/no\.parquet is damaged or not Parquet"),
    ):
        with pytest.raises(UserError, match=complaint) as raised:
            list(documents(source))
        assert "\n" not in str(raised.value)
    for vocab, complaint in (
        (f"{bucket}/v.txt", f"the vocabulary {bucket}/v.txt does not exist"),
        (bucket, f"the vocabulary {bucket} does not exist"),  # an object has no folders
    ):
        for read in (lambda path: load_wordpiece(path, lowercase=True), load_subword):
            with pytest.raises(UserError, match=complaint):
                read(vocab)
    with pytest.raises(UserError, match=rf"cannot read {bucket}/squad\.json: no such object or bucket"):
        read_squad(f"{bucket}/squad.json")
    with pytest.raises(UserError, match=rf"there is neither {bucket}/CoLA/dev\.tsv nor dev\.tsv\.gz"):
        find_file(find_task("cola"), bucket, "dev.tsv")
    with pytest.raises(UserError, match=r"the bucket gs://nowhere does not exist; make it"):
        load_corpus(with_rows(pretraining_config(), "gs://nowhere/x"), None)


def test_a_bucket_that_does_not_answer_is_one_line_within_seconds(monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{free_port()}")
    bucket_client._check_login.cache_clear()
    begin = time.monotonic()
    for source in ("text:gs://data/*.txt", "parquet:gs://data/*.parquet"):
        with pytest.raises(Unavailable, match=r"^cannot reach gs://data: .* does not answer"):
            list(documents(source))
    with pytest.raises(Unavailable, match=r"^cannot reach gs://data: "):
        load_wordpiece("gs://data/vocab.txt", lowercase=True)
    with pytest.raises(Unavailable, match=r"^cannot reach gs://data: "):
        load_corpus(with_rows(pretraining_config(), "gs://data/rows"), None)
    assert time.monotonic() - begin < 10
