"""Translations against references: BLEU and chrF by sacreBLEU, and exact matches. Without jax."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from sacrebleu.metrics.bleu import BLEU, BLEUScore
from sacrebleu.metrics.chrf import CHRF


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


def score_translations(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool) -> TranslationScores:
    """BLEU (tokenised as in mteval 13a) and chrF2 over the whole corpus.

    Raises:
      ValueError: there are no lines, or the two lists differ in length.
    """
    if not hypotheses or len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses and {len(references)} references")
    bleu, chrf = BLEU(lowercase=lowercase, tokenize="13a"), CHRF(lowercase=lowercase)
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
