"""Bench results as text for a terminal."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from mhsh.bench.results import BenchResults, CandidateResult, Interval
from mhsh.text import quantity, timing

WIDTH = 100  # columns, unless the terminal has more


def show(results: BenchResults) -> None:
    """Prints what was measured: the candidates, a row for each setting and candidate, and what the
    columns mean.
    """
    console = Console(width=max(WIDTH, Console().width))
    settings = [cell.setting for cell in results.cells]
    varied = [key for key in settings[0] if len({str(setting[key]) for setting in settings}) > 1]
    if "setting" in varied:  # its name says the rest
        varied = ["setting"]
    rows = [(cell.setting, candidate) for cell in results.cells for candidate in cell.candidates]
    columns = [(title, [text(candidate) for _, candidate in rows]) for title, text in _columns(results.unit)]
    columns = [(title, texts) for title, texts in columns if any(texts)]
    table = Table(box=None, pad_edge=False)
    for title in (*(name.upper() for name in varied), ""):
        table.add_column(title, no_wrap=True)
    for title, _ in columns:
        table.add_column(title, min_width=len(title))
    for number, (setting, candidate) in enumerate(rows):
        table.add_row(*(str(setting[key]) for key in varied), candidate.name, *(texts[number] or "-" for _, texts in columns))
    fixed = [f"{key.replace('_', ' ')} {value}" for key, value in settings[0].items() if key not in varied]
    for paragraph in [_head(results, fixed), *map(_candidate, results.cells[0].candidates)]:
        console.print(paragraph, highlight=False, markup=False)
    console.print()
    console.print(table)
    console.print()
    console.print(_foot(results, [candidate for _, candidate in rows]), highlight=False, markup=False)


def _head(results: BenchResults, fixed: list[str]) -> str:
    environment = results.environment
    device, torch = environment["devices"], environment["torch"] or {"versions": {}}
    versions = {"jax": environment["versions"]["jax"]} | torch["versions"]
    return (
        f"mhsh bench {results.kind}{': ' if fixed else ''}{', '.join(fixed)}; {device['count']} x {device['kind']}, "
        f"{environment['cores']} cores; {', '.join(f'{name} {version}' for name, version in versions.items())}"
    )


def _candidate(result: CandidateResult) -> str:
    parameters = "" if result.parameters is None else f", {result.parameters:,} parameters"
    return f"{result.name}: {result.label}{parameters}" + (f" ({result.omega:,} of them omega)" if result.omega else "")


def _columns(unit: str) -> list[tuple[str, Callable[[CandidateResult], str]]]:
    """Title and text of each column; one without any text is left out."""
    return [
        ("TIME", lambda result: timing(result.seconds.median)),
        ("INTERVAL", lambda result: f"{timing(result.seconds.low)} to {timing(result.seconds.high)}"),
        (f"{unit.upper()}S/S", lambda result: "" if unit == "program" else _rate(result.rate)),
        ("RATIO", lambda result: _ratio(result.time_ratio)),
        ("CPU", lambda result: f"{result.cpu_ratio.median:.2f}" if result.cpu_ratio else ""),
        ("MATMUL", lambda result: _share(result.share_of_matmul)),
        ("PEAK", lambda result: _share(result.share_of_peak)),
        ("MEMORY", lambda result: quantity(result.memory_bytes, "B")),
    ]


def _foot(results: BenchResults, candidates: list[CandidateResult]) -> str:
    first = candidates[0]
    foot = (
        f"Time: the median of {len(first.turns)} alternating turns, with its distribution-free interval "
        f"({first.seconds.confidence:.1%}, as all intervals here)."
    )
    baselines = sorted({candidate.baseline for candidate in candidates if candidate.baseline})
    if baselines:
        foot += (
            f" Ratio: time per {results.unit} over that of {' or '.join(baselines)} in the same round, median and interval; "
            "above 1 is slower. CPU: the same of CPU seconds."
        )
    if "matmul" in results.ceilings:
        ceiling = results.ceilings["matmul"]
        foot += f" Matmul: FLOP/s over the {_rate(ceiling.rate)} that a {ceiling.dtype} matrix product reached in the same turns."
    if results.peak_flops:
        foot += f" Peak: FLOP/s over the {_rate(results.peak_flops)} of the data sheet."
    return foot


def _rate(rate: float | None) -> str:
    return quantity(rate, "").strip()


def _ratio(ratio: Interval | None) -> str:
    return f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})" if ratio else ""


def _share(share: float | None) -> str:
    return f"{share:.1%}" if share else ""
