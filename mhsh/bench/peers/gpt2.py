"""GPT2LMHeadModel of transformers in a config's shape, with transformers' cache."""

from __future__ import annotations

import numpy as np
import torch  # pyrefly: ignore[missing-import]
import transformers  # pyrefly: ignore[missing-import]

from mhsh.bench.peers.build import device
from mhsh.bench.peers.transformers import ACTIVATIONS
from mhsh.config.schema import Config


class GPT2:
    """GPT-2 with random weights in model.compute_dtype; writes `steps` tokens after each prompt."""

    def __init__(self, config: Config, steps: int) -> None:
        model = config.model
        torch.manual_seed(config.train.seed)
        self._device, self._steps = device(), steps
        self._model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=model.vocab_size,
                n_positions=model.max_positions,
                n_embd=model.embed_dim,
                n_layer=model.num_layers,
                n_head=model.num_heads,
                n_inner=model.mlp_dim,
                activation_function=ACTIVATIONS[model.activation],
                bos_token_id=None,
                eos_token_id=None,
                pad_token_id=0,
            )
        )
        self._model.to(self._device, getattr(torch, model.compute_dtype)).train(False)

    def __call__(self, prompts: np.ndarray) -> np.ndarray:
        tokens = torch.from_numpy(prompts.astype(np.int64)).to(self._device)
        with torch.inference_mode():
            out = self._model.generate(
                input_ids=tokens,
                attention_mask=torch.ones_like(tokens),
                min_new_tokens=self._steps,
                max_new_tokens=self._steps,
                do_sample=False,
            )
        return out[:, tokens.shape[1] :].cpu().numpy()
