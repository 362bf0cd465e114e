"""Rows of GLUE: tokens, cuts, targets, filler rows. Windows of SQuAD: nothing of a context is left
out, targets point at the answers, articles are held out whole.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mhsh.data.fine_tuning import encode_questions, span_targets
from mhsh.data.squad import Answer, Question, SquadData
from mhsh.data.wordpiece import WordPieceTokenizer
from mhsh.errors import UserError
from tests.data.small_fine_tuning import VOCAB, load_glue, load_squad, model_config, span_data, write_squad

PAD, UNK, CLS, SEP = 0, 1, 2, 3
RED, GREEN, BLUE, ISH, STOP = 5, 6, 7, 8, 9
LINES = [
    "index\tsentence1\tsentence2\tlabel",
    "0\tRed green.\tBlueish\tnot_entailment",
    "1\tred red red red red red red red\tgreen green green\tentailment",
    "2\tred\tviolet\tentailment",
]


def glue_files(folder: Path, **files: list[str]) -> str:
    """The lines of every file, as a data.source."""
    folder.mkdir()
    for name, lines in files.items():
        (folder / f"{name}.tsv").write_text("".join(line + "\n" for line in lines))
    return f"tsv:{folder.parent}"


def test_the_rows_of_pairs(tmp_path, vocab):
    source = glue_files(tmp_path / "RTE", train=LINES, dev=LINES[:2])
    corpus = load_glue("rte", source, vocab, sequence_length=12)
    rows = corpus.train.all()
    np.testing.assert_array_equal(
        rows["inputs"],
        [
            [CLS, RED, GREEN, STOP, SEP, BLUE, ISH, SEP, PAD, PAD, PAD, PAD],
            [CLS, RED, RED, RED, RED, RED, RED, SEP, GREEN, GREEN, GREEN, SEP],  # two of the longer text went
            [CLS, RED, SEP, UNK, SEP, PAD, PAD, PAD, PAD, PAD, PAD, PAD],
        ],
    )
    np.testing.assert_array_equal(rows["token_types"][0], [0] * 5 + [1] * 3 + [0] * 4)
    np.testing.assert_array_equal(rows["inputs_segmentation"][0], [1] * 8 + [0] * 4)
    np.testing.assert_array_equal(rows["inputs_position"][0], [*range(8), 0, 0, 0, 0])
    np.testing.assert_array_equal(rows["targets"], [1, 0, 0])
    assert corpus.summary()["cut_texts"] == 1
    assert corpus.summary()["overlap"] == {"count": 1, "of": 1}
    assert corpus.unigram_entropy == pytest.approx(-(1 / 3) * np.log(1 / 3) - (2 / 3) * np.log(2 / 3))
    shorter = load_glue("rte", source, vocab, sequence_length=8).train.all()["inputs"]
    np.testing.assert_array_equal(shorter[1], [CLS, RED, RED, RED, SEP, GREEN, GREEN, SEP])  # of equal ones the second was cut


def test_validation_counts_no_row_twice(tmp_path, vocab):
    corpus = load_glue("rte", glue_files(tmp_path / "RTE", train=LINES, dev=LINES), vocab)
    assert corpus.train_steps(1)[5]["weights"].tolist() == [1.0]
    first, second = corpus.validation_batches(2)
    np.testing.assert_array_equal(np.concatenate([first["inputs"], second["inputs"]])[:3], corpus.validation.all()["inputs"])
    np.testing.assert_array_equal([first["weights"], second["weights"]], [[1, 1], [1, 0]])


def test_scores_are_numbers_and_mnli_has_two_evaluation_sets(tmp_path, vocab):
    lines = ["sentence1\tsentence2\tscore", "red\tgreen\t2.500", "red\tred\t5.000"]
    corpus = load_glue("stsb", glue_files(tmp_path / "STS-B", train=lines, dev=lines), vocab, num_classes=1)
    assert corpus.train.all()["targets"].dtype == np.float32
    np.testing.assert_array_equal(corpus.train.all()["targets"], [2.5, 5.0])
    assert corpus.unigram_entropy == pytest.approx(1.25**2)
    lines = ["sentence1\tsentence2\tgold_label", "red\tgreen\tneutral", "red\tred\tentailment"]
    source = glue_files(tmp_path / "MNLI", train=lines, dev_matched=lines, dev_mismatched=lines[:2])
    corpus = load_glue("mnli", source, vocab, num_classes=3)
    assert corpus.evaluation_sets == {"validation_matched": 2, "validation_mismatched": 1}
    np.testing.assert_array_equal(corpus.validation.all()["targets"], [1, 0, 1])


def test_what_does_not_fit(tmp_path, vocab):
    source = glue_files(tmp_path / "RTE", train=LINES, dev=["index\tsentence1\tsentence2", "0\tred\tred"])
    for changes, said in (
        (dict(num_classes=3), r"model\.num_classes = 3; allowed with data\.task = 'rte': 2"),
        (dict(task="nli"), r"'nli' is not a task of GLUE"),
        ({}, r"dev\.tsv has no column 'label'"),
    ):
        with pytest.raises(UserError, match=said):
            load_glue(**{"task": "rte", "source": source, "vocab": vocab} | changes)
    one = [LINES[0], "0\ta\tb\t1"]
    glue_files(tmp_path / "WNLI", train=one, dev=one)
    for changes, said in (
        (dict(sequence_length=4), r"data\.sequence_length = 4 has no room for the texts of wnli"),
        (dict(num_token_types=1), r"the second of a pair is of token type 1, but model\.num_token_types = 1"),
        (dict(source="tfds:glue"), r"data\.source = 'tfds:glue'; allowed with .*: tsv:DIR$"),
    ):
        with pytest.raises(UserError, match=said):
            load_glue(**{"task": "wnli", "source": source, "vocab": vocab} | changes)


def question(context: str, answer: str | None, start: int, number: int = 0, title: str = "t") -> Question:
    answers = () if answer is None else (Answer(answer, start),)
    return Question(f"q{number}", "Where red?", context, answers, answer is None, title)


CONTEXTS = st.lists(st.sampled_from(["red", "green", "blue", "gold", "redish", "golden", ".", "violet"]), min_size=1, max_size=30)


@settings(max_examples=60, deadline=None)
@given(CONTEXTS, st.data())
def test_windows_hold_the_whole_context_and_targets_find_the_answer(words, data):
    first = data.draw(st.integers(0, len(words) - 1))
    last = data.draw(st.integers(first, len(words) - 1))
    context = "  ".join(words)
    start = len("  ".join(words[:first])) + (2 if first else 0)
    answer = "  ".join(words[first : last + 1])

    tokenizer, config = WordPieceTokenizer(VOCAB, lowercase=True), span_data()
    asked = [question(context, answer, start)]
    rows, windows = encode_questions(asked, tokenizer, model_config("span"), config)
    [(whole, spans)] = tokenizer.encode_with_spans([context])
    # Every token of the context is shown, in order, and in exactly one window best.
    shown = [row[window.first : window.first + len(window.spans)] for row, window in zip(rows["inputs"], windows, strict=True)]
    starts = [k * config.stride for k in range(len(windows))]
    best = np.zeros(len(whole), int)
    for window, tokens, at in zip(windows, shown, starts, strict=True):
        np.testing.assert_array_equal(tokens, whole[at : at + len(tokens)])
        best[at : at + len(window.spans)] += window.is_best
    assert starts[-1] + len(shown[-1]) == len(whole)
    np.testing.assert_array_equal(best, 1)

    held = 0
    covered = [k for k, (a, b) in enumerate(spans) if b > start and a < start + len(answer)]
    for (begin, end), window, tokens, at in zip(span_targets(asked, windows), windows, shown, starts, strict=True):
        if begin:
            assert context[window.spans[begin - window.first, 0] : window.spans[end - window.first, 1]] == answer
            held += 1
        else:
            assert end == 0
            assert covered[0] < at or covered[-1] >= at + len(tokens)
    assert held or len(covered) > config.sequence_length - 4 - 3 - config.stride


def test_articles_are_held_out_whole(tmp_path, vocab):
    questions = tuple(question("red green blue", "green", 4, number, title=f"article {number % 4}") for number in range(12))
    source = f"json:{write_squad(tmp_path / 'questions.json', SquadData('2.0', questions))}"
    for seed in range(2):
        corpus = load_squad(vocab, source=source, seed=seed)
        assert len({each.title for each in corpus.validation_data.questions}) == 2
        assert len(corpus.validation_data.questions) == 6
        assert corpus.counts["train_questions"] == 6 and corpus.counts["train_rows_with_answer"] == 6
    with pytest.raises(UserError, match=r"data\.validation_fraction = 0\.1 holds out 0 of the 4 articles"):
        load_squad(vocab, source=source, validation_fraction=0.1)
    for other in ("questions.json", "json:", "tfds:"):
        with pytest.raises(UserError, match=rf"validation_source = '{other}'; allowed with .*: json:FILE, in SQuAD's form$"):
            load_squad(vocab, source=source, validation_source=other)


def test_a_question_without_an_answer_points_at_cls(tmp_path, vocab):
    questions = tuple(question("red green blue", None if number % 2 else "green", 4, number, str(number)) for number in range(8))
    source = f"json:{write_squad(tmp_path / 'questions.json', SquadData('2.0', questions))}"
    rows = load_squad(vocab, source=source, validation_fraction=0.25).train.all()
    np.testing.assert_array_equal(rows["inputs"][:, 0], CLS)
    # [CLS] where red ? [SEP] red green blue [SEP]
    np.testing.assert_array_equal(np.unique(rows["targets"], axis=0), [[0, 0], [6, 6]])


@pytest.mark.parametrize("version", ["1.1", "2.0"])
@pytest.mark.parametrize("field", ["source", "validation_source"])
def test_a_validation_question_that_cannot_be_scored_is_found_before_training(tmp_path, vocab, version, field):
    """As of a test set: the first validation may be after the last step, before its checkpoint."""
    questions = tuple(Question(f"q{number}", "Where red?", "red", (), False, str(number)) for number in range(2))
    file = f"json:{write_squad(tmp_path / 'test.json', SquadData(version, questions))}"
    with pytest.raises(UserError, match=rf"^data\.{field} = '{file}': question q\d has no answers to compare with; give data with"):
        load_squad(vocab, **{"source": file, field: file})
