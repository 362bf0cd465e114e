"""The optimiser: what decays, the schedule, AdamW and LAMB against optax's own, clipping."""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict
from msgspec.structs import replace

from mhsh.config.entries import SCHEMES, add_optimizer
from mhsh.config.schema import OBJECTIVES
from mhsh.errors import UserError
from mhsh.models.costs import parameter_shapes
from mhsh.models.parameters import DECAYED_PARAMETERS, has_decay
from mhsh.training.checkpoints.verify import checksums, flatten
from mhsh.training.optimizer import build_optimizer, count_decayed, decay_mask
from tests.training.optimizers import CLOSE, by_path, gradients, optimizer_with_rate, rate_of, trained

MASK = functools.partial(decay_mask, "admin")


@pytest.mark.usefixtures("forgotten")
def test_an_entry_that_returns_no_update_is_named(make_config):
    add_optimizer("nothing")(lambda optimizer: None)
    with pytest.raises(UserError, match=r"^optimizer.name = 'nothing' returns a NoneType; return an optax.Gradient"):
        build_optimizer(make_config("bert", "2l8h", **{"optimizer.name": "nothing"}))


@pytest.mark.usefixtures("forgotten")
def test_the_random_key_of_an_entry_is_in_a_checkpoint(make_config):
    """As optax's own transformation draws, and as numbers between the updates."""
    noise = optax.add_noise(1.0, 0.5, 3)
    add_optimizer("noisy")(lambda optimizer: noise)
    rest = {"optimizer.name": "noisy", "optimizer.clip_norm": 0.0, "optimizer.weight_decay": 0.0}
    update = build_optimizer(make_config("bert", "2l8h", **rest))
    params = {"embeddings": {"token": jnp.ones((4, 2))}}
    state, plain = update.init(params), noise.init(params)
    for _ in range(2):
        assert len(checksums(flatten(state))) == 2
        expected, plain = noise.update(params, plain)
        got, state = update.update(params, state, params, learning_rate=-1.0, grad_norm=1.0)
        jax.tree.map(np.testing.assert_array_equal, got, expected)


# What decays.


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("residual", SCHEMES.names())
def test_the_table_covers_every_parameter(make_config, residual, objective):
    if objective == "translation":
        model = make_config("translation", "tiny", **{"model.positions": "learned"}).model
        positions = {"embeddings/source_position", "embeddings/target_position"}
    else:
        model = make_config("bert", "2l8h").model
        positions = {"embeddings/position", "embeddings/token_type"}
    head = dict(next_sentence=objective == "mlm", num_classes=3 if objective == "classification" else 0)
    model = replace(model, residual=residual, objective=objective, **head)
    mask = by_path(decay_mask(residual, parameter_shapes(model)))
    assert len(mask) > 20
    decayed = {path for path, decays in mask.items() if decays}
    assert decayed == {path for path in mask if path.endswith("kernel")} | {"embeddings/token"} | positions
    spared = {path.split("/")[-1].split("_")[-1] for path in mask if path not in decayed}
    extra = {"admin": {"omega"}, "rezero": {"alpha"}, "block_attn_res": {"query"}, "mhc_lite": {"alpha"}}.get(residual, set())
    # ReZero has no LayerNorm, and the embeddings of translation have none either.
    norms = set() if (residual, objective) == ("rezero", "translation") else {"scale"}
    assert spared == {"bias"} | norms | extra


def test_the_decayed_parameters_are_counted(make_config):
    shapes = parameter_shapes(make_config("bert", "2l8h").model)
    tables = [shape.size for path, shape in by_path(shapes).items() if path.endswith("kernel") or path.startswith("embeddings/")]
    norms = [shape.size for path, shape in by_path(shapes).items() if path.startswith("embeddings/") and "norm" in path]
    assert count_decayed("admin", shapes) == sum(tables) - sum(norms)


def test_every_row_of_the_table_is_needed(make_config):
    paths = by_path(parameter_shapes(replace(make_config("bert", "2l8h").model, residual="post_ln")))
    first_rows = {next(i for i, pattern in enumerate(DECAYED_PARAMETERS) if re.search(pattern, path)) for path in paths}
    assert first_rows == set(range(len(DECAYED_PARAMETERS)))


@pytest.mark.parametrize("path", [("encoder", "layers", "gate"), ("embeddings", "segment"), ("token",)])
def test_a_parameter_that_no_row_covers_is_an_error(path):
    tree = jnp.ones(())
    for name in reversed(path):
        tree = {name: tree}
    with pytest.raises(UserError, match=f"nothing says whether the parameter {'/'.join(path)} has weight decay"):
        decay_mask("rezero", tree)


@pytest.mark.parametrize(
    ("path", "decays"),
    [
        ("encoder/layers/attention_residual/scale", True),
        ("encoder/layers/attention_residual/dense/kernel", False),
        ("encoder/output_weights/bias", True),
        ("encoder/layers/attention_residual/norm/scale", False),
        ("encoder/final_norm/scale", False),
        ("embeddings/norm/scale", False),
        ("prediction/kernel", True),
        ("encoder/layers/attention/out_bias", False),
    ],
)
def test_a_scheme_decides_about_its_own_parameters_alone(path, decays):
    assert has_decay(path, {"scale": True, "kernel": False, "bias": True, "out_bias": True}) is decays


# CompleteP.


@pytest.fixture(scope="module")
def without_omega(params):
    """The parameters without Admin's omega."""
    return unflatten_dict({path: leaf for path, leaf in flatten_dict(params).items() if path[-1] != "omega"})


@pytest.mark.parametrize("exponent", [1.0, 0.5])
def test_completep_scales_the_layers_epsilon_and_rate(settings, without_omega, exponent):
    """Eight times as deep: epsilon 8^-a and rate 8^(a-1) times theirs, elsewhere the plain ones."""
    base = settings(weight_decay=0.3, clip_norm=0.0, epsilon=0.1, schedule="constant", warmup_steps=0)
    model = replace(base.model, residual="completep", num_layers=16, base_layers=2, depth_exponent=exponent)
    after = by_path(trained(optimizer_with_rate(replace(base, model=model)), without_omega))
    for path, leaf in by_path(without_omega).items():
        factor = 8.0 if "layers" in path else 1.0
        reference = optax.adamw(
            0.1 * factor ** (exponent - 1),
            0.9,
            0.999,
            0.1 * factor**-exponent,
            weight_decay=0.3,
            mask=MASK,
        )
        alone = by_path(trained(reference, without_omega))[path]
        assert not np.allclose(alone, leaf)
        np.testing.assert_allclose(after[path], alone, **CLOSE, err_msg=path)


def test_completep_at_its_own_depth_is_plain(settings, without_omega):
    base = settings()
    ours = optimizer_with_rate(replace(base, model=replace(base.model, residual="completep")))
    plain = trained(optimizer_with_rate(base), without_omega)
    assert jax.tree.all(jax.tree.map(np.array_equal, trained(ours, without_omega), plain))


# The schedule.


@pytest.mark.parametrize(
    ("schedule", "warmup", "steps", "expected"),
    [
        # {step: rate}: the update of step k is the (k + 1)-th; peak 0.1.
        ("linear", 4, 13, {0: 0.025, 1: 0.05, 3: 0.1, 4: 0.09, 8: 0.05, 12: 0.01, 13: 0.0, 20: 0.0}),
        ("constant", 4, 14, {0: 0.025, 2: 0.075, 3: 0.1, 4: 0.1, 13: 0.1, 1000: 0.1}),
        ("linear", 0, 9, {0: 0.09, 4: 0.05, 8: 0.01, 9: 0.0}),
        ("linear", 0, 1, {0: 0.05}),
        ("constant", 0, 10, {0: 0.1, 9: 0.1}),
        ("linear", 5, 5, {0: 0.02, 4: 0.1}),
        ("inverse_sqrt", 4, 1000, {0: 0.025, 1: 0.05, 3: 0.1, 8: 0.1 * 2 / 3, 15: 0.05, 399: 0.01}),
        ("cosine", 4, 7, {0: 0.025, 3: 0.1, 4: 0.1 * 0.5 * (1 + 2**-0.5), 5: 0.05, 6: 0.1 * 0.5 * (1 - 2**-0.5), 7: 0.0}),
        ("wsd 0", 4, 14, {0: 0.025, 3: 0.1, 4: 0.1, 13: 0.1}),
        ("wsd 3", 4, 14, {0: 0.025, 3: 0.1, 10: 0.1, 11: 0.075, 12: 0.05, 13: 0.025, 14: 0.0}),
        ("wsd 10", 4, 14, {3: 0.1, 4: 0.1 * 10 / 11, 13: 0.1 / 11}),
    ],
)
def test_schedule(settings, schedule, warmup, steps, expected):
    schedule, *decay = schedule.split()
    fields = dict(decay_steps=int(decay[0])) if decay else {}
    rate = rate_of(settings(schedule=schedule, warmup_steps=warmup, num_steps=steps, **fields))
    for step, value in expected.items():
        assert float(rate(step)) == pytest.approx(value, abs=1e-7), step
        assert float(rate(jnp.asarray(step))) == pytest.approx(value, abs=1e-7), step


@pytest.mark.parametrize("schedule", ["linear", "cosine", "wsd"])
def test_a_fall_ends_at_the_end_rate(settings, schedule):
    fields = dict(decay_steps=6) if schedule == "wsd" else {}
    rate = rate_of(settings(schedule=schedule, warmup_steps=2, num_steps=20, end_learning_rate=0.01, **fields))
    rates = [float(rate(step)) for step in range(2, 21)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == pytest.approx(0.01) and rates[-2] > 0.01


def test_the_update_uses_the_rate_of_its_step(settings):
    """Adam's first update of a constant gradient is the rate itself."""
    config = settings(schedule="linear", warmup_steps=2, weight_decay=0.0, clip_norm=0.0, beta1=0.0, beta2=0.0, epsilon=1e-12)
    optimizer = optimizer_with_rate(config)
    params = {"kernel": jnp.zeros(3)}
    state, rates = optimizer.init(params), []
    for step in range(5):
        updates, state = optimizer.update({"kernel": jnp.ones(3)}, state, params, step=step)
        rates.append(-float(updates["kernel"][0]))
    np.testing.assert_allclose(rates, [float(rate_of(config)(step)) for step in range(5)], **CLOSE)
    assert rates[0] == pytest.approx(0.05)


# AdamW and LAMB.


@pytest.mark.parametrize(("name", "decay"), [("adamw", 0.3), ("radam", 0.0)])
def test_adamw_and_radam_are_optaxs_with_that_mask(settings, params, name, decay):
    config = settings(name=name, weight_decay=decay, clip_norm=0.0)
    mask = {path: path.endswith("kernel") or path == "embeddings/token" for path in by_path(params)}
    fields = dict(weight_decay=decay, mask=mask) if decay else {}
    reference = getattr(optax, name)(rate_of(config), 0.9, 0.999, 1e-6, **fields)
    after = by_path(trained(optimizer_with_rate(config), params))
    expected = trained(reference, by_path(params), lambda _, step: by_path(gradients(params, step)))
    for path, leaf in after.items():
        np.testing.assert_allclose(leaf, expected[path], **CLOSE, err_msg=path)


def test_lamb_treats_every_layer_as_a_parameter_of_its_own(settings, params):
    """Kernels and tables: optax's LAMB on each layer's slice. Biases, norms and omegas: Adam, with
    neither decay nor ratio.
    """
    config = settings(name="lamb", weight_decay=0.3, clip_norm=0.0)
    schedule = rate_of(config)
    after = by_path(trained(optimizer_with_rate(config), params))
    mask = by_path(MASK(params))

    def slices(tree):
        return {
            (path, layer): piece
            for path, leaf in by_path(tree).items()
            for layer, piece in (enumerate(leaf) if "layers" in path else [(None, leaf)])
        }

    def expected(optimizer, decayed):
        def pick(tree):
            return {str(key): piece for key, piece in slices(tree).items() if mask[key[0]] == decayed}

        return trained(optimizer, pick(params), lambda _, step: pick(gradients(params, step)))

    reference = expected(optax.lamb(schedule, 0.9, 0.999, 1e-6, weight_decay=0.3), True)
    reference |= expected(optax.adam(schedule, 0.9, 0.999, 1e-6), False)
    pieces = slices(after)
    assert len(reference) == len(pieces) == 5 * 4 + 3
    for key, piece in pieces.items():
        np.testing.assert_allclose(piece, reference[str(key)], **CLOSE, err_msg=str(key))


# Clipping.


def test_gradients_are_clipped_by_their_global_norm(settings, params):
    clipped, free = (optimizer_with_rate(settings(clip_norm=norm, epsilon=1.0)) for norm in (0.5, 0.0))
    assert float(optax.tree.norm(gradients(params, 0))) > 1

    def scaled(params, step):
        """What clipping should leave, worked out here."""
        raw = gradients(params, step)
        length = np.sqrt(sum(float((leaf.astype(jnp.float32) ** 2).sum()) for leaf in jax.tree.leaves(raw)))
        return jax.tree.map(lambda leaf: leaf * 0.5 / length, raw)

    expected = trained(free, params, scaled)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **CLOSE), trained(clipped, params), expected)
    without = trained(free, params)
    assert not np.allclose(by_path(without)["embeddings/token"], by_path(expected)["embeddings/token"], rtol=1e-3)


def test_small_gradients_are_left_alone(settings, params):
    def small(params, step):
        return jax.tree.map(lambda leaf: 1e-4 * leaf, gradients(params, step))

    assert float(optax.tree.norm(small(params, 0))) < 0.5
    clipped, free = (trained(optimizer_with_rate(settings(clip_norm=norm)), params, small) for norm in (0.5, 0.0))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **CLOSE), clipped, free)
