"""Foreign text: the bytes of a file and the strings of a caller, decoded or refused in one line."""

from __future__ import annotations

import codecs
import re

from mhsh.errors import UserError

# The form of a file by its first bytes. Text does not begin like this, except on purpose.
_COMPRESSIONS = {
    "gzip": rb"\x1f\x8b",
    "xz": rb"\xfd7zXZ\x00",
    "zstd": rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18",  # a frame, or one that is skipped
    "bz2": rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)",
}
_OTHERS = {
    "Parquet": rb"PAR1[^\x20-\x7e]",
    "Arrow": rb"ARROW1\x00\x00|\xff\xff\xff\xff.{3}\x00",
    "a ZIP archive": rb"PK\x03\x04",
    "a 7z archive": rb"7z\xbc\xaf\x27\x1c",
    "a tar archive": rb"(?s).{257}ustar",
    "lz4 data": rb"\x04\x22\x4d\x18",
    "a PDF": rb"%PDF-\d",
    "a PNG image": rb"\x89PNG\r\n",
    "a JPEG image": rb"\xff\xd8\xff",
    "a GIF image": rb"GIF8[79]a",
    "an SQLite database": rb"SQLite format 3\x00",
    "HDF5": rb"\x89HDF\r\n",
    "a NumPy array": rb"\x93NUMPY",
}
HEAD_BYTES = 512  # enough for `compression` and `signature`

# Of UTF-32 before UTF-16, whose mark is the first half of it.
_MARKS = (
    ("utf-8-sig", codecs.BOM_UTF8),
    ("utf-32", codecs.BOM_UTF32_LE),
    ("utf-32", codecs.BOM_UTF32_BE),
    ("utf-16", codecs.BOM_UTF16_LE),
    ("utf-16", codecs.BOM_UTF16_BE),
)
_LONE = re.compile("[\ud800-\udfff]")
_CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_HIGH = re.compile(rb"[\x80-\xff]")


def compression(head: bytes) -> str:
    """gzip, xz, zstd or bz2, by the first bytes of a file; empty for any other."""
    return next((name for name, start in _COMPRESSIONS.items() if re.match(start, head)), "")


def signature(head: bytes) -> str:
    """The form of a file by its first bytes, if it is a known one that is not text; else empty."""
    packing = compression(head)
    if packing:
        return f"compressed ({packing})"
    return next((name for name, start in _OTHERS.items() if re.match(start, head)), "")


def marked_encoding(head: bytes) -> str:
    """utf-8-sig, utf-16 or utf-32, where a file begins with a byte order mark; else utf-8."""
    return next((name for name, mark in _MARKS if head.startswith(mark)), "utf-8")


def decode(content: bytes, where: str) -> str:
    """The text of a whole file: UTF-8, or what its byte order mark says; the mark is left out.
    Raises UserError where it is not text; it names the file (`where`), the line, what the bytes
    look like and what to do.
    """
    check_head(content[:HEAD_BYTES], where)
    encoding = marked_encoding(content)
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        if not encoding.startswith("utf-8"):
            raise UserError(f"{where} is damaged: {encoding.upper()} by its mark, but {error.reason}; write it again") from error
        start = content.rfind(b"\n", 0, error.start) + 1
        number = content.count(b"\n", 0, start) + 1
        return decode_line(content[start:].split(b"\n", 1)[0], number, where)


def decode_line(line: bytes, number: int, where: str) -> str:
    """A line of UTF-8. Raises UserError as `decode` does; `number` counts from 1."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{where} line {number} is not UTF-8: {error.reason} at byte {error.start} of the line; {_remedy(line)}"
        ) from error


def check_head(head: bytes, where: str) -> None:
    """Raises UserError where the first bytes of a file are those of a known form that is not text,
    or of UTF-16 without a mark, which would pass as UTF-8.
    """
    form = signature(head)
    if form:
        raise UserError(f"{where} is not text but {form}; unpack it, write its text out, or name the texts alone")
    if marked_encoding(head) == "utf-8" and head.count(0) * 4 > len(head):
        raise UserError(
            f"{where} begins with zero bytes: it is damaged, binary, or UTF-16 without a byte order mark; fetch it again, or "
            "convert it to UTF-8: iconv -f UTF-16LE -t UTF-8"
        )


def check_text(text: str, what: str, remedy: str = "") -> str:
    """The text of a flag or of an argument, if it is text.

    A byte of the command line that is not UTF-8, and half of a surrogate pair, are characters for
    Python that no file and no tokenizer can hold. Raises UserError where it has such a character;
    `what` is the flag or the argument, and `remedy` what to do (empty: convert it), for the error.
    """
    lone = _LONE.search(text)
    if lone is None:
        return text
    code = ord(lone[0])
    if 0xDC80 <= code <= 0xDCFF:  # how Python passes on a byte of the command line
        line = text.encode("utf-8", "surrogateescape") if not re.search("[\ud800-\udc7f\udd00-\udfff]", text) else b""
        raise UserError(f"{what} is not UTF-8: byte 0x{code - 0xDC00:02X} at character {lone.start()}; {remedy or _remedy(line)}")
    remedy = remedy or "give the whole character"
    raise UserError(f"{what} is not text: U+{code:04X} at character {lone.start()} is half of a surrogate pair; {remedy}")


def _remedy(line: bytes) -> str:
    """The likely encoding of a line that is not UTF-8, and what to do."""
    if _CONTROLS.search(line):
        return "it looks binary; name text files alone"
    if len(_HIGH.findall(line)) * 3 > len(line):
        return "it looks like another encoding; convert it to UTF-8: iconv -f GB18030 -t UTF-8, or -f SHIFT_JIS, -f KOI8-R"
    return "it looks like Latin-1 or Windows-1252; convert it to UTF-8: iconv -f WINDOWS-1252 -t UTF-8"
