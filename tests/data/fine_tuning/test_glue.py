"""GLUE's files: every layout read, every malformed line named, the order of labels compared,
predictions written and read.
"""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mhsh.data.fine_tuning.glue import (
    GLUE_TASKS,
    GlueExample,
    find_file,
    find_task,
    read_glue,
    read_submission,
    write_submission,
)
from mhsh.errors import UserError

# The headers of the original files.
MNLI = (
    "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse sentence1 sentence2"
)
STSB = "index genre filename year old_index source1 source2 sentence1 sentence2"
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
    "rte": ("index sentence1 sentence2 label", "9|A.|B.|entailment", (9, ("A.", "B."), 0)),
    "wnli": ("index sentence1 sentence2 label", "0|A.|B.|1", (0, ("A.", "B."), 1)),
}
UNLABELLED = {
    "cola": ("index sentence", "0|Bill left.", (0, ("Bill left.",), None)),
    "sst2": ("index sentence", "0|fine .", (0, ("fine .",), None)),
    "mrpc": ("index|#1 ID|#2 ID|#1 String|#2 String", "0|7|8|A.|B.", (0, ("A.", "B."), None)),
    "stsb": (STSB, "0|a|b|2012|0000|none|none|One.|Two.", (0, ("One.", "Two."), None)),
    "qqp": ("id question1 question2", "0|Why?|How?", (0, ("Why?", "How?"), None)),
    "mnli": (MNLI, "0|1|1n|slate|(|)|(|)|Up.|Down.", (0, ("Up.", "Down."), None)),
    "qnli": ("index question sentence", "0|Who?|He.", (0, ("Who?", "He."), None)),
    "rte": ("index sentence1 sentence2", "0|A.|B.", (0, ("A.", "B."), None)),
    "wnli": ("index sentence1 sentence2", "0|A.|B.", (0, ("A.", "B."), None)),
}


def content(header: str, *lines: str) -> bytes:
    """A file as LABELLED and UNLABELLED write it, with tabs where it has bars or, in the header,
    spaces.
    """
    rows = [header if "|" in header else header.replace(" ", "|"), *lines]
    return "".join(row + "\n" for row in rows if row).replace("|", "\t").encode()


@pytest.mark.parametrize("cases", [LABELLED, UNLABELLED], ids=["labelled", "unlabelled"])
@pytest.mark.parametrize("name", GLUE_TASKS)
def test_the_layouts_of_all_tasks(tmp_path: Path, name: str, cases: dict) -> None:
    header, line, example = cases[name]
    plain, packed = tmp_path / "file.tsv", tmp_path / "file.tsv.gz"
    plain.write_bytes(b"\xef\xbb\xbf" + content(header, line).replace(b"\n", b"\r\n"))
    packed.write_bytes(gzip.compress(content(header, line)))
    assert read_glue(GLUE_TASKS[name], plain) == read_glue(GLUE_TASKS[name], packed) == (GlueExample(*example),)


def test_the_sts_benchmarks_own_layout(tmp_path: Path) -> None:
    path = tmp_path / "sts-test.csv"
    path.write_bytes(content("", "news|MSR|2012|0024|2.500|A.|B.", "news|MSR|2012|0025|0.000|C.|D.|http://a|http://b"))
    assert read_glue(GLUE_TASKS["stsb"], path) == (GlueExample(0, ("A.", "B."), 2.5), GlueExample(1, ("C.", "D."), 0.0))


def test_only_a_newline_ends_a_line(tmp_path: Path) -> None:
    path = tmp_path / "dev.tsv"
    path.write_bytes("sentence\tlabel\none\x0ctwo\u2028three\x85\r\t1".encode())
    assert read_glue(GLUE_TASKS["sst2"], path)[0].texts == ("one\x0ctwo\u2028three\x85\r",)


SST2 = "sentence label"
RTE = "index sentence1 sentence2 label"
MALFORMED = [
    ("rte", b"", "is empty"),
    ("rte", content(RTE), "has no examples"),
    ("cola", b"", "is empty"),
    ("rte", content(SST2, "fine|1"), "line 1 is not a header of RTE: there is no column 'sentence1'"),
    ("rte", content(RTE, "0|A.|B.|entailment", "1|A."), "line 3 has 2 columns instead of 4"),
    ("rte", content(RTE, "0|A.|B.|entailment|more"), "line 2 has 5 columns instead of 4"),
    ("rte", content(RTE, "0|A.|B.|entailment").replace(b"A", b"\n"), "line 2 has 2 columns"),
    ("cola", content("", "gj04|1||Fine.", "gj04|1|Not."), "line 2 has 3 columns instead of 4"),
    ("stsb", content("", "a|b|c|d|1.0|A.|B.|e"), "line 1 has 8 columns instead of 7 or 9"),
    ("rte", content(RTE, "0|A.|B.|neutral"), "line 2 has the label 'neutral', which is none of entailment, not_entailment"),
    ("rte", content(RTE, "0|A.|B.|1"), "line 2 has the label '1'"),
    ("mnli", content(MNLI + " gold_label", "5|1|1n|slate|(|)|(|)|Up.|Down.|-"), "line 2 has the label '-'"),
    ("sst2", content(SST2, "fine|1", "bad|2"), "line 3 has the label '2', which is none of 0, 1"),
    ("sst2", content(SST2, "fine|"), "line 2 has the label ''"),
    ("stsb", content("sentence1 sentence2 score", "A.|B.|nan"), "line 2 has the score 'nan', which is not a number from 0 to 5"),
    ("stsb", content("sentence1 sentence2 score", "A.|B.|5.001"), "line 2 has the score '5.001'"),
    ("stsb", content("sentence1 sentence2 score", "A.|B.|-0.1"), "line 2 has the score '-0.1'"),
    ("stsb", content("sentence1 sentence2 score", "A.|B.|high"), "line 2 has the score 'high'"),
    ("rte", content(RTE, "0|A.|B.|entailment", "0|C.|D.|entailment"), "line 3 has index 0 a second time"),
    ("rte", content(RTE, "-1|A.|B.|entailment"), "line 2 has no index: '-1' is not a whole number"),
    ("rte", content(RTE, "9" * 5000 + "|A.|B.|entailment"), "line 2 has no index"),
    ("sst2", content(SST2, "fine|1", "b\xe4d|1").replace("ä".encode(), b"\xe4"), "line 3 is not UTF-8"),
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


def test_the_table_holds_together() -> None:
    assert len(GLUE_TASKS) == 9
    for task in GLUE_TASKS.values():
        assert len(task.written_labels) == len(task.label_names) == (0 if task.name == "stsb" else task.num_classes)
        # Where files write names, they are the table's own.
        assert task.written_labels in (task.label_names, ("0", "1"))
        assert find_task(task.name) is find_task(task.folder) is find_task(task.folder.upper()) is task
    assert [GLUE_TASKS[name].num_classes for name in ("stsb", "mnli", "wnli")] == [1, 3, 2]
    # GLUE itself turns the order round from task to task.
    assert GLUE_TASKS["rte"].label_names == GLUE_TASKS["wnli"].label_names[::-1]
    with pytest.raises(UserError, match="'squad' is not a task of GLUE; allowed: cola, sst2"):
        find_task("squad")


def test_files_are_found_plain_or_packed(tmp_path: Path) -> None:
    task = GLUE_TASKS["sst2"]
    with pytest.raises(UserError, match=re.escape(f"neither {tmp_path}/SST-2/dev.tsv nor dev.tsv.gz")):
        find_file(task, tmp_path, "dev.tsv")
    (tmp_path / "SST-2").mkdir()
    for name in ("dev.tsv.gz", "dev.tsv"):
        (tmp_path / "SST-2" / name).touch()
        assert find_file(task, str(tmp_path), "dev.tsv") == tmp_path / "SST-2" / name


@pytest.mark.parametrize("task", GLUE_TASKS.values(), ids=GLUE_TASKS)
@settings(deadline=None)
@given(data=st.data())
def test_what_is_handed_in_is_read_back(tmp_path_factory: pytest.TempPathFactory, task, data: st.DataObject) -> None:
    one = st.integers(0, task.num_classes - 1) if task.label_names else st.floats(0, 5)
    indices = data.draw(st.lists(st.integers(0, 10**6), unique=True, max_size=5))
    predictions = tuple(data.draw(st.lists(one, min_size=len(indices), max_size=len(indices))))
    path = tmp_path_factory.getbasetemp() / f"{task.name}.tsv"
    path.unlink(missing_ok=True)
    write_submission(task, path, indices, predictions)
    examples = [GlueExample(index, ("",), None) for index in indices]
    assert read_submission(task, path, examples) == predictions


def test_the_form_that_is_handed_in(tmp_path: Path) -> None:
    for name, predictions, lines in (
        ("mnli", (2, 0, 1), ("contradiction", "entailment", "neutral")),
        ("rte", (1, 0), ("not_entailment", "entailment")),
        ("wnli", (1, 0), ("1", "0")),
        ("stsb", (-0.25, 5.5, 2.5), ("0.0", "5.0", "2.5")),
    ):
        path = tmp_path / name
        write_submission(GLUE_TASKS[name], path, range(len(predictions)), predictions)
        expected = [f"{index}\t{line}\n" for index, line in enumerate(lines)]
        assert path.read_bytes().decode() == "".join(["index\tprediction\n", *expected])
        with pytest.raises(UserError, match="exists; choose another name"):
            write_submission(GLUE_TASKS[name], path, [0], predictions[:1])
    with pytest.raises(UserError, match="prediction for example 8 of stsb is nan; look why"):
        write_submission(GLUE_TASKS["stsb"], tmp_path / "new", [7, 8], [1.0, float("nan")])
    with pytest.raises(UserError, match=r"cannot write .*No such file or directory"):
        write_submission(GLUE_TASKS["rte"], tmp_path / "missing" / "new", [0], [1])
    with pytest.raises(ValueError, match="2 is not a class of rte"):
        write_submission(GLUE_TASKS["rte"], tmp_path / "new", [0], [2])
    assert not (tmp_path / "new").exists()


def test_predictions_of_other_systems(tmp_path: Path) -> None:
    examples = [GlueExample(index, ("",), 0) for index in (4, 7)]
    path = tmp_path / "predictions.tsv"

    def read(task: str, text: str) -> tuple[int | float, ...]:
        path.write_text(text)
        return read_submission(GLUE_TASKS[task], path, examples)

    # By name or by number, with any line ends.
    assert read("rte", "index\tprediction\r\n4\tnot_entailment\r\n7\t0\r\n") == (1, 0)
    assert read("sst2", "index\tprediction\n4\tpositive\n7\t0") == (1, 0)
    assert read("stsb", "index\tprediction\n4\t-1e3\n7\t9") == (-1000.0, 9.0)
    for task, text, message in (
        ("rte", "", "line 1 is not the header index<TAB>prediction; write"),
        ("rte", "4\t0\n7\t0\n", "line 1 is not the header"),
        ("rte", "index\tprediction\n4\t0\n", "has 1 predictions for 2 examples; give one for each"),
        ("rte", "index\tprediction\n4\t0\n7\t0\n\n", "has 3 predictions for 2 examples"),
        ("rte", "index\tprediction\n7\t0\n4\t0\n", "line 2 has index 7 instead of 4; write"),
        ("rte", "index\tprediction\n4\t0\n4\t0\n", "line 3 has index 4 instead of 7"),
        ("rte", "index\tprediction\n4\t0\n7 0\n", "line 3 has 1 columns instead of 2"),
        (
            "rte",
            "index\tprediction\n4\t0\n7\t2\n",
            "line 3 has the prediction '2', which is neither one of entailment, not_entailment nor",
        ),
        ("rte", "index\tprediction\n4\t0\n7\tnan\n", "line 3 has the prediction 'nan', which is neither one of"),
        ("stsb", "index\tprediction\n4\t0\n7\tnan\n", "line 3 has the prediction 'nan', which is not a finite number"),
        ("stsb", "index\tprediction\n4\t0\n7\t-inf\n", "line 3 has the prediction '-inf', which is not a finite number"),
        ("stsb", "index\tprediction\n4\t0\n7\thigh\n", "line 3 has the prediction 'high', which is not a finite number"),
    ):
        with pytest.raises(UserError, match=re.escape(f"{path} {message}")):
            read(task, text)


REAL_FILES = {
    "cola": {"train": 8551, "dev": 1043, "test": 1063},
    "sst2": {"train": 67349, "dev": 872, "test": 1821, "test-labeled": 1821},
    "mrpc": {"train": 3668, "dev": 408, "test": 1725},
    "stsb": {"train": 5749, "dev": 1500, "test": 1379, "sts-test.original-labeled": 1379},
    "rte": {"train": 2490, "dev": 277, "test": 3000},
    "wnli": {"train": 635, "dev": 71, "test": 146},
}


@pytest.mark.realdata
@pytest.mark.parametrize("name", REAL_FILES)
def test_the_real_files(real_data: Path, name: str) -> None:
    task = GLUE_TASKS[name]
    files = {file: read_glue(task, find_file(task, real_data / "glue", f"{file}.tsv")) for file in REAL_FILES[name]}
    assert {file: len(examples) for file, examples in files.items()} == REAL_FILES[name]
    for file, examples in files.items():
        assert [example.index for example in examples] == list(range(len(examples)))
        labels = {example.label for example in examples}
        if file == "test":
            assert labels == {None}
        elif task.label_names:
            assert labels == set(range(task.num_classes))
        else:
            assert min(labels) == 0
            assert max(labels) == 5
        assert {len(example.texts) for example in examples} == {len(task.texts)}
    if name == "stsb":
        # The same pairs, but for blanks at their ends: so the labels of the STS benchmark are those
        # of GLUE's test set.
        test, labelled = (
            [[text.strip() for text in example.texts] for example in files[file]] for file in ("test", "sts-test.original-labeled")
        )
        assert test == labelled
