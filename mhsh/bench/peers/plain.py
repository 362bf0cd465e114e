"""A Transformer in plain PyTorch, for shapes that transformers' BERT cannot have (N H != D)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch  # pyrefly: ignore[missing-import]
from torch import Tensor, nn  # pyrefly: ignore[missing-import]
from torch.nn import functional  # pyrefly: ignore[missing-import]

from mhsh.config.schema import ModelConfig
from mhsh.models.layers import sinusoids

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
}


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
        for table in (each for each in self.modules() if isinstance(each, nn.Embedding)):
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
            predicted = gathered(x, batch["targets_position"])
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
            each(x).view(*x.shape[:2], config.num_heads, config.head_dim).transpose(1, 2)
            for each in (self.query, self.key, self.value)
        )
        context = functional.scaled_dot_product_attention(
            *heads, dropout_p=config.attention_dropout if self.training else 0.0, is_causal=config.objective == "clm"
        )
        attended = self.out(context.transpose(1, 2).reshape(*x.shape[:2], -1))
        x = self.attention_norm(x + self.hidden_dropout(attended))
        hidden = self.mlp_dropout(ACTIVATIONS[config.activation](self.up(x)))
        return self.feed_forward_norm(x + self.hidden_dropout(self.down(hidden)))


def gathered(x: Tensor, positions: Tensor) -> Tensor:
    """x [B,T,D] at positions [B,P] as [B,P,D]."""
    return x.gather(1, positions[:, :, None].expand(-1, -1, x.shape[-1]))
