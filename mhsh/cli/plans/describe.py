"""mhsh describe: what one or two configs are and cost, side by side."""

from __future__ import annotations

import argparse
import json
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from mhsh.cli.flags import add_configs
from mhsh.cli.parser import examples
from mhsh.config.schema import Config

# The remat policies among which `auto` chooses on every platform (mhsh/training/remat.py). Each
# needs less memory than the one before it.
_CHOICES = ("projections", "full", "groups")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.epilog = examples(
        "mhsh describe --config=bert:24l16h --against=bert:384l1h",
        "mhsh describe --config=bert:2l8h --config.mesh.data=1 --json",
    )
    add_configs(parser, "config", "against")
    parser.add_argument("--json", dest="as_json", action="store_true", help="as JSON")


def run(config: Config, against: Config | None, as_json: bool) -> int:
    """Prints the ledger of `config`, beside that of `against` with the difference where one is
    given.
    """
    ledgers = [ledger(each) for each in (config, against) if each is not None]
    if as_json:
        print(json.dumps(ledgers[0] if against is None else {"config": ledgers[0], "against": ledgers[1]}, indent=2))
    else:
        _print_table(ledgers)
    return 0


def ledger(config: Config) -> dict[str, Any]:
    """Every figure of one config, by name. Bytes are per device, FLOPs of matrix products."""
    from mhsh.models.costs import forward_flops, parameter_counts, row_flops, step_flops
    from mhsh.models.residual import closed_form_omega
    from mhsh.models.types import decoder_stack, encoder_stack
    from mhsh.training.memory import footprint, with_policy
    from mhsh.training.sharding import check_divisibility, mesh_shape

    model, data, train = config.model, config.data, config.train
    shape = mesh_shape(config.mesh, _num_devices(config))
    check_divisibility(config, shape)
    flops = row_flops(config)
    longest = forward_flops(model, model.max_positions, model.max_positions)
    # What `auto` chooses is the device's affair; described is the policy that the full-size models
    # need most often.
    policy = "full" if model.remat_policy == "auto" else model.remat_policy
    memory = footprint(with_policy(config, policy), shape)
    choices = {each: footprint(with_policy(config, each), shape) for each in _CHOICES if model.remat_policy == "auto"}
    stacks = [encoder_stack(model), decoder_stack(model)][: 1 + bool(model.num_decoder_layers)]
    return {
        "shape": f"{' + '.join(str(stack.num_layers) for stack in stacks)} layers x {model.num_heads} heads",
        "residual": model.residual,
        "total_heads": sum(stack.num_layers for stack in stacks) * model.num_heads,
        "embed_dim": model.embed_dim,
        "head_dim": model.head_dim,
        "mlp_dim": model.mlp_dim,
        "parameters": parameter_counts(model),
        "sequence_length": data.sequence_length,
        "flops_layers_longest": {"tokens": model.max_positions, "per_sequence": longest.layers},
        "flops_forward": {
            "attention_projections": flops.attention_projections,
            "attention_scores": flops.attention_scores,
            "feed_forward": flops.feed_forward,
            "heads": flops.heads,
            "per_sequence": flops.total,
            "per_token": flops.total / data.sequence_length,
        },
        "flops_step": step_flops(config),
        "rows_per_step": train.batch_size,
        "mesh": shape,
        "remat_policy": policy,
        "bytes_per_device": {**memory._asdict(), "total": memory.total},
        "total_by_remat_policy": {name: each.total for name, each in choices.items()},
        "activations_by_remat_policy": {name: each.activations + each.recomputed for name, each in choices.items()},
        "omega_closed": {
            f"{stack.name} {rule}": closed_form_omega(rule, stack.num_sublayers)
            for stack in stacks
            for rule in ("closed_log", "closed_one")
        },
    }


def _num_devices(config: Config) -> int:
    """The devices of a fully named mesh, which need not be here; those that are here, where one
    axis is left open.
    """
    import jax

    sizes = (config.mesh.data, config.mesh.fsdp, config.mesh.tensor)
    return jax.device_count() if -1 in sizes else sizes[0] * sizes[1] * sizes[2]


def _print_table(ledgers: list[dict[str, Any]]) -> None:
    table = Table(
        Column("", no_wrap=True),
        *("config", "against", "difference")[: len(ledgers) + (len(ledgers) > 1)],
        box=None,
        pad_edge=False,
    )
    has_decoder = any(each["parameters"]["decoder"] for each in ledgers)
    stacks = ["encoder", "decoder"][: 1 + has_decoder]
    by_policy = [
        ("TOTAL, BY REMAT POLICY", "section", ""),
        *((name, "bytes", ("total_by_remat_policy", name)) for name in _CHOICES),
        ("ACTIVATIONS, BY REMAT POLICY", "section", ""),
        *((name, "bytes", ("activations_by_remat_policy", name)) for name in _CHOICES),
    ]
    rows: list[tuple[str, str, Any]] = [
        ("shape", "text", "shape"),
        ("residual", "text", "residual"),
        ("total heads", "count", "total_heads"),
        ("D / H / F", "text", ("embed_dim", "head_dim", "mlp_dim")),
        ("PARAMETERS", "section", ""),
        ("encoder without omega", "count", ("parameters", "encoder")),
        *([("decoder without omega", "count", ("parameters", "decoder"))] if has_decoder else []),
        ("omega (Admin)", "count", ("parameters", "omega")),
        ("embeddings", "count", ("parameters", "embeddings")),
        ("heads on top", "count", ("parameters", "heads")),
        ("all", "count", ("parameters", "total")),
        ("FLOPS, forward, longest sequence", "section", ("flops_layers_longest", "tokens")),
        ("layers", "count", ("flops_layers_longest", "per_sequence")),
        ("FLOPS, forward, training row", "section", "sequence_length"),
        ("attention projections", "count", ("flops_forward", "attention_projections")),
        ("attention scores", "count", ("flops_forward", "attention_scores")),
        ("feed-forward", "count", ("flops_forward", "feed_forward")),
        ("heads on top", "count", ("flops_forward", "heads")),
        ("all", "count", ("flops_forward", "per_sequence")),
        ("all, per token", "count", ("flops_forward", "per_token")),
        ("one step, forward and backward", "count", "flops_step"),
        ("MEMORY PER DEVICE", "section", "mesh"),
        ("remat policy", "text", "remat_policy"),
        *((name, "bytes", ("bytes_per_device", name)) for name in ledgers[0]["bytes_per_device"]),
        *(by_policy if all(each["total_by_remat_policy"] for each in ledgers) else []),
        ("OMEGA, closed form", "section", ""),
        *((f"{stack}, output change O(log n)", "number", ("omega_closed", f"{stack} closed_log")) for stack in stacks),
        *((f"{stack}, output change O(1)", "number", ("omega_closed", f"{stack} closed_one")) for stack in stacks),
    ]
    for label, kind, key in rows:
        values = [_value(each, kind, key) for each in ledgers]
        table.add_row(*_cells(label, kind, values))
    Console(width=max(80, Console().width)).print(table)  # narrower, figures would be cut off


def _value(ledger: dict[str, Any], kind: str, key: Any) -> Any:
    if isinstance(key, str):
        return ledger[key] if key else ""
    if kind == "text":
        return " / ".join(str(ledger[name]) for name in key)
    return ledger[key[0]].get(key[1], 0)  # an encoder alone has no decoder's figures


def _cells(label: str, kind: str, values: list[Any]) -> list[str]:
    if kind == "section":
        notes = [_section_note(value) for value in values]
        return [f"[bold]{label}[/bold]", *notes]
    cells = [f"  {label}", *(_format(value, kind) for value in values)]
    if len(values) == 2 and kind != "text":
        cells.append(f"{(values[1] / values[0] - 1) * 100:+.2f} %" if values[0] else "")
    return cells


def _section_note(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{axis}:{size}" for axis, size in value.items())
    return f"{value} tokens" if value else ""


def _format(value: Any, kind: str) -> str:
    if kind == "text":
        return str(value)
    if kind == "number":
        return f"{value:.3f}"
    units = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")) if kind == "bytes" else ((10**12, "T"), (10**9, "G"), (10**6, "M"))
    for size, unit in units:
        if value >= size:
            return f"{value / size:.2f}{' ' if kind == 'bytes' else ''}{unit}"
    return f"{value:,.0f}"
