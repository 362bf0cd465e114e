"""How well a model translates the validation pairs of its run: decoded, and compared with their
targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mhsh.config.schema import ModelConfig
from mhsh.data.tokenizers.subword import TranslationTokenizer
from mhsh.data.translation.pairs import Pair
from mhsh.evaluation.bleu import score_translations
from mhsh.evaluation.translation import model_decoder, translate_lines
from mhsh.models.seq2seq import Seq2Seq

_BATCH_TOKENS = 4096


def translation_figures(
    model: Seq2Seq,
    params: Any,
    tokenizer: TranslationTokenizer,
    pairs: Sequence[Pair],
    *,
    num_hypotheses: int,
    length_penalty: float,
) -> dict[str, float]:
    """`bleu` and `chrf` (0 to 100, sacreBLEU's) and `exact_match` (the share of pairs that are
    translated word for word).

    Source lines longer than the model's positions are cut, as they were left out of the rows
    anyway.
    """
    config: ModelConfig = model.config
    decode = model_decoder(model, params, num_hypotheses=num_hypotheses, length_penalty=length_penalty)
    translated = translate_lines(
        [pair.source for pair in pairs],
        tokenizer,
        decode,
        max_positions=config.max_positions,
        batch_tokens=_BATCH_TOKENS,
        cut_overlong=True,
    )
    scores = score_translations(translated.lines, [pair.target for pair in pairs], lowercase=False)
    return {"bleu": scores.bleu, "chrf": scores.chrf, "exact_match": scores.exact_matches / scores.num_lines}
