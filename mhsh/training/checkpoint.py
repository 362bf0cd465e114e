"""Saving and restoring the training state through Orbax, with a manifest that is compared before any array is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from mhsh.errors import UserError
from mhsh.training.state import TrainState

Manifest = dict[str, dict[str, Any]]


class Checkpoints:
    """The checkpoints of one run: params, opt_state and manifest as separate items, so that params restore alone."""

    def __init__(self, folder: Path, *, keep: int, keep_every: int) -> None:
        """Keeps the newest `keep` steps, and for good every multiple of `keep_every` (0: none)."""
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep, keep_period=keep_every or None, enable_async_checkpointing=True, cleanup_tmp_directories=True
        )
        self._folder = folder
        self._manager = ocp.CheckpointManager(folder.resolve(), item_names=("params", "opt_state", "manifest"), options=options)

    def latest_step(self) -> int | None:
        """The newest committed step, or None."""
        return self._manager.latest_step()

    def existing_step(self, step: int | None) -> int:
        """`step` where it is saved, or the newest where it is None. Raises UserError where there is no such checkpoint."""
        steps = self._manager.all_steps()
        if not steps:
            raise UserError(f"{self._folder} holds no checkpoint; train the run first")
        if step is not None and step not in steps:
            raise UserError(f"{self._folder} holds no checkpoint of step {step}; there are {', '.join(map(str, sorted(steps)))}")
        return max(steps) if step is None else step

    def save(self, step: int, state: TrainState) -> None:
        """Copies the state and returns; writing goes on behind. A failure of the write before surfaces here."""
        params, opt_state = flatten(state.params), flatten((state.opt_state, state.step))
        self._manager.save(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardSave(params),
                opt_state=ocp.args.StandardSave(opt_state),
                manifest=ocp.args.JsonSave({"params": manifest(params), "opt_state": manifest(opt_state)}),
            ),
        )

    def restore(self, step: int, abstract: TrainState) -> TrainState:
        """The state of `step`, laid out as `abstract` says.

        Raises:
          UserError: the checkpoint's arrays are not those of `abstract`, or cannot be read.
        """
        params = self._restore_item(step, "params", abstract.params)
        opt_state, saved_step = self._restore_item(step, "opt_state", (abstract.opt_state, abstract.step))
        return TrainState(params, opt_state, saved_step)

    def restore_params(self, step: int, abstract: Any) -> Any:
        """The parameters of `step` alone; raises as `restore` does."""
        return self._restore_item(step, "params", abstract)

    def close(self) -> None:
        """Waits for what is still being written; raises what went wrong with it."""
        self._manager.wait_until_finished()
        self._manager.close()

    def _restore_item(self, step: int, item: str, abstract: Any) -> Any:
        where = self._folder / str(step)
        wanted = flatten(abstract)
        try:
            saved = self._manager.restore(step, args=ocp.args.Composite(manifest=ocp.args.JsonRestore()))["manifest"][item]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"the checkpoint {where} has no readable manifest ({error}); restore an older step") from error
        compare_manifests(saved, manifest(wanted), where)
        try:
            restored = self._manager.restore(step, args=ocp.args.Composite(**{item: ocp.args.StandardRestore(wanted)}))[item]
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"the checkpoint {where} cannot be read ({error}); restore an older step") from error
        return jax.tree.unflatten(jax.tree.structure(abstract), [restored[name] for name in wanted])


def flatten(tree: Any) -> dict[str, Any]:
    """{path: leaf} in the tree's own order; a plain dictionary is all that a checkpoint needs to know of a tree."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def manifest(leaves: dict[str, Any]) -> Manifest:
    """{path: {shape, dtype}}."""
    return {path: {"shape": list(leaf.shape), "dtype": str(leaf.dtype)} for path, leaf in leaves.items()}


def compare_manifests(saved: Manifest, wanted: Manifest, where: Path) -> None:
    """Raises UserError naming the first array that is missing, unexpected, or of another shape or dtype."""
    differences = [
        f"{path} is {_describe(saved.get(path))} there, {_describe(wanted.get(path))} in the config"
        for path in sorted(saved.keys() | wanted.keys())
        if saved.get(path) != wanted.get(path)
    ]
    if differences:
        more = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
        raise UserError(f"the checkpoint {where} is of another model: {differences[0]}{more}; give the config it was saved with")


def _describe(entry: dict[str, Any] | None) -> str:
    return "absent" if entry is None else f"{entry['dtype']}{entry['shape']}"
