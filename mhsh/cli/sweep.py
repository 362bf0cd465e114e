"""mhsh sweep: a config at every combination of some fields' values: plan, runs and report."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from mhsh import text
from mhsh.cli.compare import CompareOptions, write_report
from mhsh.cli.early_stop import report_stop
from mhsh.cli.parser import ConfigFields, ConfigFieldsFlag, Count, WorkdirFlag
from mhsh.cli.progress import Progress
from mhsh.cli.selection import cells_left, values_to_try
from mhsh.config.entries import files_of
from mhsh.config.resolve import decay_start
from mhsh.config.shapes import scales_layers, shape_name
from mhsh.configs import CONFIG, LIST
from mhsh.data.load import task_of
from mhsh.errors import UserError
from mhsh.storage.bucket import is_remote
from mhsh.sweep.axes import BUDGET, DEPTH, SEEDS, SHORT_NAMES, Axis, Cell, Value, cells_of, fields_of, parents, parse_axes
from mhsh.sweep.folder import FAILED, Plan, SweepFolder, Tuning, check_margin
from mhsh.text import format_list, sanitize
from mhsh.verdict.experiment import planned_experiment
from mhsh.verdict.tuning import field_of, tune

EXAMPLES = (
    "mhsh sweep --config=evidence:heads --workdir=sweep --axes depth=3,6 seed=0,1",
    "mhsh sweep --config=evidence:heads --workdir=sweep --axes seed=0,1 --dry-run",
)


@Parameter(name="*")
@dataclass(frozen=True)
class PlanOptions:
    """The additions of a command to the plan, and the rule by which the sweep is judged.

    Args:
      axes: a field and its values, NAME=VALUE,...: heads_per_layer=8,4,2,1 seed=0,1,2
        lr=1e-3,3e-3 scheme=post_ln,admin model.num_layers=6,18. budget=100,1000 trains so many
        steps; with the wsd schedule a longer run begins where the decay of the shorter one does.
        Values that the plan lacks are added to it
      sample: draw so many values of the axis that is given as LOW..HIGH, evenly in the logarithm
      add_seeds: add so many seeds to the plan
      over: train all values of this axis only on the choosing seeds, and the other seeds at each
        setting's best value
      choosing_seeds: with --over, how many of the seeds choose, the lowest ones; by default half
      margin: the difference that matters, such as 0.02, fixed before the runs
      pooled: plan that its difference is pooled with those of other sweeps
    """

    axes: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = ()
    sample: Count | None = None
    add_seeds: Count | None = None
    over: str | None = None
    choosing_seeds: Count | None = None
    margin: float | None = None
    pooled: bool = False


DEFAULTS = PlanOptions()


def run(
    *,
    config: ConfigFieldsFlag | None = None,
    workdir: WorkdirFlag,
    options: PlanOptions = DEFAULTS,
    refine: bool = False,
    dry_run: bool = False,
    parallel: Annotated[int, Parameter(validator=Number(gte=0))] = 1,
    together: Count = 1,
    retry: bool = False,
) -> int:
    """Plans a config at every combination of some fields' values, trains it, and writes a report.

    Prints the plan first. The same command resumes, and mhsh work trains the rest on any machine; a
    sweep with a plan needs no --config, and --axes adds values to its axes. The exit status is 2 if
    a cell has failed, and 75 if some have not ended.

    Args:
      workdir: the sweep's folder, also in a bucket
      refine: with --over, add values around the best until the grid hides little
      dry_run: print the plan and what it costs, and stop
      parallel: workers on this machine, which share the cores; 0 only plans
      together: cells that a worker trains in one program, which differ in seeds and rates alone
      retry: try failed cells again
    """
    if options.choosing_seeds is not None and options.over is None:
        raise UserError("--choosing-seeds goes with --over, the axis that they choose a value of")
    import jax

    # The plan only looks at shapes; an accelerator is for the workers, and two processes cannot
    # always have it.
    jax.config.update("jax_platforms", "cpu")
    folder = SweepFolder(workdir)
    check_margin(options.margin)
    plan = _plan(folder, config, options, retry)
    if refine and plan.choosing is None:
        raise UserError("--refine goes with --over, the axis whose values it adds")
    print_plan(plan, Console(highlight=False, width=max(80, Console().width)))  # narrower, figures would be cut off
    if dry_run:
        folder.check_takes(plan)
        return 0
    if parallel and not folder.has_plan():  # once it is planned, the sweep takes no other source
        for cell in {cell.config.data.source: cell for cell in plan.cells}.values():
            task_of(cell.config).check_source()
    command = f"--add-seeds={options.add_seeds}" if options.add_seeds else "the plan"
    return _train(folder, plan, command, (parallel, together), retry, refine)


def _train(folder: SweepFolder, plan: Plan, command: str, workers: tuple[int, int], retry: bool, refine: bool) -> int:
    """Trains the plan, and with `refine` what is added to it, by so many workers with so many cells
    together each; returns the exit status.
    """
    while True:
        folder.open_for(plan, command)
        if retry:
            folder.forget_failures()
        stopped_by, progress = _run_workers(folder, *workers)
        refined = _refine(folder, plan) if refine and stopped_by is None and not progress.cells_left else None
        if refined is None:
            break
        plan, command, retry = refined, "--refine", False
    if not workers[0]:
        print(f"next: mhsh work {folder.arguments()}, on as many machines as you like")
        return 0
    _write_report(folder)
    return report_stop(stopped_by) if stopped_by is not None else _exit_status(folder, progress)


def _plan(folder: SweepFolder, config: ConfigFields | None, options: PlanOptions, retry: bool) -> Plan:
    """The folder's plan with what the command adds, and how its difference is judged."""
    current = folder.read_plan() if folder.has_plan() else None
    fields = config.fields if config is not None else current.fields if current is not None else {}
    if not fields:
        raise UserError(
            f"mhsh sweep needs --config={CONFIG}, such as --config=study:base, or a --workdir whose plan holds one; {LIST}"
        )
    # Before heads are regrouped.
    axes = parse_axes(options.axes, fields, options.sample) if options.axes or current is None else current.axes
    if config is not None:
        _check_apart(axes, config)
    if current is not None and {axis.path for axis in axes} <= {axis.path for axis in current.axes}:
        for axis in axes:
            current = replace(current, axes=_add_values(current.axes, axis.path, axis.values))
        axes = current.axes
    if options.add_seeds and not _is_adding(folder, current, options.add_seeds, retry):
        axes = _add_seeds(axes, options.add_seeds)
    try:
        plan = make_plan(axes, fields, current.choosing if current is not None else None)
    except UserError as error:
        if current is None or fields == current.fields:
            raise
        raise UserError(
            f"{folder.path} holds a sweep of another config, whose values do not fit this one: {error}; choose another --workdir, "
            "or leave out --config"
        ) from error
    if current is None:
        _check_tuned_depth(plan)
    planned = None if plan.choosing is None else plan.choosing.over
    over = options.over if options.over is None or options.over in SHORT_NAMES else field_of(options.over)  # outlasts a renaming
    if over is not None and (over != planned or options.choosing_seeds is not None):
        seeds = {(cell.config.train.seed, cell.config.data.seed) for cell in plan.cells}
        # As a number, so that seeds that are added later do not choose.
        plan = replace(plan, choosing=Tuning(over, options.choosing_seeds or len(seeds) // 2 or None))
    margin = current.margin if current is not None and options.margin is None else options.margin
    return replace(plan, margin=margin, pooled=options.pooled or (current is not None and current.pooled))


def _is_adding(folder: SweepFolder, current: Plan | None, add_seeds: int, retry: bool) -> bool:
    """Whether the last command added as many, and cells are left to train or retry: it goes on."""
    added = [each.command for each in current.history if each.command != "--refine"] if current is not None else []
    return current is not None and added[-1:] == [f"--add-seeds={add_seeds}"] and bool(cells_left(folder, current, retry))


def _add_seeds(axes: Sequence[Axis], count: int) -> tuple[Axis, ...]:
    seeds = [axis for axis in axes if axis.path in SEEDS]
    if len(seeds) != 1:
        raise UserError("--add-seeds is for a sweep with one axis of seeds; name it, as in --axes seed=0,1,2")
    last = max(int(value) for value in seeds[0].values)
    return _add_values(axes, seeds[0].path, range(last + 1, last + 1 + count))


def _run_workers(folder: SweepFolder, parallel: int, together: int) -> tuple[int | None, Progress]:
    """The signal that stopped the workers, and what has become of the cells."""
    from mhsh.sweep.local import run_workers

    progress = Progress(folder)
    if not parallel:
        progress.look()
        return None, progress
    print(f"{len(progress.cells_left)} of {len(progress.needed_cells)} cells to run", flush=True)
    if not progress.cells_left:
        return None, progress
    files = sorted({path for cell in folder.read_plan().cells for path in files_of(cell.config)})
    flags = [*(f"--with={path}" for path in files), f"--together={together}"]
    stopped_by, lines = run_workers(folder, parallel, flags, progress.look)
    progress.look(at_once=True)
    for line in lines if progress.cells_left else ():
        print(line)
    return stopped_by, progress


def _check_apart(axes: Sequence[Axis], config: ConfigFields) -> None:
    """Raises UserError where an axis sets a field that an override sets too."""
    # The steps of the config are what a budget is in proportion to.
    swept = {path: axis.name for axis in axes if axis.path != BUDGET for path in fields_of(axis.path)}
    for path, _ in config.changes:
        if path in swept:
            raise UserError(f"--config.{path} and --axes {swept[path]}=... set the same field; leave out one of them")


def _check_tuned_depth(plan: Plan) -> None:
    """Raises UserError where CompleteP would take each depth of an axis for the one at which the
    rate was tuned, and so do nothing.
    """
    scaled = [cell for cell in plan.cells if scales_layers(cell.config.model)]
    sweeps_depth = any(axis.path == DEPTH and len(axis.values) > 1 for axis in plan.axes)
    if scaled and sweeps_depth and not plan.fields["model"]["base_layers"]:
        raise UserError(
            f"cell {scaled[0].name}: {scaled[0].config.model.residual} needs the depth at which the rate was tuned, and with "
            "model.base_layers = 0 each depth would be that one; add --config.model.base_layers=N"
        )


def _write_report(folder: SweepFolder) -> None:
    if is_remote(folder.path):
        return
    try:
        write_report(CompareOptions([str(folder.path)]), Path(folder.path) / "report.html")
    except UserError as error:
        print(f"No report yet: {error}")


def _exit_status(folder: SweepFolder, progress: Progress) -> int:
    """Says what is left to do."""
    failed = [name for name, state in progress.ended.items() if state.kind == FAILED]
    undecided = format_list(progress.undecided)
    if failed:
        waits = f", and {undecided} wait{'s' * (len(progress.undecided) == 1)} for them" if undecided else ""
        print(f"{len(failed)} cells have failed; --retry tries them again{waits}")
        return 2
    if progress.cells_left:
        print(f"{len(progress.cells_left)} cells have not ended; run the same command again")
        return os.EX_TEMPFAIL
    if undecided:
        print(
            f"No value is chosen for {undecided}: a run that chooses has lost its last rows, and mhsh compare {folder.arguments()} "
            "says which. Put them back, or remove that run's folder and run the same command again"
        )
        return 2
    print(f"next: mhsh compare {folder.arguments()} --baseline=GROUP, --measure or --by (mhsh compare --help)")
    return 0


def _refine(folder: SweepFolder, plan: Plan) -> Plan | None:
    """The plan to train next: with the values that are to be tried, or with what another command
    has added meanwhile; None: there is nothing.
    """
    if plan.choosing is None:
        return None
    over, added = plan.choosing.over, values_to_try(folder, plan.choosing)
    plan = folder.read_plan()
    if not added:
        return plan if cells_left(folder, plan) else None
    print(f"Refining {over}: {format_list([f'{value:g}' for value in added])}", flush=True)
    refined = make_plan(_add_values(plan.axes, field_of(over), added), plan.fields, plan.choosing)
    return replace(refined, margin=plan.margin, pooled=plan.pooled)


def _add_values(axes: Sequence[Axis], path: str, values: Iterable[Value]) -> tuple[Axis, ...]:
    """Adds values to one of the axes; numbers stay in order."""

    def extend(axis: Axis) -> Axis:
        every = tuple(dict.fromkeys((*axis.values, *values)))
        numbers = [value for value in axis.values if not isinstance(value, str)]
        return Axis(path, tuple(sorted(every)) if len(numbers) > 1 and numbers == sorted(numbers) else every)

    return tuple(extend(axis) if axis.path == path else axis for axis in axes)


def make_plan(axes: Sequence[Axis], fields: Mapping[str, Any], choosing: Tuning | None = None) -> Plan:
    """Every cell with its cost. Raises UserError naming the cell that is wrong."""
    from mhsh.models.costs import run_cost

    cells = cells_of(axes, fields, lambda config: run_cost(config)._asdict())
    shorter = parents(cells)
    priced = tuple(_subtract_copied_steps(cell, shorter.get(cell.name)) for cell in cells)
    return Plan(tuple(axes), priced, choosing, {section: dict(values) for section, values in fields.items()})


def _subtract_copied_steps(cell: Cell, parent: Cell | None) -> Cell:
    """Takes from the cost of a cell that of the steps that it copies from `parent`."""
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
    if plan.choosing is not None:
        tuned = tune(planned_experiment(plan), plan.choosing.over, plan.choosing.seeds)
        trials = {name for choice in tuned.choices for name in choice.choosing}
        # At a value of each setting, which costs as much as another.
        needed = trials | {member.name for group in tuned.groups for member in group.members}
        cells = [cell for cell in plan.cells if cell.name in needed]
        tokens, flops = _sums(cells)
        words = f"{len(trials)} of them choose {plan.choosing.over}; the other seeds run at the chosen values alone"
        console.print(f"{words}: at least {len(cells):,} runs, {tokens} tokens, {flops} FLOPs", soft_wrap=True)


def _sums(cells: Sequence[Cell]) -> list[str]:
    """Tokens and FLOPs of all of them."""
    return [text.count(sum(cell.cost[name] for cell in cells)) for name in ("tokens", "flops")]
