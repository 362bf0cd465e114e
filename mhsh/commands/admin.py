"""mhsh admin: omega of every sublayer, from the profiling pass on the first training batch."""

from __future__ import annotations

import dataclasses
import json

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from mhsh.config import Config
from mhsh.data.corpus import check_batch, load_corpus
from mhsh.data.pipeline import prefetched, train_steps
from mhsh.models.admin import read_omega
from mhsh.models.bert import build_model
from mhsh.training.optimizer import build_optimizer
from mhsh.training.sharding import make_mesh, process_rows, put_batch
from mhsh.training.state import create_state


def run(config: Config, as_json: bool) -> int:
    """Profiles a fresh model of the config, whatever its residual scheme says, and prints omega in depth order."""
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, residual="admin", admin_omega="profiled"))
    mesh = make_mesh(config)
    corpus = load_corpus(config.model, config.data)
    batch_size = config.train.batch_size
    check_batch(corpus, batch_size)
    steps = train_steps(corpus, config.model, config.data, batch_size, process_rows(mesh, batch_size))
    model, optimizer = build_model(config.model), build_optimizer(config.optimizer, config.train)
    state = create_state(config, model, optimizer, mesh, put_batch(next(prefetched(steps, 0, 1)), mesh, batch_size))
    omega = np.asarray(jax.device_get(read_omega(state.params)))[:, :, 0]
    if as_json:
        print(json.dumps({"attention": omega[:, 0].tolist(), "feed_forward": omega[:, 1].tolist()}))
    else:
        _print_table(omega)
    return 0


def _print_table(omega: np.ndarray) -> None:
    table = Table("layer", "attention", "feed-forward", title="omega of Admin's profiling pass")
    for layer, (attention, feed_forward) in enumerate(omega, 1):
        table.add_row(str(layer), f"{attention:.4f}", f"{feed_forward:.4f}")
    Console().print(table)
