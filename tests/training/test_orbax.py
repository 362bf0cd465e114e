"""Orbax has what mhsh calls, and restores bit for bit what its version 0.12.8 has written."""

from __future__ import annotations

import ast
import inspect
import operator
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from mhsh.training.checkpoints.checkpoint import Checkpoints
from mhsh.training.state import TrainState
from tests.conftest import ROOT

FIXTURE = ROOT / "tests" / "fixtures" / "checkpoints_of_orbax_0.12.8"
STEP = 7


def stored_state() -> TrainState:
    """The state in the fixture, which `Checkpoints(FIXTURE, keep=1, keep_every=0).save` wrote."""
    kernel = jnp.asarray([[0.1, -0.0, jnp.inf], [jnp.nan, 1e-45, 3.0]], jnp.float32)
    moments = {"mu": kernel.astype(jnp.bfloat16), "count": jnp.asarray(5, jnp.int32)}
    return TrainState({"layer": {"kernel": kernel}}, moments, jnp.asarray(STEP, jnp.int32))


def test_a_stored_checkpoint_is_restored_bit_for_bit(tmp_path):
    folder = shutil.copytree(FIXTURE, tmp_path / "checkpoints")
    state = stored_state()
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state)
    checkpoints = Checkpoints(folder, keep=1, keep_every=0)
    assert checkpoints.existing_step(None) == STEP
    restored = checkpoints.restore(STEP, abstract)
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    for found, wanted in zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True):
        assert found.dtype == wanted.dtype and np.asarray(found).tobytes() == np.asarray(wanted).tobytes()


def calls() -> set[tuple[str, tuple[str, ...]]]:
    """What the modules of mhsh call in Orbax: the name below orbax.checkpoint, and the keywords."""
    found = set()
    for path in (ROOT / "mhsh").rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        modules = {}  # by the name that the file gives it
        for node in nodes:
            if isinstance(node, ast.Import):
                modules |= {each.asname: "" for each in node.names if each.name == "orbax.checkpoint"}
            elif isinstance(node, ast.ImportFrom) and node.module == "orbax.checkpoint":
                modules |= {each.name: f"{each.name}." for each in node.names}
        for node in nodes:
            if isinstance(node, ast.Call):
                alias, _, name = ast.unparse(node.func).partition(".")
                if alias in modules and "(" not in name:
                    found.add((modules[alias] + name, tuple(each.arg for each in node.keywords if each.arg)))
    return found


@pytest.mark.parametrize(("name", "keywords"), sorted(calls()))
def test_what_is_called_is_there_with_its_keywords(name, keywords):
    parameters = inspect.signature(operator.attrgetter(name)(ocp)).parameters
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    assert takes_any or set(keywords) <= set(parameters)


def test_all_calls_are_found():
    names = {name for name, _ in calls()}
    assert {"CheckpointManager", "args.StandardRestore", "multihost.get_jax_distributed_client"} <= names
