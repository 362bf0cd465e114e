"""mhsh plan: what a run will be and cost, before it is started."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.table import Column, Table

from mhsh.cli.parser import ConfigsFlag, Count, Positive
from mhsh.config.schema import Config
from mhsh.errors import UserError
from mhsh.text import timing, to_json, whole_numbers

GIB = 2**30

EXAMPLES = (
    "mhsh plan --config=bert:24l16h --config=bert:384l1h --chips=v5p:8,64",
    "mhsh plan --config=bert:384l1h --config.mesh.fsdp=16 --topology=v5e:4x4",
)


def run(
    *,
    config: ConfigsFlag,
    topology: str | None = None,
    num_slices: Count = 1,
    hbm: Positive | None = None,
    chips: tuple[str, ...] = (),
    price: tuple[str, ...] = (),
    max_hours: Positive | None = None,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """Shows what runs of some configs will be and cost, side by side: parameters, FLOPs, memory.

    With --topology the training step is compiled for it, and what the compiler says is printed:
    memory, collectives, FLOPs. With --chips the time on them is estimated, as a range. The exit
    status is 0 even if a step does not fit.

    Args:
      topology: compile the step for v5e:4x4, tpu7x:2x2x1, h100:8, ... or local:8
      num_slices: slices of that layout
      hbm: memory of a device in GiB; by default the public figure, or that of this machine
      chips: KIND:N,... the time on N of v4, v5e, v5p, v6e, tpu7x, a100, h100, h200, b200 or gb200
      price: KIND:DOLLARS of a chip-hour; adds what the run costs on those chips
      max_hours: say whether the run ends within so many hours; the price is for these alone
      as_json: print one JSON object
    """
    from mhsh.planning.compiled import measure, parse_topology
    from mhsh.planning.ledger import ledger
    from mhsh.planning.roofline import ASSUMPTIONS, CHIPS, step_time

    if num_slices > 1 and topology is None:
        raise UserError("--num-slices goes with --topology, the layout of a slice")
    configs: dict[str, Config] = dict(config)
    if max_hours and not chips:
        raise UserError("--max-hours goes with --chips, whose time it bounds")
    hbm_bytes = None if hbm is None else math.ceil(hbm * GIB)
    target = parse_topology(topology, num_slices) if topology else None
    counts = [(kind, number) for text in chips for kind, number in _chips(text, CHIPS)]
    prices = dict(_price(text, {kind for kind, _ in counts}) for text in price)

    def time(config: Config, kind: str, number: int) -> dict[str, Any]:
        estimate = step_time(config, replace(CHIPS[kind], hbm_bytes=hbm_bytes or CHIPS[kind].hbm_bytes), number)
        within = {"within": _deadline_verdict(estimate.run_hours, max_hours)} if max_hours else {}
        hours = [min(each, number * (max_hours or each)) for each in estimate.chip_hours]
        cost = {"dollars": tuple(prices[kind] * each for each in hours)} if kind in prices else {}
        return estimate._asdict() | within | cost

    # First, for they are refused at once.
    times = {name: {f"{number} {kind}": time(one, kind, number) for kind, number in counts} for name, one in configs.items()}
    plans = {name: ledger(one, target, hbm_bytes) | ({"time": times[name]} if counts else {}) for name, one in configs.items()}
    if target is not None:
        for name, one in configs.items():
            plans[name]["compiled"] = measure(one, target, hbm_bytes)
    if as_json:
        print(to_json({"configs": plans, "assumptions": ASSUMPTIONS}, indent=2))
    else:
        _print(plans)
        if counts:
            print("\nNo time here is measured. Assumed:", *ASSUMPTIONS, sep="\n- ")
    return 0


def _chips(text: str, known: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    kind, _, numbers = text.partition(":")
    if kind not in known:
        raise UserError(f"--chips={text}: {kind!r} is not known; allowed: {', '.join(known)}, as in v5p:8,64")
    yield from ((kind, number) for number in whole_numbers(f"--chips={kind}:", numbers))


def _price(text: str, kinds: Collection[str]) -> tuple[str, float]:
    kind, _, dollars = text.partition(":")
    if kind not in kinds:
        raise UserError(f"--price={text}: {kind!r} is not in --chips; allowed: {', '.join(sorted(kinds)) or 'none without it'}")
    if not re.fullmatch(r"\d+(\.\d+)?", dollars) or float(dollars) == 0:
        raise UserError(f"--price={text}: {dollars!r} is not a price of a chip-hour; allowed: a number above 0, as in {kind}:2.5")
    return kind, float(dollars)


def _deadline_verdict(hours: Sequence[float], most: float) -> str:
    answer = "yes" if hours[1] <= most else "no" if hours[0] > most else "perhaps"
    return f"{answer}, of {most:g} hours"


def _print(plans: Mapping[str, dict[str, Any]]) -> None:
    """A column for each config, and with two their difference; then the compiler's warnings."""
    columns = [plan | {"compiled": _report_rows(plan["compiled"])} if "compiled" in plan else plan for plan in plans.values()]
    headers = [*plans, *(["difference"] if len(plans) == 2 else [])]
    table = Table(Column("", no_wrap=True), *(Column(name, overflow="fold") for name in headers), box=None, pad_edge=False)
    _add_rows(table, "", columns)
    Console(width=max(80, Console().width)).print(table)  # narrower, figures would be cut off
    for name, plan in plans.items():
        for warning in plan.get("compiled", {}).get("warnings", ()):
            print(f"{name}: warning: {warning}")


def _add_rows(table: Table, path: str, columns: Sequence[Mapping[str, Any]]) -> None:
    """The figures of a group below its title, then the groups in it. Figures of 0 are left out."""
    names = dict.fromkeys(name for column in columns for name in column)
    groups = {name for name in names if any(isinstance(column.get(name), dict) for column in columns)}
    if path and len(groups) < len(names):
        table.add_row(f"[bold]{path.upper()}[/bold]")
    for name in (name for name in names if name not in groups):
        values = [column.get(name) for column in columns]
        if not all(map(_is_nothing, values)):
            form = _form(f"{path} {name}")
            match values:
                case [int() | float() as first, int() | float() as second] if first > 1:
                    change = [f"{second / first - 1:+.2%}"]
                case _:
                    change = []
            table.add_row(f"  {name.replace('_', ' ')}", *(_text(value, form) for value in values), *change)
    for name in (name for name in names if name in groups):
        _add_rows(table, f"{path} {name.replace('_', ' ')}".strip(), [column.get(name, {}) for column in columns])


def _form(path: str) -> Callable[[Any], str]:
    """The format of a figure, by the unit in its name."""
    units = {"bytes": _size, "seconds": timing, "hours": "{:,.1f}".format, "mfu": "{:.0%}".format}
    units["dollars"] = "${:,.2f}".format
    return next((form for unit, form in units.items() if unit in path), _count)


def _text(value: Any, form: Callable[[Any], str]) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):  # a range
        low, high = map(form, value)
        return low if low == high else f"{low} - {high}"
    return form(value)


def _is_nothing(value: Any) -> bool:
    return value is not False and value in (None, "", 0, (0, 0))


def _report_rows(report: Mapping[str, Any]) -> dict[str, Any]:
    """The compiler's report as rows: verdict, what a GPU launches, memory, FLOPs, and a row for
    each kind of collective.
    """
    rows = {name: report[name] for name in ("topology", "num_slices", "num_devices", "device_kind", "remat_policy", "fallbacks")}
    rows |= {"verdict": _verdict(report), "compile_seconds": report["compile_seconds"]}
    rows |= {"launches_per_step": report.get("launches")}
    rows |= {"versions": {name: version for name, version in report["versions"].items() if version}}
    rows |= {"memory_bytes": report.get("memory", {}), "flops": report["flops"]}
    collectives = report.get("collectives", ())
    rows["collectives"] = {"none": "" if collectives else "none"}
    for kind in dict.fromkeys(one["kind"] for one in collectives):
        those = [one for one in collectives if one["kind"] == kind]
        count, payload, sent = (sum(one[name] for one in those) for name in ("count", "bytes", "sent_bytes"))
        types = sorted({dtype for one in those for dtype in one["dtypes"]})
        rows["collectives"][kind] = f"{count:,}; payload {_size(payload)}; sent in a ring {_size(sent)}; {' '.join(types)}"
    return rows


def _verdict(report: Mapping[str, Any]) -> str:
    needed, available = report["needed_bytes"], report["hbm_bytes"]
    if report["fits"] is None:
        return f"needs {_size(needed)} a device"
    if needed is None:
        return f"does not fit: the compiler ran out of the {_size(available)} of a device ({report['compiler']})"
    share = f"{_size(needed)} of {_size(available)} a device ({needed / available:.0%})"
    return f"fits: {share}" if report["fits"] else f"does not fit: needs {'' if 'memory' in report else 'at least '}{share}"


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
