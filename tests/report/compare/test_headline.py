"""Tests of the report's claim: who won, by how much, and what is said against it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mhsh.report.compare.comparison import compare
from mhsh.report.compare.headline import Headline
from mhsh.verdict.runs import load_runs


def headline(*paths) -> Headline:
    return compare(load_runs(paths)).headline


def text(*paths) -> str:
    return " ".join(headline(*paths).sentences)


def test_it_names_the_winner_the_measure_and_the_gap(make_run) -> None:
    words = headline(make_run("a", [2.0] * 20, [2.5, 2.5]), make_run("b", [1.0] * 20, [3.0, 2.0]))
    assert words.title == "b ended lowest: final validation loss 2.000 nats per predicted token, 0.500 below a (20.0 %)"
    assert words.measure == "final validation loss"


def test_without_validation_in_every_run_it_compares_training(make_run) -> None:
    words = headline(make_run("a", [2.5] * 20, [2.4]), make_run("b", [2.0] * 20))
    assert words.title.startswith("b ended lowest: final training loss 2.000")


def test_a_tie_is_a_tie(make_run) -> None:
    title = headline(make_run("a", [2.5] * 20), make_run("b", [2.5] * 20)).title
    assert title == "a and b ended level: final training loss 2.500 nats per predicted token"


def test_a_tiny_gap_does_not_read_as_zero(make_run) -> None:
    assert ", 4e-05 below b (0.002 %)" in headline(make_run("a", [2.5]), make_run("b", [2.50004])).title


def test_one_seed_has_no_error_bar(make_run) -> None:
    assert "no error bar" in text(make_run("a", [2.5]), make_run("b", [2.6]))


def test_other_data_and_unequal_training_are_said_in_the_title(make_run) -> None:
    other = {"data": {"fingerprint": "beef", "unigram_entropy": 3.0}}
    words = headline(make_run("a", [2.5] * 20), make_run("b", [2.6] * 10, record=other))
    assert words.title.endswith("; but the runs had different data and the runs were measured after unequal training")
    assert "unequal amounts, 5,120 to 10,240 tokens" in " ".join(words.sentences)


def test_seeds_with_splits_of_their_own_are_no_other_data(make_run) -> None:
    """Every seed has other data and, as its rows are not full, other amounts; both groups alike."""
    runs = [
        make_run(
            f"{name}-{seed}",
            [loss + seed / 10] * (20 - seed),
            training={"seed": seed},
            data={"seed": seed},
            model={"residual": residual},
            record={"data": {"fingerprint": f"split {seed}", "unigram_entropy": 3.0}},
        )
        for name, residual, loss in (("a", "admin", 2.0), ("b", "pre_ln", 2.5))
        for seed in range(2)
    ]
    words = headline(*runs)
    assert "but" not in words.title
    said = " ".join(words.sentences)
    assert "Every group had the same data, another split for each seed (equal sets of fingerprints)." in said
    assert "Every group was trained on equal amounts, by seed 9,728 to 10,240 tokens." in said
    assert "but the runs had different data and the runs were measured after unequal training" in headline(*runs[:-1]).title


def test_a_missing_fingerprint_is_not_taken_for_an_equal_one(make_run) -> None:
    said = text(make_run("a", [2.5]), make_run("b", [2.6], record={"data": {}}))
    assert "not known: no data fingerprint is recorded for b" in said
    assert "same data" not in said


def test_every_differing_field_is_listed_and_those_outside_the_model_set_apart(make_run) -> None:
    said = text(make_run("a", [2.5]), make_run("b", [2.6], model={"residual": "pre_ln"}, optimizer={"learning_rate": 2e-4}))
    assert "differ in 2 fields (model.residual and optimizer.learning_rate); outside the model: optimizer.learning_rate." in said
    said = text(make_run("c", [2.5]), make_run("d", [2.6], model={"residual": "pre_ln"}))
    assert "1 field (model.residual); none outside the model" in said


@pytest.mark.parametrize("model", [{"objective": "clm", "next_sentence": False}, {"vocab_size": 4096}])
def test_runs_of_different_tasks_have_no_winner(make_run, model: dict[str, object]) -> None:
    words = headline(make_run("a", [2.5]), make_run("b", [2.6], model=model))
    assert words.title.startswith("No winner is named: the")
    assert words.measure is None


def test_vocabularies_are_compared_by_content_where_they_were_kept(make_run) -> None:
    a, b = make_run("a", [2.5]), make_run("b", [2.6], model={"vocab_size": 4096})
    for path in (a, b):
        (path / "vocab.txt").write_text("[PAD]\n[MASK]\n")
    assert headline(a, b).title.startswith("a ended lowest")
    (b / "vocab.txt").write_text("[PAD]\n[UNK]\n")
    assert headline(a, b).title.startswith("No winner is named: the vocabulary differs")


def test_a_diverged_run_is_not_ranked_and_a_running_one_is_not_called_finished(make_run) -> None:
    nan = make_run("nan", [1.0, float("nan")])
    words = headline(make_run("a", [2.5] * 2, record={"status": "running"}), nan, make_run("b", [2.6] * 2))
    assert words.title.startswith("nan has not trained so far; a and b did, within 0.100")
    said = " ".join(words.sentences)
    assert "Diverged (loss not finite at the end), so not ranked: nan." in said
    assert "Not finished: a (running)." in said


def test_the_plateau_is_named(make_run) -> None:
    said = text(make_run("a", [2.5]), make_run("b", [2.95]))
    assert "On the unigram plateau, that is, not clearly better than token frequencies alone: b (training loss 2.950" in said
    assert "Every run drawn left the unigram plateau." in text(make_run("c", [2.5]), make_run("d", [2.6]))


def test_the_title_tells_who_trained_and_whether_they_can_be_told_apart(make_run) -> None:
    """The unigram entropy is 3.0; 2.95 is on its plateau."""
    stuck, nan = make_run("stuck", [2.95] * 20, [2.96, 2.95]), make_run("nan", [1.0, float("nan")])
    shallow, deep = make_run("shallow", [2.5] * 20, [2.6, 2.51]), make_run("deep", [2.5] * 20, [2.6, 2.5], model={"num_layers": 4})
    assert headline(stuck, shallow, deep, nan).title == (
        "stuck and nan did not train; deep and shallow did, within 0.010 nats per predicted token "
        "(too few seeds to tell them apart)"
    )
    assert (
        headline(stuck, shallow).title == "stuck did not train; shallow did: final validation loss 2.510 nats per predicted token"
    )
    # Where none trained, the lowest is named as ever.
    assert headline(stuck, make_run("also", [2.99] * 20, [2.99, 2.99])).title.startswith("stuck ended lowest")


def test_the_title_ranks_those_who_trained_where_their_difference_is_sure(make_run) -> None:
    stuck = make_run("stuck", [2.95] * 20, [2.96, 2.95], model={"residual": "pre_ln"})
    deep = {"model": {"num_layers": 4}}
    words = headline(stuck, *seeds(make_run, "a", [2.0, 2.1, 2.2]), *seeds(make_run, "b", [1.8, 1.91, 1.99], **deep))
    assert words.title.startswith("stuck did not train; of the others, b ended lowest: final validation loss 1.900")
    one_of_three = seeds(make_run, "c", [2.0, 2.95, 2.1], model={"num_layers": 5})
    title = headline(*one_of_three, make_run("d", [2.5] * 20, [2.6, 2.5])).title
    assert title.startswith("c (in 1 of 3 runs) did not train; d did: final validation loss 2.500")


def test_one_run_wins_nothing(make_run) -> None:
    assert headline(make_run("a", [2.5])).title.endswith("there is no second finite run to compare it with")
    assert headline(make_run("b", [float("nan")])).title.startswith("No winner is named")


def seeds(make_run, name: str, finals: Sequence[float], **changed: Any) -> list[Path]:
    return [make_run(f"{name}-{s}", [3.0] * 20, [3.0, loss], training={"seed": s}, **changed) for s, loss in enumerate(finals)]


def test_three_seeds_with_a_significant_difference(make_run) -> None:
    deep = {"model": {"num_layers": 4}}
    words = headline(*seeds(make_run, "a", [2.0, 2.1, 2.2]), *seeds(make_run, "b", [1.8, 1.91, 1.99], **deep))
    assert words.title == "b ended lowest: final validation loss 1.900 nats per predicted token, 0.200 below a (9.5 %)"
    assert words.sentences[0] == (
        "How sure: the 95 % interval of b minus a, \u22120.225 to \u22120.175, over 3 seeds, paired, excludes zero."
    )
    assert words.sentences[1].startswith("Comparable")


def test_seeds_without_a_significant_difference(make_run) -> None:
    deep = {"model": {"num_layers": 4}}
    words = headline(*seeds(make_run, "a", [2.0, 2.4, 2.2]), *seeds(make_run, "b", [2.3, 2.0, 2.1], **deep))
    assert words.title.endswith("0.067 below a (3.0 %), no significant difference")
    assert words.sentences[0].startswith("How sure: no significant difference: the 95 % interval of b minus a, \u22120.")
    assert words.sentences[0].endswith("over 3 seeds, paired, includes zero.")


def test_other_seeds_are_not_paired(make_run) -> None:
    deep = {"model": {"num_layers": 4}}
    words = headline(*seeds(make_run, "a", [2.0, 2.1]), *seeds(make_run, "b", [1.8, 1.91, 1.99], **deep))
    assert "over 3 and 2 seeds," in words.sentences[0]


def test_an_unfair_comparison_says_so_second(make_run) -> None:
    words = headline(make_run("a", [2.5]), make_run("b", [2.6], optimizer={"learning_rate": 2e-4}))
    assert words.sentences[0].startswith("How sure: one seed of a and b, so no error bar")
    assert words.sentences[1] == "Not comparable: different learning-rate schedule."


def test_a_diverged_run_does_not_make_the_others_unfair(make_run) -> None:
    nan = make_run("nan", [1.0, float("nan")], optimizer={"learning_rate": 0.5})
    words = headline(make_run("a", [2.5] * 2), make_run("b", [2.6] * 2), nan)
    assert words.sentences[1].startswith("Comparable")


def test_a_group_is_not_ranked_by_the_seeds_that_did_not_diverge(make_run) -> None:
    broken = seeds(make_run, "b", [1.0, float("nan")], model={"num_layers": 4})
    words = headline(make_run("a", [2.5] * 20, [2.6, 2.5]), make_run("c", [2.6] * 20, [2.7, 2.6]), *broken)
    assert words.title.startswith("b (in 1 of 2 runs) did not train; a and c did, within 0.100")
    assert "Diverged (loss not finite at the end), so not ranked, nor are other seeds of the same group: b-1." in words.sentences
