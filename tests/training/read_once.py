"""One process of several: saves arrays, restores them, and prints how many bytes it read.

python -m tests.training.read_once COORDINATOR COUNT INDEX FOLDER DATA,FSDP
"""

from __future__ import annotations

import json
import sys

import jax
import numpy as np
import tensorstore
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mhsh.training.checkpoints.checkpoint import Checkpoints
from mhsh.training.cluster import join
from mhsh.training.sharding import MESH_AXES
from mhsh.training.state import TrainState

SPECIAL = np.array([-0.0, 0.0, np.nan, np.inf, -np.inf, 1e-42, 1.0, -1.0], np.float32)


def bytes_read() -> int:
    """By this process through TensorStore, so far."""
    metrics = tensorstore.experimental_collect_matching_metrics(metric_prefix="/tensorstore/kvstore/file/bytes_read")
    return int(sum(value["value"] for metric in metrics for value in metric["values"]))


def main(coordinator: str, count: str, index: str, folder: str, shape: str) -> None:
    """Prints a line of JSON."""
    with join(coordinator=coordinator, num_processes=int(count), process_id=int(index)):
        save_and_restore(folder, shape)


def save_and_restore(folder: str, shape: str) -> None:
    data, fsdp = map(int, shape.split(","))
    mesh = Mesh(np.array(jax.devices()).reshape(data, fsdp, 1), MESH_AXES)
    generator = np.random.default_rng(0)

    def array(values, *spec):
        return jax.make_array_from_callback(values.shape, NamedSharding(mesh, PartitionSpec(*spec)), lambda place: values[place])

    params = {
        "matrix": array(generator.standard_normal((64, 1024)).astype(np.float32), "fsdp"),
        "special": array(SPECIAL),
        "small": array(generator.standard_normal((8, 16)).astype(jax.numpy.bfloat16), None, "fsdp"),
    }
    moments = {"mask": array(np.arange(8) % 3 == 0), "count": array(np.array(7, np.int32))}
    state = TrainState(params, moments, array(np.array(3, np.int32)))
    checkpoints = Checkpoints(folder, keep=1, keep_every=0)
    checkpoints.save(3, state)
    checkpoints.close()
    before = bytes_read()
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state)
    checkpoints = Checkpoints(folder, keep=1, keep_every=0)
    restored = checkpoints.restore(3, abstract)
    checkpoints.close()
    same = jax.tree.map(lambda a, b: a.sharding == b.sharding and bits(a) == bits(b), state, restored)
    print(json.dumps({"read": bytes_read() - before, "same": all(jax.tree.leaves(same))}))


def bits(array: jax.Array) -> list[bytes]:
    """What this process has of it."""
    return [np.asarray(shard.data).tobytes() for shard in array.addressable_shards]


if __name__ == "__main__":
    main(*sys.argv[1:])
