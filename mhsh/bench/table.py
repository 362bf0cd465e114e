"""Bench results as text for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from mhsh.bench.results import BenchResults, CandidateResult
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
    texts = [_texts(candidate, results.unit) for _, candidate in rows]
    titles = [title for title in texts[0] if any(text[title] for text in texts)]
    table = Table(box=None, pad_edge=False)
    for title in (*(name.upper() for name in varied), ""):
        table.add_column(title, no_wrap=True)
    for title in titles:
        table.add_column(title, min_width=len(title))
    for (setting, candidate), text in zip(rows, texts, strict=True):
        table.add_row(*(str(setting[key]) for key in varied), candidate.name, *(text[title] or "-" for title in titles))
    fixed = [f"{key.replace('_', ' ')} {value}" for key, value in settings[0].items() if key not in varied]
    for paragraph in [_head(results, fixed), *map(_candidate, results.cells[0].candidates)]:
        console.print(paragraph, highlight=False, markup=False)
    console.print()
    console.print(table)
    console.print()
    console.print(_foot(results, rows[0][1]), highlight=False, markup=False)


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


def _texts(result: CandidateResult, unit: str) -> dict[str, str]:
    """The text of each column by its title; a column without any text is left out."""
    ratio, cpu, matmul, peak = result.time_ratio, result.cpu_ratio, result.share_of_matmul, result.share_of_peak
    return {
        "TIME": timing(result.seconds.median),
        "INTERVAL": f"{timing(result.seconds.low)} to {timing(result.seconds.high)}",
        f"{unit.upper()}S/S": quantity(result.rate, "").strip(),
        "RATIO": f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})" if ratio else "",
        "CPU": f"{cpu.median:.2f}" if cpu else "",
        "MATMUL": f"{matmul:.1%}" if matmul else "",
        "PEAK": f"{peak:.1%}" if peak else "",
        "MEMORY": quantity(result.memory_bytes, "B"),
    }


def _foot(results: BenchResults, first: CandidateResult) -> str:
    return (
        f"Time: the median of {len(first.turns)} alternating turns, with its distribution-free interval "
        f"({first.seconds.confidence:.1%}, as all intervals here). Ratio: time per {results.unit} over that of the baseline in "
        "the same round; above 1 is slower. CPU: the same of CPU seconds. Matmul: FLOP/s over those of a big matrix product. "
        "Peak: over those of the data sheet."
    )
