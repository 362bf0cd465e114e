"""Tests of the mean over validation batches and of its parts, and of a model that has diverged."""

from __future__ import annotations

import math
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from mhsh.data.pairs import Pair
from mhsh.data.squad import Question, SquadData
from mhsh.data.wordpiece import WordPieceTokenizer
from mhsh.evaluation.evaluate import classification_metrics, evaluate, span_metrics, translation_metrics
from mhsh.models.losses import WeightedSum
from tests.data.small_fine_tuning import VOCAB, load_glue, load_squad, write_squad
from tests.evaluation.small_translation import random_params, small_model, small_tokenizer


def test_a_batch_without_predictions_adds_nothing() -> None:
    """As one of a document in a script that the vocabulary does not know, which is all [UNK]."""
    batches = [{"sum": jnp.float32(total), "weight": jnp.float32(weight)} for total, weight in [(6.0, 3.0), (4.0, 1.0), (0.0, 0.0)]]
    validated = evaluate(lambda _, batch: {"target_loss": WeightedSum(batch["sum"], batch["weight"])}, None, batches)
    assert validated.values == {"target_loss": 2.5}
    assert validated.loss_parts == pytest.approx([2.0, 4.0, math.nan], nan_ok=True)


@pytest.fixture
def vocab(tmp_path: Path) -> Path:
    WordPieceTokenizer(VOCAB, lowercase=True).save(tmp_path / "vocab.txt")
    return tmp_path / "vocab.txt"


def test_logits_that_are_not_finite_choose_no_class(tmp_path: Path, vocab: Path) -> None:
    """They would count as the first one, which has a good score where it is frequent."""
    (tmp_path / "MNLI").mkdir()
    lines = "sentence1\tsentence2\tgold_label\nred\tred\tentailment\nred\tblue\tentailment\n"
    for name in ("train", "dev_matched", "dev_mismatched"):
        (tmp_path / "MNLI" / f"{name}.tsv").write_text(lines)
    corpus = load_glue("mnli", f"tsv:{tmp_path}", vocab, num_classes=3)
    logits = np.zeros((4, 3), np.float32)
    assert classification_metrics(corpus, logits) == {"matched_accuracy": 1.0, "mismatched_accuracy": 1.0}
    logits[3] = np.nan
    metrics = classification_metrics(corpus, logits)
    assert metrics["matched_accuracy"] == 1.0 and math.isnan(metrics["mismatched_accuracy"])


def test_scores_that_are_not_finite_correlate_with_nothing(tmp_path: Path, vocab: Path) -> None:
    """A run goes on: the rows of its losses say that it diverges."""
    (tmp_path / "STS-B").mkdir()
    for name in ("train", "dev"):
        (tmp_path / "STS-B" / f"{name}.tsv").write_text("sentence1\tsentence2\tscore\nred\tred\t5\nred\tblue\t1\n")
    corpus = load_glue("stsb", f"tsv:{tmp_path}", vocab, num_classes=1)
    metrics = classification_metrics(corpus, np.array([[1.0], [np.inf]], np.float32))
    assert list(metrics) == ["pearson", "spearman"] and all(map(math.isnan, metrics.values()))


def test_logits_that_are_not_finite_leave_no_question_unanswered(tmp_path: Path, vocab: Path) -> None:
    """No answer is right for each question that has none."""
    questions = [Question(name, "where?", "red blue.", (), True, name) for name in "ab"]
    source = write_squad(tmp_path / "squad.json", SquadData("2.0", tuple(questions)))
    corpus = load_squad(vocab, source=f"json:{source}", validation_source=f"json:{source}")
    logits = np.zeros((len(corpus.windows), 2, 14), np.float32)
    logits[:, :, 0] = 1.0
    assert span_metrics(corpus, logits)["exact"] == 100.0
    logits[0] = np.nan
    metrics = span_metrics(corpus, logits)
    assert {name for name, value in metrics.items() if not math.isnan(value)} == {"total", "NoAns_total"}


def test_probabilities_that_are_not_finite_have_no_bleu() -> None:
    nan = {**random_params(0), "embeddings": {"token": random_params(0)["embeddings"]["token"] * np.nan}}
    pairs = [Pair("der", "the")]
    metrics = translation_metrics(small_model(), nan, small_tokenizer(), pairs, num_hypotheses=1, length_penalty=0.6)
    assert list(metrics) == ["bleu", "chrf", "exact_match"] and all(map(math.isnan, metrics.values()))
