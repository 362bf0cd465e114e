"""Documents of the standard library and of text files, and what is said of files that hold none."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import subprocess
import sys
from pathlib import Path

import pytest

from mhsh.data.documents import documents
from mhsh.data.stdlib import _module_docstrings
from mhsh.errors import UserError

ROOT = Path(__file__).parents[2]


def read(source: str) -> list[str]:
    return list(documents(source))


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode("utf-8"))
    return path


@pytest.fixture(scope="module")
def stdlib() -> list[str]:
    return read("stdlib")


def test_stdlib_is_about_two_megabytes_of_english(stdlib: list[str]) -> None:
    text = "\n".join(stdlib)
    assert 1.5e6 < len(text) < 3e6
    assert len(stdlib) > 400
    assert text.count(" the ") > 10_000
    lines = text.split("\n")
    assert all(line.strip() for line in lines)
    assert sum(len(line) > 100 for line in lines) > 2000  # docstrings are wrapped at 79 columns; these were put together
    assert any('The "if" statement is used for conditional execution' in document for document in stdlib)  # the manual
    assert any("JSON (JavaScript Object Notation)" in document for document in stdlib)  # a module


@pytest.mark.slow
def test_stdlib_is_parsed_not_imported_and_the_same_in_every_process(stdlib: list[str]) -> None:
    code = (
        "import hashlib, sys\n"
        "from mhsh.data.documents import documents\n"
        "text = '\\0'.join(documents('stdlib'))\n"
        "assert not {'this', 'antigravity', 'turtle', 'tkinter'} & set(sys.modules)\n"
        "print(hashlib.sha256(text.encode()).hexdigest())\n"
    )
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() == hashlib.sha256("\0".join(stdlib).encode()).hexdigest()


def test_wrapped_docstrings_are_joined_and_lists_kept(tmp_path: Path) -> None:
    write(
        tmp_path / "module.py",
        'r"""One sentence\nin two lines.\n\nSecond paragraph:\n  - an item\n    going on\n  - another\n\n'
        '    >>> code\n    >>> more\n"""\n'
        'class A:\n    "Of the class."\n    def f(self):\n        "Of the method."\n'
        'async def g():\n    "Of the coroutine."\n',
    )
    write(tmp_path / "bare.py", "x = 1\n")
    for skipped in ("test", "site-packages", "idlelib"):
        (tmp_path / skipped).mkdir()
        write(tmp_path / skipped / "other.py", '"Not read."\n')
    assert list(_module_docstrings(tmp_path)) == [
        "One sentence in two lines.\nSecond paragraph:\n- an item going on\n- another\n>>> code\n>>> more\n"
        "Of the class.\nOf the method.\nOf the coroutine."
    ]


def test_a_library_that_does_not_parse_is_named(tmp_path: Path) -> None:
    write(tmp_path / "broken.py", "def f(:\n")
    with pytest.raises(UserError, match=r"cannot parse .*broken\.py: .*use another source"):
        list(_module_docstrings(tmp_path))


def test_text_files_in_sorted_order_whatever_their_packing(tmp_path: Path) -> None:
    write(tmp_path / "b.txt", "B title\nb text\n\nB2\n")
    with gzip.open(tmp_path / "a.gz", "wb") as file:
        file.write("A title\na text ü\n".encode())
    with lzma.open(tmp_path / "c.xz", "wb") as file:
        file.write(b"C\n\n\n\nC2 without an end")
    (tmp_path / "folder.txt").mkdir()
    assert read(f"text:{tmp_path}/*") == ["A title\na text ü", "B title\nb text", "B2", "C", "C2 without an end"]


def test_only_newlines_end_lines(tmp_path: Path) -> None:
    # U+0085, U+2028, form feed and vertical tab end a line for str.splitlines, not for us.
    write(tmp_path / "t.txt", "one\u0085still one\u2028still\x0bstill\x0cstill\x1cstill\n \t\r\n\ufeffmiddle\r\nlast\n")
    assert read(f"text:{tmp_path}/t.txt") == ["one\u0085still one\u2028still\x0bstill\x0cstill\x1cstill", "\ufeffmiddle\nlast"]


@pytest.mark.parametrize("source", ["wikipedia", "text:", "", "stdlib:x", "Text:a"])
def test_unknown_source(source: str) -> None:
    with pytest.raises(UserError, match=r"data\.source = .* is not a source; (did you mean .*\? )?allowed: text:GLOB.DIR, lines:"):
        read(source)


def test_glob_without_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.source = 'text:.*/\*\.txt' matches no file; correct the glob"):
        read(f"text:{tmp_path}/*.txt")


def test_files_without_text(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "")
    write(tmp_path / "b.txt", " \n\r\n\t\n")
    with pytest.raises(UserError, match="holds no text; name one that does"):
        read(f"text:{tmp_path}/*.txt")


@pytest.mark.parametrize("suffix", ["gz", "xz"])
@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_damaged_archives_are_named(tmp_path: Path, suffix: str, damage: str) -> None:
    packed = (gzip if suffix == "gz" else lzma).compress(bytes(range(32, 127)) * 50)
    content = {
        "truncated": packed[: len(packed) // 2],
        "flipped": packed[:-12] + bytes([packed[-12] ^ 0xFF, *packed[-11:-6]]) + bytes(byte ^ 0xFF for byte in packed[-6:]),
    }[damage]
    (tmp_path / f"t.{suffix}").write_bytes(content)
    with pytest.raises(UserError, match=rf"t\.{suffix} is damaged and cannot be unpacked .*; fetch it again"):
        read(f"text:{tmp_path}/t.{suffix}")


@pytest.mark.realdata
def test_wikipedia_has_its_articles(real_data: Path) -> None:
    articles = read(f"text:{real_data}/wikipedia-en/wiki.valid.txt.xz")
    assert len(articles) == 65
    assert all(len(article.split("\n")) > 1 for article in articles)  # a title and paragraphs
