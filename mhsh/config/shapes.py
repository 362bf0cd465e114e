"""Other shapes of the same model (its heads grouped otherwise, or its parameters in more or fewer
layers, heads, or heads of keys and values).
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from mhsh.config.entries import SCHEMES
from mhsh.config.schema import ModelConfig
from mhsh.errors import UserError

# By how much the parameters of the layers may differ.
EQUAL_SIZE = 0.01


def shape_name(model: ModelConfig) -> str:
    """Layers x heads a layer, as in `24x16`; with a decoder, `6-6x8`; in two passes, `6x4_x2`."""
    decoder = f"-{model.num_decoder_layers}" if model.num_decoder_layers else ""
    loops = f"_x{model.loops}" if model.loops > 1 else ""
    return f"{model.num_layers}{decoder}x{model.num_heads}{loops}"


def shape_in_words(model: ModelConfig) -> str:
    """`24 layers x 16 heads`; with a decoder, `6 + 6 layers x 8 heads`; `2 passes of 6 ...`."""
    decoder = f" + {model.num_decoder_layers}" if model.num_decoder_layers else ""
    loops = f"{model.loops} passes of " if model.loops > 1 else ""
    return f"{loops}{model.num_layers}{decoder} layers x {model.num_heads} heads"


def regroup(model: ModelConfig, heads_per_layer: int) -> ModelConfig:
    """The model with its heads stacked in depth, in both stacks: L' = L N / n, N' = n,
    F' = F n / N; H and D unchanged. More heads than there are make the model shallower.

    Heads of keys and values are kept as well, so that a layer has n / N of them: the heads of
    queries that share one stay together.

    Source: Liu, Liu and Han, arXiv 2106.09650, section 3 (the shapes of their single-head models).
    Raises UserError where L N / n, F n / N or the new model.num_kv_heads is not whole.
    """
    n, num_heads, depths = heads_per_layer, model.num_heads, (model.num_layers, model.num_decoder_layers)
    if n < 1 or any(depth * num_heads % n for depth in depths):
        whole = (d for d in range(1, model.num_layers * num_heads + 1) if not any(depth * num_heads % d for depth in depths))
        raise UserError(
            f"model.heads_per_layer = {n} does not divide the {' or '.join(str(depth * num_heads) for depth in depths if depth)} "
            f"heads of all layers; allowed: {', '.join(map(str, whole))}"
        )
    if (model.mlp_dim * n) % num_heads:
        raise UserError(
            f"model.heads_per_layer = {n}: the feed-forward width {model.mlp_dim} x {n} is not divisible by "
            f"model.num_heads = {num_heads}; choose another model.mlp_dim"
        )
    if (model.num_kv_heads * n) % num_heads:
        raise UserError(
            f"model.heads_per_layer = {n}: {num_heads // model.num_kv_heads} heads of queries share one of keys and values "
            f"(model.num_kv_heads = {model.num_kv_heads} of {num_heads}) and stay in one layer; give a multiple of "
            f"{num_heads // model.num_kv_heads}, or model.num_kv_heads = 0"
        )
    return replace(
        model,
        num_layers=model.num_layers * num_heads // n,
        num_decoder_layers=model.num_decoder_layers * num_heads // n,
        num_heads=n,
        num_kv_heads=model.num_kv_heads * n // num_heads,
        mlp_dim=model.mlp_dim * n // num_heads,
        layers_per_group=model.layers_per_group * num_heads / n if model.fans == "ungrouped" else 1.0,
        base_layers=_base_layers(model),
    )


def layers_at_equal_size(model: ModelConfig, num_layers: int) -> ModelConfig:
    """The model in `num_layers` layers of N heads: D and H times sqrt(L / L'), rounded, and F so
    that the layers of both stacks have as many parameters as before, within 1 %.

    It is the control of regrouping: depth changes, the heads of a layer do not. Raises UserError
    where the depth is not whole in both stacks, or no width fits.
    """
    ratio = num_layers / model.num_layers
    if num_layers < 1 or (model.num_decoder_layers * num_layers) % model.num_layers:
        raise UserError(
            f"model.layers_at_equal_size = {num_layers}: give 1 or more layers, and such that the decoder's "
            f"{model.num_decoder_layers} times {num_layers} / {model.num_layers} are whole"
        )
    width = 2 * round(model.embed_dim / math.sqrt(ratio) / 2)  # sinusoids come in pairs
    step = 2 if model.positions == "rotary" else 1  # which turns pairs
    narrow = replace(
        model,
        num_layers=num_layers,
        num_decoder_layers=model.num_decoder_layers * num_layers // model.num_layers,
        embed_dim=width,
        head_dim=step * round(model.head_dim * width / model.embed_dim / step),
        base_layers=_base_layers(model),
    )
    aim = layer_parameters(model)
    resized = _fit_mlp_dim(narrow, aim) if width and narrow.head_dim else None
    if resized is None:
        raise UserError(
            f"model.layers_at_equal_size = {num_layers}: no width has the {aim:,} parameters of {model.num_layers} layers "
            f"of {model.embed_dim} within {EQUAL_SIZE:.0%}; choose a depth nearer to {model.num_layers}"
        )
    return resized


def heads_at_equal_width(model: ModelConfig, num_heads: int) -> ModelConfig:
    """`num_heads` wider or narrower heads a layer: N H, G H and with them all sizes stay. Raises
    UserError where N H / N' or G N' / N is not whole.
    """
    width = model.num_heads * model.head_dim
    if num_heads < 1 or width % num_heads or (model.num_kv_heads * num_heads) % model.num_heads:
        whole = (n for n in range(1, width + 1) if not width % n and not (model.num_kv_heads * n) % model.num_heads)
        raise UserError(
            f"model.heads_at_equal_width = {num_heads} does not divide the width {width} of {model.num_heads} heads, or their "
            f"heads of keys and values; allowed: {', '.join(map(str, whole))}"
        )
    return replace(
        model,
        num_heads=num_heads,
        head_dim=width // num_heads,
        num_kv_heads=model.num_kv_heads * num_heads // model.num_heads,
    )


def kv_heads_at_equal_size(model: ModelConfig, num_kv_heads: int) -> ModelConfig:
    """G heads of keys and values in each layer, and the F with which the layers have as many
    parameters as before, within 1 %. Raises UserError where G does not divide N, there is no such
    F, or the model is not a causal one.
    """
    if model.objective != "clm":
        raise UserError(f"model.kv_heads_at_equal_size = {num_kv_heads}; allowed with model.objective = {model.objective!r}: 0")
    if num_kv_heads < 1 or model.num_heads % num_kv_heads:
        whole = (g for g in range(1, model.num_heads + 1) if not model.num_heads % g)
        raise UserError(
            f"model.kv_heads_at_equal_size = {num_kv_heads} does not divide the {model.num_heads} heads of queries; "
            f"allowed: {', '.join(map(str, whole))}"
        )
    aim = layer_parameters(model)
    resized = _fit_mlp_dim(replace(model, num_kv_heads=num_kv_heads if num_kv_heads < model.num_heads else 0), aim)
    if resized is None:
        raise UserError(
            f"model.kv_heads_at_equal_size = {num_kv_heads}: no model.mlp_dim gives the layers {aim:,} parameters "
            f"within {EQUAL_SIZE:.0%}; choose another number or a wider model"
        )
    return resized


def _fit_mlp_dim(model: ModelConfig, aim: int) -> ModelConfig | None:
    """The model with the F that gives its layers `aim` parameters; None: not within 1 %."""
    rest = layer_parameters(replace(model, mlp_dim=0))
    units = layer_parameters(replace(model, mlp_dim=1)) - rest  # of one feed-forward unit in every layer
    resized = replace(model, mlp_dim=round((aim - rest) / units))
    return resized if resized.mlp_dim >= 1 and abs(layer_parameters(resized) / aim - 1) <= EQUAL_SIZE else None


def _base_layers(model: ModelConfig) -> int:
    """L0 of CompleteP in another shape: the depth that this one was tuned at."""
    return model.base_layers or (model.num_layers if scales_layers(model) else 0)


def scales_layers(model: ModelConfig) -> bool:
    """Whether the residual scheme is CompleteP, or one of the user's that has its share of the
    optimizer. mhsh's own are not asked, as they load jax.
    """
    if SCHEMES.files(model.residual):
        return SCHEMES[model.residual].residual.layer_scales(model) is not None
    return model.residual == "completep"


def feed_forward_kernels(model: ModelConfig) -> int:
    """The kernels of one feed-forward sublayer."""
    return 3 if model.mlp == "gated" else 2


def attention_weights(model: ModelConfig) -> int:
    """Elements of the kernels of one attention sublayer."""
    return 2 * model.embed_dim * (model.num_heads + model.kv_heads) * model.head_dim


def feed_forward_weights(model: ModelConfig) -> int:
    """Elements of the kernels of one feed-forward sublayer."""
    return feed_forward_kernels(model) * model.embed_dim * model.mlp_dim


def layer_parameters(model: ModelConfig) -> int:
    """Weights, biases and LayerNorms of the layers of both stacks, of a Post-LN model; and what
    mixes the streams of mhc_lite. What other schemes have is at most a few vectors a sublayer.
    """
    d, inner = model.embed_dim, feed_forward_kernels(model) - 1  # products into the hidden layer
    biases = (model.num_heads + 2 * model.kv_heads) * model.head_dim + d, inner * model.mlp_dim + d
    attention = attention_weights(model) + model.bias * biases[0]
    feed_forward = feed_forward_weights(model) + model.bias * biases[1]
    norm = d + (model.bias and model.norm == "layer") * d
    around = norm + _stream_weights(model)  # of a sublayer
    encoder = model.num_layers * (attention + feed_forward + 2 * around)
    return encoder + model.num_decoder_layers * (2 * attention + feed_forward + 3 * around)


def _stream_weights(model: ModelConfig) -> int:
    """Elements of the StreamWeights of one sublayer (mhsh/models/mhc_lite.py, which loads jax); 0
    with any other scheme. Of a narrow layer they are a third.
    """
    if model.residual != "mhc_lite":
        return 0
    streams, logits = model.residual_streams, 2 * model.residual_streams + math.factorial(model.residual_streams)
    return streams * model.embed_dim * (1 + logits) + 3 + logits
