"""Admin's profiled omega against a plain computation, layer after layer. What it is for, a stable
deep model: tests/probes/test_amplification.py.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import AxisType
from msgspec.structs import replace
from scipy.special import erf

from mhsh.config.entries import add_residual
from mhsh.models.admin import is_profiled, profile_omega, read_omega, set_omega
from mhsh.models.build import build_model
from mhsh.models.schemes import Admin
from mhsh.training.sharding import MESH_AXES, axis_rules, batch_sharding, named_shardings
from tests.models.plain import attention, encoder_decoder, feed_forward, may_look, norm, run_stack

TOLERANCE = 1e-5

# Eight rows, so that they can lie on eight devices; pack, padded and full ones.
SEGMENTS = [[1] * 8, [1, 1, 1, 2, 2, 2, 2, 0], [1, 1, 0, 0, 0, 0, 0, 0], [1] * 7 + [0]] * 2


@pytest.fixture(scope="module")
def profiled(tiny, make_batch, fresh):
    """A fresh six-layer causal Admin model, a packed and padded batch, and its profiled omega by
    stack. (The encoder of the translation model below is not causal.)
    """
    config = tiny(residual="admin", num_layers=6, objective="clm", next_sentence=False)
    batch = make_batch(SEGMENTS)
    params = fresh(config, batch)
    return config, params, batch, profile(config)(params, batch)


def profile(config):
    return jax.jit(functools.partial(profile_omega, config))


def profiling(real, omegas, epsilon):
    """A join that appends omega_(i+1): omega_1 = 1, omega_(i+1)^2 = Var[omega_i x_(i-1)] +
    Var[f_i(x_(i-1))].
    """
    omegas.append(1.0)

    def join(x, f, params):
        omega, branch = omegas[-1], f(x)
        omegas.append(np.sqrt((omega * x[real]).var() + branch[real].var()))
        return norm(omega * x + branch, params["norm"], epsilon)

    return join


def plain_omega(params, batch):
    """omega of a causal BERT, in numpy and float64. No padding counts, here or in attention."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    segments, table, omegas = batch["inputs_segmentation"], params["embeddings"], []
    x = table["token"][batch["inputs"]] + table["position"][batch["inputs_position"]] + table["token_type"][batch["token_types"]]
    look = may_look(segments, segments, causal=True)
    sublayers = {
        "attention": lambda p, x: attention(p, x, x, look),
        "feed_forward": lambda p, x: feed_forward(p, x, lambda hidden: hidden * 0.5 * (1 + erf(hidden / np.sqrt(2)))),
    }
    run_stack(params["encoder"], sublayers, norm(x, table["norm"]), profiling(segments > 0, omegas, 1e-12))
    return np.reshape(omegas[:-1], (-1, 2))


def test_it_is_the_plain_computation_starts_at_one_and_grows_with_depth(profiled):
    _, params, batch, omega = profiled
    assert omega.keys() == {"encoder"}
    np.testing.assert_allclose(omega["encoder"], plain_omega(params, batch), rtol=TOLERANCE)
    assert omega["encoder"][0, 0] == 1.0 and (np.diff(omega["encoder"].ravel()) > 0).all()


def test_rematerialisation_unrolling_and_dropout_do_not_matter(profiled):
    config, params, batch, omega = profiled
    other = replace(config, remat_policy="full", hidden_dropout=0.5, scan_unroll=6)
    np.testing.assert_allclose(profile(other)(params, batch)["encoder"], omega["encoder"], rtol=1e-6)


def test_on_eight_devices_it_is_the_same(profiled):
    config, params, batch, omega = profiled
    mesh = jax.make_mesh((2, 2, 2), MESH_AXES, axis_types=(AxisType.Auto,) * 3)
    boxed = jax.eval_shape(lambda: build_model(config).init(jax.random.key(0), batch, None))["params"]
    shardings = named_shardings(boxed, mesh, config)
    with jax.set_mesh(mesh), nn.logical_axis_rules(axis_rules(config)):
        in_shardings = (shardings, dict.fromkeys(batch, batch_sharding(mesh)))
        on_mesh = jax.jit(functools.partial(profile_omega, config), in_shardings=in_shardings)(params, batch)
    assert any(len(sharding.device_set) == 8 and not sharding.is_fully_replicated for sharding in jax.tree.leaves(shardings))
    np.testing.assert_allclose(on_mesh["encoder"], omega["encoder"], rtol=TOLERANCE)


@pytest.mark.usefixtures("forgotten")
def test_a_scheme_derived_of_admin_is_profiled_too(tiny):
    add_residual("derived")(type("Derived", (Admin,), {"__module__": __name__}))
    assert is_profiled(tiny(residual="derived", admin_omega="profiled"))
    assert not is_profiled(tiny(residual="derived", admin_omega="closed_log"))
    assert not is_profiled(tiny(residual="post_ln", admin_omega="profiled"))


PAIRS = ([[1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0]], [[1, 1, 2, 2, 2], [1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])


@pytest.fixture(scope="module")
def translation(tiny_seq2seq, make_pairs, fresh):
    """A fresh Admin model of an encoder and a decoder, packed and padded pairs, and its profiled
    omega by stack.
    """
    config = tiny_seq2seq(residual="admin", positions="learned")
    batch = make_pairs(*PAIRS)
    params = fresh(config, batch)
    return config, params, batch, profile(config)(params, batch)


def test_encoder_and_decoder_each_start_at_one_and_follow_the_recurrence(translation):
    config, params, batch, omega = translation
    assert {stack: figures.shape for stack, figures in omega.items()} == {"encoder": (2, 2), "decoder": (3, 3)}
    expected = {"encoder": [], "decoder": []}
    joins = {
        name: profiling(batch[f"{side}_segmentation"] > 0, expected[name], config.layer_norm_epsilon)
        for name, side in (("encoder", "inputs"), ("decoder", "targets"))
    }
    encoder_decoder(config, jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params), batch, joins)
    for name, figures in omega.items():
        assert figures[0, 0] == 1.0
        np.testing.assert_allclose(np.ravel(figures), expected[name][:-1], rtol=TOLERANCE)


def test_set_and_read(translation):
    """Nothing but omega moves, and the old tree still holds what it held."""
    _, params, _, omega = translation
    held = read_omega(set_omega(params, omega))
    assert {stack: vectors.shape for stack, vectors in held.items()} == {"encoder": (2, 2, 12), "decoder": (3, 3, 12)}
    for stack, figures in omega.items():
        np.testing.assert_array_equal(held[stack], np.broadcast_to(figures[:, :, None], held[stack].shape))
        assert (np.asarray(read_omega(params)[stack]) == 1.0).all()
    back = set_omega(set_omega(params, omega), jax.tree.map(jnp.ones_like, omega))
    jax.tree.map(np.testing.assert_array_equal, back, params)
