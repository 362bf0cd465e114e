"""Admin's profiled omega against a plain computation, layer after layer, and what it is for: a stable deep model."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import AxisType
from scipy.special import erf

from mhsh.models.admin import profile_omega, read_omega, set_omega
from mhsh.models.bert import build_model, forward
from mhsh.training.sharding import MESH_AXES, axis_rules, batch_sharding, tree_shardings

TOLERANCE = 1e-5

# Eight rows, so that they can lie on eight devices; packed, padded and full ones.
SEGMENTS = [[1] * 8, [1, 1, 1, 2, 2, 2, 2, 0], [1, 1, 0, 0, 0, 0, 0, 0], [1] * 7 + [0]] * 2


@pytest.fixture(scope="module")
def profiled(tiny, make_batch, fresh):
    """A fresh six-layer Admin model, a padded batch, and its profiled omega [L, 2]."""
    config = tiny(residual="admin", num_layers=6)
    batch = make_batch(SEGMENTS)
    params = fresh(config, batch)
    return config, params, batch, np.asarray(jax.jit(functools.partial(profile_omega, config))(params, batch))


def layer_norm(x, params):
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-12) * params["scale"] + params["bias"]


def attention(params, x, segments):
    """A sum over heads of softmax(Q K^T / sqrt(H)) V W^O, each row by itself."""
    out = np.zeros_like(x)
    _, num_heads, head_dim = params["query_kernel"].shape
    for row, (tokens, segment) in enumerate(zip(x, segments, strict=True)):
        may_look = (segment[:, None] == segment[None, :]) & (segment[None, :] > 0)
        for i in range(num_heads):
            query, key, value = (tokens @ params[f"{name}_kernel"][:, i] for name in ("query", "key", "value"))
            scores = np.where(may_look, query @ key.T / np.sqrt(head_dim), -1e9)
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            out[row] += scores / scores.sum(axis=1, keepdims=True) @ value @ params["out_kernel"][i]
    return out


def feed_forward(params, x):
    hidden = x @ params["up_kernel"]
    return hidden * 0.5 * (1 + erf(hidden / np.sqrt(2))) @ params["down_kernel"]


def plain_omega(params, batch, num_layers):
    """omega_1 = 1; omega_(i+1)^2 = Var[omega_i x_(i-1)] + Var[f_i(x_(i-1))], in numpy and float64; biases start at zero."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    segments = batch["inputs_segmentation"]
    real = segments > 0
    table = params["embeddings"]
    x = table["token"][batch["inputs"]] + table["position"][batch["inputs_position"]] + table["token_type"][batch["token_types"]]
    x = layer_norm(x, table["norm"])
    omega, omegas = 1.0, []
    for index in range(num_layers):
        layer = jax.tree.map(lambda stacked: stacked[index], params["encoder"]["layers"])  # noqa: B023
        for name in ("attention", "feed_forward"):
            branch = attention(layer[name], x, segments) if name == "attention" else feed_forward(layer[name], x)
            omegas.append(omega)
            following = np.sqrt((omega * x[real]).var() + branch[real].var())
            x = layer_norm(omega * x + branch, layer[f"{name}_residual"]["norm"])
            omega = following
    return np.array(omegas).reshape(num_layers, 2)


def test_equals_a_plain_computation(profiled):
    config, params, batch, omega = profiled
    assert (batch["inputs_segmentation"] == 0).any()
    np.testing.assert_allclose(omega, plain_omega(params, batch, config.num_layers), rtol=TOLERANCE)


def test_starts_at_one_and_grows_with_depth(profiled):
    omega = profiled[-1].ravel()
    assert omega[0] == 1.0
    assert (np.diff(omega) > 0).all()


def test_padding_counts_for_nothing(profiled):
    config, params, batch, omega = profiled
    padding = batch["inputs_segmentation"] == 0
    garbage = {key: np.where(padding, np.roll(batch[key], 3) % 2, batch[key]).astype(np.int32) for key in ("inputs", "token_types")}
    assert (garbage["inputs"] != batch["inputs"]).any()
    changed = profile_under(config)(params, batch | garbage)
    np.testing.assert_allclose(changed, omega, rtol=1e-6)
    wider = {key: np.pad(rows, ((0, 0), (0, 4))) if rows.ndim == 2 else rows for key, rows in batch.items()}
    np.testing.assert_allclose(profile_under(config)(params, wider), omega, rtol=1e-6)


def profile_under(config):
    return jax.jit(functools.partial(profile_omega, config))


def test_other_tokens_give_another_omega(profiled):
    config, params, batch, omega = profiled
    other = batch | {"inputs": (batch["inputs"] + 1) % 48}
    assert not np.allclose(profile_under(config)(params, other), omega, rtol=1e-4)


@pytest.mark.parametrize("variant", [dict(remat_policy="full"), dict(scan_unroll=6), dict(hidden_dropout=0.5)], ids=str)
def test_rematerialisation_unrolling_and_dropout_do_not_matter(profiled, tiny, variant):
    _, params, batch, omega = profiled
    config = tiny(residual="admin", num_layers=6, **variant)
    np.testing.assert_allclose(profile_under(config)(params, batch), omega, rtol=1e-6)


def test_causal_models_are_profiled_too(tiny, make_batch, fresh):
    config = tiny(residual="admin", objective="clm", next_sentence=False)
    batch = make_batch(SEGMENTS)
    omega = profile_under(config)(fresh(config, batch), batch)
    assert omega.shape == (3, 2) and omega[0, 0] == 1.0 and (np.diff(np.ravel(omega)) > 0).all()


def test_set_and_read(profiled):
    config, params, _, omega = profiled
    changed = set_omega(params, jnp.asarray(omega))
    np.testing.assert_array_equal(read_omega(changed), np.broadcast_to(omega[:, :, None], (6, 2, config.embed_dim)))
    # Nothing else has moved, and the old tree still holds what it held.
    assert (np.asarray(read_omega(params)) == 1.0).all()
    back = set_omega(changed, jnp.ones((6, 2)))
    jax.tree.map(np.testing.assert_array_equal, back, params)


def test_on_eight_devices_it_is_the_same(profiled):
    config, params, batch, omega = profiled
    mesh = jax.make_mesh((2, 2, 2), MESH_AXES, axis_types=(AxisType.Auto,) * 3)
    boxed = jax.eval_shape(lambda: build_model(config).init(jax.random.key(0), batch, deterministic=True))["params"]
    shardings = tree_shardings(boxed, mesh, config)
    with jax.set_mesh(mesh), nn.logical_axis_rules(axis_rules(config)):
        profile = jax.jit(
            functools.partial(profile_omega, config), in_shardings=(shardings, dict.fromkeys(batch, batch_sharding(mesh)))
        )
        on_mesh = profile(params, batch)
    assert any(len(sharding.device_set) == 8 and not sharding.is_fully_replicated for sharding in jax.tree.leaves(shardings))
    np.testing.assert_allclose(on_mesh, omega, rtol=TOLERANCE)


DEPTHS = (6, 24, 96)
PERTURBATION = 1e-3
SEEDS = 2


@functools.partial(jax.jit, static_argnums=0)
def output_change(config, seed):
    """E|f(w + d) - f(w)|^2 / E|f(w)|^2 over the logits of a fresh model; d is normal, for every kernel of the encoder
    a thousandth of that kernel's own deviation.
    """
    model = build_model(config)
    initial, noise, tokens = jax.random.split(jax.random.key(seed), 3)
    batch = {
        "inputs": jax.random.randint(tokens, (4, 16), 0, config.vocab_size),
        "inputs_position": jnp.broadcast_to(jnp.arange(16)[None], (4, 16)),
        "inputs_segmentation": jnp.ones((4, 16), jnp.int32),
    }
    params = nn.unbox(model.init(initial, batch, deterministic=True))["params"]
    if config.residual == "admin":
        params = set_omega(params, profile_omega(config, params, batch))

    leaves, structure = jax.tree_util.tree_flatten_with_path(params["encoder"])
    moved = [
        leaf + PERTURBATION * leaf.std() * jax.random.normal(key, leaf.shape) if path[-1].key.endswith("kernel") else leaf
        for (path, leaf), key in zip(leaves, jax.random.split(noise, len(leaves)), strict=True)
    ]
    before = forward(model, params, batch, None).logits
    after = forward(model, params | {"encoder": jax.tree.unflatten(structure, moved)}, batch, None).logits
    return ((after - before) ** 2).mean() / (before**2).mean()


def changes(make_config, residual):
    """The output change at each depth."""
    base = make_config("quickstart", "48l1h_post_ln", **{"model.residual": residual}).model
    return [
        float(np.mean([output_change(dataclasses.replace(base, num_layers=depth), seed) for seed in range(SEEDS)]))
        for depth in DEPTHS
    ]


def test_a_small_perturbation_is_amplified_far_less_with_depth_than_in_post_ln(make_config):
    """arXiv 2004.08249, section 4: the output change is O(depth) under Post-LN and O(log depth) with Admin. As the exponent g
    of a fit change ~ depth^g over 6, 24 and 96 layers: 1.25 and 0.46 when this was written.
    """
    post_ln, admin = changes(make_config, "post_ln"), changes(make_config, "admin")
    exponents = [np.polyfit(np.log(DEPTHS), np.log(change), 1)[0] for change in (post_ln, admin)]
    assert exponents[0] > 0.9, (post_ln, exponents)
    assert exponents[1] < 0.65, (admin, exponents)
    assert post_ln[-1] > 8 * admin[-1]
