"""GLUE's files: every layout read, what is malformed named, predictions written."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mhsh.data.glue import GLUE_TASKS, GlueExample, find_file, find_task, read_glue, write_submission
from mhsh.errors import UserError

# The headers of the original files.
MNLI = (
    "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse sentence1 sentence2"
)
STSB = "index genre filename year old_index source1 source2 sentence1 sentence2"
RTE = "index sentence1 sentence2"
# Of every task a file with labels, a line of it, and the example that it is.
LABELLED = {
    "cola": ("", 'gj04|0|*|Whatever "it is.', (0, ('Whatever "it is.',), 0)),
    "sst2": ("sentence label", "a charming journey . |1", (0, ("a charming journey . ",), 1)),
    "mrpc": ("Quality|#1 ID|#2 ID|#1 String|#2 String", '1|7|8|He said "no|"No."', (0, ('He said "no', '"No."'), 1)),
    "stsb": (STSB + " score", "3|a|b|2012|0000|none|none|One.|Two.|4.750", (3, ("One.", "Two."), 4.75)),
    "qqp": ("id qid1 qid2 question1 question2 is_duplicate", "201|3|4|Why?||0", (0, ("Why?", ""), 0)),
    "mnli": (
        MNLI + " label1 label2 label3 label4 label5 gold_label",
        "5|1|1n|slate|(|)|(|)|Up.|Down.|neutral|neutral|contradiction|neutral|neutral|contradiction",
        (5, ("Up.", "Down."), 2),
    ),
    "qnli": ("index question sentence label", "0|Who?|He.|not_entailment", (0, ("Who?", "He."), 1)),
    "rte": (RTE + " label", "9|A.|B.|entailment", (9, ("A.", "B."), 0)),
    "wnli": (RTE + " label", "0|A.|B.|1", (0, ("A.", "B."), 1)),
}
# Test sets, which have other columns.
OTHERS = [
    ("cola", "index sentence", "0|Bill left.", (0, ("Bill left.",), None)),
    ("stsb", STSB, "0|a|b|2012|0000|none|none|One.|Two.", (0, ("One.", "Two."), None)),
    ("qqp", "id question1 question2", "0|Why?|How?", (0, ("Why?", "How?"), None)),
]


def content(header: str, *lines: str) -> bytes:
    """A file with tabs where there are bars or, in the header, spaces."""
    rows = [header if "|" in header else header.replace(" ", "|"), *lines]
    return "".join(row + "\n" for row in rows if row).replace("|", "\t").encode()


@pytest.mark.parametrize(("name", "header", "line", "example"), [*((name, *case) for name, case in LABELLED.items()), *OTHERS])
def test_the_layouts_of_all_tasks(tmp_path: Path, name: str, header: str, line: str, example: tuple) -> None:
    plain, packed = tmp_path / "file.tsv", tmp_path / "file.tsv.gz"
    plain.write_bytes(b"\xef\xbb\xbf" + content(header, line).replace(b"\n", b"\r\n"))
    packed.write_bytes(gzip.compress(content(header, line)))
    assert read_glue(GLUE_TASKS[name], plain) == read_glue(GLUE_TASKS[name], packed) == (GlueExample(*example),)


def test_only_a_newline_ends_a_line(tmp_path: Path) -> None:
    path = tmp_path / "dev.tsv"
    path.write_bytes("sentence\tlabel\none\x0ctwo\u2028three\x85\r\t1".encode())
    assert read_glue(GLUE_TASKS["sst2"], path)[0].texts == ("one\x0ctwo\u2028three\x85\r",)


MALFORMED = [
    ("rte", b"", "is empty"),
    ("rte", content(RTE + " label"), "has no examples"),
    ("rte", content("sentence label", "fine|1"), "line 1 is not a header of RTE: 'sentence1' is missing"),
    ("rte", content(RTE + " label", "0|A.|B.|entailment", "1|A."), "line 3 has 2 columns instead of 4"),
    ("cola", content("", "a|1|c"), "line 1 has 3 columns instead of 4"),
    ("rte", content(RTE + " label", "0|A.|B.|neutral"), "line 2 has the label 'neutral', which is none of entailment, not_entail"),
    ("sst2", content("sentence label", "fine|1", "bad|2"), "line 3 has the label '2', which is none of 0, 1"),
    ("stsb", content("sentence1 sentence2 score", "A.|B.|nan"), "line 2 has the score 'nan', which is not a number from 0 to 5"),
    ("stsb", content("sentence1 sentence2 score", "A.|B.|high"), "line 2 has the score 'high'"),
    ("rte", content(RTE + " label", "0|A.|B.|entailment", "0|C.|D.|entailment"), "line 3 has index 0 a second time"),
    ("rte", content(RTE + " label", "-1|A.|B.|entailment"), "line 2 has no index: '-1' is not a whole number"),
    ("sst2", content("sentence label", "fine|1") + b"b\xe4d\t1\n", "line 3 is not UTF-8"),
]


@pytest.mark.parametrize(("name", "raw", "message"), MALFORMED)
def test_what_is_malformed_is_named_in_one_line(tmp_path: Path, name: str, raw: bytes, message: str) -> None:
    path = tmp_path / "dev.tsv"
    path.write_bytes(raw)
    with pytest.raises(UserError, match=re.escape(f"{path} {message}")) as caught:
        read_glue(GLUE_TASKS[name], path)
    assert re.search("; (fetch|correct|convert)", str(caught.value))
    assert "\n" not in str(caught.value)


@settings(deadline=None)
@given(st.binary(max_size=60), st.sampled_from(list(GLUE_TASKS)))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, raw: bytes, name: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.tsv"
    path.write_bytes(content(LABELLED[name][0]) + raw)
    try:
        assert read_glue(GLUE_TASKS[name], path)
    except UserError as error:
        assert str(path) in str(error)


def test_the_table_holds_together(tmp_path: Path) -> None:
    assert [task.num_classes for task in GLUE_TASKS.values()] == [2, 2, 2, 1, 2, 3, 2, 2, 2]
    for task in GLUE_TASKS.values():
        # Where files write names, they are the table's own.
        assert task.file_labels in (task.label_names, ("0", "1"))
        assert find_task(task.name) is find_task(task.folder) is find_task(task.folder.upper()) is task
    # GLUE itself turns the order round from task to task.
    assert GLUE_TASKS["rte"].label_names == GLUE_TASKS["wnli"].label_names[::-1]
    with pytest.raises(UserError, match="'squad' is not a task of GLUE; allowed: cola, sst2"):
        find_task("squad")
    task = GLUE_TASKS["sst2"]
    with pytest.raises(UserError, match=re.escape(f"neither {tmp_path}/SST-2/dev.tsv nor dev.tsv.gz")):
        find_file(task, tmp_path, "dev.tsv")
    (tmp_path / "SST-2").mkdir()
    for name in ("dev.tsv.gz", "dev.tsv"):
        (tmp_path / "SST-2" / name).touch()
        assert find_file(task, str(tmp_path), "dev.tsv") == tmp_path / "SST-2" / name


def test_the_form_that_is_handed_in(tmp_path: Path) -> None:
    for name, predictions, lines in (
        ("mnli", (2, 0, 1), ("contradiction", "entailment", "neutral")),
        ("wnli", (1, 0), ("1", "0")),
        ("stsb", (-0.25, 5.5, 2.5), ("0.0", "5.0", "2.5")),
    ):
        path = tmp_path / name
        write_submission(GLUE_TASKS[name], path, range(len(predictions)), predictions)
        expected = [f"{index}\t{line}\n" for index, line in enumerate(lines)]
        assert path.read_bytes().decode() == "".join(["index\tprediction\n", *expected])
    with pytest.raises(UserError, match="exists; choose another name"):
        write_submission(GLUE_TASKS["stsb"], tmp_path / "stsb", [0], [1.0])
    with pytest.raises(UserError, match="prediction for example 8 of stsb is nan; find out why"):
        write_submission(GLUE_TASKS["stsb"], tmp_path / "new", [7, 8], [1.0, float("nan")])
    with pytest.raises(ValueError, match="2 is not a class of rte"):
        write_submission(GLUE_TASKS["rte"], tmp_path / "new", [0], [2])
    assert not (tmp_path / "new").exists()


REAL_FILES = {
    "cola": {"train": 8551, "dev": 1043, "test": 1063},
    "sst2": {"train": 67349, "dev": 872, "test": 1821, "test-labeled": 1821},
    "mrpc": {"train": 3668, "dev": 408, "test": 1725},
    "stsb": {"train": 5749, "dev": 1500, "test": 1379},
    "rte": {"train": 2490, "dev": 277, "test": 3000},
    "wnli": {"train": 635, "dev": 71, "test": 146},
}


@pytest.mark.realdata
@pytest.mark.parametrize("name", REAL_FILES)
def test_the_real_files(real_data: Path, name: str) -> None:
    task = GLUE_TASKS[name]
    for file, count in REAL_FILES[name].items():
        examples = read_glue(task, find_file(task, real_data / "glue", f"{file}.tsv"))
        assert [example.index for example in examples] == list(range(count))
        assert {len(example.texts) for example in examples} == {len(task.texts)}
        labels = {example.label for example in examples}
        if file == "test":
            assert labels == {None}
        elif task.label_names:
            assert labels == set(range(task.num_classes))
        else:
            assert (min(labels), max(labels)) == (0, 5)
