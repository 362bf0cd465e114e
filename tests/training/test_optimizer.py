"""The optimiser: what decays, the schedule, AdamW and LAMB against optax's own, clipping."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from msgspec.structs import replace

from mhsh.config.schema import OBJECTIVES, RESIDUALS
from mhsh.models.costs import parameter_shapes
from mhsh.training.optimizer import build_optimizer, decay_mask, decayed_count, learning_rate, parameter_path

STEPS = 4
CLOSE = dict(rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def settings(make_config):
    """settings(name="lamb", num_steps=5): tiny BERT's config, fields of the optimiser replaced."""
    config = make_config("bert", "2l8h", **{"optimizer.warmup_steps": 2, "train.num_steps": 10, "optimizer.learning_rate": 0.1})

    def make(num_steps=10, **fields):
        return replace(config, optimizer=replace(config.optimizer, **fields), train=replace(config.train, num_steps=num_steps))

    return make


def rate_of(config):
    """The schedule of a config."""
    return learning_rate(config.optimizer, config.train)


SHAPES = {
    "embeddings": {"token": (16, 8)},
    "encoder": {
        "layers": {
            "attention": {"query_kernel": (4, 8, 2, 3), "query_bias": (4, 2, 3)},
            "attention_residual": {"omega": (4, 8), "norm": {"scale": (4, 8)}},
            "feed_forward": {"up_kernel": (4, 8, 6)},
        }
    },
    "prediction": {"kernel": (8, 8), "output_bias": (16,)},
}


@pytest.fixture(scope="module")
def params():
    """Some of an Admin model's parameters, four layers stacked, random, their scale growing from
    layer to layer.
    """
    rng = np.random.default_rng(0)

    def leaf(shape):
        growing = np.arange(1, shape[0] + 1).reshape(-1, *[1] * (len(shape) - 1))
        return jnp.asarray(0.1 * growing * rng.standard_normal(shape), jnp.float32)

    return jax.tree.map(leaf, SHAPES, is_leaf=lambda shape: isinstance(shape, tuple))


def gradients(params, step):
    """Random gradients of one step."""
    rng = np.random.default_rng(100 + step)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.standard_normal(leaf.shape), jnp.float32), params)


def trained(optimizer, params, gradients_of=gradients):
    """The parameters after STEPS updates."""
    state = optimizer.init(params)
    update = jax.jit(optax.with_extra_args_support(optimizer).update)
    all_gradients = [gradients_of(params, step) for step in range(STEPS)]
    for step, step_gradients in enumerate(all_gradients):
        updates, state = update(step_gradients, state, params, step=step)
        params = optax.apply_updates(params, updates)
    return params


def by_path(tree):
    """{path: leaf} with paths such as encoder/layers/attention/query_kernel."""
    return {parameter_path(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


# What decays.


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("residual", RESIDUALS)
def test_the_table_covers_every_parameter(make_config, residual, objective):
    if objective == "translation":
        model = make_config("translation", "tiny", **{"model.positions": "learned"}).model
        positions = {"embeddings/source_position", "embeddings/target_position"}
    else:
        model = make_config("bert", "2l8h").model
        positions = {"embeddings/position", "embeddings/token_type"}
    head = dict(next_sentence=objective == "mlm", num_classes=3 if objective == "classification" else 0)
    model = replace(model, residual=residual, objective=objective, **head)
    mask = by_path(decay_mask(parameter_shapes(model)))
    assert len(mask) > 20
    decayed = {path for path, decays in mask.items() if decays}
    assert decayed == {path for path in mask if path.endswith("kernel")} | {"embeddings/token"} | positions
    spared = {path.split("/")[-1].split("_")[-1] for path in mask if path not in decayed}
    extra = {"admin": {"omega"}, "rezero": {"alpha"}}.get(residual, set())
    # ReZero has no LayerNorm, and the embeddings of translation have none either.
    norms = set() if (residual, objective) == ("rezero", "translation") else {"scale"}
    assert spared == {"bias"} | norms | extra


def test_the_decayed_parameters_are_counted(settings, params):
    decayed = ("query_kernel", "up_kernel", "kernel", "token")
    sizes = [leaf.size for path, leaf in by_path(params).items() if path.split("/")[-1] in decayed]
    assert decayed_count(params) == sum(sizes) and len(sizes) == 4


@pytest.mark.parametrize("section", ["encoder", "embeddings"])
def test_a_parameter_that_no_row_covers_is_an_error(section):
    with pytest.raises(KeyError, match=f"no row of DECAYED_PARAMETERS covers the parameter {section}/segment"):
        decay_mask({section: {"segment": jnp.ones(())}})


# CompleteP.


@pytest.mark.parametrize("exponent", [1.0, 0.5])
def test_completep_scales_the_layers_epsilon_and_rate(settings, params, exponent):
    """Eight times as deep: epsilon 8^-a and rate 8^(a-1) times theirs, elsewhere the plain ones."""
    base = settings(weight_decay=0.3, clip_norm=0.0, epsilon=0.1, schedule="constant", warmup_steps=0)
    model = replace(base.model, residual="completep", num_layers=16, base_layers=2, depth_exponent=exponent)
    after = by_path(trained(build_optimizer(replace(base, model=model)), params))
    for path, leaf in by_path(params).items():
        factor = 8.0 if "layers" in path else 1.0
        reference = optax.adamw(
            0.1 * factor ** (exponent - 1), 0.9, 0.999, 0.1 * factor**-exponent, weight_decay=0.3, mask=decay_mask
        )
        alone = by_path(trained(reference, params))[path]
        assert not np.allclose(alone, leaf)
        np.testing.assert_allclose(after[path], alone, **CLOSE, err_msg=path)


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
    ],
)
def test_schedule(settings, schedule, warmup, steps, expected):
    rate = rate_of(settings(schedule=schedule, warmup_steps=warmup, num_steps=steps))
    for step, value in expected.items():
        assert float(rate(step)) == pytest.approx(value, abs=1e-7), step
        assert float(rate(jnp.asarray(step))) == pytest.approx(value, abs=1e-7), step


# AdamW and LAMB.


@pytest.mark.parametrize("name", ["adamw", "radam"])
def test_adamw_and_radam_are_those_of_optax_with_that_mask(settings, params, name):
    config = settings(name=name, weight_decay=0.3 if name == "adamw" else 0.0, clip_norm=0.0)
    mask = {path: path.endswith("kernel") or path == "embeddings/token" for path in by_path(params)}
    reference = {
        "adamw": lambda: optax.adamw(rate_of(config), 0.9, 0.999, 1e-6, weight_decay=0.3, mask=mask),
        "radam": lambda: optax.radam(rate_of(config), 0.9, 0.999, 1e-6),
    }[name]()
    expected = trained(reference, by_path(params), lambda _, step: by_path(gradients(params, step)))
    for path, leaf in by_path(trained(build_optimizer(config), params)).items():
        np.testing.assert_allclose(leaf, expected[path], **CLOSE, err_msg=path)


def test_lamb_treats_every_layer_as_a_parameter_of_its_own(settings, params):
    """Kernels and tables: optax's LAMB on each layer's slice. Biases, norms and omegas: Adam, with
    neither decay nor ratio.
    """
    config = settings(name="lamb", weight_decay=0.3, clip_norm=0.0)
    schedule = rate_of(config)
    after = by_path(trained(build_optimizer(config), params))
    mask = by_path(decay_mask(params))

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


@pytest.mark.parametrize("size", [1.0, 1e-4])
def test_gradients_are_clipped_by_their_global_norm(settings, params, size):
    """Where it is larger than the limit."""

    def raw(params, step):
        return jax.tree.map(lambda leaf: size * leaf, gradients(params, step))

    def scaled(params, step):
        """What clipping should leave, worked out here."""
        length = np.sqrt(sum(float((leaf.astype(jnp.float32) ** 2).sum()) for leaf in jax.tree.leaves(raw(params, step))))
        assert (length > 1) == (size == 1.0) and (length > 1 or length < 0.5)
        return jax.tree.map(lambda leaf: leaf * min(0.5 / length, 1.0), raw(params, step))

    clipped, free = (build_optimizer(settings(clip_norm=norm, epsilon=1.0)) for norm in (0.5, 0.0))
    expected, without = trained(free, params, scaled), trained(free, params, raw)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **CLOSE), trained(clipped, params, raw), expected)
    is_free = np.allclose(by_path(without)["embeddings/token"], by_path(expected)["embeddings/token"], rtol=1e-3)
    assert is_free == (size < 1)
