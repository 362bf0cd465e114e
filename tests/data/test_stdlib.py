"""Documents of the standard library: its manual and its docstrings."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from mhsh.data.documents import documents
from mhsh.data.stdlib import _module_docstrings
from mhsh.errors import UserError
from tests.data.conftest import printed


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode("utf-8"))
    return path


@pytest.fixture(scope="module")
def stdlib() -> list[str]:
    return list(documents("stdlib"))


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
    assert printed(code, PYTHONWARNINGS="error").strip() == hashlib.sha256("\0".join(stdlib).encode()).hexdigest()


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
