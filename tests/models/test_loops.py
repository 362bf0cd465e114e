"""Layers that are passed several times, against as many layers with tied parameters."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from msgspec.structs import replace

from mhsh.config.entries import check_entries
from mhsh.errors import UserError
from mhsh.probes.ablation import ablation
from mhsh.probes.coverage import coverage
from mhsh.probes.dependency import dependency
from mhsh.probes.similarity import similarity
from tests.models.test_transformer import DROPOUT, EXACT, SEGMENTS, in_float64, outputs_and_gradients


def tied(params, loops):
    """The parameters of a model with `loops` times the layers, of which each is there `loops`
    times.
    """
    return params | {
        stack: params[stack] | {"layers": jax.tree.map(lambda leaf: jnp.concatenate([leaf] * loops), params[stack]["layers"])}
        for stack in ("encoder", "decoder")
        if stack in params
    }


# A closed omega, which counts sublayers; layers that are numbered, in groups; blocks of four
# sublayers, which begin within a pass.
@pytest.mark.parametrize(
    "changes",
    [
        dict(residual="admin", admin_omega="closed_log"),
        dict(residual="ln_scaling", remat_policy="groups"),
        dict(residual="block_attn_res", residual_blocks=3),
    ],
    ids=lambda changes: changes["residual"],
)
def test_two_passes_are_twice_the_layers_with_tied_parameters(tiny, make_batch, random_params, error, changes):
    """Values are equal, dropout too, and gradients add up."""
    config = tiny(num_layers=3, loops=2, **changes, **DROPOUT)
    batch, params = make_batch(SEGMENTS), random_params(config)
    config = replace(config, compute_dtype="float64", residual_dtype="float64")
    with in_float64():
        params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), params)
        outputs, gradients = outputs_and_gradients(config, params, batch)
        expected, of_tied = outputs_and_gradients(replace(config, num_layers=6, loops=1), tied(params, 2), batch)
        sums = jax.tree.map(lambda leaf: leaf.reshape(2, 3, *leaf.shape[1:]).sum(axis=0), of_tied["encoder"]["layers"])
    assert error(outputs, expected) < EXACT
    assert error(gradients, of_tied | {"encoder": of_tied["encoder"] | {"layers": sums}}) < EXACT


@pytest.mark.parametrize("probe", [coverage, dependency, similarity], ids=lambda probe: probe.__name__)
def test_probes_see_the_layers_as_a_token_passes_them(tiny, make_batch, random_params, probe):
    config, batch = tiny(num_layers=2, loops=2, residual="pre_ln"), make_batch(SEGMENTS)
    params = random_params(config)
    found, expected = probe(config, params, batch), probe(replace(config, num_layers=4, loops=1), tied(params, 2), batch)
    assert jax.tree.leaves(found) == pytest.approx(jax.tree.leaves(expected), rel=1e-4)
    assert jax.tree.structure(found) == jax.tree.structure(expected)


def test_an_ablation_of_one_pass_is_refused(tiny, make_batch, random_params):
    config = tiny(loops=2, residual="pre_ln")
    with pytest.raises(UserError, match=r"model\.loops = 2: a layer is in every pass; allowed with mhsh probe ablation: 1"):
        ablation(config, random_params(config), [make_batch(SEGMENTS)])


def test_completep_does_not_know_passes(make_config):
    config = make_config("gpt", "6l4h_x2", **{"model.residual": "completep"})
    with pytest.raises(UserError, match=r"^model\.loops = 2; allowed with model\.residual = 'completep': 1$"):
        check_entries(config)
