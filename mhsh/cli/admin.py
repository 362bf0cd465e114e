"""mhsh admin: omega of every sublayer, from the profiling pass on the first training batch."""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from mhsh.cli.flags import add_configs
from mhsh.config.schema import Config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    add_configs(parser, "config")
    parser.add_argument("--json", dest="as_json", action="store_true", help="as JSON")


def run(config: Config, as_json: bool) -> int:
    """Profiles a fresh model of the config, whatever its residual scheme says, and prints omega in
    depth order.
    """
    import jax

    from mhsh.data.batches import prefetched
    from mhsh.data.load import load_corpus
    from mhsh.models.admin import read_omega
    from mhsh.models.build import build_model
    from mhsh.models.types import SUBLAYERS, in_stack_order
    from mhsh.training.optimizer import build_optimizer
    from mhsh.training.sharding import make_mesh, process_rows, put_batch
    from mhsh.training.state import create_state

    config = replace(config, model=replace(config.model, residual="admin", admin_omega="profiled"))
    mesh = make_mesh(config)
    corpus = load_corpus(config, None)
    batch_size = config.train.batch_size
    corpus.check_batch(batch_size)
    first = next(prefetched(corpus.train_steps(batch_size, functools.partial(process_rows, mesh)), 0, 1))
    model, optimizer = build_model(config.model), build_optimizer(config.optimizer, config.train)
    state = create_state(config, model, optimizer, mesh, put_batch(first, mesh))
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
