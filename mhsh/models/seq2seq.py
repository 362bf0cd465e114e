"""The encoder-decoder Transformer (Vaswani et al. 2017), trained on whole targets and decoded
position by position.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from mhsh.config.schema import ModelConfig
from mhsh.kernels.dropout import DropoutKey, dropout, subkeys
from mhsh.models.attention import KVCache, attention_mask, cross_attention_mask
from mhsh.models.layers import embedding_init
from mhsh.models.positions import position_table
from mhsh.models.residual import Residual
from mhsh.models.transformer import Context, Decoder, Encoder, decoder_step, unstack_layers
from mhsh.models.types import Batch, Outputs


class EncoderMemory(NamedTuple):
    """What the decoder reads of the sources, every row shared by the K hypotheses of that row."""

    layers: tuple[KVCache, ...]  # of the cross-attention of every decoder layer
    real: Bool[Array, "B S"]  # False at padding


class SharedEmbeddings(nn.Module):
    """One token table for both languages and for the output, as fairseq's --share-all-embeddings:
    times sqrt(D) on the way in (Vaswani et al. 2017, section 3.4), as it is on the way out, without
    a bias. Learned positions are each side's own.
    """

    config: ModelConfig

    def setup(self) -> None:
        config = self.config
        init = embedding_init(config, ("vocab", "embed"))
        self.token = self.param("token", init, (config.vocab_size, config.embed_dim))
        self.source_position = position_table(self, "source_position", config)
        self.target_position = position_table(self, "target_position", config)

    def source(self, tokens: Int[Array, "B S"], positions: Int[Array, "B S"], dropout_key: DropoutKey) -> Float[Array, "B S D"]:
        """What enters the encoder, in the dtype of the residual stream."""
        return self._embed(tokens, jnp.take(self.source_position, positions, axis=0), dropout_key)

    def target(
        self, tokens: Int[Array, "B T"], positions: Int[Array, "B T"] | Int[Array, ""], dropout_key: DropoutKey
    ) -> Float[Array, "B T D"]:
        """What enters the decoder; `positions` may be one for all."""
        return self._embed(tokens, jnp.take(self.target_position, positions, axis=0), dropout_key)

    def logits(self, hidden: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """The vocabulary's logits in fp32."""
        dtype = jnp.dtype(self.config.compute_dtype)
        token = self.token.astype(dtype)
        return jnp.einsum("BTD,VD->BTV", hidden.astype(dtype), token, preferred_element_type=jnp.float32)

    def _embed(self, tokens: Array, position: Array, dropout_key: DropoutKey) -> Array:
        x = jnp.take(self.token, tokens, axis=0) * math.sqrt(self.config.embed_dim) + position
        return dropout(x.astype(self.config.residual_dtype), self.config.embedding_dropout, dropout_key)


class Seq2Seq(nn.Module):
    """Shared embeddings, encoder and decoder. `residual` is the config's scheme, or AdminProfile in
    the profiling pass.
    """

    config: ModelConfig
    residual: type[Residual]

    def setup(self) -> None:
        self.embeddings = SharedEmbeddings(self.config)
        self.encoder = Encoder(self.config, self.residual)
        self.decoder = Decoder(self.config, self.residual)

    def __call__(self, batch: Batch, dropout_key: DropoutKey) -> Outputs:
        """Batch: inputs, inputs_position, inputs_segmentation [B,S]; decoder_inputs,
        targets_position, targets_segmentation [B,T]. Attention never leaves a segment, which is one
        sentence pair; the logits of position t see decoder_inputs up to t.
        """
        source_segmentation = jnp.asarray(batch["inputs_segmentation"])
        segmentation = jnp.asarray(batch["targets_segmentation"])
        source_key, encoder_key, target_key, decoder_key = subkeys(dropout_key, 4)
        source = self._encode(batch, source_key, encoder_key)
        context = Context(
            source, attention_mask(segmentation, causal=True), cross_attention_mask(segmentation, source_segmentation)
        )
        x = self.embeddings.target(jnp.asarray(batch["decoder_inputs"]), jnp.asarray(batch["targets_position"]), target_key)
        x = nn.with_logical_constraint(x, ("batch", "length", "activation"))
        hidden = self.decoder(x, context, segmentation > 0, decoder_key)
        return Outputs(self.embeddings.logits(hidden), None)

    def project_kv(self, batch: Batch) -> KVCache:
        """The keys [L,B,N,H,S] and values [L,B,N,S,H] that every layer's cross-attention makes of
        the sources; see `encode`.
        """
        return self.decoder.project_kv(self._encode(batch, None, None))

    def _encode(self, batch: Batch, source_key: DropoutKey, encoder_key: DropoutKey) -> Float[Array, "B S D"]:
        segmentation = jnp.asarray(batch["inputs_segmentation"])
        x = self.embeddings.source(jnp.asarray(batch["inputs"]), jnp.asarray(batch["inputs_position"]), source_key)
        x = nn.with_logical_constraint(x, ("batch", "length", "activation"))
        return self.encoder(x, segmentation, encoder_key)


def empty_caches(config: ModelConfig, batch_size: int, num_hypotheses: int, max_length: int) -> tuple[KVCache, ...]:
    """Room for the self-attention keys and values of every decoder layer, T*K each; see
    MultiHeadAttention.step.
    """
    rows, places = (batch_size, config.num_heads), max_length * num_hypotheses
    key = jnp.zeros((*rows, config.head_dim, places), config.compute_dtype)
    value = jnp.zeros((*rows, places, config.head_dim), config.compute_dtype)
    return (KVCache(key, value),) * config.num_decoder_layers


def grown_caches(caches: tuple[KVCache, ...], num_hypotheses: int, max_length: int) -> tuple[KVCache, ...]:
    """The same keys and values with room for T = max_length positions, which is no less than there
    was.
    """
    places = max_length * num_hypotheses - caches[0].key.shape[3]
    return tuple(
        KVCache(
            jnp.pad(cache.key, ((0, 0), (0, 0), (0, 0), (0, places))), jnp.pad(cache.value, ((0, 0), (0, 0), (0, places), (0, 0)))
        )
        for cache in caches
    )


def decoding_params(config: ModelConfig, params: Any) -> Any:
    """The parameters as `decode_step` takes them: the decoder's layers apart. To be made once, not
    in every step.
    """
    decoder = params["decoder"]
    return params | {"decoder": decoder | {"layers": unstack_layers(decoder["layers"], config.num_decoder_layers)}}


def encode(model: Seq2Seq, params: Any, batch: Batch) -> EncoderMemory:
    """What decoding needs of the sources, one sentence a row; reads inputs, inputs_position and
    inputs_segmentation [B,S].
    """
    layers = cast(KVCache, model.apply({"params": params}, batch, method=Seq2Seq.project_kv))
    return EncoderMemory(unstack_layers(layers, model.config.num_decoder_layers), jnp.asarray(batch["inputs_segmentation"]) > 0)


def decode_step(
    model: Seq2Seq,
    params: Any,
    tokens: Int[Array, "B K"],
    position: Int[Array, ""],
    seen: Bool[Array, "B K T K"],
    caches: tuple[KVCache, ...],
    memory: EncoderMemory,
) -> tuple[Float[Array, "B K V"], tuple[KVCache, ...]]:
    """The logits that follow `tokens`, which stand at `position` (from 0) of K hypotheses a row,
    and the caches with them in.

    `params` are made by `decoding_params`. `seen[b, k, t, j]` is True where hypothesis k may read
    what was written under j at place t <= position, so that hypotheses can change their numbers
    while the caches stay as they are.
    """
    config = model.config
    embeddings: Any = SharedEmbeddings(config)
    table = {"params": params["embeddings"]}
    x = embeddings.apply(table, tokens, position, None, method=SharedEmbeddings.target)
    cross_mask = jnp.broadcast_to(memory.real[:, None, None, :], (len(tokens), 1, tokens.shape[1], memory.real.shape[1]))
    decoder = Decoder(config, model.residual)
    hidden, caches = decoder_step(decoder, params["decoder"], x, caches, memory.layers, position, seen, cross_mask)
    return embeddings.apply(table, hidden, method=SharedEmbeddings.logits), caches
