"""MarianMTModel of transformers in a config's shape, with transformers' cache and beam search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch  # pyrefly: ignore[missing-import]
import transformers  # pyrefly: ignore[missing-import]

from mhsh.bench.peers.build import device
from mhsh.bench.peers.transformers import ACTIVATIONS
from mhsh.config.schema import Config
from mhsh.data.tokenizers.subword import BOS_ID, EOS_ID, PAD_ID

SENTENCES_AT_ONCE = 32


class Marian:
    """Marian with random weights in model.compute_dtype."""

    def __init__(self, config: Config, num_hypotheses: int, length_penalty: float) -> None:
        model = config.model
        torch.manual_seed(config.train.seed)
        self._device = device()
        self._search: dict[str, Any] = dict(num_beams=num_hypotheses, length_penalty=length_penalty)
        self._model = transformers.MarianMTModel(
            transformers.MarianConfig(
                vocab_size=model.vocab_size,
                d_model=model.embed_dim,
                encoder_layers=model.num_layers,
                decoder_layers=model.num_decoder_layers,
                encoder_attention_heads=model.num_heads,
                decoder_attention_heads=model.num_heads,
                encoder_ffn_dim=model.mlp_dim,
                decoder_ffn_dim=model.mlp_dim,
                activation_function=ACTIVATIONS[model.activation],
                max_position_embeddings=model.max_positions,
                scale_embedding=True,
                pad_token_id=PAD_ID,
                eos_token_id=EOS_ID,
                decoder_start_token_id=BOS_ID,
                forced_eos_token_id=None,
            )
        )
        self._model.to(self._device, getattr(torch, model.compute_dtype)).train(False)

    def one_batch(self, sources: Sequence[np.ndarray], lengths: Sequence[int]) -> list[np.ndarray]:
        """Decodes all at once, for as many steps as the longest needs."""
        tokens = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(s.astype(np.int64)) for s in sources], True, PAD_ID)
        tokens = tokens.to(self._device)
        with torch.inference_mode():
            out = self._model.generate(
                input_ids=tokens,
                attention_mask=(tokens != PAD_ID).long(),
                min_new_tokens=max(lengths),
                max_new_tokens=max(lengths),
                do_sample=False,
                early_stopping=False,
                **self._search,
            )
        return [row[1 : length + 1] for row, length in zip(out.cpu().numpy(), lengths, strict=True)]  # without the begin mark

    def in_order(self, sources: Sequence[np.ndarray], lengths: Sequence[int]) -> list[np.ndarray]:
        """Decodes in batches in the given order."""
        starts = range(0, len(sources), SENTENCES_AT_ONCE)
        batches = [self.one_batch(sources[i : i + SENTENCES_AT_ONCE], lengths[i : i + SENTENCES_AT_ONCE]) for i in starts]
        return [tokens for batch in batches for tokens in batch]

    def sorted_by_length(self, sources: Sequence[np.ndarray], lengths: Sequence[int]) -> list[np.ndarray]:
        """Decodes in batches of similar length."""
        order = sorted(range(len(sources)), key=lambda line: -len(sources[line]))
        found = self.in_order([sources[line] for line in order], [lengths[line] for line in order])
        return [tokens for _, tokens in sorted(zip(order, found, strict=True), key=lambda each: each[0])]
