"""The stability map of a sweep: learning rate against depth, a grid for each residual scheme."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from mhsh.config.fields import HEADS_PER_LAYER, LAYERS_AT_EQUAL_SIZE
from mhsh.config.schemes import scheme_of
from mhsh.outcome import DIVERGED
from mhsh.report.render.table import Table
from mhsh.report.sweep.cells import CONVERGED, PLATEAUED, UNKNOWN, Sweep, SweptCell, setting_words
from mhsh.sweep.axes import DEPTH, LEARNING_RATE, SCHEME
from mhsh.sweep.folder import FAILED, RUNNING, STOPPED, WAITING
from mhsh.verdict.words import format_loss

# Verdicts and their letters. A square shows the first verdict that one of its seeds has.
LETTERS = {
    DIVERGED: "D",
    PLATEAUED: "P",
    CONVERGED: "C",
    UNKNOWN: "?",
    FAILED: "F",
    STOPPED: "S",
    RUNNING: "R",
    WAITING: "-",
}

SQUARE_RULE = (
    "A square stands for one learning rate, depth and scheme over all its seeds. It shows the worst verdict among the seeds that "
    "have ended (diverged before plateaued before converged), and how many have it; where none has ended, it shows failed, "
    "stopped, running or not run. Its number is the mean of the final validation losses that are finite."
)


@dataclasses.dataclass(frozen=True)
class Square:
    """One square of a grid."""

    verdict: str  # a key of LETTERS
    figure: str  # the formatted loss; empty where no seed has ended
    share: str  # `2 of 3 seeds` where the seeds disagree or some have not ended, else empty


@dataclasses.dataclass(frozen=True)
class Grid:
    """The squares of one scheme and one setting of all other axes."""

    title: str
    learning_rates: tuple[float, ...]  # the columns, ascending
    depths: tuple[int, ...]  # layers of the encoder; the rows, ascending
    squares: Mapping[tuple[float, int], Square]  # those that the sweep has

    def summary(self) -> str:
        """`post_ln: 3 of 9 squares converged, 5 plateaued, 1 diverged`."""
        counts = Counter(square.verdict for square in self.squares.values())
        others = [f"{counts[verdict]} {verdict}" for verdict in LETTERS if verdict != CONVERGED and counts[verdict]]
        return ", ".join([f"{self.title}: {counts[CONVERGED]} of {len(self.squares)} squares converged", *others])


def map_axes(sweep: Sweep) -> tuple[str, str] | None:
    """The paths of the map's axes, learning rate and depth; None without two values of each."""
    several = [axis.path for axis in sweep.axes if len(axis.values) > 1]
    depth = next((path for path in (DEPTH, HEADS_PER_LAYER, LAYERS_AT_EQUAL_SIZE) if path in several), None)
    return (LEARNING_RATE, depth) if depth and LEARNING_RATE in several else None


def stability_map(sweep: Sweep) -> tuple[Grid, ...]:
    """A grid for every scheme and setting of the other axes; empty without `map_axes`."""
    axes = map_axes(sweep)
    if axes is None:
        return ()
    grids: dict[str, list[SweptCell]] = {}
    for cell in sweep.cells:
        others = cell.without(*axes, SCHEME, "model.residual", "model.admin_omega")
        title = ", ".join(filter(None, [scheme_of(cell.plan.config.model), setting_words(others)]))
        grids.setdefault(title, []).append(cell)
    return tuple(_grid(title, cells) for title, cells in grids.items())


def as_table(grids: Sequence[Grid]) -> Table:
    """A row for each depth of each grid, a column for each learning rate: `2.725, converged`."""
    rates = sorted({rate for grid in grids for rate in grid.learning_rates})
    rows = [
        [grid.title, str(depth), *(_words(grid.squares.get((rate, depth))) for rate in rates)]
        for grid in grids
        for depth in grid.depths
    ]
    return Table(["setting", "layers", *(f"{rate:g}" for rate in rates)], rows)


def _words(square: Square | None) -> str:
    return ", ".join(filter(None, [square.figure, square.verdict, square.share])) if square else ""


def _grid(title: str, cells: Sequence[SweptCell]) -> Grid:
    placed: dict[tuple[float, int], list[SweptCell]] = {}
    for cell in cells:
        config = cell.plan.config
        placed.setdefault((config.optimizer.learning_rate, config.model.num_layers), []).append(cell)
    rates, depths = (tuple(sorted(set(values))) for values in zip(*placed, strict=True))
    return Grid(title, rates, depths, {place: _square(here) for place, here in placed.items()})


def _square(cells: Sequence[SweptCell]) -> Square:
    ended = [cell for cell in cells if cell.has_ended]
    verdicts = Counter(cell.verdict for cell in ended or cells)
    verdict = next(verdict for verdict in LETTERS if verdicts[verdict])
    losses = [cell.final_loss for cell in ended if cell.final_loss is not None]
    figure = format_loss(statistics.fmean(losses)) if losses else "not finite" if verdict == DIVERGED else ""
    agreed = verdicts[verdict] == len(cells)
    return Square(verdict, figure, "" if agreed else f"{verdicts[verdict]} of {len(cells)} seeds")
