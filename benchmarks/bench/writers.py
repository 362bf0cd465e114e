"""The peers of decoding: MarianMTModel and GPT2LMHeadModel of transformers in a config's shape,
with random weights in model.compute_dtype and transformers' own cache and beam search.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch  # pyrefly: ignore[missing-import]
import transformers  # pyrefly: ignore[missing-import]

from benchmarks.bench.modules import TRANSFORMERS_ACTIVATIONS
from benchmarks.bench.peers import device
from mhsh.bench.decoding import HYPOTHESES, LENGTH_PENALTY, Workload
from mhsh.config.schema import Config, ModelConfig
from mhsh.data.subword import BOS_ID, EOS_ID, PAD_ID

SENTENCES_AT_ONCE = 32
IMPLEMENTATIONS = {
    "gpt2": "transformers GPT2LMHeadModel",
    "marian": "transformers MarianMTModel",
    "marian-sorted": "transformers MarianMTModel",
}


class Writer:
    """Writes as many tokens after every source as the workload asks for.

    `gpt2` takes all prompts at once. `marian` takes equal sentences at once, and a file in batches
    of SENTENCES_AT_ONCE in its own order, as a pipeline gives them; `marian-sorted` takes a file in
    the order of length.
    """

    def __init__(self, peer: str, config: Config) -> None:
        torch.manual_seed(config.train.seed)
        self._is_sorted, self._device = peer == "marian-sorted", device()
        module = _gpt2(config.model) if peer == "gpt2" else _marian(config.model)
        self._model = module.to(self._device, getattr(torch, config.model.compute_dtype)).train(False)
        self._is_marian = peer != "gpt2"

    def __call__(self, work: Workload) -> list[np.ndarray]:
        at_once = SENTENCES_AT_ONCE if work.setting.get("setting") == "file" else len(work.sources)
        lines = list(range(len(work.sources)))
        if self._is_sorted:
            lines.sort(key=lambda line: -len(work.sources[line]))
        written: dict[int, np.ndarray] = {}
        for start in range(0, len(lines), at_once):
            members = lines[start : start + at_once]
            rows = self._batch([work.sources[line] for line in members], max(work.lengths[line] for line in members))
            written |= {line: row[: work.lengths[line]] for line, row in zip(members, rows, strict=True)}
        return [written[line] for line in range(len(lines))]

    def _batch(self, sources: Sequence[np.ndarray], steps: int) -> np.ndarray:
        """The `steps` tokens after each source."""
        padded = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(s.astype(np.int64)) for s in sources], True, PAD_ID)
        tokens = padded.to(self._device)
        lengths = torch.tensor([[len(source)] for source in sources], device=self._device)
        search: dict[str, Any] = {}
        if self._is_marian:
            search = {"num_beams": HYPOTHESES, "length_penalty": LENGTH_PENALTY, "early_stopping": False}
        with torch.inference_mode():
            out = self._model.generate(
                input_ids=tokens,
                attention_mask=(torch.arange(tokens.shape[1], device=self._device) < lengths).long(),
                min_new_tokens=steps,
                max_new_tokens=steps,
                do_sample=False,
                **search,
            )
        before = 1 if self._is_marian else tokens.shape[1]  # Marian's begin mark, or GPT-2's prompt
        return out[:, before:].cpu().numpy()


def _gpt2(model: ModelConfig) -> Any:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=model.vocab_size,
            n_positions=model.max_positions,
            n_embd=model.embed_dim,
            n_layer=model.num_layers,
            n_head=model.num_heads,
            n_inner=model.mlp_dim,
            activation_function=TRANSFORMERS_ACTIVATIONS[model.activation],
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )
    )


def _marian(model: ModelConfig) -> Any:
    return transformers.MarianMTModel(
        transformers.MarianConfig(
            vocab_size=model.vocab_size,
            d_model=model.embed_dim,
            encoder_layers=model.num_layers,
            decoder_layers=model.num_decoder_layers,
            encoder_attention_heads=model.num_heads,
            decoder_attention_heads=model.num_heads,
            encoder_ffn_dim=model.mlp_dim,
            decoder_ffn_dim=model.mlp_dim,
            activation_function=TRANSFORMERS_ACTIVATIONS[model.activation],
            max_position_embeddings=model.max_positions,
            scale_embedding=True,
            pad_token_id=PAD_ID,
            eos_token_id=EOS_ID,
            decoder_start_token_id=BOS_ID,
            forced_eos_token_id=None,
        )
    )
