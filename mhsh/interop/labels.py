"""The classes of a fine-tuned checkpoint, in the order of the task that they are of."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from mhsh.data.glue import MAX_SCORE, GlueTask
from mhsh.errors import UserError
from mhsh.interop.tensors import Imported
from mhsh.text import format_list


def in_task_order(imported: Imported, task: GlueTask, given: Sequence[str] | None) -> Imported:
    """The checkpoint with the outputs of its head in the order of task.label_names. Names are
    compared without case, and with `_`, `-` and a space as one.

    Args:
      given: the names of its classes in its own order (None: those of its config.json).

    Raises UserError where the names are not those of the task, so that nobody knows which output is
    which.
    """
    known = format_list(task.label_names)
    if not task.label_names:
        if given is not None:
            raise UserError(f"--labels names classes, and {task.name} has one score; leave it away")
        scale = f"its one output is taken as the score of {task.name}, from 0 to {MAX_SCORE:g}"
        return dataclasses.replace(imported, labels=(), notes=(*imported.notes, scale))
    names = tuple(given or imported.labels)
    own, wanted = [_plain(name) for name in names], [_plain(name) for name in task.label_names]
    if sorted(own) != sorted(wanted):
        if given is not None:
            raise UserError(f"--labels={','.join(given)}: give {known}, each once, in the order of the checkpoint's outputs")
        raise UserError(
            f"the checkpoint calls its classes {', '.join(names)}, which does not say which of them are {known}; add --labels=..., "
            f"these names of {task.name} with commas between, in the order of the checkpoint's outputs (its model card has it)"
        )
    order = [own.index(name) for name in wanted]
    notes = [] if order == sorted(order) else [f"its classes are {', '.join(names)}; they are put into the order of {task.name}"]
    if given is not None and sorted(map(_plain, imported.labels)) == sorted(wanted) and own != [*map(_plain, imported.labels)]:
        notes.append(f"--labels goes before its config.json, which says {', '.join(imported.labels)}")
    head = {name: values[..., order] for name, values in imported.params["classification"].items()}
    return dataclasses.replace(
        imported,
        params=imported.params | {"classification": head},
        labels=task.label_names,
        notes=(*imported.notes, *notes),
    )


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "_", name.strip().casefold())
