"""GLUE's files and its copies in TFDS: every layout read, what is malformed named, the order of
labels compared, predictions written and read.
"""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mhsh.data.glue import GLUE_TASKS, GlueExample, find_file, find_task, read_glue, read_splits, read_submission, write_submission
from mhsh.errors import UserError
from tests.data.conftest import tfds_folder
from tests.data.small_fine_tuning import load_glue

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
# Files of other columns: three test sets, and the STS benchmark's own.
OTHERS = [
    ("cola", "index sentence", "0|Bill left.", (0, ("Bill left.",), None)),
    ("stsb", STSB, "0|a|b|2012|0000|none|none|One.|Two.", (0, ("One.", "Two."), None)),
    ("qqp", "id question1 question2", "0|Why?|How?", (0, ("Why?", "How?"), None)),
    ("stsb", "", "news|MSR|2012|0024|2.500|A.|B.", (0, ("A.", "B."), 2.5)),
    ("stsb", "", "news|MSR|2012|0025|0.000|C.|D.|http://a|http://b", (0, ("C.", "D."), 0.0)),
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
    ("rte", content("sentence label", "fine|1"), "line 1 is not a header of RTE: there is no column 'sentence1'"),
    ("rte", content(RTE + " label", "0|A.|B.|entailment", "1|A."), "line 3 has 2 columns instead of 4"),
    ("stsb", content("", "a|b|c|d|1.0|A.|B.|e"), "line 1 has 8 columns instead of 7 or 9"),
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
        assert task.written_labels in (task.label_names, ("0", "1"))
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
    assert read_submission(task, path, [GlueExample(index, ("",), None) for index in indices]) == predictions


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
    with pytest.raises(UserError, match="prediction for example 8 of stsb is nan; look why"):
        write_submission(GLUE_TASKS["stsb"], tmp_path / "new", [7, 8], [1.0, float("nan")])
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
    assert read("stsb", "index\tprediction\n4\t-1e3\n7\t9") == (-1000.0, 9.0)
    for task, text, message in (
        ("rte", "4\t0\n7\t0\n", "line 1 is not the header index<TAB>prediction; write"),
        ("rte", "index\tprediction\n4\t0\n", "has 1 predictions for 2 examples; give one for each"),
        ("rte", "index\tprediction\n7\t0\n4\t0\n", "line 2 has index 7 instead of 4; write"),
        ("rte", "index\tprediction\n4\t0\n7 0\n", "line 3 has 1 columns instead of 2"),
        ("rte", "index\tprediction\n4\t0\n7\t2\n", "line 3 has the prediction '2', which is neither one of entailment, not_ent"),
        ("stsb", "index\tprediction\n4\t0\n7\tnan\n", "line 3 has the prediction 'nan', which is not a finite number"),
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


WORDS = ["red", "Green", 'blue "blue', "blueish\u2028", "ü", "violet ."]
LABELS = {"stsb": ["0.000", "4.750", "5.000", "2.333"], "mnli": ["entailment", "contradiction", "neutral"]}


def lines_of(task: str, start: int, count: int) -> list[str]:
    """A file of the task's layout: its header, and examples with numbers of their own."""
    texts, column = GLUE_TASKS[task].texts, GLUE_TASKS[task].label_column
    labels = LABELS.get(task, GLUE_TASKS[task].written_labels[::-1])
    lines = [] if task == "cola" else ["\t".join(["id", "#1 ID", "#2 ID", *texts, column])]
    for number in range(start, start + count):
        words = [WORDS[number % len(WORDS)]] * (1 + number % 7)
        sentences = [f"{number} {side} {' '.join(words)}" for side in range(len(texts))]
        label = labels[number % len(labels)]
        # CoLA's columns: source, label, mark, sentence.
        cells = ["x", label, "", *sentences] if task == "cola" else [str(number), str(number), "7", *sentences, label]
        lines.append("\t".join(cells))
    return lines


def write(path: Path, lines: list[str], mark: str = "") -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(mark + "".join(line + "\n" for line in lines), encoding="utf-8")
    return str(path)


def write_task(folder: Path, name: str) -> dict[str, tuple[str, str]]:
    """The original files of a task; and the file that TFDS makes each split of (for MRPC the
    examples of both, and the ids).
    """
    task = GLUE_TASKS[name]
    files = {"train": "train.tsv", **dict(task.evaluation_files)}
    splits = {}
    for number, (split, file_name) in enumerate(files.items()):
        lines = lines_of(name, 100 * number, 40 if split == "train" else 9)
        splits[split] = (write(folder / task.folder / file_name, lines), "")
        if name == "mrpc":
            # TFDS takes the examples whose ids are listed, out of a file that begins with a byte
            # order mark.
            others = lines_of(name, 1000, 30)[1:]
            mixed = [lines[0], *others[:10], *lines[1:5], *others[10:], *lines[5:]]
            ids = ["\t".join(line.split("\t")[1:3]) for line in lines]
            splits[split] = (write(folder / "msr" / file_name, mixed, "\ufeff"), write(folder / "msr" / f"ids-{file_name}", ids))
    return splits


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The original files of all tasks, and, under `prepared`, the data sets that TFDS made of them
    and of others.
    """
    from tests.data.tfds_builders import prepare_glue

    folder = tmp_path_factory.mktemp("glue")
    splits = {name: write_task(folder, name) for name in GLUE_TASKS}
    sets: list[tuple[str, str, dict[str, Any]]] = [(task, "2.0.0", {}) for task in splits]
    # Older versions, which are broken here.
    sets += [
        ("rte", "1.0.0", {"label_classes": ["not_entailment", "entailment"]}),
        ("wnli", "1.0.0", {"label_column": "no such column"}),
        ("stsb", "1.0.0", {"label_column": "no such column"}),
    ]
    for task, version, changes in sets:
        prepare_glue(folder / "prepared", task, version, splits[task], changes)
    return folder


@pytest.mark.parametrize("task", GLUE_TASKS.values(), ids=GLUE_TASKS)
def test_the_same_rows_in_the_same_order_as_from_the_original_files(folder, vocab, task):
    fields = dict(vocab=vocab, num_classes=task.num_classes, vocab_size=30522)
    original = load_glue(task.name, f"tsv:{folder}", **fields)
    with tfds_folder(folder / "prepared"):
        corpus, named = (load_glue(task.name, source, **fields) for source in ("tfds:glue", "tfds:glue:2.0.0"))
        train, _ = read_splits(task, "tfds:glue")
    assert corpus.fingerprint == named.fingerprint == original.fingerprint
    summary = corpus.summary()
    assert summary == named.summary() == original.summary()
    assert summary["cut_texts"] > 0 and summary["train"]["rows"] == 40
    # TFDS counts MRPC's examples before it divides them.
    indices = [example.index for example in train]
    assert indices == ([*range(10, 14), *range(34, 70)] if task.name == "mrpc" else [*range(40)])


def test_what_is_wrong_with_a_data_set_is_named_in_one_line(folder):
    cases = {
        ("rte", "1.0.0"): (
            "tfds:glue/rte:1.0.0:train numbers the labels of rte as not_entailment, entailment, GLUE as entailment, "
            "not_entailment; class numbers would change their meaning"
        ),
        ("wnli", "1.0.0"): r"tfds:glue/wnli:1.0.0:train: the record with idx \d+ has the label -1, which is not from 0 to 1 \(-1: ",
        ("stsb", "1.0.0"): r"tfds:glue/stsb:1.0.0:train: the record with idx \d+ has the label -1, which is not from 0 to 5",
    }
    for (task, version), expected in cases.items():
        with tfds_folder(folder / "prepared"), pytest.raises(UserError, match=f"^{expected}") as caught:
            read_splits(GLUE_TASKS[task], f"tfds:glue:{version}")
        assert "\n" not in str(caught.value)
