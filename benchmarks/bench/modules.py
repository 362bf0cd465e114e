"""The models of the PyTorch peers: BERT of transformers, and a Transformer in plain PyTorch for
shapes that it cannot have (N H != D). Both compute logits for the predicted positions only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch  # pyrefly: ignore[missing-import]
import transformers  # pyrefly: ignore[missing-import]
from torch import Tensor, nn  # pyrefly: ignore[missing-import]
from torch.nn import functional  # pyrefly: ignore[missing-import]

from mhsh.config.schema import ModelConfig
from mhsh.models.layers import sinusoids

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
}

TRANSFORMERS_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu", "silu": "silu"}  # by mhsh's names


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
                hidden_act=TRANSFORMERS_ACTIVATIONS[config.activation],
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
        encoded = self.model.bert(
            input_ids=batch["inputs"], token_type_ids=batch["token_types"], position_ids=batch["inputs_position"]
        )
        logits = self.model.cls.predictions(gather_positions(encoded.last_hidden_state, batch["targets_position"]))
        return logits, self.model.cls.seq_relationship(encoded.pooler_output) if self.has_next_sentence else None


class PlainTransformer(nn.Module):
    """Post-LN encoder with BERT's embeddings and heads, and scaled_dot_product_attention.

    With Admin or DeepNorm the residual is added unscaled, so the peer does slightly less work. Rows
    are full: attention gets no padding mask, which lets torch use its fastest kernels.
    """

    title = "torch.nn"

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        width = config.embed_dim
        self.token = nn.Embedding(config.vocab_size, width)
        if config.positions == "learned":
            self.position = nn.Embedding(config.max_positions, width)
        else:
            self.register_buffer("sinusoids", torch.from_numpy(sinusoids(config.max_positions, width)))
        if config.num_token_types:
            self.token_type = nn.Embedding(config.num_token_types, width)
        self.norm = nn.LayerNorm(width, eps=config.layer_norm_epsilon)
        self.dropout = nn.Dropout(config.embedding_dropout)
        self.layers = nn.ModuleList(PlainLayer(config) for _ in range(config.num_layers))
        self.transform = nn.Linear(width, width)
        self.transform_norm = nn.LayerNorm(width, eps=config.layer_norm_epsilon)
        self.output_bias = nn.Parameter(torch.zeros(config.vocab_size))
        if config.next_sentence:
            self.pooler = nn.Linear(width, width)
            self.next_sentence = nn.Linear(width, 2)
        for table in (module for module in self.modules() if isinstance(module, nn.Embedding)):
            nn.init.normal_(table.weight, std=0.02)  # torch's default of 1 would make logits of size D

    def forward(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Logits [B,P,V] (clm: [B,T,V]), and next-sentence logits [B,2] or None."""
        config = self.config
        positions = batch["inputs_position"]
        x = self.token(batch["inputs"])
        x = x + (self.position(positions) if config.positions == "learned" else self.sinusoids[positions])
        if config.num_token_types:
            x = x + self.token_type(batch["token_types"])
        x = self.dropout(self.norm(x))
        for layer in self.layers:
            x = layer(x)
        predicted = x
        if config.objective == "mlm":
            predicted = gather_positions(x, batch["targets_position"])
        predicted = self.transform_norm(ACTIVATIONS[config.activation](self.transform(predicted)))
        logits = functional.linear(predicted, self.token.weight, self.output_bias)
        return logits, self.next_sentence(torch.tanh(self.pooler(x[:, 0]))) if config.next_sentence else None


class PlainLayer(nn.Module):
    """Self-attention and feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        width, inner = config.embed_dim, config.num_heads * config.head_dim
        self.query, self.key, self.value = (nn.Linear(width, inner) for _ in range(3))
        self.out = nn.Linear(inner, width)
        self.attention_norm = nn.LayerNorm(width, eps=config.layer_norm_epsilon)
        self.up, self.down = nn.Linear(width, config.mlp_dim), nn.Linear(config.mlp_dim, width)
        self.feed_forward_norm = nn.LayerNorm(width, eps=config.layer_norm_epsilon)
        self.mlp_dropout, self.hidden_dropout = nn.Dropout(config.mlp_dropout), nn.Dropout(config.hidden_dropout)

    def forward(self, x: Tensor) -> Tensor:
        """[B,T,D] -> [B,T,D]."""
        config = self.config
        heads = (
            project(x).view(*x.shape[:2], config.num_heads, config.head_dim).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        context = functional.scaled_dot_product_attention(
            *heads, dropout_p=config.attention_dropout if self.training else 0.0, is_causal=config.objective == "clm"
        )
        attended = self.out(context.transpose(1, 2).reshape(*x.shape[:2], -1))
        x = self.attention_norm(x + self.hidden_dropout(attended))
        hidden = self.mlp_dropout(ACTIVATIONS[config.activation](self.up(x)))
        return self.feed_forward_norm(x + self.hidden_dropout(self.down(hidden)))


def gather_positions(x: Tensor, positions: Tensor) -> Tensor:
    """x [B,T,D] at positions [B,P] as [B,P,D]."""
    return x.gather(1, positions[:, :, None].expand(-1, -1, x.shape[-1]))
