"""Folding and padding: the plain BERT computes what the model did, within fp32's rounding, and what
cannot be had is refused.
"""

from __future__ import annotations

import copy

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mhsh.config.entries import SCHEMES
from mhsh.errors import UserError
from mhsh.interop.export_bert import SMALLEST_OMEGA, check_exportable, pad_heads, plain_bert
from tests.interop.small_bert import HEADS, as_batch, outputs, random_inputs, small_model, trained_params

TOLERANCE = 1e-5  # absolute, fp32, on logits of size 1 to 10


def difference(model, params, plain, plain_params):
    inputs = random_inputs(model)
    a, b = (outputs(each, values, as_batch(*inputs)) for each, values in ((model, params), (plain, plain_params)))
    real = inputs[1] > 0
    logits = np.abs(np.asarray(a.logits) - np.asarray(b.logits))[real].max()
    return max(logits, np.abs(np.asarray(a.next_sentence) - np.asarray(b.next_sentence)).max())


@pytest.mark.parametrize(
    "fields",
    [
        dict(residual="admin", num_heads=3),
        dict(residual="deepnorm", num_heads=2),
        dict(residual="post_ln", num_heads=1),
        dict(residual="admin", num_heads=5, head_dim=1, positions="sinusoidal", num_layers=3),
    ],
)
def test_the_plain_model_computes_the_same(fields):
    model = small_model(**HEADS["pretraining"], **fields)
    params = trained_params(model)
    before = copy.deepcopy(params)
    plain, plain_params = plain_bert(model, params)
    assert plain.residual == "post_ln" and plain.positions == "learned"
    assert plain.num_heads * plain.head_dim == plain.embed_dim
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(plain_params))
    assert difference(model, params, plain, plain_params) < TOLERANCE
    jax.tree.map(np.testing.assert_array_equal, params, before)  # nothing was written into what was given


def test_a_model_without_token_types_reads_none():
    model = small_model(**HEADS["mlm"], num_token_types=0)
    params = trained_params(model)
    plain, plain_params = plain_bert(model, params)
    ids, mask, types = random_inputs(model)
    a = outputs(model, params, as_batch(ids, mask, types))
    b = outputs(plain, plain_params, as_batch(ids, mask, types))
    np.testing.assert_array_equal(np.asarray(a.logits), np.asarray(b.logits))


@pytest.mark.parametrize("value", [0.0, -SMALLEST_OMEGA / 2, np.inf, np.nan])
def test_an_omega_that_cannot_be_divided_by(value):
    model = small_model(**HEADS["mlm"], residual="admin")
    params = trained_params(model)
    params["encoder"]["layers"]["feed_forward_residual"]["omega"][1, 7] = value
    with pytest.raises(UserError, match=r"omega of encoder layer 1, feed_forward, element 7, is .*folding divides"):
        plain_bert(model, params)


def test_a_small_omega_is_no_trouble():
    model = small_model(**HEADS["pretraining"], residual="admin")
    params = trained_params(model)
    params["encoder"]["layers"]["attention_residual"]["omega"][:, 3] = [2 * SMALLEST_OMEGA, -1e4]
    assert difference(model, params, *plain_bert(model, params)) < TOLERANCE


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        *((dict(objective=name), f"model.objective = '{name}' cannot be exported: no BERT") for name in ("clm", "translation")),
        *(
            (dict(residual=name), f"model.residual = '{name}' cannot be exported: .*; exportable: post_ln, admin, deepnorm")
            for name in sorted({*SCHEMES.names()} - {"post_ln", "admin", "deepnorm"})
        ),
        (dict(qk_norm=True), "model.qk_norm = True cannot be exported"),
        (dict(num_heads=4), "model.num_heads = 4 of model.head_dim = 4 cannot be exported"),
    ],
)
def test_what_no_bert_computes(fields, reason):
    with pytest.raises(UserError, match=reason):
        check_exportable(replace(small_model(**HEADS["mlm"]), **fields))


@given(num_heads=st.integers(1, 12), head_dim=st.integers(1, 12), embed_dim=st.sampled_from([12, 30, 7, 16]))
def test_the_grid_of_heads(num_heads, head_dim, embed_dim):
    """The fewest heads from N on that share D evenly with room for H, found by trying all."""
    model = small_model(num_heads=num_heads, head_dim=head_dim, embed_dim=embed_dim)
    grids = [(n, embed_dim // n) for n in range(num_heads, embed_dim + 1) if embed_dim % n == 0 and embed_dim // n >= head_dim]
    if not grids:
        with pytest.raises(UserError, match="cannot be exported"):
            check_exportable(model)
        return
    check_exportable(model)
    layers = {
        "attention": {
            **{f"{part}_kernel": np.ones((1, embed_dim, num_heads, head_dim), np.float32) for part in ("query", "key", "value")},
            **{f"{part}_bias": np.ones((1, num_heads, head_dim), np.float32) for part in ("query", "key", "value")},
            "out_kernel": np.ones((1, num_heads, head_dim, embed_dim), np.float32),
        }
    }
    wide, params = pad_heads(model, {"encoder": {"layers": layers}})
    assert (wide.num_heads, wide.head_dim) == grids[0]
    attention = params["encoder"]["layers"]["attention"]
    assert attention["key_kernel"].shape == (1, embed_dim, *grids[0]) and attention["out_kernel"].shape == (1, *grids[0], embed_dim)
    assert attention["key_kernel"].sum() == embed_dim * num_heads * head_dim  # all the rest is zero
