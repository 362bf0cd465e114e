"""mhsh sweep: a config at every combination of some fields' values: plan, runs and report."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from mhsh import text
from mhsh.cli.compare import Question, write_report
from mhsh.cli.early_stop import interrupted
from mhsh.cli.parser import Changed, ChangedFlag, Count, WorkdirFlag
from mhsh.config.entries import named_entries, with_flags
from mhsh.config.resolve import decay_start
from mhsh.config.shapes import shape_name
from mhsh.errors import UserError
from mhsh.storage.questions import exists
from mhsh.sweep.axes import BUDGET, SEEDS, Axis, Cell, Value, cells_of, families, fields_of, parents, parse_axes
from mhsh.sweep.folder import FAILED, FINISHED, GAVE_UP, RUNNING, STOPPED, WAITING, CellState, Choosing, Plan, SweepFolder
from mhsh.text import format_list, sanitize
from mhsh.verdict.experiment import Experiment, load_experiment, planned_experiment
from mhsh.verdict.findings import compare
from mhsh.verdict.tuning import field_of, tune, values_to_add

EXAMPLES = (
    "mhsh sweep --config=evidence:heads --workdir=sweep --axes depth=3,6 seed=0,1",
    "mhsh sweep --config=evidence:heads --workdir=sweep --axes seed=0,1 --dry-run",
)


def run(
    *,
    config: ChangedFlag,
    workdir: WorkdirFlag,
    axes: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = (),
    dry_run: bool = False,
    parallel: Count = 1,
    cells: str = "1/1",
    retry: bool = False,
    over: str | None = None,
    choosing_seeds: int | None = None,
    refine: bool = False,
) -> int:
    """Trains a config at every combination of some fields' values, and writes a report.

    Prints the plan first. The same command goes on where it was stopped. The exit status is 2 where
    a cell has failed, and 75 where a cell was stopped, runs elsewhere, or waits for other hosts.

    Args:
      workdir: the sweep's folder
      axes: a field and its values, NAME=VALUE,...: heads_per_layer=8,4,2,1 seed=0,1,2
        lr=1e-3,3e-3 scheme=post_ln,admin model.num_layers=6,18. budget=100,1000 trains so many
        steps; with the wsd schedule a longer run begins where the decay of the shorter one does
      dry_run: print the plan and what it costs, and stop
      parallel: cells at once, which share the cores
      cells: I/N, every N-th cell from the I-th on: this host's share
      retry: try failed cells again
      over: train all values of this axis only on the choosing seeds, and the other seeds at each
        setting's best value
      choosing_seeds: with --over, how many of the seeds choose; half of them by default
      refine: with --over, add values around the best until the grid hides little

    Raises:
      UserError: an axis or a cell is wrong, or the folder holds something else.
    """
    if choosing_seeds is not None and over is None:
        raise UserError("--choosing-seeds goes with --over, the axis that they choose a value of")
    first, every = _share(cells)
    if refine and (over is None or every > 1):
        raise UserError("--refine goes with --over, and on one host: without --cells")
    parsed = parse_axes(axes, config.fields)  # fields as the config file has them, before heads are regrouped
    _check_apart(parsed, config)
    import jax

    from mhsh.sweep.run import run_cells

    # The plan only looks at shapes; an accelerator is for the cells, and two processes cannot
    # always have it.
    jax.config.update("jax_platforms", "cpu")
    folder = SweepFolder(workdir)
    if refine:
        parsed = _with_values_of(folder, parsed, over)
    choosing = Choosing(over, choosing_seeds) if over is not None else None
    plan = make_plan(parsed, config.fields, choosing)
    print_plan(plan, Console(highlight=False, width=max(80, Console().width)))  # narrower, figures would be cut off
    if over is not None:
        choices = tune(planned_experiment(plan), over, choosing_seeds).choices
        print(f"{sum(len(choice.choosing) for choice in choices)} of them choose {over}; the other seeds run at the chosen values")
    if dry_run:
        return 0
    stopped_by = None
    while True:
        folder.open_for(plan)
        share = [cell for family in families(plan.cells)[first - 1 :: every] for cell in family]
        states = (STOPPED, WAITING, FAILED) if retry else (STOPPED, WAITING)
        for title, names in _stages(folder, plan, over, choosing_seeds):
            needed = _with_parents(plan, names)
            part = [cell for cell in share if cell.name in needed]
            due = [cell for cell in part if folder.state(cell.name).kind in states]
            of = f" here (share {cells} of {len(plan.cells)})" if every > 1 else ""
            print(f"{title}{len(due)} of {len(part)} cells to run{of}", flush=True)
            stopped_by = run_cells(folder, due, parallel, _say_begun, _Progress(folder, due, parallel).say_ended)
            if stopped_by is not None:
                break
        added = _values_to_add(folder, over, choosing_seeds) if refine and over and stopped_by is None else []
        if not added:
            break
        print(f"Refining {over}: {format_list([f'{value:g}' for value in added])}", flush=True)
        parsed = _with_values(parsed, over, added)
        plan = make_plan(parsed, config.fields, choosing)
    _write_report(folder, over, choosing_seeds)
    return interrupted(stopped_by) if stopped_by is not None else _exit_status(folder, share, over, choosing_seeds)


def _check_apart(axes: Sequence[Axis], config: Changed) -> None:
    """Raises UserError where an axis sets a field that an override sets too."""
    # The steps of the config are what a budget is in proportion to.
    swept = {path: axis.name for axis in axes if axis.path != BUDGET for path in fields_of(axis.path)}
    for path, _ in config.changes:
        if path in swept:
            raise UserError(f"--config.{path} and --axes {swept[path]}=... set the same field; leave one of them away")


def _write_report(folder: SweepFolder, over: str | None, choosing_seeds: int | None) -> None:
    try:
        write_report(Question([str(folder.path)], over=over, choosing_seeds=choosing_seeds), folder.path / "report.html")
    except UserError as error:
        print(f"No report yet: {error}")


def _exit_status(folder: SweepFolder, share: Sequence[Cell], over: str | None, choosing_seeds: int | None) -> int:
    """Of a host whose share of the cells has run; says what is left to do."""
    states = Counter(folder.state(cell.name).kind for cell in share)
    if states[FAILED]:
        print(f"{states[FAILED]} cells have failed; --retry tries them again")
        return 2
    if over is not None and not all(choice.is_final for choice in _tuned(folder, over, choosing_seeds).choices):
        print(
            f"Some settings have no {over} yet: cells that choose it are other hosts'. Run the same command when those have ended"
        )
        return os.EX_TEMPFAIL
    if states[STOPPED] or states[RUNNING]:
        return os.EX_TEMPFAIL
    files = with_flags([entry for cell in share for entry in named_entries(cell.config)])
    again = f"mhsh compare {shlex.quote(str(folder.path))}{files}"
    print(f"next: {again} --baseline=GROUP, or with --measure, --target or --by (mhsh compare --help)")
    return 0


def _tuned(folder: SweepFolder, over: str, choosing_seeds: int | None) -> Experiment:
    return tune(load_experiment([folder.path]), over, choosing_seeds)


def _stages(folder: SweepFolder, plan: Plan, over: str | None, choosing_seeds: int | None) -> Iterator[tuple[str, Collection[str]]]:
    """What is said of each stage, and the names of its cells. With `over` these are the choosing
    cells, and when they have run the reporting cells of the groups whose value is chosen.
    """
    if over is None:
        yield "", [cell.name for cell in plan.cells]
        return
    choices = tune(planned_experiment(plan), over, choosing_seeds).choices
    yield f"Choosing {over}: ", [name for choice in choices for name in choice.choosing]
    tuned = _tuned(folder, over, choosing_seeds)
    chosen = [(group, group.choice) for group in tuned.groups if group.choice and group.choice.is_final]
    for group, choice in chosen:
        print(f"  {group.name}: {'no value trains' if choice.optimum is None else f'{choice.optimum.rate:g}'}")
    reporting = [member.name for group, choice in chosen if choice.optimum is not None for member in group.members]
    yield f"Reporting at each shape's best {over}: ", reporting


def _with_parents(plan: Plan, names: Collection[str]) -> set[str]:
    """The cells of these names, and those whose first steps they have."""
    shorter, needed = parents(plan.cells), set(names)
    while missing := {shorter[name].name for name in needed if name in shorter} - needed:
        needed |= missing
    return needed


def _values_to_add(folder: SweepFolder, over: str, choosing_seeds: int | None) -> list[float]:
    tuned = _tuned(folder, over, choosing_seeds)
    # Without the choices these intervals hold the noise alone, not what the grid hides.
    untuned = replace(tuned, groups=tuple(replace(group, choice=None) for group in tuned.groups))
    differences = [finding.difference for finding in compare(untuned).findings if finding is not None]
    half_widths = [(each.high - each.low) / 2 for each in differences if each is not None and each.has_interval]
    return values_to_add(min(half_widths, default=0.0), tuned.choices)


def _with_values(axes: Sequence[Axis], over: str | None, values: Sequence[float]) -> tuple[Axis, ...]:
    """The axes with more values of `over`."""
    path = field_of(over or "")
    return tuple(Axis(axis.path, tuple(sorted({*axis.values, *values}))) if axis.path == path else axis for axis in axes)


def _with_values_of(folder: SweepFolder, axes: Sequence[Axis], over: str | None) -> tuple[Axis, ...]:
    """The axes with the values of `over` that an earlier refinement has added."""
    if not exists(folder.path / "plan.json"):
        return tuple(axes)
    values = [value for axis in folder.read_plan().axes if axis.path == field_of(over or "") for value in axis.values]
    return _with_values(axes, over, [value for value in values if isinstance(value, int | float)])


def make_plan(axes: Sequence[Axis], fields: Mapping[str, Any], choosing: Choosing | None = None) -> Plan:
    """Every cell with its cost. Raises UserError naming the cell that is wrong."""
    from mhsh.models.costs import run_cost

    cells = cells_of(axes, fields, lambda config: run_cost(config)._asdict())
    shorter = parents(cells)
    return Plan(tuple(axes), tuple(_without_copied_steps(cell, shorter.get(cell.name)) for cell in cells), choosing)


def _without_copied_steps(cell: Cell, parent: Cell | None) -> Cell:
    """The cell without the cost of the steps that it copies from `parent`."""
    if parent is None:
        return cell
    steps, copied = cell.config.train.num_steps, decay_start(parent.config) or 0
    costs = {name: cell.cost[name] * (steps - copied) // steps for name in ("tokens", "flops")}
    return replace(cell, cost={**cell.cost, **costs})


def print_plan(plan: Plan, console: Console) -> None:
    """A row for the runs that differ in nothing but their seeds, and the sums."""
    names = [axis.name for axis in plan.axes if axis.path not in SEEDS]
    # Headers of several lines keep the table narrow.
    axes = [name.replace("_", "\n") for name in names]
    shape = [Column(name, no_wrap=True) for name in ("layers\nx heads", "D/H/F")]
    costs = [Column(name, justify="right", no_wrap=True) for name in ("runs", "params", "tokens", "FLOPs")]
    table = Table(*axes, *shape, *costs, box=None, pad_edge=False)
    alike: dict[tuple[Value, ...], list[Cell]] = {}
    for cell in plan.cells:
        alike.setdefault(tuple(value for path, value in cell.settings.items() if path not in SEEDS), []).append(cell)
    for values, cells in alike.items():
        model, cost = cells[0].config.model, cells[0].cost
        words = [escape(sanitize(str(value))) for value in values]
        widths = f"{model.embed_dim}/{model.head_dim}/{model.mlp_dim}"
        table.add_row(*words, shape_name(model), widths, str(len(cells)), text.count(cost["parameters"]), *_sums(cells))
    table.add_row("in all", *[""] * (len(names) + 1), f"{len(plan.cells):,}", "", *_sums(plan.cells))
    console.print(table)


def _sums(cells: Sequence[Cell]) -> list[str]:
    """Tokens and FLOPs of all of them."""
    return [text.count(sum(cell.cost[name] for cell in cells)) for name in ("tokens", "flops")]


def _share(cells: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", cells)
    if match is None or int(match[2]) == 0 or int(match[1]) > int(match[2]):
        raise UserError(f"--cells={cells} must be I/N, with I from 1 to N: host I of N")
    return int(match[1]) or int(match[2]), int(match[2])


def _say_begun(cell: Cell) -> None:
    print(f"  {cell.name} ...", flush=True)


class _Progress:
    """Says of each cell, when it has ended, which of how many it is, its result, and how long the
    others take by their FLOPs.
    """

    def __init__(self, folder: SweepFolder, cells: Sequence[Cell], parallel: int) -> None:
        self._folder, self._parallel = folder, parallel
        self._number, self._of = 0, len(cells)
        self._left = {cell.name: cell.cost["flops"] for cell in cells}
        self._seconds = self._flops = 0.0  # of the cells that are finished

    def say_ended(self, cell: Cell, state: CellState, seconds: float) -> None:
        self._number += 1
        flops = self._left.pop(cell.name)
        words = {RUNNING: "runs in another process", GAVE_UP: "diverged"}.get(state.kind, state.kind)
        if state.kind == FINISHED:
            self._seconds, self._flops = self._seconds + seconds, self._flops + flops
            _, losses = self._folder.run_folder(cell.name).read_metrics().series("validation", "step", "loss")
            words += f", validation loss {text.format_loss(losses[-1])}" if len(losses) else ""
        took = text.duration(seconds)
        if self._left and self._flops:
            took += f"; about {text.duration(self._seconds / self._flops * sum(self._left.values()) / self._parallel)} left"
        reason = f", {state.reason}" if state.reason else ""
        print(f"  [{self._number}/{self._of}] {cell.name}: {words}{reason} ({took})", flush=True)
