"""One step: the same on every mesh and under every cut of the batch; metrics against plain
gradients.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from msgspec.structs import replace

from mhsh.config.entries import add_optimizer
from mhsh.config.schema import Config, MeshConfig
from mhsh.models import dropout as dropout_module
from mhsh.models.build import build_model, forward
from mhsh.models.losses import compute_metrics, loss_weights, total_loss
from mhsh.training.checkpoints.verify import checksum
from mhsh.training.mesh import make_mesh
from mhsh.training.optimizer import build_optimizer, rate_of_step
from mhsh.training.sharding import MESH_AXES, put_batch, shapes_of, shardings_of
from mhsh.training.state import TrainState, abstract_state, create_state, example_batch
from mhsh.training.step import compile_train_step, run_inputs, shared_program, train_step
from tests.training.batches import random_batch
from tests.training.states import ONE, abstract_of, fresh_state, mesh_of, optimizer_of, train_step_of

NO_DROPOUT = {"model.hidden_dropout": 0.0, "model.attention_dropout": 0.0, "model.embedding_dropout": 0.0}


def run_steps(config: Config, count: int = 2) -> tuple[TrainState, list[dict[str, float]]]:
    """The state after `count` steps on random batches, and each step's metrics."""
    state, step, mesh = fresh_state(config), train_step_of(config), mesh_of(*ONE)
    metrics = []
    for seed in range(count):
        state, (sums, *_) = step(state, put_batch(random_batch(config, config.train.batch_size, seed), mesh))
        metrics.append({name: float(each.value()) for name, each in sums.items()})
    return state, metrics


def assert_close(actual: Any, expected: Any, tolerance: float) -> None:
    """Every array within `tolerance` of the expected one's largest element."""
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(expected)]
    for path, a, b in zip(paths, jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        difference = np.abs(np.asarray(a) - np.asarray(b)).max()
        assert difference <= tolerance * max(np.abs(np.asarray(b)).max(), 1e-3), path


TINY: dict[str, dict[str, Any]] = {
    "bert": {},
    "translation": {"data.sequence_length": 16, "train.batch_size": 8, "train.label_smoothing": 0.1},
    "gpt": {
        "data.sequence_length": 16,
        "train.batch_size": 8,
        "model.num_layers": 2,
        "model.head": "untied",
        "model.qk_norm": True,
    },
}
GATHERED = {"model.remat_policy": "gathered_groups"}
LOOPED = {"model.loops": 2}


@pytest.mark.parametrize(
    ("task", "variant", "shape", "overrides"),
    [
        ("bert", "2l8h", (2, 1, 1), {}),
        pytest.param("bert", "16l1h", (2, 2, 2), {}, marks=pytest.mark.slow),
        # One head of keys and values, which is not cut.
        pytest.param("gpt", "12l2h_gqa", (1, 4, 2), {}, marks=pytest.mark.slow),
        ("gpt", "6l4h_gqa", (2, 2, 1), LOOPED | {"model.residual": "block_attn_res", "model.residual_blocks": 3}),
        ("gpt", "6l4h", (1, 2, 2), {"model.residual": "mhc_lite", "model.residual_streams": 2}),
        pytest.param("gpt", "6l4h", (2, 2, 1), LOOPED | GATHERED, marks=pytest.mark.slow),
        pytest.param("gpt", "6l4h", (2, 2, 1), GATHERED | {"model.residual": "block_attn_res"}, marks=pytest.mark.slow),
        pytest.param("gpt", "6l4h", (2, 2, 1), GATHERED | {"model.residual": "mhc_lite"}, marks=pytest.mark.slow),
        ("translation", "tiny", (2, 2, 2), GATHERED),
        pytest.param("bert", "4l4h", (2, 2, 1), GATHERED | {"train.accumulation_steps": 2}, marks=pytest.mark.slow),
    ],
)
def test_every_mesh_gives_the_same_loss_and_gradients(make_config, task, variant, shape, overrides):
    """Over three steps. The same elements are dropped too."""
    config = make_config(task, variant, **TINY[task] | overrides)
    start = jax.device_get(fresh_state(config, sgd=True))
    results = []
    for each in (ONE, shape):
        shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract_of(config, each, sgd=True))
        state, step = jax.device_put(start, shardings), train_step_of(config, each, sgd=True)
        for seed in range(3):
            batch = put_batch(random_batch(config, config.train.batch_size, seed), mesh_of(*each))
            state, (sums, _, named) = step(state, batch)
        figures = [float(sums[name].value()) for name in ("target_loss", "grad_norm")]
        results.append((jax.device_get(state.params), *figures, np.asarray(named).tolist()))
    (expected, loss, norm, name), (actual, sharded_loss, sharded_norm, sharded_name) = results
    assert sharded_name == name
    assert sharded_loss == pytest.approx(loss, rel=1e-5)
    assert sharded_norm == pytest.approx(norm, rel=1e-5)
    assert_close(actual, expected, 1e-5)


def test_a_fresh_state_is_the_same_on_every_mesh(make_config):
    config, mesh = make_config("bert", "2l8h"), mesh_of(2, 2, 2)
    batch = put_batch(random_batch(config, config.train.batch_size), mesh)
    state = create_state(config, build_model(config.model), optimizer_of(config), mesh, batch)
    assert shardings_of(state) == shardings_of(abstract_of(config, (2, 2, 2)))
    assert_close(state, fresh_state(config), 1e-5)


def test_runs_in_one_program_are_stepped_as_each_alone(make_config):
    """Of other seeds, rates and batches, with dropout; one whose loss is not finite among them."""
    # With a small epsilon AdamW divides a gradient by its own size, and so its rounding, too.
    config = make_config("bert", "2l8h", **TINY["bert"], **{"optimizer.warmup_steps": 0, "optimizer.epsilon": 1e-3})
    mesh, state, optimizer = mesh_of(*ONE), abstract_of(config), optimizer_of(config)
    together = compile_train_step(config, build_model(config.model), optimizer, mesh, state, runs=3)
    runs = [
        replace(config, train=replace(config.train, seed=seed), optimizer=replace(config.optimizer, learning_rate=rate))
        for seed, rate in enumerate((1e-3, 1e38, 3e-3))
    ]
    stack = functools.partial(jax.tree.map, lambda *leaves: np.stack(leaves))
    inputs = stack(*[run_inputs(run, mesh) for run in runs])
    states, seen = stack(*[jax.device_get(fresh_state(config)) for _ in runs]), []
    batches = [[random_batch(config, config.train.batch_size, seed) for seed in (step, step + 7, step)] for step in range(3)]
    for step in range(3):
        states, metrics = together(inputs, states, stack(*batches[step]))
        seen.append(jax.device_get(metrics))
    for place, run in enumerate(runs):
        state, step_of = fresh_state(config), functools.partial(train_step_of(config).func, run_inputs(run, mesh))
        for step in range(3):
            state, alone = step_of(state, put_batch(batches[step][place], mesh))
            metrics = jax.tree.map(lambda leaf, place=place: leaf[place], seen[step])
            assert bool(metrics.is_finite) == bool(alone.is_finite) == (place != 1 or step == 0)
            assert metrics.batch.tolist() == alone.batch.tolist()
            np.testing.assert_allclose(metrics.sums["target_loss"].sum, alone.sums["target_loss"].sum, rtol=1e-5)
        if place != 1:
            assert_close(jax.tree.map(lambda leaf, place=place: leaf[place], states.params), state.params, 1e-5)


@pytest.mark.usefixtures("forgotten")
def test_an_optimizer_of_a_users_that_is_built_of_its_rates_shares_no_program(make_config):
    """The program of several runs is built of the rates of the first."""
    add_optimizer("twice")(lambda optimizer: optax.scale(2 * optimizer.learning_rate))

    def share(name: str, **changes: Any) -> bool:
        configs = [make_config("bert", "2l8h", **{"optimizer.name": name}, **each) for each in ({}, changes)]
        return shared_program(configs[0]) == shared_program(configs[1])

    for field, value in {"learning_rate": 1e-5, "end_learning_rate": 1e-5, "warmup_steps": 3}.items():
        assert [share(name, **{f"optimizer.{field}": value}) for name in ("adamw", "twice")] == [True, False]
    assert share("twice", **{"train.seed": 7, "data.seed": 7})


@pytest.mark.gpu
@pytest.mark.parametrize(("task", "variant"), [("bert", "16l1h"), ("translation", "tiny"), ("gpt", "6l4h_gqa")])
def test_a_gpu_trains_as_a_cpu_does(make_config, task, variant):
    """In fp32, with dropout, over three steps (JAX_PLATFORMS=cuda,cpu pytest -m gpu)."""
    config = make_config(task, variant, **TINY[task])
    config = replace(config, mesh=MeshConfig(1, 1, 1))
    model, optimizer = build_model(config.model), optax.with_extra_args_support(optax.sgd(0.1))
    start, results = None, []
    for platform in ("cpu", "gpu"):
        mesh = make_mesh(dict.fromkeys(MESH_AXES, 1), jax.devices(platform)[:1])
        if start is None:
            start = jax.device_get(create_state(config, model, optimizer, mesh, random_batch(config, config.train.batch_size)))
        state = jax.device_put(start, shardings_of(abstract_state(config, optimizer, mesh)))
        with jax.default_matmul_precision("highest"):
            step = compile_train_step(config, model, optimizer, mesh, state)
        for seed in range(3):
            batch = put_batch(random_batch(config, config.train.batch_size, seed), mesh)
            state, (sums, *_) = step(run_inputs(config, mesh), state, batch)
        results.append((jax.device_get(state.params), float(sums["target_loss"].value())))
    (expected, loss), (actual, gpu_loss) = results
    assert gpu_loss == pytest.approx(loss, rel=1e-5)
    assert_close(actual, expected, 1e-4)


def test_updates_are_made_and_skipped_alike_on_all_platforms(make_config, monkeypatch):
    config = make_config("bert", "4l4h", **NO_DROPOUT)
    state, batch = fresh_state(config), random_batch(config, config.train.batch_size)
    bad = batch | {"weights": np.full_like(batch["weights"], np.nan)}
    after: dict[str, list[Any]] = {}
    run = run_inputs(config, mesh_of(*ONE))
    for platform in ("cpu", "gpu"):
        monkeypatch.setattr("mhsh.training.step.current_platform", lambda name=platform: name)
        step = functools.partial(train_step, config=config, model=build_model(config.model), optimizer=optimizer_of(config))
        with jax.set_mesh(mesh_of(*ONE)):
            compiled = jax.jit(step).lower(run, state, batch).compile()
            after[platform] = [
                jax.device_get((new.params, new.opt_state)) for new, _ in (compiled(run, state, batch), compiled(run, state, bad))
            ]
    assert_close(after["cpu"], after["gpu"], 1e-6)
    jax.tree.map(np.testing.assert_array_equal, after["cpu"][1], jax.device_get((state.params, state.opt_state)))


@pytest.mark.parametrize("accumulation", [4, *(pytest.param(cuts, marks=pytest.mark.slow) for cuts in (2, 8))])
def test_accumulation_with_unequal_weights_changes_nothing(make_config, accumulation):
    config = make_config("bert", "2l8h", **NO_DROPOUT)
    cut = replace(config, train=replace(config.train, accumulation_steps=accumulation))
    whole_state, whole = run_steps(config, 1)
    cut_state, parts = run_steps(cut, 1)
    for name, value in whole[0].items():
        assert parts[0][name] == pytest.approx(value, rel=1e-5), name
    moments = jax.tree.leaves(jax.device_get(whole_state.opt_state)), jax.tree.leaves(jax.device_get(cut_state.opt_state))
    assert_close(moments[1], moments[0], 1e-5)


def test_step_metrics_against_plain_gradients(make_config):
    config = make_config("bert", "2l8h", **NO_DROPOUT)
    model, batch = build_model(config.model), random_batch(config, config.train.batch_size)

    def loss(params: Any) -> jax.Array:
        return total_loss(compute_metrics(forward(model, params, batch, None), batch), loss_weights(batch))

    gradients = jax.jit(jax.grad(loss))(fresh_state(config).params)
    _, metrics = run_steps(config, 1)
    assert metrics[0]["grad_norm"] == pytest.approx(float(optax.tree.norm(gradients)), rel=1e-5)
    assert metrics[0]["tokens"] == (batch["inputs_segmentation"] > 0).sum()
    assert metrics[0]["learning_rate"] == pytest.approx(config.optimizer.learning_rate / config.optimizer.warmup_steps)


def test_a_step_counts_is_applied_and_names_its_batch(make_config):
    config = make_config("bert", "2l8h", **NO_DROPOUT)
    start, batch = fresh_state(config), random_batch(config, config.train.batch_size)
    before = jax.device_get(start.params)
    batch_on_device = put_batch(batch, mesh_of(*ONE))
    after, (_, is_finite, named) = train_step_of(config)(start._replace(step=start.step + 3), batch_on_device)
    assert int(after.step) == 4 and bool(is_finite)
    assert any((np.asarray(a) != b).any() for a, b in zip(jax.tree.leaves(after.params), jax.tree.leaves(before), strict=True))
    # The checksums of the arrays, in the order of their names, times 1, 3, 5, ...
    parts = [
        (2 * place + 1) * np.asarray(checksum(jnp.asarray(batch[key]))).astype(np.uint64) for place, key in enumerate(sorted(batch))
    ]
    np.testing.assert_array_equal(named, np.sum(parts, axis=0) % 2**32)


@pytest.mark.parametrize("finite", ["target_loss", "grad_norm"])
def test_an_update_that_is_not_finite_is_skipped(make_config, finite):
    """One of the loss and the norm of its gradients is finite, and the other is not."""
    config = make_config("bert", "2l8h", **NO_DROPOUT)
    start = fresh_state(config)
    if finite == "target_loss":
        start.params["prediction"]["norm"]["scale"] *= 1e25
    else:  # the lowest logits are infinitely far below the highest
        start.params["prediction"]["output_bias"] += 3e38 * (-1.0) ** np.arange(config.model.vocab_size)
    before = jax.device_get(start)
    batch = put_batch(random_batch(config, config.train.batch_size), mesh_of(*ONE))
    after, (sums, is_finite, _) = train_step_of(config)(start, batch)
    assert {name for name in ("target_loss", "grad_norm") if np.isfinite(float(sums[name].value()))} == {finite}
    assert not bool(is_finite) and int(after.step) == 1
    jax.tree.map(np.testing.assert_array_equal, jax.device_get((after.params, after.opt_state)), (before.params, before.opt_state))


@pytest.mark.parametrize("kind", ["nan", "padding"])
def test_a_batch_of_nothing_finite_or_of_padding_alone_harms_no_parameter(make_config, kind):
    """A NaN in the weights of one prediction, and rows of padding alone; the batch after it is
    trained as ever.
    """
    config = make_config("bert", "2l8h", **NO_DROPOUT)
    start, step = fresh_state(config), train_step_of(config)
    batch = random_batch(config, config.train.batch_size)
    bad = {name: array.copy() for name, array in batch.items()}
    if kind == "nan":
        bad["weights"][0, 0] = np.nan
    else:
        bad = {name: np.zeros_like(array) for name, array in batch.items()}
    before = jax.device_get(start)
    state, metrics = step(start, put_batch(bad, mesh_of(*ONE)))
    after = jax.device_get(state)
    assert not bool(metrics.is_finite)
    jax.tree.map(np.testing.assert_array_equal, (after.params, after.opt_state), (before.params, before.opt_state))
    assert bool(step(state, put_batch(batch, mesh_of(*ONE)))[1].is_finite)


def test_dropout_is_keyed_by_seed_and_step(make_config):
    config = make_config("bert", "2l8h")
    other = replace(config, train=replace(config.train, seed=1))
    first, again, reseeded = (run_steps(config)[1] for config in (config, config, other))
    assert first == again
    assert first[0]["target_loss"] != reseeded[0]["target_loss"]
    batch = put_batch(random_batch(config, config.train.batch_size), mesh_of(*ONE))
    losses = set()
    for number in range(3):
        start = fresh_state(config)
        _, (sums, *_) = train_step_of(config)(start._replace(step=start.step + number), batch)
        losses.add(float(sums["target_loss"].value()))
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(start.params)), "the old state is donated"
    assert len(losses) == 3


@pytest.mark.parametrize(
    ("task", "variant", "sites"),
    # Of embeddings, and in each of two layers four masks in an encoder, six in a decoder.
    [("bert", "2l8h", 1 + 2 * 4), pytest.param("translation", "tiny", 2 + 2 * 4 + 2 * 6, marks=pytest.mark.slow)],
)
def test_no_two_masks_of_dropout_are_alike(make_config, monkeypatch, task, variant, sites):
    """Of two steps, two micro-batches, two shards, and all layers, sublayers and places in them."""
    rates = dict.fromkeys([f"model.{part}_dropout" for part in ("hidden", "attention", "mlp", "embedding")], 0.3)
    small = {"model.num_layers": 2, "train.batch_size": 8, "train.accumulation_steps": 2, "data.sequence_length": 16}
    config = make_config(task, variant, **rates, **small)
    masks: set[tuple[tuple[int, ...], bytes]] = set()
    seeds: set[bytes] = set()  # which masks of two shapes must not share either
    real = dropout_module._drop_by_hash

    def note(mask, seed):
        masks.add((mask.shape, np.packbits(mask).tobytes()))
        seeds.add(np.asarray(seed).tobytes())
        return np.float32(0)

    def seen(x, seed, rate):
        kept = real(jnp.ones(x.shape, x.dtype), seed, rate) != 0
        zero = jax.pure_callback(note, jax.ShapeDtypeStruct((), np.float32), kept, seed)  # flax's scan takes no effects
        return real(x, seed, rate) + zero.astype(x.dtype)

    monkeypatch.setattr(dropout_module, "_drop_by_hash", seen)
    shape = (2, 1, 1)
    state, step, batch = fresh_state(config, shape), train_step_of(config, shape), random_batch(config, 8)
    for _ in range(2):
        state, _ = step(state, put_batch(batch, mesh_of(*shape)))
    jax.block_until_ready(state)
    assert (len(masks), len(seeds)) == (2 * 2 * 2 * sites, 2 * 2 * sites)


def test_the_program_does_not_grow_with_depth(make_config):
    """What is compiled is one layer: 384 lower to as many operations as 24."""
    sizes = {}
    for variant in ("24l16h", "384l1h"):
        config = make_config("bert", variant, **{"train.batch_size": 2})
        model, optimizer = build_model(config.model), optimizer_of(config)
        step = jax.jit(functools.partial(train_step, config=config, model=model, optimizer=optimizer))
        run = run_inputs(config, mesh_of(*ONE))
        sizes[variant] = step.lower(run, abstract_of(config), example_batch(config, 2)).as_text().count(" = ")
    assert sizes["24l16h"] > 500
    assert abs(sizes["384l1h"] / sizes["24l16h"] - 1) < 0.01  # an axis of one head costs a reshape here and there


def test_runs_that_differ_in_seed_rate_and_length_share_a_program(make_config):
    """So a sweep over them compiles once: all that it compiles is then in its cache. Here with wsd,
    whose rate has the most numbers; of the other schedules the rate is enough, as the rest of the
    step does not know them.
    """
    fields = {"optimizer.schedule": "wsd", "optimizer.decay_steps": 10, "train.num_steps": 50}
    config, mesh = make_config("bert", "2l8h", **fields), mesh_of(*ONE)
    train = replace(config.train, seed=7, num_steps=80)
    optimizer = replace(config.optimizer, learning_rate=3e-3, warmup_steps=20, decay_steps=20)
    configs = (config, replace(config, train=train, optimizer=optimizer))
    texts = set()
    for each in configs:
        step = functools.partial(train_step, config=each, model=build_model(each.model), optimizer=build_optimizer(each))
        arguments = run_inputs(each, mesh), shapes_of(abstract_of(each)), example_batch(each, 2)
        texts.add(jax.jit(step).lower(*arguments).as_text())
    assert len(texts) == 1
    for schedule in ("linear", "constant", "inverse_sqrt", "cosine"):
        rate = jax.jit(functools.partial(rate_of_step, schedule=schedule))
        assert len({rate.lower(run_inputs(each, mesh).rates, step=np.int32(3)).as_text() for each in configs}) == 1, schedule
