"""The picture of docs/design.md: which part of mhsh imports which, drawn from the code.

python -m website.architecture docs/architecture.svg

An arrow is left out where a longer path says the same, as from cli to errors.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Set
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import grimp

Imports = Mapping[str, Set[str]]  # by a part of mhsh, the parts that it imports

_ROW, _BOX = 60, (96, 30)
_PASSES = 40  # over the rows, down and up; the first half also sorts them

_HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"
 font-family="sans-serif" font-size="14">
<title>Which part of mhsh imports which</title>
<marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">
<path d="M0 0 8 4 0 8z" fill="#555"/></marker>
<rect width="{width}" height="{height}" fill="#fff"/>"""


def imports() -> Imports:
    """The folders and modules right below mhsh, and what each imports of the others."""
    graph = grimp.build_graph("mhsh", exclude_type_checking_imports=True, cache_dir=None)
    parts = {part.removeprefix("mhsh."): {part, *graph.find_descendants(part)} for part in sorted(graph.find_children("mhsh"))}
    del parts["__main__"]  # which is cli
    return {
        part: {
            other
            for other, modules in parts.items()
            if other != part and any(graph.find_modules_directly_imported_by(module) & modules for module in parts[part])
        }
        for part in parts
    }


def transitive_reduction(graph: Imports) -> Imports:
    """The arrows that no path of several arrows stands for."""
    return {part: others - {far for other in others for far in _below(graph, other)} for part, others in graph.items()}


def _below(graph: Imports, part: str) -> set[str]:
    return set(graph[part]).union(*(_below(graph, other) for other in graph[part]))


def _paths(graph: Imports) -> tuple[list[list[str]], list[list[str]]]:
    """The rows from top to bottom, and each arrow as the places that it passes: a part, a bend
    in each row between, and a part.
    """

    def row(part: str) -> int:
        return max((row(above) + 1 for above in graph if part in graph[above]), default=0)

    rows: list[list[str]] = [[] for _ in range(1 + max(map(row, graph)))]
    for part in graph:
        rows[row(part)].append(part)
    arrows = []
    for part, others in graph.items():
        for other in sorted(others):
            bends = [f"{part}>{other}:{number}" for number in range(row(part) + 1, row(other))]
            for number, bend in enumerate(bends, row(part) + 1):
                rows[number].append(bend)
            arrows.append([part, *bends, other])
    return rows, arrows


def _columns(rows: list[list[str]], arrows: list[list[str]], parts: Imports) -> dict[str, float]:
    """The x of each place. A place is drawn towards the middle of what it is linked with."""
    links: dict[str, list[str]] = {}
    for first, second in (pair for arrow in arrows for pair in pairwise(arrow)):
        links.setdefault(first, []).append(second)
        links.setdefault(second, []).append(first)
    column = dict.fromkeys(links, 0.0)
    for turn in range(_PASSES):
        for places in rows if turn % 2 == 0 else reversed(rows):
            wanted = {place: fmean(column[other] for other in links[place]) for place in places}
            if turn < _PASSES / 2:
                places.sort(key=lambda place: (wanted[place], place))
            room = [_BOX[0] + 16 if place in parts else 24 for place in places]
            column |= dict(zip(places, _apart([wanted[place] for place in places], room), strict=True))
    return column


def _apart(wanted: list[float], room: list[int]) -> list[float]:
    """Positions near those wanted, in their order, each with its room."""
    gaps = [(left + right) / 2 for left, right in pairwise(room)]
    rightwards, leftwards = wanted[:1], wanted[-1:]
    for here, gap in zip(wanted[1:], gaps, strict=True):
        rightwards.append(max(here, rightwards[-1] + gap))
    for here, gap in zip(reversed(wanted[:-1]), reversed(gaps), strict=True):
        leftwards.append(min(here, leftwards[-1] - gap))
    return [(right + left) / 2 for right, left in zip(rightwards, reversed(leftwards), strict=True)]


def draw(graph: Imports) -> str:
    """The picture, as SVG."""
    rows, arrows = _paths(graph)
    column = _columns(rows, arrows, graph)
    left, right = min(column.values()) - _BOX[0], max(column.values()) + _BOX[0]
    at = {place: (column[place] - left, _ROW * (number + 0.5)) for number, places in enumerate(rows) for place in places}
    lines = (_line([at[place] for place in arrow]) for arrow in arrows)
    boxes = (_box(part, *at[part]) for part in graph)
    return "\n".join([_HEAD.format(width=round(right - left), height=_ROW * len(rows)), *lines, *boxes, "</svg>\n"])


def _line(places: list[tuple[float, float]]) -> str:
    (x, y), *bends, (to_x, to_y) = places
    half = _BOX[1] / 2
    passed = ((bend_x, bend_y + side) for bend_x, bend_y in bends for side in (-half, half))
    points = " ".join(f"{x:.0f},{y:.0f}" for x, y in [(x, y + half), *passed, (to_x, to_y - half)])
    return f'<polyline points="{points}" fill="none" stroke="#555" marker-end="url(#head)"/>'


def _box(part: str, x: float, y: float) -> str:
    width, height = _BOX
    corner = f'x="{x - width / 2:.0f}" y="{y - height / 2:.0f}" width="{width}" height="{height}"'
    text = f'<text x="{x:.0f}" y="{y + 5:.0f}" text-anchor="middle">{part}</text>'
    return f'<rect {corner} rx="5" fill="#e8eefc" stroke="#3f51b5"/>{text}'


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(draw(transitive_reduction(imports())), encoding="utf-8")
