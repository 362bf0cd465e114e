"""What a difference in a field of the config means: for the comparison of two runs, in the ledger,
and for the time of a step.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Meta

Role = Literal["shape", "loss", "clock", "bookkeeping"]

# What a difference in a field does to a comparison of two runs.
ROLES: Mapping[Role, str] = {
    "shape": "it is what is compared",
    "loss": "the losses are not at equal conditions",
    "clock": "device seconds are not comparable",
    "bookkeeping": "nothing; what lies at a path is compared by its fingerprint",
}

# Where the fairness ledger shows a field, in the ledger's order.
Row = Literal[
    "data seed (split, order, masking)",
    "rows of data",
    "task",
    "initialisation",
    "activation and LayerNorm",
    "learning-rate schedule",
    "update rule",
    "steps and batch",
    "dropout",
    "precision",
    "validation batches",
    "attention and rematerialisation",
    "micro-batches",
    "start",
    "training seed",
    "mesh",
]

# What a difference does to the time of a step. changes: it is another step; named: it is worth
# knowing; same: nothing.
Step = Literal["changes", "named", "same"]


def described(role: Role, doc: str, row: Row | None = None, step: Step = "same", **before: Any) -> Meta:
    """What is known of a field besides its type.

    `before=VALUE` is the value of runs that are older than the field: their config.json lacks it.
    """
    return Meta(description=doc, extra={"role": role, "row": row, "step": step} | before)


shape = functools.partial(described, "shape", step="changes")
loss = functools.partial(described, "loss")
clock = functools.partial(described, "clock")
bookkeeping = functools.partial(described, "bookkeeping")
rows = functools.partial(described, "loss", row="rows of data")
task = functools.partial(described, "loss", row="task", step="changes")
start_values = functools.partial(described, "loss", row="initialisation")
data_seed = functools.partial(described, "loss", row="data seed (split, order, masking)")
