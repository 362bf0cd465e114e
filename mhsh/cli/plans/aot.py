"""mhsh aot: memory and communication of the training step on a TPU slice, without access to it."""

from __future__ import annotations

import argparse
import json
import math
import sys
from typing import Any

from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from mhsh.cli.flags import add_configs
from mhsh.cli.parser import examples
from mhsh.config.schema import Config
from mhsh.errors import UserError
from mhsh.planning.hlo import KINDS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.epilog = examples(
        "mhsh aot --config=bert:384l1h --topology=v5e:4x4 --search",
        "mhsh aot --config=bert:2l8h --topology=local:8 --json",
    )
    add_configs(parser, "config")
    parser.add_argument("--topology", required=True, metavar="KIND:LAYOUT", help="v5e:4x4, v4:2x2x1, v5p:2x2x2, v6e:4x4 or local:8")
    parser.add_argument("--num-slices", type=int, default=1, metavar="N", help="slices of that layout (default: 1)")
    parser.add_argument("--hbm", type=float, metavar="GIB", help="memory of a device (default: the public figure)")
    parser.add_argument(
        "--search",
        action="store_true",
        help="find the batch, and the remat policy where it is auto, with the most tokens a second",
    )
    parser.add_argument("--json", dest="as_json", action="store_true", help="as JSON")


def run(config: Config, topology: str, num_slices: int, hbm: float | None, search: bool, as_json: bool) -> int:
    """Compiles the step for `topology` and prints the report; with `search`, of the plan that fits
    and could do the most tokens a second.

    `hbm` is the memory of a device in GiB, instead of the public figure. The exit status is 0 even
    if the step does not fit.
    """
    from mhsh.planning.aot import GIB, measure, parse_topology
    from mhsh.planning.search import best_plan
    from mhsh.training.sharding import check_divisibility, mesh_shape

    if hbm is not None and not 0 < hbm < math.inf:
        raise UserError(f"--hbm={hbm:g}: give the GiB of a device, above 0")
    where = parse_topology(topology, num_slices)
    hbm_bytes = round(hbm * GIB) if hbm else None
    shape = mesh_shape(config.mesh, where.num_devices)
    if search:
        unit = shape["data"] * shape["fsdp"] * config.train.accumulation_steps
        batch_size = max(1, config.train.batch_size // unit) * unit
        config = replace(config, train=replace(config.train, batch_size=batch_size))
        check_divisibility(config, shape)
        best, tried = best_plan(config, where.kind, lambda each: _tried(measure(each, where, hbm_bytes)), unit)
        report = (best or tried[-1]) | {"search": [_summary(each) for each in tried], "found": best is not None}
    else:
        check_divisibility(config, shape)
        report = measure(config, where, hbm_bytes)
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        print_report(report)
    return 0


def _tried(report: dict[str, Any]) -> dict[str, Any]:
    verdict = {True: "fits", False: "does not fit", None: "compiled"}[report["fits"]]
    needed = f"{_size(report['needed_bytes'])} a device" if report["needed_bytes"] else "more than there is"
    plan = f"{report['remat_policy']}, batch {report['batch_size']}"
    print(f"{plan}: {needed}, {verdict} ({report['compile_seconds']:.0f} s)", file=sys.stderr)
    return report


def _summary(report: dict[str, Any]) -> dict[str, Any]:
    names = ("remat_policy", "batch_size", "needed_bytes", "fits", "tokens_per_second", "compile_seconds")
    return {name: report[name] for name in names}


def print_report(report: dict[str, Any]) -> None:
    """The report as text: verdict, memory, collectives, FLOPs."""
    mesh = " x ".join(f"{axis} {size}" for axis, size in report["mesh"].items())
    slices = f", {report['num_slices']} slices" if report["num_slices"] > 1 else ""
    print(f"{report['topology']}{slices}: {report['num_devices']} x {report['device_kind']}; {mesh}; batch {report['batch_size']}")
    print(f"remat policy {report['remat_policy']}")
    print(f"compiled in {report['compile_seconds']:.1f} s ({', '.join(f'{k} {v}' for k, v in report['versions'].items() if v)})")
    print(_verdict(report))
    if "memory" in report:
        _print_memory(report["memory"])
        _print_collectives(report["collectives"])
        _print_flops(report["flops"])
        _print_traffic(report["traffic"])
    for loop in report.get("unknown_loops", ()):
        print(f"warning: the trip count of loop {loop} could not be read; what is in it is counted once")
    for warning in report.get("warnings", ()):
        print(f"warning: {warning}")
    if "search" in report:
        _print_search(report)


def _verdict(report: dict[str, Any]) -> str:
    needed, there = report["needed_bytes"], report["hbm_bytes"]
    if report["fits"] is None:
        return f"needs {_size(needed)} a device"
    if needed is None:
        return f"does not fit: the compiler ran out of the {_size(there)} of a device ({report['compiler']})"
    share = f"{_size(needed)} of {_size(there)} a device ({needed / there:.0%})"
    return f"fits: {share}" if report["fits"] else f"does not fit: needs {'' if 'memory' in report else 'at least '}{share}"


def _print_search(report: dict[str, Any]) -> None:
    """Of each plan the largest batch that fits, and which plan the report above is of."""
    table = Table("PLANS", "largest batch", "memory", "tokens/s a device, at most", box=None, pad_edge=False)
    by_policy: dict[str, dict[str, Any]] = {}
    for each in report["search"]:
        policy = each["remat_policy"]
        if each["fits"] and each["batch_size"] >= by_policy.get(policy, each)["batch_size"]:
            by_policy[policy] = each
    for policy, each in by_policy.items():
        rate = "" if each["tokens_per_second"] is None else f"{each['tokens_per_second']:,.0f}"
        table.add_row(policy, str(each["batch_size"]), _size(each["needed_bytes"]), rate)
    Console().print(table)
    chosen = f"{report['remat_policy']}, batch {report['batch_size']}" if report["found"] else "nothing fits"
    print(f"best: {chosen} ({len(report['search'])} compilations)")


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
    for kind in KINDS:
        those = [each for each in collectives if each["kind"] == kind]
        if those:
            count, payload, sent = (sum(each[name] for each in those) for name in ("count", "bytes", "sent_bytes"))
            types = sorted({dtype for each in those for dtype in each["dtypes"]})
            table.add_row(kind, f"{count:,}", _size(payload), _size(sent), " ".join(types))
    if not collectives:
        table.add_row("none", "", "", "", "")
    Console().print(table)


def _print_flops(flops: dict[str, Any]) -> None:
    table = Table("FLOPS PER STEP AND DEVICE", "", box=None, pad_edge=False)
    table.add_row("ledger: three forward passes", f"{flops['ledger']:.4g}")
    table.add_row("compiled matrix products, recomputation included", f"{flops['matrix_products']:.4g}")
    if flops["xla_loops_once"]:
        table.add_row("XLA's cost analysis, loop bodies counted once", f"{flops['xla_loops_once']:.4g}")
    Console().print(table)


def _print_traffic(traffic: dict[str, Any]) -> None:
    """What moves to and from main memory, by the part of the step and by buffer."""
    total = traffic["read"] + traffic["written"]
    cycles = ["estimated cycles"] if traffic["cycles"] else []
    table = Table("MAIN MEMORY PER STEP AND DEVICE", "moved", *cycles, box=None, pad_edge=False)
    for phase, part in traffic["by_phase"].items():
        if part["moved"]:
            table.add_row(phase, _size(part["moved"]), *(f"{part['cycles']:,}" for _ in cycles))
    sums = f"{_size(traffic['read'])} read, {_size(traffic['written'])} written"
    table.add_row(f"all: {sums}", _size(total), *(f"{traffic['cycles']:,}" for _ in cycles))
    Console().print(table)
    worst = Table("BUFFERS THAT MOVE MOST", "read", "written", "of all", "", box=None, pad_edge=False)
    for buffer in traffic["buffers"]:
        share = (buffer["read"] + buffer["written"]) / total
        worst.add_row(buffer["shape"], _size(buffer["read"]), _size(buffer["written"]), f"{share:.0%}", buffer["source"])
    Console().print(worst)


def _size(num_bytes: int) -> str:
    for size, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if num_bytes >= size:
            return f"{num_bytes / size:.2f} {unit}"
    return f"{num_bytes} B"
