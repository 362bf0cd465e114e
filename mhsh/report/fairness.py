"""What was equal between the runs and what was not: config fields, and the conditions that run.json records."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from mhsh.config import to_dict
from mhsh.report.runs import Run
from mhsh.report.wording import recorded


@dataclasses.dataclass(frozen=True)
class LedgerRow:
    """One thing that could make a comparison unfair, with its value in every run."""

    what: str
    values: tuple[str, ...]  # in the order of the runs
    equal: bool | None  # None: what is recorded is equal, but it is not recorded for every run


def config_differences(runs: Sequence[Run]) -> tuple[LedgerRow, ...]:
    """Every config field in which at least two runs differ, named as in `--config.model.num_layers`."""
    flat = [_flatten(to_dict(run.config)) for run in runs]
    rows = [_row(field, [fields.get(field) for fields in flat]) for field in (flat[0] if flat else {})]
    return tuple(row for row in rows if row.equal is False)


def conditions(runs: Sequence[Run]) -> tuple[LedgerRow, ...]:
    """The conditions in run.json, whether equal or not: data, parameters by part, code, hardware, library versions."""
    rows = [
        _row("data fingerprint", [run.recorded("data", "fingerprint") for run in runs]),
        _row("unigram entropy of the data, nats per token", [run.recorded("data", "unigram_entropy") for run in runs]),
    ]
    parts = _keys_of(runs, "parameters")
    rows += [_row(f"parameters: {recorded(part)}", [run.recorded("parameters", part) for run in runs]) for part in parts]
    rows += [
        _row("forward FLOPs a token", [run.recorded("flops_per_token_forward") for run in runs]),
        _row("code revision", [run.recorded("git_revision") for run in runs]),
        _row("devices", [run.recorded("devices") for run in runs]),
        _row("mesh", [run.recorded("mesh") for run in runs]),
    ]
    versions = _keys_of(runs, "versions")
    rows += [_row(f"version of {recorded(name)}", [run.recorded("versions", name) for run in runs]) for name in versions]
    return tuple(rows)


def same_data(runs: Sequence[Run]) -> bool | None:
    """Whether the data fingerprints are equal; None where one is not recorded and the others do not differ."""
    return _equal([run.recorded("data", "fingerprint") for run in runs])


def different_tasks(runs: Sequence[Run]) -> str | None:
    """Why the losses of these runs are not in one unit, or None where they are.

    The rule: the objective, the tokenizer and its vocabulary decide what a token is and what is predicted. Vocabularies are
    compared by content where every run kept its own, else by the config's path and size.
    """
    wordpiece = [run for run in runs if run.config.data.tokenizer == "wordpiece"]
    if all(run.vocabulary is not None for run in wordpiece):
        vocabularies = {run.vocabulary for run in wordpiece}
    else:
        vocabularies = {(run.config.data.vocab_path, run.config.model.vocab_size) for run in wordpiece}
    tasks = (
        ("the objective", {run.config.model.objective for run in runs}),
        ("the tokenizer", {run.config.data.tokenizer for run in runs}),
        ("the vocabulary", vocabularies),
    )
    return next((f"{what} differs" for what, values in tasks if len(values) > 1), None)


def _row(what: str, values: Sequence[Any]) -> LedgerRow:
    return LedgerRow(what, tuple(recorded(value) for value in values), _equal(values))


def _equal(values: Sequence[Any]) -> bool | None:
    known = {json.dumps(value, sort_keys=True) for value in values if value is not None}
    if len(known) > 1:
        return False
    return True if all(value is not None for value in values) else None


def _keys_of(runs: Sequence[Run], section: str) -> list[str]:
    """The keys that any run records in a section, in the order in which they first appear."""
    sections = [run.recorded(section) for run in runs]
    return list(dict.fromkeys(key for value in sections if isinstance(value, Mapping) for key in value))


def _flatten(fields: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in fields.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat
