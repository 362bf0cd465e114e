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

from mhsh.config.entries import SCHEMES
from mhsh.config.schema import OBJECTIVES
from mhsh.errors import UserError
from mhsh.models.costs import parameter_shapes
from mhsh.training.optimizer import DECAYED_PARAMETERS, build_optimizer, decay_mask, decayed_count, learning_rate, parameter_path
from mhsh.training.sharding import shardings_of
from tests.training.states import ONE, fresh_state, optimizer_of

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


def optimizer_with_rate(config):
    """The optimizer of a config, whose `update` takes the step in place of its learning rate."""
    optimizer, rate = build_optimizer(config), rate_of(config)

    def update(updates, state, params=None, *, step, **extra):
        return optimizer.update(updates, state, params, learning_rate=rate(step), **extra)

    return optax.GradientTransformationExtraArgs(optimizer.init, update)


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
        grad_norm = optax.tree.norm(step_gradients)
        updates, state = update(step_gradients, state, params, step=step, grad_norm=grad_norm)
        params = optax.apply_updates(params, updates)
    return params


def by_path(tree):
    """{path: leaf} with paths such as encoder/layers/attention/query_kernel."""
    return {parameter_path(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


MASK = functools.partial(decay_mask, "admin")


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
    assert decayed_count("admin", shapes) == sum(tables) - sum(norms)


def test_every_row_of_the_table_is_needed(make_config):
    paths = by_path(parameter_shapes(replace(make_config("bert", "2l8h").model, residual="post_ln")))
    first_rows = {next(i for i, (pattern, _) in enumerate(DECAYED_PARAMETERS) if re.search(pattern, path)) for path in paths}
    assert first_rows == set(range(len(DECAYED_PARAMETERS)))


@pytest.mark.parametrize("path", [("encoder", "layers", "gate"), ("embeddings", "segment"), ("token",)])
def test_a_parameter_that_no_row_covers_is_an_error(path):
    tree = jnp.ones(())
    for name in reversed(path):
        tree = {name: tree}
    with pytest.raises(UserError, match=f"nothing says whether the parameter {'/'.join(path)} has weight decay"):
        decay_mask("rezero", tree)


@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_without_a_gradient_only_what_decays_moves(settings, params, name):
    optimizer = optimizer_with_rate(settings(name=name, weight_decay=0.1))
    after = by_path(trained(optimizer, params, lambda params, step: jax.tree.map(jnp.zeros_like, params)))
    mask = by_path(MASK(params))
    for path, before in by_path(params).items():
        if mask[path]:
            assert (np.abs(after[path]) < np.abs(before)).all(), path
        else:
            np.testing.assert_array_equal(after[path], before, err_msg=path)


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
    jax.tree.map(np.testing.assert_array_equal, trained(ours, without_omega), trained(optimizer_with_rate(base), without_omega))


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
        ("wsd 0 linear", 4, 14, {0: 0.025, 3: 0.1, 4: 0.1, 13: 0.1}),
        ("wsd 3 linear", 4, 14, {0: 0.025, 3: 0.1, 10: 0.1, 11: 0.075, 12: 0.05, 13: 0.025, 14: 0.0}),
        ("wsd 3 one_minus_sqrt", 4, 14, {3: 0.1, 10: 0.1, 11: 0.05, 12: 0.1 * (1 - 0.5**0.5), 14: 0.0}),
        ("wsd 10 linear", 4, 14, {3: 0.1, 4: 0.1 * 10 / 11, 13: 0.1 / 11}),
    ],
)
def test_schedule(settings, schedule, warmup, steps, expected):
    schedule, *decay = schedule.split()
    fields = dict(decay_steps=int(decay[0]), decay_shape=decay[1]) if decay else {}
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


def test_adamw_is_optax_adamw_with_that_mask(settings, params):
    config = settings(name="adamw", weight_decay=0.3, clip_norm=0.0)
    schedule = rate_of(config)
    mask = {path: path.endswith("kernel") or path == "embeddings/token" for path in by_path(params)}
    reference = optax.adamw(schedule, 0.9, 0.999, 1e-6, weight_decay=0.3, mask=mask)
    after = by_path(trained(optimizer_with_rate(config), params))
    expected = trained(reference, by_path(params), lambda _, step: by_path(gradients(params, step)))
    for path, leaf in after.items():
        np.testing.assert_allclose(leaf, expected[path], **CLOSE, err_msg=path)


def test_radam_is_optax_radam(settings, params):
    config = settings(name="radam", weight_decay=0.0, clip_norm=0.0)
    reference = optax.radam(rate_of(config), 0.9, 0.999, 1e-6)
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


def test_lamb_is_not_one_norm_over_the_whole_stack(settings, params):
    config = settings(name="lamb", weight_decay=0.3, clip_norm=0.0)
    naive = optax.lamb(rate_of(config), 0.9, 0.999, 1e-6, weight_decay=0.3, mask=MASK)
    after, tied = by_path(trained(optimizer_with_rate(config), params)), by_path(trained(naive, params))
    path = "encoder/layers/attention/query_kernel"
    assert np.abs(after[path] - tied[path]).max() > 0.05 * np.abs(after[path]).max()
    # Where nothing is stacked the two are one.
    np.testing.assert_allclose(after["embeddings/token"], tied["embeddings/token"], **CLOSE)


@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_one_layer_does_not_feel_another(settings, params, name):
    """Changing one layer's weights and gradients leaves the updates of the others as they were
    (clipping off).
    """
    optimizer = optimizer_with_rate(settings(name=name, clip_norm=0.0))
    path = ("encoder", "layers", "attention", "query_kernel")

    def louder(tree):
        layers = tree["encoder"]["layers"]
        attention = layers["attention"] | {path[-1]: layers["attention"][path[-1]].at[2].multiply(100.0)}
        return tree | {"encoder": tree["encoder"] | {"layers": layers | {"attention": attention}}}

    plain = by_path(trained(optimizer, params))["/".join(path)]
    changed = by_path(trained(optimizer, louder(params), lambda _, step: louder(gradients(params, step))))["/".join(path)]
    others = np.array([0, 1, 3])
    np.testing.assert_allclose(changed[others], plain[others], **CLOSE)
    assert not np.allclose(changed[2], plain[2])


# Muon.

MUON_SHAPES = {
    "embeddings": {"token": (16, 8)},
    "encoder": {
        "layers": {
            "attention": {"key_kernel": (3, 8, 2, 3), "query_bias": (3, 2, 3), "out_kernel": (3, 2, 3, 8)},
            "feed_forward": {"up_kernel": (3, 8, 12), "down_kernel": (3, 12, 8)},
        }
    },
    "prediction": {"kernel": (8, 8)},
}


def newton_schulz(momentum):
    """Five iterations on one matrix, with the coefficients of the post that the docstring names."""
    x = momentum / np.linalg.norm(momentum)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return 0.2 * np.sqrt(max(x.shape)) * x


def one_matrix(path, layer, heads):
    """[(index of a matrix in one layer's kernel, how it is made 2-D)], a matrix at a time."""
    count = layer.shape[1] if path.endswith("key_kernel") else layer.shape[0]
    if not path.endswith(("key_kernel", "out_kernel")):
        return [((), layer.shape)]
    if heads == "joined":
        return [((), (8, 6) if path.endswith("key_kernel") else (6, 8))]
    return [((slice(None), head) if path.endswith("key_kernel") else (head,), None) for head in range(count)]


@pytest.mark.parametrize("heads", ["joined", "each"])
def test_muon_is_a_loop_over_matrices(settings, heads):
    """Kernels of layers: Nesterov momentum, orthogonalised a matrix at a time, in numpy. All else:
    optax's AdamW.
    """
    rng = np.random.default_rng(3)
    drawn = jax.tree.map(rng.standard_normal, MUON_SHAPES, is_leaf=lambda leaf: isinstance(leaf, tuple))
    params = jax.tree.map(jnp.float32, drawn)
    config = settings(name="muon", muon_heads=heads, weight_decay=0.3, clip_norm=0.0, momentum=0.9)
    rate = rate_of(config)
    after = by_path(trained(optimizer_with_rate(config), params))
    mask = {path: path.endswith("kernel") or path == "embeddings/token" for path in by_path(params)}
    adam = optax.adamw(rate, 0.9, 0.999, 1e-6, weight_decay=0.3, mask=mask)
    plain = trained(adam, by_path(params), lambda _, step: by_path(gradients(params, step)))
    for path, leaf in by_path(params).items():
        if "layers" not in path or path.endswith("bias"):
            np.testing.assert_allclose(after[path], plain[path], **CLOSE, err_msg=path)
            continue
        for number, layer in enumerate(np.asarray(leaf, np.float64)):
            for index, shape in one_matrix(path, layer, heads):
                weights, momentum = layer[index], 0.0
                for step in range(STEPS):
                    gradient = np.asarray(by_path(gradients(params, step))[path][number], np.float64)[index]
                    momentum = 0.9 * momentum + 0.1 * gradient
                    # Both are divided by what the weights of an average from zero add up to.
                    ahead = 0.9 * momentum / (1 - 0.9 ** (step + 2)) + 0.1 * gradient / (1 - 0.9 ** (step + 1))
                    update = newton_schulz(ahead.reshape(shape or ahead.shape)).reshape(ahead.shape)
                    weights = weights - float(rate(step)) * (update + 0.3 * weights)
                np.testing.assert_allclose(after[path][number][index], weights, rtol=2e-4, atol=2e-5, err_msg=path)


def test_muons_updates_are_nearly_orthogonal_and_as_large_as_adams(settings, params):
    config = settings(name="muon", weight_decay=0.0, learning_rate=1.0, warmup_steps=0, schedule="constant")
    optimizer = optimizer_with_rate(config)
    first = gradients(params, 0)
    updates, _ = optimizer.update(first, optimizer.init(params), params, step=0, grad_norm=optax.tree.norm(first))
    for layer in updates["encoder"]["layers"]["feed_forward"]["up_kernel"]:
        singular = np.linalg.svd(layer / (0.2 * np.sqrt(8)), compute_uv=False)
        assert ((singular > 0.6) & (singular < 1.3)).all(), singular
        assert 0.12 < float(jnp.sqrt(jnp.mean(layer**2))) < 0.28


@pytest.mark.parametrize("heads", ["joined", "each"])
@pytest.mark.parametrize("shape", [(1, 8, 1), (2, 2, 2)])
def test_muon_is_the_same_on_a_mesh(make_config, shape, heads):
    config = make_config("bert", "2l8h", **{"optimizer.name": "muon", "optimizer.muon_heads": heads})
    optimizer, updated = optimizer_of(config), []
    for mesh_shape in (ONE, shape):
        state = fresh_state(config, mesh_shape)

        def update(state):
            updates = jax.tree.map(jnp.sin, state.params)
            figures = {"learning_rate": rate_of(config)(3), "grad_norm": optax.tree.norm(updates)}
            return optimizer.update(updates, state.opt_state, state.params, **figures)

        shardings = shardings_of(state.params), shardings_of(state.opt_state)
        updated.append(jax.jit(update, out_shardings=shardings)(state)[0])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-8), *updated)


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
