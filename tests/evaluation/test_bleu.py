"""The interval of a difference in BLEU and chrF: against resampled corpora that are scored one by
one, against closed forms, and how often it covers the truth.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from scipy.stats import t

from mhsh.evaluation.bleu import bootstrap, compare_translations, score_translations

WORDS = "der die das Hund Haus geht läuft schnell , . ein eine auf unter Straße Ball 3,5 Kind spielt".split()  # noqa: SIM905


def corrupted(lines: list[str], share: float, seed: int) -> list[str]:
    """The lines with a share of their words replaced."""
    draw = np.random.default_rng(seed)
    return [" ".join(str(draw.choice(WORDS)) if draw.random() < share else word for word in line.split()) for line in lines]


@pytest.fixture
def references() -> list[str]:
    draw = np.random.default_rng(0)
    return [" ".join(draw.choice(WORDS, draw.integers(4, 20))) for _ in range(40)]


@pytest.mark.parametrize("lowercase", [False, True])
def test_a_resample_is_the_score_of_a_corpus_with_these_lines(references, lowercase):
    """The slow way: every resample is written out and scored by sacreBLEU's public functions."""
    systems, baselines = ([corrupted(references, share, seed) for seed in range(3)] for share in (0.2, 0.3))
    found = compare_translations(systems, baselines, references, lowercase=lowercase, resamples=30)
    for name, metric in {"bleu": BLEU(lowercase=lowercase), "chrf": CHRF(lowercase=lowercase)}.items():
        draw, differences = np.random.default_rng(0), []
        for _ in range(30):
            lines = draw.integers(40, size=40)
            pairs = draw.integers(3, size=3)

            def score(system: list[str], lines=lines, metric=metric) -> float:
                return metric.corpus_score([system[line] for line in lines], [[references[line] for line in lines]]).score

            differences.append(np.mean([score(systems[pair]) - score(baselines[pair]) for pair in pairs]))
        paired = found[name]
        assert paired.scores == pytest.approx([metric.corpus_score(system, [references]).score for system in systems])
        assert paired.difference == pytest.approx(np.mean(paired.scores) - np.mean(paired.baseline))
        # Of three pairs the expanded percentiles are the ends, but for 1e-7 of the way to the next.
        gains = np.subtract(paired.scores, paired.baseline)
        reach = t.ppf(0.975, 2) * gains.std(ddof=1) / math.sqrt(3)
        ends = min(*differences, gains.mean() - reach), max(*differences, gains.mean() + reach)
        assert paired.interval == pytest.approx(ends, abs=1e-4)


def test_a_script_without_spaces_is_scored_by_its_characters():
    """To 13a each of these sentences is a word or two, and BLEU is 0."""
    for reference, hypothesis in (
        ("他昨天去了东京。", "他昨天去东京。"),
        ("彼は昨日東京へ行きました。", "彼は昨日東京に行きました。"),
        ("ཁོ་ཁ་སང་ལྷ་ས་ལ་ཕྱིན་པ་རེད།", "ཁོ་ཁ་སང་ལྷ་ས་ལ་ཕྱིན་སོང་།"),
    ):
        scores = score_translations([hypothesis], [reference], lowercase=False)
        assert scores.bleu == BLEU(tokenize="char").corpus_score([hypothesis], [[reference]]).score > 40
        assert "tok:char" in scores.bleu_signature
        found = compare_translations([[hypothesis]], [[reference]], [reference], lowercase=False, resamples=2)["bleu"]
        assert (found.scores, found.baseline) == ((scores.bleu,), (pytest.approx(100),))


def test_one_system_is_no_better_than_itself(references):
    system = corrupted(references, 0.3, 0)
    found = compare_translations([system], [system], references, lowercase=False)
    assert [(each.difference, each.interval) for each in found.values()] == [(0.0, (0.0, 0.0))] * 2


def test_lists_that_do_not_fit_are_refused(references):
    for systems, baselines in [([references], []), ([], []), ([references[1:]], [references])]:
        with pytest.raises(ValueError, match=r"references|differ"):
            compare_translations(systems, baselines, references, lowercase=False)


def mean(counts: np.ndarray) -> float:
    """A score with a closed form: of lines [value, 1] the mean value."""
    return float(counts[0] / counts[1])


def lines_of(values: np.ndarray) -> np.ndarray:
    return np.stack([values, np.ones_like(values)], axis=-1)


def test_of_one_pair_it_is_the_interval_over_lines():
    draw = np.random.default_rng(1)
    ours, theirs = draw.gamma(1.0, size=(2, 1, 400))
    gain = (ours - theirs)[0]
    low, high = bootstrap(lines_of(ours), lines_of(theirs), mean, 4000)
    reach = t.ppf(0.975, 399) * gain.std(ddof=1) / math.sqrt(400)
    assert (low, high) == pytest.approx((gain.mean() - reach, gain.mean() + reach), abs=0.05 * reach + 0.005)


def test_one_line_of_one_pair_says_nothing_of_others():
    """Every resample is that line."""
    found = compare_translations([["a b c d"]], [["a b c e"]], ["a b c d"], lowercase=False)
    assert {each.interval for each in found.values()} == {(-math.inf, math.inf)}


@pytest.mark.parametrize("pairs", [2, 3, 4, 8])
def test_of_pairs_that_differ_in_nothing_else_it_is_student_s(pairs):
    """Of few pairs it reaches beyond them all, where no resample does."""
    gains = np.array([0.1, 0.3, -0.2, 0.5, 0.25, 0.0, 0.4, 0.15])[:pairs]
    ours = np.broadcast_to(gains[:, None], (pairs, 50))
    low, high = bootstrap(lines_of(ours), lines_of(np.zeros((pairs, 50))), mean, 20_000 if pairs == 8 else 200)
    reach = t.ppf(0.975, pairs - 1) * gains.std(ddof=1) / math.sqrt(pairs)
    assert (low, high) == pytest.approx((gains.mean() - reach, gains.mean() + reach), abs=0.07 * reach)


@pytest.mark.parametrize("kind", [pytest.param("normal", marks=pytest.mark.slow), "skewed", "bimodal"])
def test_it_covers_the_truth_as_often_as_it_says(kind):
    """Eight pairs of 50 lines, both of which differ by chance, 200 times."""
    draw = np.random.default_rng(2)
    effects = {
        "normal": lambda: draw.normal(size=8),
        "skewed": lambda: draw.gamma(1.0, size=8) - 1,
        "bimodal": lambda: draw.choice([-1.0, 1.0], size=8) + 0.1 * draw.normal(size=8),
    }[kind]
    hits = 0
    for _ in range(200):
        line = draw.gamma(1.0, size=50) - 1  # a line is easier for one system, whatever the seed
        gains = 0.2 * effects()[:, None] + line + 0.3 * draw.normal(size=(8, 50))
        low, high = bootstrap(lines_of(gains), lines_of(np.zeros((8, 50))), mean, 200)
        hits += low <= 0 <= high
    assert hits / 200 > 0.91, hits
