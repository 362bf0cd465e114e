"""Translations against references: BLEU and chrF by sacreBLEU, and exact matches. Without jax."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU, BLEUScore
from sacrebleu.metrics.chrf import CHRF
from scipy.special import ndtr, stdtrit

# Scripts without spaces between words: Thai, Lao, Tibetan, Burmese, Khmer, kana and Han.
_UNSPACED = re.compile(r"[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")


@dataclasses.dataclass(frozen=True)
class TranslationScores:
    """Corpus-level metrics with one reference per sentence, and sacreBLEU's signatures."""

    num_lines: int
    exact_matches: int  # lines equal to their reference, apart from white space at the ends
    bleu: float  # 0 to 100 (Papineni et al. 2002, as sacreBLEU computes it: Post 2018, arXiv 1804.08771)
    precisions: tuple[float, ...]  # of 1- to 4-grams, 0 to 100
    brevity_penalty: float
    length_ratio: float  # words of the hypotheses / words of the references
    bleu_signature: str
    chrf: float  # 0 to 100 (Popovic 2015)
    chrf_signature: str


@dataclasses.dataclass(frozen=True)
class PairedScores:
    """One metric of the systems of two groups, and the mean difference of their pairs."""

    scores: tuple[float, ...]
    baseline: tuple[float, ...]
    difference: float
    interval: tuple[float, float]  # 95 %; infinite where a single line says nothing of others


def score_translations(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool) -> TranslationScores:
    """BLEU (see `_bleu`) and chrF2 over the whole corpus. Raises ValueError where there are no
    lines, or the two lists differ in length.
    """
    if not hypotheses or len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses and {len(references)} references")
    bleu, chrf = _bleu(references, lowercase), CHRF(lowercase=lowercase)
    bleu_score = bleu.corpus_score(hypotheses, [references])
    assert isinstance(bleu_score, BLEUScore)
    chrf_score = chrf.corpus_score(hypotheses, [references])
    pairs = zip(hypotheses, references, strict=True)
    return TranslationScores(
        num_lines=len(hypotheses),
        exact_matches=sum(hypothesis.strip() == reference.strip() for hypothesis, reference in pairs),
        bleu=bleu_score.score,
        precisions=tuple(bleu_score.precisions),
        brevity_penalty=bleu_score.bp,
        length_ratio=bleu_score.ratio,
        bleu_signature=str(bleu.get_signature()),
        chrf=chrf_score.score,
        chrf_signature=str(chrf.get_signature()),
    )


def compare_translations(
    systems: Sequence[Sequence[str]],
    baselines: Sequence[Sequence[str]],
    references: Sequence[str],
    *,
    lowercase: bool,
    resamples: int = 2_000,
) -> dict[str, PairedScores]:
    """`bleu` and `chrf` of systems and of as many baselines. The k-th of both are a pair, as two
    models of one seed are. Intervals are by `bootstrap`. Raises ValueError where there are no lines
    or no pairs, or two lists differ in length.
    """
    if not references or not systems or len(systems) != len(baselines):
        raise ValueError(f"{len(systems)} systems, {len(baselines)} baselines and {len(references)} references")
    if any(len(lines) != len(references) for lines in (*systems, *baselines)):
        raise ValueError("hypotheses and references differ in length")
    found = {}
    for name, metric in {"bleu": _bleu(references, lowercase), "chrf": CHRF(lowercase=lowercase)}.items():
        ours, theirs = (_counts(metric, group, references) for group in (systems, baselines))
        score = _score_of(metric)
        scores, baseline = (tuple(score(counts.sum(axis=0)) for counts in group) for group in (ours, theirs))
        difference = float(np.mean(np.subtract(scores, baseline)))
        found[name] = PairedScores(scores, baseline, difference, bootstrap(ours, theirs, score, resamples))
    return found


def bootstrap(
    ours: Float[np.ndarray, "pairs lines counts"],
    theirs: Float[np.ndarray, "pairs lines counts"],
    score: Callable[[Float[np.ndarray, " counts"]], float],
    resamples: int,
) -> tuple[float, float]:
    """The 95 % interval of the mean difference of pairs, for other lines and other pairs.

    Each resample draws lines, the same for all systems (Koehn 2004, "Statistical significance tests
    for machine translation evaluation"), and pairs, both with replacement; `score` is of the sums
    over lines. Few pairs make an interval of percentiles too narrow. So these are Hesterberg's
    expanded percentiles (arXiv 1411.5279; ExpandProbs of R's package resample), which make it
    Student's where the values are normal. But no resample of two, three or four pairs has a mean
    beyond the outermost pair: with two the ends hold the truth half the time. So the interval is at
    least Student's over the pairs. One pair alone says nothing of other seeds, and one line of it
    nothing of other lines: that interval is infinite.
    """
    pairs, lines, _ = ours.shape
    if pairs == lines == 1:
        return -math.inf, math.inf
    draw = np.random.default_rng(0)
    differences = np.empty(resamples)
    for k in range(resamples):
        weights = np.bincount(draw.integers(lines, size=lines), minlength=lines)
        drawn, counts = np.unique(draw.integers(pairs, size=pairs), return_counts=True)
        each = [score(weights @ ours[pair]) - score(weights @ theirs[pair]) for pair in drawn]
        differences[k] = np.dot(counts, each) / pairs
    observations = pairs if pairs > 1 else lines
    share = ndtr(math.sqrt(observations / (observations - 1)) * stdtrit(observations - 1, 0.025))
    low, high = np.quantile(differences, [share, 1 - share])
    if pairs > 1:
        each = [score(one.sum(axis=0)) - score(other.sum(axis=0)) for one, other in zip(ours, theirs, strict=True)]
        reach = stdtrit(pairs - 1, 0.975) * np.std(each, ddof=1) / math.sqrt(pairs)
        low, high = min(low, np.mean(each) - reach), max(high, np.mean(each) + reach)
    return float(low), float(high)


def _bleu(references: Sequence[str], lowercase: bool) -> BLEU:
    """BLEU tokenised as in mteval 13a; over characters where most are of scripts without spaces
    between words: to 13a a sentence is a word there, and BLEU is 0.
    """
    text = "".join(references)
    unspaced = 2 * len(_UNSPACED.findall(text)) > len(text)
    return BLEU(lowercase=lowercase, tokenize="char" if unspaced else "13a")


def _counts(metric: Metric, systems: Sequence[Sequence[str]], references: Sequence[str]) -> Float[np.ndarray, "pairs lines counts"]:
    """sacreBLEU's counts in each line: the sum over lines gives the score of a corpus."""
    return np.array([metric._extract_corpus_statistics(lines, [references]) for lines in systems], dtype=float)


def _score_of(metric: Metric) -> Callable[[Float[np.ndarray, " counts"]], float]:
    return lambda counts: metric._compute_score_from_stats(counts.tolist()).score
