"""Foreign text: what is decoded, and what each refusal says."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile

import pyarrow
import pytest

from mhsh.encoding import check_text, compression, decode, signature
from mhsh.errors import UserError
from mhsh.storage.files import parse_object

TEXT = "Ein Satz über Größe.\nUnd 日本語, 😀.\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32", "utf-32-be"])
def test_a_byte_order_mark_decides(encoding: str) -> None:
    mark = "\ufeff" if encoding.endswith("-be") else ""
    assert decode((mark + TEXT).encode(encoding), "t.txt") == TEXT


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (
            TEXT[:21].encode("latin-1"),
            r"^t\.txt line 1 is not UTF-8: .* at byte 9 of the line; it looks like Latin-1",
        ),
        (b"\n" + TEXT[:21].encode("latin-1"), r"^t\.txt line 2 is not UTF-8: .* at byte 9 of the line; .* iconv -f WINDOWS-1252"),
        (
            "日本語のテキスト".encode("shift-jis"),
            r"line 1 is not UTF-8: .*; it looks like another encoding; .*SHIFT_JIS",
        ),
        (b"\xff\x01\x02", r"line 1 is not UTF-8: .*; it looks binary"),
        (TEXT.encode("utf-16-le"), r"begins with zero bytes: it is damaged, binary, or UTF-16 without a byte order mark; .* iconv"),
        (bytes(100), r"begins with zero bytes"),
        (TEXT.encode("utf-16")[:-1], r"is damaged: UTF-16 by its mark, but truncated data"),
        (gzip.compress(b"a", mtime=0), r"^t\.txt is not text but compressed \(gzip\); unpack it"),
        (b"PK\x03\x04", r"is not text but a ZIP archive"),
        (b"%PDF-1.7\n%\xe2\xe3", r"is not text but a PDF"),
    ],
)
def test_what_is_no_text_is_refused_with_what_it_looks_like(content: bytes, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        decode(content, "t.txt")


def test_first_bytes() -> None:
    packed = {"gzip": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress, "zstd": lambda text: pyarrow.compress(text, "zstd")}
    for name, pack in packed.items():
        assert [compression(bytes(pack(content))) for content in (b"", b"text", b"x" * 10_000)] == [name] * 3
        assert signature(bytes(pack(b"text"))) == f"compressed ({name})"
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("a"))
    assert signature(archive.getvalue()) == "a tar archive"
    assert not any(signature(text) for text in (b"", b"BZh a text", b"PAR1 a text", b"\xef\xbb\xbftext", TEXT.encode("utf-16")))


def test_strings_of_a_caller() -> None:
    assert check_text(TEXT, "--text") == TEXT
    with pytest.raises(UserError, match=r"^--text is not UTF-8: byte 0xE9 at character 3; it looks like Latin-1"):
        check_text(b"caf\xe9".decode("utf-8", "surrogateescape"), "--text")
    for text in ("a\ud83d", "a\ude00", "a\udce9\ud83d", "\ud83d\ude00"):
        with pytest.raises(UserError, match=r"^generate: the text is not text|is not UTF-8: byte 0xE9"):
            check_text(text, "generate: the text")


def test_an_object_with_half_of_a_surrogate_pair_is_refused() -> None:
    assert parse_object(b'{"a": "\\ud83d\\ude00"}', "t.json") == {"a": "😀"}
    for half in (b'{"a": "\\ud83d"}', b'{"\\uDE00": 1}'):
        with pytest.raises(UserError, match=r"t\.json is damaged or not JSON: .* surrogates not allowed"):
            parse_object(half, "t.json")
    with pytest.raises(UserError, match=r"^t\.json line 2 is not UTF-8: .*; it looks like Latin-1"):
        parse_object(b'{"a":\n "caf\xe9 au lait"}', "t.json")
