"""Lines of text files: only "\\n" ends one, and a line that is no text is named."""

from __future__ import annotations

import gzip
import io
import lzma
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mhsh.data.text_files import read_lines, text_lines
from mhsh.errors import UserError

CONTENT = "\ufeffone\u0085still one\x0cstill\r\n\r\n\ufeffzwei ü\n\nlast".encode()


@pytest.fixture(params=["t.txt", "t.gz", "t.xz"])
def path(request, tmp_path):
    path = tmp_path / request.param
    packed = {".txt": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[path.suffix]
    path.write_bytes(packed(CONTENT))
    return path


def test_lines_of_a_file(path: Path) -> None:
    assert list(text_lines(path)) == ["one\u0085still one\x0cstill\r", "\r", "\ufeffzwei ü", "", "last"]
    assert read_lines(str(path)) == ["one\u0085still one\x0cstill", "", "\ufeffzwei ü", "", "last"]


def test_lines_of_standard_input(monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(CONTENT)))
    assert read_lines(None) == ["one\u0085still one\x0cstill", "", "\ufeffzwei ü", "", "last"]
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"a\n\xff\n")))
    with pytest.raises(UserError, match=r"^standard input line 2 is not UTF-8: invalid start byte at byte 0 of the line; "):
        read_lines(None)


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
