"""mhsh plan: what a run will be and cost, before it is started."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.table import Column, Table

from mhsh.cli.parser import ConfigsFlag
from mhsh.config.schema import Config
from mhsh.errors import UserError
from mhsh.text import whole_numbers

if TYPE_CHECKING:
    from mhsh.planning.roofline import Range, StepTime

GIB = 2**30


EXAMPLES = (
    "mhsh plan --config=bert:24l16h --config=bert:384l1h --chips=v5p:8,64",
    "mhsh plan --config=bert:384l1h --config.mesh.fsdp=16 --topology=v5e:4x4",
)


def run(
    *,
    config: ConfigsFlag,
    topology: str | None = None,
    num_slices: int = 1,
    hbm: float | None = None,
    chips: tuple[str, ...] = (),
    as_json: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """What runs of some configs will be and cost, side by side: parameters, FLOPs, memory.

    With --topology the training step is compiled for it, and what the compiler says is printed:
    memory, collectives, FLOPs. With --chips the time on them is estimated, as a range. The exit
    status is 0 even if a step does not fit.

    Args:
      topology: compile the step for v5e:4x4, v6e:4x4, v4:2x2x1, v5p:2x2x2 or local:8
      num_slices: slices of that layout
      hbm: memory of a device in GiB; the public figure by default
      chips: KIND:N,... estimate the time on N of v4, v5e, v5p, v6e, a100, h100, h200
      as_json: print one JSON object

    Raises:
      UserError: a flag is wrong, or a config does not divide over the devices.
    """
    from mhsh.planning.compiled import measure, parse_topology
    from mhsh.planning.ledger import ledger
    from mhsh.planning.roofline import ASSUMPTIONS, CHIPS, step_time

    configs: dict[str, Config] = dict(config)
    if hbm is not None and not 0 < hbm < math.inf:
        raise UserError(f"--hbm={hbm:g}: give the GiB of a device, above 0")
    hbm_bytes = round(hbm * GIB) if hbm else None
    target = parse_topology(topology, num_slices) if topology else None
    counts = [_chips(text, CHIPS) for text in chips]
    ledgers = {name: ledger(config, target, hbm_bytes) for name, config in configs.items()}
    times = [
        (name, kind, step_time(config, CHIPS[kind], count))
        for kind, numbers in counts
        for count in numbers
        for name, config in configs.items()
    ]
    reports = {name: measure(config, target, hbm_bytes) for name, config in configs.items()} if target else {}
    if as_json:
        asked: dict[str, Any] = {"configs": ledgers}
        if reports:
            asked["compiled"] = reports
        if times:
            asked |= {
                "assumptions": ASSUMPTIONS,
                "times": [{"config": name, "chip": kind, **_fields(time)} for name, kind, time in times],
            }
        print(json.dumps(asked, indent=2))
        return 0
    _print_ledgers(ledgers)
    for name, report in reports.items():
        print(f"\n[{name}]")
        print_report(report)
    if times:
        _print_times(times, ASSUMPTIONS)
    return 0


def _chips(text: str, known: Mapping[str, Any]) -> tuple[str, list[int]]:
    kind, _, numbers = text.partition(":")
    if kind not in known:
        raise UserError(f"--chips={text}: {kind!r} is not known; allowed: {', '.join(known)}, as in v5p:8,64")
    return kind, whole_numbers(f"--chips={kind}:", numbers)


def _print_ledgers(ledgers: Mapping[str, dict[str, Any]]) -> None:
    """A column for each config, and with two of them the difference."""
    first, columns = next(iter(ledgers.values())), list(ledgers.values())
    headers = [*ledgers, *(["difference"] if len(columns) == 2 else [])]
    table = Table(Column("", no_wrap=True), *(Column(name, overflow="fold") for name in headers), box=None, pad_edge=False)

    def section(title: str, notes: Sequence[str] = ()) -> None:
        table.add_row(f"[bold]{title}[/bold]", *notes)

    def texts(label: str, values: Sequence[str]) -> None:
        table.add_row(f"  {label}", *values)

    def figures(label: str, values: Sequence[int | float], form: Any = None) -> None:
        change = [f"{values[1] / values[0] - 1:+.2%}"] if len(values) == 2 and values[0] else []
        table.add_row(f"  {label}", *map(form or _count, values), *change)

    texts("shape", [one["shape"] for one in columns])
    texts("residual", [one["residual"] for one in columns])
    figures("total heads", [one["total_heads"] for one in columns])
    texts("D / H / F", [f"{one['embed_dim']} / {one['head_dim']} / {one['mlp_dim']}" for one in columns])
    section("PARAMETERS")
    labels = {"encoder": "encoder without omega", "decoder": "decoder without omega", "omega": "omega (Admin)"}
    for name in first["parameters"]:
        values = [one["parameters"][name] for one in columns]
        if any(values):
            figures(labels.get(name, name.replace("heads", "heads on top").replace("total", "all")), values)
    section("FLOPS, forward, one row", [f"{one['sequence_length']} tokens" for one in columns])
    for name in first["flops_forward"]:
        label = {"heads": "heads on top", "per_sequence": "all", "per_token": "all, per token"}.get(name, name.replace("_", " "))
        figures(label, [one["flops_forward"][name] for one in columns])
    figures("one step, forward and backward", [one["flops_step"] for one in columns])
    section("MEMORY PER DEVICE", [f"of {_size(one['device_bytes'])}" if one["device_bytes"] else "" for one in columns])
    texts("mesh", [" ".join(f"{axis}:{size}" for axis, size in one["mesh"].items()) for one in columns])
    texts("remat policy", [one["remat_policy"] for one in columns])
    for name in first["bytes_per_device"]:
        values = [one["bytes_per_device"][name] for one in columns]
        if any(values):
            figures(name, values, _size)
    section("TOTAL, BY REMAT POLICY")
    for name in first["total_by_remat_policy"]:
        figures(name, [one["total_by_remat_policy"][name] for one in columns], _size)
    section("OMEGA, closed form")
    for name in {name: None for one in columns for name in one["omega_closed"]}:
        label = name.replace("closed_log", "output change O(log n)").replace("closed_one", "output change O(1)")
        texts(label, [f"{one['omega_closed'][name]:.3f}" if name in one["omega_closed"] else "" for one in columns])
    Console(width=max(80, Console().width)).print(table)  # narrower, figures would be cut off


def print_report(report: dict[str, Any]) -> None:
    """What the compiler says as text: verdict, memory, collectives, FLOPs."""
    mesh = " x ".join(f"{axis} {size}" for axis, size in report["mesh"].items())
    slices = f", {report['num_slices']} slices" if report["num_slices"] > 1 else ""
    print(f"{report['topology']}{slices}: {report['num_devices']} x {report['device_kind']}; {mesh}; batch {report['batch_size']}")
    print(f"remat policy {report['remat_policy']}")
    print(f"compiled in {report['compile_seconds']:.1f} s ({', '.join(f'{k} {v}' for k, v in report['versions'].items() if v)})")
    print(_verdict(report))
    table = Table("FLOPS PER STEP AND DEVICE", "", box=None, pad_edge=False)
    table.add_row("three forward passes", f"{report['flops']['ledger']:.4g}")
    table.add_row("matrix products, recomputation included", f"{report['flops']['matrix_products']:.4g}")
    Console().print(table)
    if "memory" in report:
        _print_memory(report["memory"])
        _print_collectives(report["collectives"])
    for loop in report.get("unknown_loops", ()):
        print(f"warning: the trip count of loop {loop} could not be read; its collectives are counted once")
    for warning in report.get("warnings", ()):
        print(f"warning: {warning}")


def _verdict(report: dict[str, Any]) -> str:
    needed, available = report["needed_bytes"], report["hbm_bytes"]
    if report["fits"] is None:
        return f"needs {_size(needed)} a device"
    if needed is None:
        return f"does not fit: the compiler ran out of the {_size(available)} of a device ({report['compiler']})"
    share = f"{_size(needed)} of {_size(available)} a device ({needed / available:.0%})"
    return f"fits: {share}" if report["fits"] else f"does not fit: needs {'' if 'memory' in report else 'at least '}{share}"


def _print_memory(memory: dict[str, int]) -> None:
    table = Table("MEMORY PER DEVICE", "", box=None, pad_edge=False)
    labels = {
        "argument": "arguments: state and batch",
        "output": "outputs: new state and figures",
        "alias": "  of these in the place of the old state",
        "temp": "temporaries",
        "generated_code": "program",
        "total": "all at once",
        "peak": "peak by the compiler's own count",
    }
    for name, label in labels.items():
        if memory[name]:
            table.add_row(label, _size(memory[name]))
    Console().print(table)


def _print_collectives(collectives: list[dict[str, Any]]) -> None:
    table = Table("COLLECTIVES PER STEP AND DEVICE", "runs", "payload", "sent in a ring", "types", box=None, pad_edge=False)
    for kind in dict.fromkeys(one["kind"] for one in collectives):
        those = [one for one in collectives if one["kind"] == kind]
        count, payload, sent = (sum(one[name] for one in those) for name in ("count", "bytes", "sent_bytes"))
        types = sorted({dtype for one in those for dtype in one["dtypes"]})
        table.add_row(kind, f"{count:,}", _size(payload), _size(sent), " ".join(types))
    if not collectives:
        table.add_row("none", "", "", "", "")
    Console().print(table)


def _print_times(times: Sequence[tuple[str, str, StepTime]], assumptions: Sequence[str]) -> None:
    parts = [f"{part} ms" for part in ("products", "memory", "network", "launches", "step")]
    columns = ("chips", "rows each", "remat", "GiB", *parts, "MFU", "run h", "chip h")
    table = Table("TIME, ESTIMATED", *columns, box=None, pad_edge=False)
    for name, kind, time in times:
        table.add_row(
            name,
            f"{time.devices:,} {kind}",
            f"{time.rows}",
            time.remat_policy,
            f"{time.needed_bytes / GIB:.1f}{'' if time.fits else ', too much'}",
            f"{1e3 * time.compute:.1f}",
            *(_range(bounds, 1e3, ".1f") for bounds in (time.memory, time.network, time.launches, time.step)),
            _range(time.mfu, 1.0, ".0%"),
            *(_range(bounds, 1.0, ",.1f") for bounds in (time.run_hours, time.chip_hours)),
        )
    print()
    Console(width=200).print(table)
    print("Nothing here is measured. Assumed:", *assumptions, sep="\n- ")


def _range(bounds: Range, unit: float, form: str) -> str:
    low, high = (format(bound * unit, form) for bound in bounds)
    return low if low == high else f"{low} - {high}"


def _fields(time: StepTime) -> dict[str, Any]:
    return {name: value._asdict() if hasattr(value, "_asdict") else value for name, value in time._asdict().items()}


def _count(value: int | float) -> str:
    for size, unit in ((10**12, "T"), (10**9, "G"), (10**6, "M")):
        if value >= size:
            return f"{value / size:.2f}{unit}"
    return f"{value:,.0f}"


def _size(num_bytes: int | float) -> str:
    for size, unit in ((GIB, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if num_bytes >= size:
            return f"{num_bytes / size:.2f} {unit}"
    return f"{num_bytes:.0f} B"
