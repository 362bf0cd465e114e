"""Lines of text files: only "\\n" ends one, and a line that is not text is named."""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import lzma
import sys
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import pyarrow
import pytest

from mhsh.data import text_files
from mhsh.data.text_files import read_lines, read_text, read_whole_file, split_field, text_lines
from mhsh.errors import UserError

CONTENT = "\ufeffone\u0085still one\x0cstill\r\n\r\n\ufeffzwei ü\n\nlast".encode()


PACK = {
    "plain": bytes,
    "gzip": gzip.compress,
    "xz": lzma.compress,
    "bz2": bz2.compress,
    "zstd": lambda content: pyarrow.compress(content, "zstd", asbytes=True),
    "two members": lambda content: gzip.compress(content[:9]) + gzip.compress(content[9:]),
    "two frames": lambda content: PACK["zstd"](content[:9]) + PACK["zstd"](content[9:]),
    "xz in xz": lambda content: lzma.compress(lzma.compress(content)),
    "gzip in zstd": lambda content: PACK["zstd"](gzip.compress(content)),
    "UTF-16": lambda content: content.decode("utf-8-sig").encode("utf-16"),
}


@pytest.fixture(params=PACK)
def path(request, tmp_path):
    """The name says nothing: the first bytes do."""
    path = tmp_path / "t.GZ"
    path.write_bytes(PACK[request.param](CONTENT))
    return path


def test_lines_of_a_file(path: Path) -> None:
    assert list(text_lines(path)) == ["one\u0085still one\x0cstill\r", "\r", "\ufeffzwei ü", "", "last"]
    assert read_lines(str(path)) == ["one\u0085still one\x0cstill", "", "\ufeffzwei ü", "", "last"]


def test_a_colon_in_a_name_begins_no_field(tmp_path: Path) -> None:
    (tmp_path / "dump 10:00.jsonl").touch()
    (tmp_path / "a:b").mkdir()
    for name in ("dump 10:00.jsonl", "a:b"):
        path = f"{tmp_path}/{name}"
        assert split_field("jsonl", path, "FIELD") == (path, "text")
        assert split_field("jsonl", f"{path}:body", "FIELD") == (path, "body")
    assert split_field("jsonl", f"{tmp_path}/none:body", "FIELD") == (f"{tmp_path}/none", "body")


def test_lines_of_standard_input(monkeypatch) -> None:
    def give(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(content))))

    for content in (CONTENT, bz2.compress(CONTENT), PACK["UTF-16"](CONTENT)):
        give(content)
        assert read_lines(None) == ["one\u0085still one\x0cstill", "", "\ufeffzwei ü", "", "last"]
    give(b"a\n\xff\n")
    with pytest.raises(UserError, match=r"^standard input line 2 is not UTF-8: invalid start byte at byte 0 of the line; "):
        read_lines(None)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (
            functools.reduce(lambda packed, _: gzip.compress(packed, mtime=0), range(4), CONTENT),
            r"t\.txt is compressed more than 2 times",
        ),
        (gzip.compress(b"PK\x03\x04", mtime=0), r"t\.txt is not text but a ZIP archive; unpack it"),
        (b"a\n".decode().encode("utf-16") + b"b", r"t\.txt is UTF-16, but after line 1 truncated data; write the file again"),
        (gzip.compress(bytes(1 << 20), mtime=0), r"t\.txt begins with zero bytes"),
    ],
)
def test_what_is_no_text_is_named(tmp_path: Path, content: bytes, complaint: str) -> None:
    (tmp_path / "t.txt").write_bytes(content)
    with pytest.raises(UserError, match=complaint):
        read_lines(tmp_path / "t.txt")


@pytest.mark.parametrize("pack", ["gzip", "xz", "bz2", "zstd"])
def test_a_line_without_an_end_is_not_unpacked_into_memory(tmp_path: Path, monkeypatch, pack: str) -> None:
    monkeypatch.setattr(text_files, "_LONGEST", 1 << 20)
    (tmp_path / "t.txt").write_bytes(PACK[pack](b"a\n" + b"x" * (1 << 25)))
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=r"t\.txt line 2 is longer than 1 MiB"):
            read_lines(tmp_path / "t.txt")
        assert tracemalloc.get_traced_memory()[1] < 16 << 20  # xz has a dictionary of 8 MiB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("read", [read_lines, lambda path: list(read_text(path, "")), lambda path: list(read_whole_file(path, ""))])
def test_lines_that_are_kept_together_have_a_bound(tmp_path: Path, monkeypatch, read) -> None:
    monkeypatch.setattr(text_files, "_LONGEST", 1 << 20)
    (tmp_path / "t.txt").write_bytes(gzip.compress((b"0123456789abcdef" * 16 + b"\n") * (1 << 14), mtime=0))
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=r"t\.txt is longer than 1 million characters, too long to be read at once; split it"):
            read(tmp_path / "t.txt")
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("pack", "damage"), [*((pack, "cut") for pack in ("gzip", "xz", "bz2", "zstd")), ("gzip", "flip"), ("xz", "flip")]
)
def test_a_damaged_file_is_named(tmp_path: Path, pack: str, damage: str) -> None:
    packed = PACK[pack](bytes(range(32, 127)) * 50)
    flipped = bytes(byte ^ 0xFF for byte in packed[-6:])
    (tmp_path / "t.txt").write_bytes(packed[: len(packed) // 2] if damage == "cut" else packed[:-6] + flipped)
    with pytest.raises(UserError, match=r"t\.txt is damaged and cannot be unpacked .*; fetch it again"):
        read_lines(tmp_path / "t.txt")


def test_lines_are_read_as_they_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(b"one\ntwo\n" + b"x" * 5 + b"\xe9\n")
    lines = text_lines(tmp_path / "t.txt")
    assert [next(lines), next(lines)] == ["one", "two"]
    with pytest.raises(UserError, match=r"t\.txt line 3 is not UTF-8: .* at byte 5 of the line"):
        next(lines)


def test_an_empty_file_has_no_lines(tmp_path: Path) -> None:
    (tmp_path / "t.txt").touch()
    assert read_lines(str(tmp_path / "t.txt")) == []
    with pytest.raises(UserError, match=r"cannot read .*gone\.txt: No such file"):
        read_lines(str(tmp_path / "gone.txt"))
