"""Block Attention Residuals against the loop of the paper's figure 2, and where they start."""

from __future__ import annotations

import jax
import pytest

from mhsh.models.block_attn_res import block_size
from mhsh.models.build import build_model, forward
from mhsh.models.types import encoder_stack
from tests.models.plain import SEGMENTS, attention, encoder_errors, feed_forward, library, may_look, norm, run_stack


def attended(blocks, params, epsilon):
    """sum_i a_i b_i of one list of blocks [B,T,D], a = softmax_i(w . RMSNorm(b_i)), a block at a
    time.
    """
    xp = library(blocks[0])
    exponentials = []
    for block in blocks:
        key = block / xp.sqrt((block**2).mean(axis=-1, keepdims=True) + epsilon) * params["norm_scale"]
        exponentials.append(xp.exp((key * params["query"]).sum(axis=-1, keepdims=True)))
    return sum(e / sum(exponentials) * block for e, block in zip(exponentials, blocks, strict=True))


def plain_encoder(params, x, size, epsilon):
    """The loop of figure 2, with `size` sublayers in a block: (blocks, partial sum, count) is what
    goes from sublayer to sublayer.
    """

    def join(state, f, p):
        blocks, partial, count = state
        h = attended([*blocks, partial], p["weights"], epsilon)
        if count % size == 0:
            blocks, partial = [*blocks, partial], 0
        return blocks, partial + f(norm(h, p["norm"], epsilon)), count + 1

    look = may_look(SEGMENTS, SEGMENTS)
    sublayers = {"attention": lambda p, x: attention(p, x, x, look), "feed_forward": feed_forward}
    blocks, partial, _ = run_stack(params, sublayers, ([], x, 0), join)
    return norm(attended([*blocks, partial], params["output_weights"], epsilon), params["final_norm"], epsilon)


# Of six sublayers: three blocks of two, where four would not do; and each a block.
@pytest.mark.parametrize(("num_blocks", "size"), [(4, 2), (100, 1)])
def test_values_and_gradients_are_those_of_the_papers_loop(tiny, random_like, error, num_blocks, size):
    config = tiny(residual="block_attn_res", residual_blocks=num_blocks, activation="relu", layer_norm_epsilon=1e-5)
    assert block_size(config, encoder_stack(config)) == size
    assert max(encoder_errors(config, random_like, error, lambda params, x: plain_encoder(params, x, size, 1e-5))) < 1e-4


def test_equal_weights_are_pre_ln(tiny, make_batch, fresh, error):
    """The query starts at 0: h is a mean of the blocks, and LayerNorm does not see the factor."""
    batch = make_batch(SEGMENTS)
    outputs = []
    for residual in ("pre_ln", "block_attn_res"):
        config = tiny(residual=residual, residual_blocks=2, layer_norm_epsilon=1e-12)
        outputs.append(jax.jit(forward, static_argnums=0)(build_model(config), fresh(config, batch), batch, None).logits)
    assert error(outputs[1], outputs[0]) < 1e-5
