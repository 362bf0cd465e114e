"""What users bring: each kind of source, and what is said of what none of them can read."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from mhsh.config.entries import SOURCES
from mhsh.config.resolve import from_dict
from mhsh.data.documents import add_source, document_rule
from mhsh.data.load import task_of
from mhsh.errors import UserError
from mhsh.storage.run_folder import RunFolder
from tests.conftest import ROOT, load_fields
from tests.data.conftest import read, refusal

TEXTS = ["Ein Fluss.", "Eine Mühle\nam Fluss.", "Noch ein Satz."]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Texts with Windows line ends and a mark, in folders; and hidden files."""
    for name, text in {"b.txt": "\ufeffB1\r\n\r\nB2\r\n", "deep/a.md": "A1\nA2\n", ".hidden": "no", ".git/x": "no"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, newline="")
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("text", ["B1", "B2", "A1\nA2"]), ("lines", ["B1", "", "B2", "A1", "A2"]), ("files", ["B1\nB2", "A1\nA2"])],
)
def test_a_folder_is_its_files_and_the_kind_says_what_a_document_is(corpus: Path, kind: str, expected: list[str]) -> None:
    assert read(f"{kind}:{corpus}") == read(f"{kind}:{corpus}/") == read(f"{kind}:{corpus}/**/*.*") == expected


def test_a_folder_below_a_hidden_one(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(corpus))
    (corpus / ".texts").mkdir()
    (corpus / ".texts" / "a.txt").write_text("A")
    assert read("text:~/.texts") == read(f"text:{corpus}//.texts/") == ["A"]


def test_a_name_with_the_marks_of_a_glob(corpus: Path) -> None:
    (corpus / "[en]").mkdir()
    (corpus / "[en]" / "a[1].txt").write_text("A")
    assert read(f"text:{corpus}/[en]") == read(f"text:{corpus}/[en]/a[1].txt") == ["A"]


def test_what_mhsh_writes_below_the_texts_is_not_read_as_text(corpus: Path) -> None:
    run = RunFolder.open_for_training(corpus / "runs" / "a", from_dict(load_fields("bert", "2l8h")))
    (run.path / "checkpoints").mkdir()
    for name in ("vocab.txt", "checkpoints/done.txt"):
        (run.path / name).write_text("no")
    (corpus / "deep" / "config.json").write_text('{\n"title": "mine"}')
    assert read(f"text:{corpus}/**/*.*") == read(f"text:{corpus}") == ["B1", "B2", "A1\nA2", '{\n"title": "mine"}']
    # A folder that is named is read.
    assert read(f"text:{run.path}/**/*.txt") == read(f"text:{corpus}/runs/*/**/*.txt") == ["no", "no"]
    assert read(f"text:{corpus}/runs/*/vocab.txt") == ["no"]
    assert "matches only files in folders of runs or prepared rows, which ** leaves out" in refusal(f"text:{corpus}/runs")


def test_a_folder_without_files_and_one_with_an_image(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "none" / ".hidden").mkdir(parents=True)
    (tmp_path / "none" / ".hidden" / "a.txt").write_text("A")
    assert "/none' is a folder without files (hidden ones do not count); name" in refusal(f"text:{tmp_path}/none")
    (tmp_path / "a,b").mkdir()
    assert "/a,b' is a folder without files (hidden" in refusal(f"text:{tmp_path}/a,b")
    assert "is a folder without files named *.parquet (hidden" in refusal(f"parquet:{corpus}")
    assert "/*.tsv' matches no file; correct the glob (relative to" in refusal(f"text:{tmp_path}/*.tsv")
    for name, text in {"a.txt": "", "b.txt": " \n\r\n\t\n"}.items():
        (tmp_path / "none" / name).write_text(text)
    assert "holds no text; name one that does" in refusal(f"text:{tmp_path}/none")
    (corpus / "deep" / "z.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    assert "z.png is not text but a PNG image" in refusal(f"text:{corpus}")


def test_jsonl_has_a_field_of_every_line(tmp_path: Path) -> None:
    lines = [
        {"id": number, "text": text, "meta": {"body": {"raw": text.upper()}}, "a.b": text[:3]} for number, text in enumerate(TEXTS)
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("\r\n\r\n".join(map(json.dumps, lines)))
    assert read(f"jsonl:{path}") == read(f"jsonl:{tmp_path}") == TEXTS
    assert read(f"jsonl:{path}:meta.body.raw") == [text.upper() for text in TEXTS]
    assert read(f"jsonl:{path}:a.b") == ["Ein", "Ein", "Noc"]
    path.write_text('{"text": null}\n{"other": 1}\n{"text": "one"}\n')
    assert read(f"jsonl:{path}") == ["", "", "one"]  # counted as empty
    for value in (math.nan, -math.inf, {"a": 10**400}, "\ud83d"):  # as Python writes them
        path.write_text(json.dumps({"other": value, "text": "one"}) + "\n")
        assert read(f"jsonl:{path}") == ["one"]
        assert f"set data.source to jsonl:{path}:" in refusal(f"text:{path}")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ('{"text": "a"}\n["text"]\n', r"line 2 is not an object of JSON \(.*\); jsonl: has one in every line"),
        ("plain\n", r"line 1 is not an object of JSON"),
        ('{"text": "a"}\n{"text": "\\ud83d"}\n', r"line 2: 'text' is not text: U\+D83D at character 0 is half of a surrogate pair"),
        ('{"text": NaN}\n', r"line 1: 'text' is of type float, which is not text"),
        ('{"text": "a", "score": nan}\n', r"line 1 is not an object of JSON \(JSON is malformed"),
        ('{"text": ["a"]}\n', r"line 1: 'text' is of type list, which is not text; name another field"),
        ('{"body": "a", "id": 1}\n', r"has no text in 'text', but the fields body, id; write jsonl:GLOB:FIELD"),
    ],
)
def test_lines_that_are_no_objects_with_the_field(tmp_path: Path, content: str, complaint: str) -> None:
    (tmp_path / "t.jsonl").write_text(content)
    with pytest.raises(UserError, match=rf"t\.jsonl {complaint}"):
        read(f"jsonl:{tmp_path}/t.jsonl")


@pytest.mark.parametrize("kind", ["text", "lines"])
def test_lines_of_json_are_not_read_as_prose(tmp_path: Path, kind: str) -> None:
    """The refusal names the source to write, which works as it is."""
    (tmp_path / "t.jsonl").write_text(json.dumps({"id": "x", "doc": {"body": "A longer text."}}) + "\n")
    message = refusal(f"{kind}:{tmp_path}/*")
    assert "holds lines of JSON, whose braces and keys would be learnt as text" in message
    assert f"set data.source to jsonl:{tmp_path}/*:doc.body;" in message
    assert read(f"jsonl:{tmp_path}/*:doc.body") == ["A longer text."]
    assert read(f"files:{tmp_path}/*") == [(tmp_path / "t.jsonl").read_text().strip()]
    (tmp_path / "a.txt").write_text("Prose.\n")
    assert refusal(f"{kind}:{tmp_path}").endswith("or leave that file out")  # which is the second one
    assert read(f"{kind}:{tmp_path}/*.txt") == ["Prose."]
    (tmp_path / "t.jsonl").write_text("{ a brace in prose }\n")
    assert read(f"{kind}:{tmp_path}/*") == ["Prose.", "{ a brace in prose }"]


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("corpus/a.txt", "did you mean text:corpus/a.txt?"),
        ("txet:a", "did you mean text? allowed: text:GLOB|DIR, lines:"),
        ("hub:wikipedia/en", "is not a source; allowed: text:"),
        ("arrayrecord:rows", "holds rows, not documents"),
        ("text:corpus/*.en,corpus/*.de", "two globs hold sentence pairs"),
        *((source, "is not a source; ") for source in ("wikipedia", "text:", "", "stdlib:x", "Text:a")),
    ],
)
def test_what_is_no_source_of_documents(source: str, complaint: str) -> None:
    assert complaint in refusal(source)


@pytest.mark.usefixtures("forgotten")
def test_a_user_adds_a_source() -> None:
    def mine(count: str) -> Iterator[str]:
        return map(str, range(int(count)))

    add = add_source("mine", argument="COUNT", reads="numbers", document="a number")
    assert add(add(mine)) is mine
    assert read("mine:3") == ["0", "1", "2"]
    add_source("raw", argument="COUNT", reads="numbers", document="a number")(lambda count: iter([b"0"]))
    assert "data.source = 'raw:1' gives a document of type bytes; give strings" in refusal("raw:1")
    for name, given, kind in (("nothing", None, "NoneType"), ("whole", "one text", "str")):
        add_source(name, reads="numbers", document="a number")(lambda _, given=given: given)
        assert f"data.source = {name!r} returns a {kind}; yield documents" in refusal(name)
    add_source("half", reads="numbers", document="a number")(lambda _: ["\ud83d"])
    assert "a document of data.source = 'half' is not text: U+D83D at character 0 is half of" in refusal("half")
    assert "mine:COUNT" in refusal("mine")
    with pytest.raises(UserError, match=r"the source 'text' of test_sources.py .* already exists, of mhsh itself"):
        add_source("text", reads="x", document="y")(mine)
    with pytest.raises(UserError, match="'A b' is not a name"):
        add_source("A b", reads="x", document="y")(mine)


def test_a_corpus_of_one_document_names_the_rule_and_what_changes_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join(f"Text {number}." for number in range(100)))
    fields = load_fields("bert", "2l8h")
    fields["data"] |= {"source": f"text:{tmp_path}/a.txt", "validation_fraction": 0.2}
    task = task_of(from_dict(fields))
    with pytest.raises(UserError) as raised:
        task.load()
    rule = "a document is the lines up to a blank line (a line with lines:, a file with files:): give more"
    assert rule in str(raised.value)
    fields["data"]["source"] = f"lines:{tmp_path}/a.txt"
    assert sum(1 for _ in task_of(from_dict(fields)).streams()[0]) == 100


def test_documents_of_before_are_the_same_to_the_byte(tmp_path: Path) -> None:
    """Prepared rows and runs hold fingerprints of them. The digest is of the first reader."""
    (tmp_path / "t.txt").write_bytes("\ufeffA\x85b \r\n c\t\n\n\x0b\n\x1cB\u2028b\x00\n\ufeffC\x0c\n\n\n\nD".encode())
    parquet.write_table(pyarrow.table({"text": ["a\n\n b\x85\r\n", "", "\x1c"]}), tmp_path / "t.parquet")
    read_of = [*read(f"text:{tmp_path}/*.txt"), "|", *read(f"parquet:{tmp_path}/*.parquet")]
    assert (
        hashlib.sha256("\0".join(read_of).encode()).hexdigest()
        == "11c21a1c31b42af585ce8d9d451368abee38a371d664509cc3096fdcbb4c086b"
    )


def test_the_page_has_every_source() -> None:
    page = (ROOT / "docs" / "own_corpus.md").read_text(encoding="utf-8")
    assert [source.form for source in SOURCES.entries() if f"`{source.form}`".replace("|", r"\|") not in page] == []


def test_the_rule_of_a_source_without_others() -> None:
    assert document_rule("jsonl:a") == "a document is the field `text` of a line, or another (`a.b`: b in a)"
