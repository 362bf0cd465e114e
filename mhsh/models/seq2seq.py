"""The encoder-decoder Transformer (Vaswani et al. 2017); generation.py decodes with it."""

from __future__ import annotations

import math

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from mhsh.config.schema import ModelConfig
from mhsh.models.attention import attention_mask, cross_attention_mask
from mhsh.models.dropout import DropoutKey, dropout, seed_of, subkeys
from mhsh.models.layers import embedding_init, position_table
from mhsh.models.residual import Residual
from mhsh.models.transformer import Context, Decoder, Encoder
from mhsh.models.types import Batch, Outputs


class SharedEmbeddings(nn.Module):
    """One token table for both languages and the output, as fairseq's --share-all-embeddings.

    Inputs are multiplied by sqrt(D) (Vaswani et al. 2017, section 3.4); the output has no bias.
    Each side has its own learned positions.
    """

    config: ModelConfig

    def setup(self) -> None:
        config = self.config
        init = embedding_init(config, ("vocab", "embed"))
        self.token = self.param("token", init, (config.vocab_size, config.embed_dim))
        self.source_position = position_table(self, "source_position", config)
        self.target_position = position_table(self, "target_position", config)

    def source(self, tokens: Int[Array, "B S"], positions: Int[Array, "B S"], dropout_key: DropoutKey) -> Float[Array, "B S D"]:
        """The input of the encoder, in the dtype of the residual stream."""
        return self._embed(tokens, jnp.take(self.source_position, positions, axis=0), dropout_key)

    def target(
        self, tokens: Int[Array, "B T"], positions: Int[Array, "B T"] | Int[Array, ""], dropout_key: DropoutKey
    ) -> Float[Array, "B T D"]:
        """The input of the decoder; `positions` may be a scalar."""
        return self._embed(tokens, jnp.take(self.target_position, positions, axis=0), dropout_key)

    def logits(self, hidden: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """The fp32 logits of the vocabulary."""
        dtype = jnp.dtype(self.config.compute_dtype)
        token = self.token.astype(dtype)
        return jnp.einsum("BTD,VD->BTV", hidden.astype(dtype), token, preferred_element_type=jnp.float32)

    def _embed(self, tokens: Array, position: Array, dropout_key: DropoutKey) -> Array:
        x = jnp.take(self.token, tokens, axis=0) * math.sqrt(self.config.embed_dim) + position
        return dropout(x.astype(self.config.residual_dtype), self.config.embedding_dropout, seed_of(dropout_key))


class Seq2Seq(nn.Module):
    """Shared embeddings, encoder and decoder.

    `residual` is the config's scheme, or AdminProfile in the profiling pass.
    """

    config: ModelConfig
    residual: type[Residual]

    def setup(self) -> None:
        self.embeddings = SharedEmbeddings(self.config)
        self.encoder = Encoder(self.config, self.residual)
        self.decoder = Decoder(self.config, self.residual)

    def __call__(self, batch: Batch, dropout_key: DropoutKey) -> Outputs:
        """Logits [B,T,V]; those of position t depend on decoder_inputs up to t.

        Batch: inputs, inputs_position, inputs_segmentation [B,S]; decoder_inputs, targets_position,
        targets_segmentation [B,T]. A segment is a sentence pair, and attention stays within it.
        """
        source_segmentation = jnp.asarray(batch["inputs_segmentation"])
        segmentation = jnp.asarray(batch["targets_segmentation"])
        source_key, encoder_key, target_key, decoder_key = subkeys(dropout_key, 4)
        source = self.encode(batch, source_key, encoder_key)
        source_mask = cross_attention_mask(segmentation, source_segmentation)
        context = Context(attention_mask(segmentation, causal=True), source=source, source_mask=source_mask)
        x = self.embeddings.target(jnp.asarray(batch["decoder_inputs"]), jnp.asarray(batch["targets_position"]), target_key)
        x = nn.with_logical_constraint(x, ("batch", "length", "activation"))
        hidden = self.decoder(x, context, segmentation > 0, decoder_key)
        return Outputs(self.embeddings.logits(hidden), None)

    def encode(self, batch: Batch, source_key: DropoutKey, encoder_key: DropoutKey) -> Float[Array, "B S D"]:
        """The encoder's output; the keys are those of the embedding dropout and of the layers."""
        segmentation = jnp.asarray(batch["inputs_segmentation"])
        x = self.embeddings.source(jnp.asarray(batch["inputs"]), jnp.asarray(batch["inputs_position"]), source_key)
        x = nn.with_logical_constraint(x, ("batch", "length", "activation"))
        return self.encoder(x, segmentation, encoder_key)
