"""mhsh admin: omega of every sublayer, from the profiling pass on the first training batch."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from mhsh.cli.flags import add_configs
from mhsh.cli.parser import examples
from mhsh.config.schema import Config, MeshConfig
from mhsh.errors import UserError

PROFILED_TOKENS = 8_192


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.epilog = examples("mhsh admin --config=bert:16l1h", "mhsh admin --config=bert:16l1h --json")
    add_configs(parser, "config")
    parser.add_argument("--json", dest="as_json", action="store_true", help="as JSON")
    parser.add_argument(
        "--rows", type=int, metavar="N", help="of the first batch (default: up to 8,192 tokens); a run takes train.batch_size"
    )


def run(config: Config, as_json: bool, rows: int | None) -> int:
    """Profiles a fresh model of the config on one device, whatever its residual scheme says, and
    prints omega in depth order.

    Raises:
      UserError: `rows` is not from 1 to train.batch_size.
    """
    import jax
    import optax

    from mhsh.data.batches import prefetched
    from mhsh.data.load import load_corpus
    from mhsh.models.admin import read_omega
    from mhsh.models.build import build_model
    from mhsh.models.types import SUBLAYERS, in_stack_order
    from mhsh.training.sharding import make_mesh, put_batch
    from mhsh.training.state import create_state

    model = replace(config.model, residual="admin", admin_omega="profiled")
    config = replace(config, model=model, mesh=MeshConfig(data=1, fsdp=1, tensor=1))
    batch_size = config.train.batch_size
    if rows is None:
        rows = min(batch_size, max(1, PROFILED_TOKENS // config.data.sequence_length))
    if not 1 <= rows <= batch_size:
        raise UserError(f"--rows={rows} must be from 1 to train.batch_size = {batch_size}")
    corpus = load_corpus(config, None)
    corpus.check_batch(batch_size)
    first = next(prefetched(corpus.train_steps(batch_size, lambda size: slice(0, size)), 0, 1))
    mesh = make_mesh(config, jax.devices()[:1])
    batch = put_batch({name: values[:rows] for name, values in first.items()}, mesh)
    state = create_state(config, build_model(config.model), optax.identity(), mesh, batch)  # omega needs no moments
    found = in_stack_order(jax.device_get(read_omega(state.params)))
    omega = {stack: np.asarray(each)[:, :, 0] for stack, each in found.items()}
    if as_json:
        named = {
            stack: {name: each[:, index].tolist() for index, name in enumerate(SUBLAYERS[stack])} for stack, each in omega.items()
        }
        print(json.dumps(named))
    else:
        for stack, each in omega.items():
            _print_table(stack, SUBLAYERS[stack], each)
    return 0


def _print_table(stack: str, sublayers: Sequence[str], omega: np.ndarray) -> None:
    names = [name.replace("_", "-") for name in sublayers]
    table = Table("layer", *names, title=f"omega of Admin's profiling pass, {stack}")
    for layer, figures in enumerate(omega, 1):
        table.add_row(str(layer), *(f"{figure:.4f}" for figure in figures))
    Console().print(table)
