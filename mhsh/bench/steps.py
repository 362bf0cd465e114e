"""mhsh itself as a candidate: the compiled training step and the compiled forward pass, on
synthetic batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from msgspec.structs import replace

from mhsh.bench.results import BenchResults
from mhsh.bench.timing import CONFIG, Candidate, Note, Schedule, bench
from mhsh.config.schema import Config, DataConfig, MeshConfig
from mhsh.config.shapes import shape_name
from mhsh.errors import UserError
from mhsh.models.build import Model, build_model, forward, xla_config
from mhsh.models.costs import parameter_counts, row_flops, row_tokens, step_flops
from mhsh.models.types import Batch, Outputs
from mhsh.text import whole_numbers
from mhsh.training.mesh import first_device, make_mesh
from mhsh.training.optimizer import build_optimizer
from mhsh.training.plan import plan_run
from mhsh.training.sharding import ROWS, put_batch
from mhsh.training.state import create_state, example_batch
from mhsh.training.step import StepMetrics, compile_eval_step, compile_train_step, run_inputs

BATCH_SEED = 0
LENGTHS = (32, 128, 512)  # of the forward pass, as far as positions reach


def train(configs: Mapping[str, Config], schedule: Schedule, note: Note) -> BenchResults:
    """Times the training steps of `configs` (by name; the others are compared with the first).
    Raises UserError where a loss or a gradient is not finite.
    """
    cells = [(train_setting(configs), [training_candidate(name, config, note) for name, config in configs.items()])]
    return bench("train", "token", configs, cells, schedule, note)


def train_setting(configs: Mapping[str, Config]) -> dict[str, int | str]:
    """The batch and length of the first config."""
    return {"batch": configs[CONFIG].train.batch_size, "length": configs[CONFIG].data.sequence_length}


def inference(configs: Mapping[str, Config], settings: Sequence[tuple[int, int]], schedule: Schedule, note: Note) -> BenchResults:
    """Times forward passes without dropout of `configs` (by name; the others are compared with the
    first), in `settings` of (rows, tokens of a row), as of `grid`. Raises UserError where logits
    are not finite.
    """
    note("making the models")
    makers = [Inference(name, config) for name, config in configs.items()]
    cells = inference_cells(makers, settings, note)
    return bench("inference", "token", configs, cells, schedule, note)


def inference_cells(
    makers: Sequence[Any], settings: Sequence[tuple[int, int]], note: Note
) -> Iterator[tuple[dict[str, int | str], list[Candidate]]]:
    """The settings, with the candidates that `makers` (such as Inference) make for each."""
    for number, (rows, length) in enumerate(settings, 1):
        note(f"setting {number} of {len(settings)}: {rows} x {length} tokens")
        yield {"batch": rows, "length": length}, [maker.candidate(rows, length) for maker in makers]


def grid(configs: Mapping[str, Config], batch: str, length: str | None) -> list[tuple[int, int]]:
    """(rows, tokens of a row) of every setting, from --batch and --length.

    Without --length these are the LENGTHS that every model has positions for, or the longest that
    every model has. Raises UserError where one is not a whole number, or a model has no positions
    for a length.
    """
    positions = min(config.model.max_positions for config in configs.values())
    fitting = [tokens for tokens in LENGTHS if tokens <= positions] or [positions]
    lengths = whole_numbers("--length=", length) if length is not None else fitting
    for config in configs.values():
        setting_config(config, 1, max(lengths))
    return [(rows, tokens) for rows in whole_numbers("--batch=", batch) for tokens in lengths]


def training_candidate(name: str, config: Config, note: Note) -> Candidate:
    """The step of `mhsh train` on one synthetic batch, on the config's mesh, over and over."""
    note(f"compiling {name}")
    plan = plan_run(_skip_profiling(config))
    config, mesh = plan.config, make_mesh(plan.mesh_shape)
    model, optimizer = build_model(config.model), build_optimizer(config)
    batch = put_batch(synthetic_batch(config, config.train.batch_size), mesh)
    state = create_state(config, model, optimizer, mesh, batch)
    step, inputs = compile_train_step(config, model, optimizer, mesh, state), run_inputs(config, mesh)
    metrics: StepMetrics | None = None

    def run(repetitions: int) -> None:
        nonlocal state, metrics
        for _ in range(repetitions):
            state, metrics = step(inputs, state, batch)
        jax.block_until_ready(state)

    def check() -> None:
        if metrics is not None and not bool(metrics.is_finite):
            raise UserError(
                f"{name}: the loss or a gradient is not finite after {int(state.step)} steps; "
                "give more optimizer.warmup_steps, or a smaller optimizer.learning_rate"
            )

    return Candidate(
        run=run,
        check=check,
        work=config.train.batch_size * row_tokens(config),
        **candidate_fields(name, config, mesh.size, memory=memory(step), flops=step_flops(config)),
    )


class Inference:
    """Forward passes of one config on the first device, with parameters in compute_dtype."""

    def __init__(self, name: str, config: Config) -> None:
        self._name, self._config = name, config
        self._model, self._mesh, self._params = fresh_model(config)

    def candidate(self, batch: int, length: int) -> Candidate:
        """The compiled forward pass of `batch` rows of `length` tokens up to the logits."""
        config = setting_config(self._config, batch, length)
        arrays = put_batch(synthetic_batch(config, batch), self._mesh)
        step = compile_eval_step(_outputs, ROWS, config, self._model, self._mesh, self._params)
        logits: list[Any] = []

        def run(repetitions: int) -> None:
            for _ in range(repetitions):
                logits[:] = [step(self._params, arrays)]
            jax.block_until_ready(logits)

        def check() -> None:
            if not all(np.isfinite(jax.device_get(leaf)).all() for leaf in jax.tree.leaves(logits)):
                raise UserError(f"{self._name}: the logits are not finite; this is a fault of mhsh, please report it")

        return Candidate(
            run=run,
            check=check,
            work=batch * row_tokens(config),
            **candidate_fields(self._name, config, 1, memory=memory(step), flops=row_flops(config).total * batch),
        )


def fresh_model(config: Config) -> tuple[Model, Mesh, Any]:
    """The model, a mesh of the first device, and fresh parameters on it in compute_dtype. It has no
    kernels of our own, which are of training, as where a trained model is loaded.
    """
    one = setting_config(_skip_profiling(config), 1, 1)
    mesh, model = first_device(), build_model(xla_config(config.model))
    optimizer = build_optimizer(config)
    params = create_state(one, model, optimizer, mesh, synthetic_batch(one, 1)).params
    dtype = jnp.dtype(config.model.compute_dtype)
    return model, mesh, jax.jit(lambda tree: jax.tree.map(lambda values: values.astype(dtype), tree))(params)


def setting_config(config: Config, batch: int, length: int) -> Config:
    """The config of the model on `batch` rows of `length` tokens, on one device. Raises UserError
    where the model has too few positions.
    """
    if length > config.model.max_positions:
        raise UserError(
            f"--length: {length} tokens are more than model.max_positions = {config.model.max_positions}; "
            f"add --config.model.max_positions={length} (and --against...)"
        )
    data = replace(config.data, sequence_length=length)
    if isinstance(data, DataConfig):
        data = replace(data, max_predictions=min(data.max_predictions, length))
    train = replace(config.train, batch_size=batch, accumulation_steps=1)
    return replace(config, data=data, train=train, mesh=MeshConfig(data=1, fsdp=1, tensor=1))


def synthetic_batch(config: Config, rows: int) -> dict[str, np.ndarray]:
    """`rows` rows of data.sequence_length random tokens without padding, in the shapes and dtypes
    of a real batch; the same for equal configs.
    """
    generator = np.random.default_rng(BATCH_SEED)
    model = config.model
    batch = example_batch(config, rows)
    rows, length = batch["inputs"].shape
    position = np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length))
    for key, values in batch.items():
        if key in ("inputs", "decoder_inputs"):
            batch[key] = generator.integers(model.vocab_size, size=values.shape, dtype=np.int32)
        elif key == "token_types":
            batch[key] = (position >= length // 2).astype(np.int32) % model.num_token_types
        elif key == "next_sentence":
            batch[key] = generator.integers(2, size=values.shape, dtype=np.int32)
        elif key.endswith("_position"):
            positions = [np.sort(generator.permutation(length)[: values.shape[1]]) for _ in range(rows)]
            batch[key] = np.stack(positions).astype(np.int32)  # all of 0 ... T - 1 in order; with mlm, P of them
        elif key.endswith("_segmentation") or key.endswith("weights"):
            batch[key] = np.ones_like(values)
    targets = batch["targets"]
    if np.issubdtype(targets.dtype, np.floating):
        batch["targets"] = generator.random(targets.shape, np.float32)
    else:
        classes = {"classification": model.num_classes, "span": length}.get(model.objective, model.vocab_size)
        batch["targets"] = generator.integers(classes, size=targets.shape, dtype=targets.dtype)
    return batch


def candidate_fields(name: str, config: Config, devices: int, **facts: Any) -> dict[str, Any]:
    """Fields of a Candidate that say what the config called `name` is, `auto` resolved."""
    counts = parameter_counts(config.model)
    model_facts = {
        "config": name,
        "implementation": "mhsh",
        "dtype": config.model.compute_dtype,
        "devices": devices,
        "remat_policy": config.model.remat_policy,
        "parameters": counts["total"],
        "omega": counts["omega"],
    }
    return {
        "name": name,
        "label": f"mhsh {shape_name(config.model)} {config.model.residual} {config.model.compute_dtype}",
        "baseline": None if name == CONFIG else CONFIG,
        "facts": model_facts | facts,
    }


def _outputs(params: Any, batch: Batch, *, model: Model) -> Outputs:
    return forward(model, params, batch, None)


def _skip_profiling(config: Config) -> Config:
    """The config without profiling, which costs a pass before the first step and nothing later."""
    return replace(config, model=replace(config.model, admin_omega="closed_log"))


def memory(compiled: jax.stages.Compiled) -> dict[str, int]:
    """Bytes on one device by XLA: arguments, temporaries, and the peak (0: not given)."""
    stats: Any = compiled.memory_analysis()
    return {
        "arguments": int(stats.argument_size_in_bytes),
        "temporaries": int(stats.temp_size_in_bytes),
        "peak": int(stats.peak_memory_in_bytes),
    }
