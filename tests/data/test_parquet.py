"""Parquet files as documents, against pyarrow's reading of whole tables."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from mhsh.data.documents import documents
from mhsh.errors import UserError
from tests.conftest import ROOT

TEXTS = [f"Row {number}.\n\n  Its second line.\r\nü\u2028{'x' * (number % 7)}" for number in range(1000)]


def without_blank_lines(text: str) -> str:
    """As `text:` leaves them out."""
    return "\n".join(filter(None, (line.strip(" \t\r\v\f") for line in text.split("\n"))))


def write(path: Path, texts: pyarrow.Array | list[str | None], rows: int = 100, **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table({"id": [*range(len(texts))], "text": texts}), path, row_group_size=rows, **options)


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("rows", [1, 97, 1000])
def test_rows_are_those_of_the_whole_table(tmp_path, compression, rows):
    write(tmp_path / "t.parquet", TEXTS, rows, compression=compression, write_page_checksum=True)
    whole = parquet.read_table(tmp_path / "t.parquet")["text"].to_pylist()
    assert list(documents(f"parquet:{tmp_path}/t.parquet")) == [without_blank_lines(text) for text in whole]


@given(st.lists(st.text(), min_size=1, max_size=9), st.integers(1, 4))
def test_any_text_comes_back(tmp_path_factory, texts, rows):
    path = tmp_path_factory.mktemp("any") / "t.parquet"
    write(path, [*texts, "."], rows)
    assert list(documents(f"parquet:{path}")) == [without_blank_lines(text) for text in [*texts, "."]]


@pytest.mark.parametrize(
    "kind", [pyarrow.large_string(), pyarrow.string_view(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())]
)
def test_all_types_of_text(tmp_path, kind):
    texts = pyarrow.array(["b", "a", "b"] * 300).cast(kind)
    write(tmp_path / "t.parquet", texts)
    assert list(documents(f"parquet:{tmp_path}/t.parquet")) == ["b", "a", "b"] * 300


def test_files_are_sorted_and_globs_go_into_folders(tmp_path):
    for name in ("b/2", "b/10", "a/deep/down/0", "c"):
        write(tmp_path / "x" / f"{name}.parquet", [name])
    write(tmp_path / "x" / "b" / "empty.parquet", pyarrow.array([], pyarrow.string()))
    assert list(documents(f"parquet:{tmp_path}/x/**/*.parquet")) == ["a/deep/down/0", "b/10", "b/2", "c"]
    assert list(documents(f"parquet:{tmp_path}/x/*/*.parquet")) == ["b/10", "b/2"]


def test_the_column_may_be_named(tmp_path):
    folder = tmp_path / "with:colon"
    folder.mkdir()
    parquet.write_table(pyarrow.table({"content": ["one"], "a b": ["two"]}), folder / "t.parquet")
    assert list(documents(f"parquet:{folder}/t.parquet:content")) == ["one"]
    assert list(documents(f"parquet:{folder}/*:a b")) == ["two"]
    with pytest.raises(UserError, match=r"t\.parquet has the columns content, a b, but not one 'text'; write parquet:GLOB:COLUMN"):
        list(documents(f"parquet:{folder}/t.parquet"))


def damaged(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes(byte ^ 0xFF for byte in content[middle : middle + 64]) + content[middle + 64 :]


@pytest.mark.parametrize(
    ("values", "change", "complaint"),
    [
        (pyarrow.array([1, 2]), None, r"t\.parquet: the column 'text' is of type int64, which is not text; name a column of text"),
        (
            pyarrow.array([b"a", b"\xff"]),
            None,
            r"row group 0, row 1 or after: the column 'text' is not UTF-8: .*; write the file again",
        ),
        (pyarrow.array([["a"]]), None, r"t\.parquet: the column 'text' is of type list<\w+: string>, which is not text"),
        (pyarrow.array([None, None]), None, r"t\.parquet: the column 'text' is of type null, which is not text"),
        (
            pyarrow.array([b"\xff"] * 150).view(pyarrow.string()),
            None,
            r"group 0, row 0 or after: the column 'text' is not UTF-8",
        ),
        (["", " \n"], None, r"t\.parquet' holds no text; name one that does"),
        (TEXTS, lambda content: content[: len(content) // 2], r"t\.parquet is damaged or no Parquet \(.*\); fetch it again"),
        (TEXTS, lambda content: b"plain text", r"t\.parquet is damaged or no Parquet"),
        (TEXTS, lambda content: b"", r"t\.parquet is damaged or no Parquet"),
        (TEXTS, damaged, r"t\.parquet, row group \d is damaged or no Parquet"),
    ],
)
def test_what_is_wrong_is_one_line_with_its_place(tmp_path, values, change, complaint):
    write(tmp_path / "t.parquet", values, write_page_checksum=True)
    if change is not None:
        (tmp_path / "t.parquet").write_bytes(change((tmp_path / "t.parquet").read_bytes()))
    with pytest.raises(UserError, match=complaint) as raised:
        list(documents(f"parquet:{tmp_path}/t.parquet"))
    assert "\n" not in str(raised.value)


# Reads all documents, and tells their characters and the most memory that it ever had, in KB.
PEAK = """
import sys
from mhsh.data.documents import documents

count = sum(map(len, documents(sys.argv[1])))
print(count, next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def peak(source: str) -> tuple[int, int]:
    done = subprocess.run([sys.executable, "-c", PEAK, source], cwd=ROOT, check=True, capture_output=True, text=True)
    count, kilobytes = map(int, done.stdout.split())
    return count, kilobytes


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path):
    """Ten and a hundred row groups of 1,000 documents, 3 and 30 MB each; and all of it in one."""
    documents = [f"{number} " * 700 for number in range(1000)]
    peaks = []
    for name, groups, together in (("ten", 10, 1), ("hundred", 100, 1), ("one", 100, 100)):
        schema = pyarrow.schema([("text", pyarrow.string())])
        with parquet.ParquetWriter(tmp_path / name, schema, compression="none", use_dictionary=False) as writer:
            for _ in range(groups // together):
                writer.write_table(pyarrow.table({"text": documents * together}), row_group_size=len(documents) * together)
        count, kilobytes = peak(f"parquet:{tmp_path / name}")
        assert count == groups * sum(len(text.strip()) for text in documents)
        peaks.append(kilobytes)
    assert max(peaks) - peaks[0] < 8_000, peaks
