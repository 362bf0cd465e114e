"""BERT of transformers, computing logits for the predicted positions only."""

from __future__ import annotations

from collections.abc import Mapping

import transformers  # pyrefly: ignore[missing-import]
from torch import Tensor, nn  # pyrefly: ignore[missing-import]

from mhsh.bench.peers.plain import gathered
from mhsh.config.schema import ModelConfig

ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu"}


class TransformersBert(nn.Module):
    """BertForPreTraining or (without next sentence) BertForMaskedLM, with SDPA attention.

    By themselves both project every position on the vocabulary; here the predicted positions are
    gathered first, as in mhsh. Rows are full, so there is no attention mask: transformers itself
    drops one that masks nothing.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        kind = transformers.BertForPreTraining if config.next_sentence else transformers.BertForMaskedLM
        self.title = f"transformers {kind.__name__}"
        self.model = kind(
            transformers.BertConfig(
                vocab_size=config.vocab_size,
                hidden_size=config.embed_dim,
                num_hidden_layers=config.num_layers,
                num_attention_heads=config.num_heads,
                intermediate_size=config.mlp_dim,
                hidden_act=ACTIVATIONS[config.activation],
                hidden_dropout_prob=config.hidden_dropout,
                attention_probs_dropout_prob=config.attention_dropout,
                max_position_embeddings=config.max_positions,
                type_vocab_size=config.num_token_types,
                layer_norm_eps=config.layer_norm_epsilon,
                pad_token_id=None,  # so that every row of the table gets a gradient
                attn_implementation="sdpa",
            )
        )
        self.model.bert.embeddings.dropout.p = config.embedding_dropout
        self.has_next_sentence = config.next_sentence

    @property
    def layers(self) -> nn.ModuleList:
        """The layers of the encoder."""
        return self.model.bert.encoder.layer

    def forward(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Logits [B,P,V], and next-sentence logits [B,2] or None."""
        found = self.model.bert(
            input_ids=batch["inputs"], token_type_ids=batch["token_types"], position_ids=batch["inputs_position"]
        )
        logits = self.model.cls.predictions(gathered(found.last_hidden_state, batch["targets_position"]))
        return logits, self.model.cls.seq_relationship(found.pooler_output) if self.has_next_sentence else None
