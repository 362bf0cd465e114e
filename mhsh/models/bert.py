"""BERT (Devlin et al. 2018) with its heads for pre-training and fine-tuning; with a causal mask, a
language model, whose embeddings and head may be plain.
"""

from __future__ import annotations

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from mhsh.config.schema import ModelConfig
from mhsh.models.attention import MASK_VALUE
from mhsh.models.dropout import DropoutKey, dropout, seed_of, subkeys
from mhsh.models.layers import ACTIVATIONS, LayerNorm, bias_init, embedding_init, kernel_init, position_table
from mhsh.models.parameters import Kernel
from mhsh.models.residual import Residual
from mhsh.models.transformer import Encoder
from mhsh.models.types import Batch, Outputs


class Embeddings(nn.Module):
    """The sum of token, position and token-type embeddings, with model.head = bert LayerNorm, then
    dropout.
    """

    config: ModelConfig

    def setup(self) -> None:
        config = self.config
        init = embedding_init(config, ("vocab", "embed"))
        self.token = self.param("token", init, (config.vocab_size, config.embed_dim))
        self.position = None if config.positions == "rotary" else position_table(self, "position", config)
        if config.num_token_types:
            # Small, and read by every device, as the position table.
            small = embedding_init(config, ("positions", "embed"))
            self.token_type = self.param("token_type", small, (config.num_token_types, config.embed_dim))
        self.norm = LayerNorm(config, name="norm") if config.head == "bert" else None

    def __call__(self, batch: Batch, dropout_key: DropoutKey) -> Float[Array, "B T D"]:
        x = jnp.take(self.token, batch["inputs"], axis=0)
        if self.position is not None:
            x = x + jnp.take(self.position, batch["inputs_position"], axis=0)
        if self.config.num_token_types:
            x = x + jnp.take(self.token_type, batch["token_types"], axis=0)
        x = x.astype(self.config.residual_dtype) if self.norm is None else self.norm(x)
        return dropout(x, self.config.embedding_dropout, seed_of(dropout_key))


class PredictionHead(nn.Module):
    """The output, by model.head: BERT's dense layer, activation, LayerNorm, transposed token
    embeddings and bias; the transposed token embeddings alone; or a matrix of its own.
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, hidden: Float[Array, "B P D"], token: Float[Array, "V D"]) -> Float[Array, "B P V"]:
        config = self.config
        dtype = jnp.dtype(config.compute_dtype)
        if config.head != "bert":
            if config.head == "untied":
                shape = (config.embed_dim, config.vocab_size)
                token = jnp.asarray(self.param("kernel", kernel_init(config, Kernel(("embed", "vocab"))), shape)).T
            return jnp.einsum("BPD,VD->BPV", hidden.astype(dtype), token.astype(dtype), preferred_element_type=jnp.float32)
        kernel = self.param("kernel", kernel_init(config, Kernel(("embed", "embed_out"))), (config.embed_dim, config.embed_dim))
        bias = self.param("bias", bias_init(("embed",)), (config.embed_dim,))
        hidden = jnp.einsum("BPD,DE->BPE", hidden.astype(dtype), kernel.astype(dtype)) + bias.astype(dtype)
        hidden = LayerNorm(config, name="norm")(ACTIVATIONS[config.activation](hidden))
        output_bias = self.param("output_bias", bias_init(("vocab",)), (config.vocab_size,))
        logits = jnp.einsum("BPD,VD->BPV", hidden.astype(dtype), token.astype(dtype), preferred_element_type=jnp.float32)
        return logits + output_bias


class Pooler(nn.Module):
    """Dense and tanh of the first token: BERT's features of a whole row."""

    config: ModelConfig

    @nn.compact
    def __call__(self, hidden: Float[Array, "B T D"]) -> Float[Array, "B D"]:
        dtype, width = jnp.dtype(self.config.compute_dtype), self.config.embed_dim
        kernel = self.param("kernel", kernel_init(self.config, Kernel(("embed", "embed_out"))), (width, width))
        bias = self.param("bias", bias_init(("embed",)), (width,))
        return jnp.tanh(jnp.einsum("BD,DE->BE", hidden[:, 0].astype(dtype), kernel.astype(dtype)) + bias.astype(dtype))


class Classifier(nn.Module):
    """A linear map to C classes, in fp32, of pooled rows or of every token."""

    config: ModelConfig
    num_classes: int  # C

    @nn.compact
    def __call__(self, features: Float[Array, "*rows D"]) -> Float[Array, "*rows C"]:
        shape = (self.config.embed_dim, self.num_classes)
        kernel = self.param("kernel", kernel_init(self.config, Kernel(("embed", "classes"))), shape)
        bias = self.param("bias", bias_init(("classes",)), (self.num_classes,))
        return jnp.einsum("...D,DC->...C", features.astype(jnp.float32), kernel) + bias


class Bert(nn.Module):
    """Embeddings, encoder and heads.

    `residual` is the config's scheme, or AdminProfile in the profiling pass.
    """

    config: ModelConfig
    residual: type[Residual]

    @nn.compact
    def __call__(self, batch: Batch, dropout_key: DropoutKey) -> Outputs:
        """Logits: [B,P,V] (mlm), [B,T,V] (clm), [B,C] (classification), [B,2,T] (span: start, end).

        Batch: inputs, inputs_position, inputs_segmentation [B,T]; token_types [B,T] if the model
        has types; for mlm targets_position [B,P], the only positions with logits.
        """
        config = self.config
        embeddings_key, encoder_key, pooled_key = subkeys(dropout_key, 3)
        segmentation, positions = jnp.asarray(batch["inputs_segmentation"]), jnp.asarray(batch["inputs_position"])
        embeddings = Embeddings(config, name="embeddings")
        x = embeddings(batch, embeddings_key)
        x = nn.with_logical_constraint(x, ("batch", "length", "activation"))
        hidden = Encoder(config, self.residual, name="encoder")(x, segmentation, encoder_key, positions)
        if config.objective == "classification":
            features = Pooler(config, name="pooler")(hidden)
            features = dropout(features, config.hidden_dropout, seed_of(pooled_key))
            return Outputs(Classifier(config, config.num_classes, name="classification")(features), None)
        if config.objective == "span":
            ends = jnp.einsum("BTE->BET", Classifier(config, 2, name="span")(hidden))
            # The softmax of a start or an end is over the positions that are not padding.
            return Outputs(jnp.where((segmentation > 0)[:, None], ends, MASK_VALUE), None)
        predicted = hidden
        if config.objective == "mlm":
            predicted = jnp.take_along_axis(hidden, jnp.asarray(batch["targets_position"])[:, :, None], axis=1)
        logits = PredictionHead(config, name="prediction")(predicted, embeddings.token)
        next_sentence = None
        if config.next_sentence:
            next_sentence = Classifier(config, 2, name="next_sentence")(Pooler(config, name="pooler")(hidden))
        return Outputs(logits, next_sentence)
