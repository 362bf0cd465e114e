"""Columns of Parquet and Arrow files as documents, against pyarrow's reading of whole tables."""

from __future__ import annotations

import glob
import re
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import ipc, parquet

from tests.data.conftest import printed, read, refusal

ROWS = [f"Row {number}.\n\n  Its second line.\r\nü\u2028{'x' * (number % 7)}" for number in range(1000)]
TEXTS = ["Ein Fluss.", "Eine Mühle\nam Fluss.", "Noch ein Satz."]


def without_blank_lines(text: str) -> str:
    """As `text:` leaves them out."""
    return "\n".join(filter(None, (line.strip(" \t\r\v\f") for line in text.split("\n"))))


def write(path: Path, texts: pyarrow.Array | list[str | None], rows: int = 100, **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table({"id": [*range(len(texts))], "text": texts}), path, row_group_size=rows, **options)


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("rows", [1, 97, 1000])
def test_rows_are_those_of_the_whole_table(tmp_path, compression, rows):
    write(tmp_path / "t.parquet", ROWS, rows, compression=compression, write_page_checksum=True)
    whole = parquet.read_table(tmp_path / "t.parquet")["text"].to_pylist()
    assert read(f"parquet:{tmp_path}/t.parquet") == [without_blank_lines(text) for text in whole]


@given(st.lists(st.text(), min_size=1, max_size=9), st.integers(1, 4))
def test_any_text_comes_back(tmp_path_factory, texts, rows):
    path = tmp_path_factory.mktemp("any") / "t.parquet"
    write(path, [*texts, "."], rows)
    assert read(f"parquet:{path}") == [without_blank_lines(text) for text in [*texts, "."]]


TABLES = {
    "large texts": (pyarrow.array(TEXTS, pyarrow.large_string()), "t"),
    "views of texts": (pyarrow.array(TEXTS, pyarrow.string_view()), "t"),
    "a dictionary of texts": (pyarrow.array(TEXTS).dictionary_encode(), "t"),
    "bytes": (pyarrow.array([text.encode() for text in TEXTS], pyarrow.binary()), "t"),
    "views of bytes": (pyarrow.array([text.encode() for text in TEXTS], pyarrow.binary_view()), "t"),
    "a dictionary of bytes": (pyarrow.array([text.encode() for text in TEXTS]).dictionary_encode(), "t"),
    "a struct": (pyarrow.array([{"text": text, "id": 1} for text in TEXTS]), "t.text"),
    "a struct of structs": (pyarrow.array([{"a": {"b": text}} for text in TEXTS]), "t.a.b"),
    "nulls": (pyarrow.array([None, *TEXTS, None]), "t"),
    "a null struct": (pyarrow.array([None, *({"text": text} for text in TEXTS), {"text": None}]), "t.text"),
}


@pytest.mark.parametrize("name", TABLES)
def test_columns_of_parquet_and_arrow(tmp_path: Path, name: str) -> None:
    column, field = TABLES[name]
    table = pyarrow.table({"other": range(len(column)), "t": column})
    parquet.write_table(table, tmp_path / "t.parquet", row_group_size=2)
    (tmp_path / "saved").mkdir()
    with ipc.new_stream(str(tmp_path / "saved" / "data-0.arrow"), table.schema) as stream:
        stream.write_table(table, 2)
    (tmp_path / "saved" / "state.json").write_text('{"_data_files": [{"filename": "data-0.arrow"}], "_indices_files": null}')
    empty = [""] * (len(column) > len(TEXTS))
    assert read(f"parquet:{tmp_path}:{field}") == read(f"arrow:{tmp_path}/saved:{field}") == [*empty, *TEXTS, *empty]


def test_columns_that_are_not_there(tmp_path: Path) -> None:
    (folder := tmp_path / "with:colon").mkdir()
    parquet.write_table(pyarrow.table({"t": TABLES["a struct"][0], "a b": TEXTS}), folder / "t.parquet")
    assert read(f"parquet:{folder}/*:a b") == read(f"parquet:{folder}/t.parquet:a b") == TEXTS
    assert "t.parquet has the columns t, a b, but not one 'text'; write parquet:GLOB:COLUMN" in refusal(f"parquet:{folder}/*")
    assert "the column 't' has the fields text, id; name one: t.FIELD" in refusal(f"parquet:{folder}/*:t")
    assert "has the columns t.text, t.id, but not one 't.body'; write" in refusal(f"parquet:{folder}/*:t.body")
    assert "the column 't.id' is of type int64, which is not text" in refusal(f"parquet:{folder}/*:t.id")


def test_folders_that_save_to_disk_did_not_write_whole(tmp_path: Path) -> None:
    assert "has no state.json: it is not a folder of save_to_disk" in refusal(f"arrow:{tmp_path}")
    (tmp_path / "state.json").write_text("{}")
    assert "names no files; write the data set again" in refusal(f"arrow:{tmp_path}")
    (tmp_path / "state.json").write_text('{"_data_files": [], "_indices_files": [{"filename": "i"}]}')
    assert "is a selection of rows; write it again after dataset.flatten_indices()" in refusal(f"arrow:{tmp_path}")
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert f"holds the splits train, test; name one of them: arrow:{tmp_path}/train" in refusal(f"arrow:{tmp_path}")


@pytest.mark.parametrize("order", [1, -1])
def test_files_are_sorted_and_globs_go_into_folders(tmp_path, monkeypatch, order):
    """Whatever the order in which the system lists them."""
    listed = glob.glob
    monkeypatch.setattr(glob, "glob", lambda *found, **options: sorted(listed(*found, **options))[::order])
    for name in ("b/2", "b/10", "a/deep/down/0", "c"):
        write(tmp_path / "x" / f"{name}.parquet", [name])
    write(tmp_path / "x" / "b" / "empty.parquet", pyarrow.array([], pyarrow.string()))
    assert read(f"parquet:{tmp_path}/x/**/*.parquet") == ["a/deep/down/0", "b/10", "b/2", "c"]
    assert read(f"parquet:{tmp_path}/x/*/*.parquet") == ["b/10", "b/2"]


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
        (pyarrow.array([b"\xff"] * 150).view(pyarrow.string()), None, r"group 0, row 0 or after: the column 'text' is not UTF-8"),
        (["", " \n"], None, r"t\.parquet' holds no text; name one that does"),
        (ROWS, lambda content: content[: len(content) // 2], r"t\.parquet is damaged or not Parquet \(.*\); fetch it again"),
        (ROWS, lambda content: b"plain text", r"t\.parquet is damaged or not Parquet"),
        (ROWS, lambda content: b"", r"t\.parquet is damaged or not Parquet"),
        (ROWS, damaged, r"t\.parquet, row group \d is damaged or not Parquet"),
    ],
)
def test_what_is_wrong_is_one_line_with_its_place(tmp_path, values, change, complaint):
    write(tmp_path / "t.parquet", values, write_page_checksum=True)
    if change is not None:
        (tmp_path / "t.parquet").write_bytes(change((tmp_path / "t.parquet").read_bytes()))
    assert re.search(complaint, refusal(f"parquet:{tmp_path}/t.parquet"))


# Reads all documents, and tells their characters and the most memory that it ever had, in KB.
PEAK = """
import sys
from mhsh.data.documents import documents

count = sum(map(len, documents(sys.argv[1])))
print(count, next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


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
        count, kilobytes = map(int, printed(PEAK, f"parquet:{tmp_path / name}").split())
        assert count == groups * sum(len(text.strip()) for text in documents)
        peaks.append(kilobytes)
    assert max(peaks) - peaks[0] < 8_000, peaks
