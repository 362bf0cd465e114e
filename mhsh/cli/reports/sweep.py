"""mhsh sweep: a config at every combination of some fields' values: plan, runs and report."""

from __future__ import annotations

import argparse
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from mhsh import text
from mhsh.cli.exit_status import interrupted
from mhsh.cli.flags import add_config_fields
from mhsh.cli.parser import examples
from mhsh.cli.reports import sweep_report
from mhsh.config.schema import Config
from mhsh.errors import UserError
from mhsh.report.sweep.cells import load_sweep, planned_sweep
from mhsh.report.sweep.quality import format_number
from mhsh.report.sweep.tuning import Tuning, tune_all
from mhsh.sweep.axes import SEEDS, Axis, Value, cells_of, parse_axes
from mhsh.sweep.folder import FAILED, GAVE_UP, RUNNING, STOPPED, WAITING, CellState, Plan, PlannedCell, SweepFolder
from mhsh.text import sanitize

_SHOWN = 10  # rows of a long plan that are printed at its start, and as many at its end
_SUMS = ("tokens", "flops")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.epilog = examples(
        "mhsh sweep --config=evidence:heads --workdir=sweep --axes depth=3,6 seed=0,1",
        "mhsh sweep --config=evidence:heads --workdir=sweep --axes seed=0,1 --dry-run",
    )
    # An axis names fields as the config file has them, before heads are regrouped.
    add_config_fields(parser, fields="config")
    parser.add_argument("--workdir", required=True, metavar="DIR", help="the sweep's folder; the same command resumes it")
    parser.add_argument(
        "--axes",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE,...",
        help="a field and its values: heads_per_layer=8,4,2,1 seed=0,1,2 lr=1e-3,3e-3 scheme=post_ln,admin model.num_layers=6,18",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the plan and what it costs, and stop")
    parser.add_argument("--parallel", type=int, default=1, metavar="N", help="cells at once, the cores shared out (default: 1)")
    parser.add_argument("--cells", default="1/1", metavar="I/N", help="every N-th cell from the I-th on: this host's share")
    parser.add_argument("--retry", action="store_true", help="try failed cells again")
    parser.add_argument(
        "--over",
        metavar="AXIS",
        help="train all values of this axis only on the choosing seeds, and the other seeds at each setting's best value",
    )
    parser.add_argument("--choosing-seeds", type=int, metavar="N", help="with --over: as in `mhsh tuned`")


def run(
    fields: Mapping[str, Any],
    workdir: str,
    axes: Sequence[str],
    dry_run: bool,
    parallel: int,
    cells: str,
    retry: bool,
    over: str | None,
    choosing_seeds: int | None,
) -> int:
    """Prints the plan, trains this host's share of the cells that are not finished, and writes the
    report.

    Args:
      fields: of the config, unchecked, before heads are regrouped.
      axes: NAME=VALUE,VALUE,... each, as `parse_axes` reads them.
      cells: I/N, every N-th cell from the I-th on; 0 is N, so hosts may be counted from 0.
      retry: whether cells that failed are tried again.
      over: the axis of which only the best value is trained on all seeds; None for every cell.
      choosing_seeds: how many of the seeds choose that value; half of them by default.

    Returns:
      0; 2 where a cell of this share has failed; 75 where a cell was stopped, another process
      still runs one, or a choice waits for cells of other hosts; 75 or 130 where SIGTERM or Ctrl-C
      came: the same command goes on.

    Raises:
      UserError: an axis or a cell is wrong, or the folder holds something else.
    """
    if parallel < 1:
        raise UserError(f"--parallel={parallel} must be 1 or more")
    if choosing_seeds is not None and over is None:
        raise UserError("--choosing-seeds goes with --over, the axis that they choose a value of")
    first, every = _share(cells)
    parsed = parse_axes(axes, fields)
    import jax

    from mhsh.sweep.run import run_cells

    # The plan only looks at shapes; an accelerator is for the cells, and two processes cannot
    # always have it.
    jax.config.update("jax_platforms", "cpu")
    plan = make_plan(parsed, fields)
    print_plan(plan, Console(highlight=False, width=max(80, Console().width)))  # narrower, figures would be cut off
    if over is not None:
        _print_stages(plan, tune_all(planned_sweep(plan), over, choosing_seeds))
    if dry_run:
        return 0
    folder = SweepFolder(workdir)
    folder.open_for(plan)
    share = plan.cells[first - 1 :: every]
    again = (STOPPED, WAITING, FAILED) if retry else (STOPPED, WAITING)
    stopped_by = None
    for title, names in _stages(folder, plan, over, choosing_seeds):
        part = [cell for cell in share if cell.name in names]
        due = [cell for cell in part if folder.state(cell.name).kind in again]
        of = f" here (share {cells} of {len(plan.cells)})" if every > 1 else ""
        print(f"{title}{len(due)} of {len(part)} cells to run{of}", flush=True)
        stopped_by = run_cells(folder, due, parallel, _say_begun, _say_ended)
        if stopped_by is not None:
            break
    sweep_report.run(workdir)
    return interrupted(stopped_by) if stopped_by is not None else _exit_status(folder, share, over, choosing_seeds)


def _exit_status(folder: SweepFolder, share: Sequence[PlannedCell], over: str | None, choosing_seeds: int | None) -> int:
    """Of a host whose share of the cells has run; says what is left to do."""
    states = Counter(folder.state(cell.name).kind for cell in share)
    if states[FAILED]:
        print(f"{states[FAILED]} cells have failed; --retry tries them again")
        return 2
    if over is not None and not all(each.is_chosen for each in tune_all(load_sweep(folder.path), over, choosing_seeds).settings):
        print(
            f"Some settings have no {over} yet: cells that choose it are other hosts'. Run the same command when those have ended"
        )
        return os.EX_TEMPFAIL
    return os.EX_TEMPFAIL if states[STOPPED] or states[RUNNING] else 0


def _stages(folder: SweepFolder, plan: Plan, over: str | None, choosing_seeds: int | None) -> Iterator[tuple[str, Collection[str]]]:
    """What is said of each stage, and the names of its cells. With `over` these are the choosing
    cells, and when they have run the reporting cells of the settings whose value is chosen.
    """
    if over is None:
        yield "", [cell.name for cell in plan.cells]
        return
    yield f"Choosing {over}: ", tune_all(planned_sweep(plan), over, choosing_seeds).choosing_cells
    chosen = [setting for setting in tune_all(load_sweep(folder.path), over, choosing_seeds).settings if setting.is_chosen]
    for setting in chosen:
        print(f"  {setting.label}: {'no value trains' if setting.value is None else setting.value}")
    yield f"Reporting at each setting's best {over}: ", [name for setting in chosen for name in setting.runs]


def make_plan(axes: Sequence[Axis], fields: Mapping[str, Any]) -> Plan:
    """Every cell with its cost. Raises UserError naming the cell that is wrong."""
    from mhsh.planning.costs import run_cost

    cells = [PlannedCell(cell.name, cell.settings, cell.config, run_cost(cell.config)._asdict()) for cell in cells_of(axes, fields)]
    return Plan(tuple(axes), tuple(cells))


def print_plan(plan: Plan, console: Console) -> None:
    """A row for the runs that differ in nothing but their seeds, of many rows the first and the
    last, and the sums.
    """
    names = [axis.name for axis in plan.axes if axis.path not in SEEDS]
    # Headers of several lines keep the table narrow.
    axes = [name.replace("_", "\n") for name in names]
    shape = [Column(name, no_wrap=True) for name in ("layers\nx heads", "D/H/F")]
    costs = [Column(name, justify="right", no_wrap=True) for name in ("runs", "params", "tokens", "FLOPs")]
    table = Table(*axes, *shape, *costs, box=None, pad_edge=False)
    settings: dict[tuple[Value, ...], list[PlannedCell]] = {}
    for cell in plan.cells:
        settings.setdefault(tuple(value for path, value in cell.settings.items() if path not in SEEDS), []).append(cell)
    rows = list(settings.items())
    left_out = max(0, len(rows) - 2 * _SHOWN)
    for index, (values, cells) in enumerate(rows):
        if _SHOWN <= index < _SHOWN + left_out:
            if index == _SHOWN:
                table.add_row(f"({left_out:,} more)")
            continue
        first = cells[0]
        words = [escape(sanitize(str(value))) for value in values]
        table.add_row(*words, *_shape(first.config), str(len(cells)), text.count(first.cost["parameters"]), *_sums(cells))
    table.add_row("in all", *[""] * (len(names) + 1), f"{len(plan.cells):,}", "", *_sums(plan.cells))
    console.print(table)


def _sums(cells: Sequence[PlannedCell]) -> list[str]:
    """Tokens and FLOPs of all of them."""
    return [text.count(sum(cell.cost[name] for cell in cells)) for name in _SUMS]


def _print_stages(plan: Plan, tuning: Tuning) -> None:
    """How many of the plan's cells choose, how many report, and what all of these cost at most."""
    cells = {cell.name: cell for cell in plan.cells}
    choosing = [cells[name].cost for name in tuning.choosing_cells]
    # Nothing is chosen yet; the values of one setting may differ in cost.
    seeds = len(tuning.reporting)
    most = {
        name: sum(seeds * max(cells[cell].cost[name] for cell in each.choosing_cells) for each in tuning.settings) for name in _SUMS
    }
    tokens, flops = (text.count(sum(cost[name] for cost in choosing) + most[name]) for name in _SUMS)
    print(
        f"{len(choosing)} of them choose {tuning.over.name} on {format_number(len(tuning.choosing), 'seed')}, then "
        f"{len(tuning.settings) * seeds} report at the best one: at most {tokens} tokens, {flops} FLOPs"
    )


def _shape(config: Config) -> tuple[str, str]:
    model = config.model
    layers = f"{model.num_layers}" + (f" + {model.num_decoder_layers}" if model.num_decoder_layers else "")
    return f"{layers} x {model.num_heads}", f"{model.embed_dim}/{model.head_dim}/{model.mlp_dim}"


def _share(cells: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", cells)
    if match is None or int(match[2]) == 0 or int(match[1]) > int(match[2]):
        raise UserError(f"--cells={cells} must be I/N, with I from 1 to N: host I of N")
    return int(match[1]) or int(match[2]), int(match[2])


def _say_begun(cell: PlannedCell) -> None:
    print(f"  {cell.name} ...", flush=True)


def _say_ended(cell: PlannedCell, state: CellState, seconds: float) -> None:
    words = {RUNNING: "runs in another process", GAVE_UP: "diverged"}.get(state.kind, state.kind)
    print(f"  {cell.name}: {words}{', ' + state.reason if state.reason else ''} ({text.duration(seconds)})", flush=True)
