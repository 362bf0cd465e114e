"""The document of a bench run as Markdown, for people and for the docs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mhsh.bench.schema import memory_bytes
from mhsh.text import quantity, timing

Entry = Mapping[str, Any]


def markdown(document: Mapping[str, Any]) -> str:
    """A table of all cells, what the device can do above it, and what the columns mean below; ends
    without a newline.
    """
    cells = document["cells"]
    varied = [key for key in cells[0]["setting"] if len({str(cell["setting"][key]) for cell in cells}) > 1]
    entries = [entry for cell in cells for entry in cell["candidates"]]
    columns = [column for column in _columns(document["unit"]) if any(column[1](entry) for entry in entries)]
    lines = [_row([*varied, *(title for title, _ in columns)]), _row(["---"] * (len(varied) + len(columns)))]
    for cell in cells:
        for entry in cell["candidates"]:
            lines.append(_row([*(str(cell["setting"][key]) for key in varied), *(show(entry) for _, show in columns)]))
    return "\n".join([*_head(document, varied), "", *lines, "", *_foot(document, entries)])


def _head(document: Mapping[str, Any], varied: Sequence[str]) -> list[str]:
    environment, setting = document["environment"], document["cells"][0]["setting"]
    device, torch = environment["devices"], environment["torch"]
    versions = f"jax {environment['versions']['jax']}"
    if torch:
        versions += "".join(f", {name} {version}" for name, version in torch["versions"].items())
    fixed = [f"{key.replace('_', ' ')} {value}" for key, value in setting.items() if key not in varied]
    head = [
        f"mhsh bench {document['kind']}{': ' if fixed else ''}{', '.join(fixed)}; {device['count']} x {device['kind']}, "
        f"{environment['cores']} cores; {versions}"
    ]
    ceilings = document["ceilings"]
    if ceilings:
        product, copy = ceilings["matmul"], ceilings["copy"]
        head += [
            "",
            f"Ceilings of one device, measured in the same turns: {quantity(product['rate'], 'FLOP/s')} in a {product['dtype']} "
            f"matrix product of {product['size']:,} x {product['size']:,}, {quantity(copy['rate'], 'B/s')} in a copy of "
            f"{quantity(copy['bytes'], 'B')}.",
        ]
    return head


def _columns(unit: str) -> list[tuple[str, Callable[[Entry], str]]]:
    """Title, and what stands in it; a column that is empty for everybody is left out."""
    return [
        ("", lambda entry: entry["name"]),
        ("what", lambda entry: entry["label"]),
        ("time", lambda entry: timing(entry["seconds"]["median"])),
        ("interval", lambda entry: f"{timing(entry['seconds']['low'])} to {timing(entry['seconds']['high'])}"),
        (f"{unit}s/s", lambda entry: "" if unit == "program" else quantity(entry["rate"], "").strip()),
        ("time ratio", lambda entry: _ratio(entry["time_ratio"])),
        ("CPU ratio", lambda entry: f"{entry['cpu_ratio']['median']:.2f}" if entry["cpu_ratio"] else ""),
        ("best ratio", lambda entry: f"{entry['best_ratio']:.2f}" if entry["best_ratio"] else ""),
        ("FLOP/s", lambda entry: quantity(entry["flops_per_second"], "").strip()),
        ("of matmul", lambda entry: _share(entry["share_of_matmul"])),
        ("of peak", lambda entry: _share(entry["share_of_peak"])),
        ("B/s by XLA", lambda entry: quantity(entry["bytes_per_second"], "").strip()),
        ("of copy", lambda entry: _share(entry["share_of_copy"])),
        ("parameters (of them omega)", _parameters),
        ("memory", lambda entry: quantity(memory_bytes(entry.get("memory") or {}), "B")),
    ]


def _foot(document: Mapping[str, Any], entries: Sequence[Entry]) -> list[str]:
    settings, first = document["settings"], entries[0]
    interval = first["seconds"]
    foot = (
        f"Time: median of {len(first['turns'])} turns, taken in turns by all, with its distribution-free interval "
        f"({interval['confidence']:.1%} for all intervals here)."
    )
    if any(entry["time_ratio"] for entry in entries):
        against = sorted({entry["baseline"] for entry in entries if entry["baseline"]})
        foot += (
            f" Time ratio: time per {document['unit']} over that of {' or '.join(against)} in the same round, median and "
            "interval; above 1 is slower. CPU ratio: of CPU seconds; best ratio: of the fastest turns."
        )
    if any(entry["bytes_per_second"] for entry in entries):
        foot += " Bytes are XLA's own count of what the program reads and writes."
    return [foot, *(["", settings["note"]] if settings.get("note") else [])]


def _row(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _ratio(ratio: Mapping[str, float] | None) -> str:
    return f"{ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})" if ratio else ""


def _share(share: float | None) -> str:
    return f"{share:.1%}" if share else ""


def _parameters(entry: Entry) -> str:
    omega = entry.get("omega")
    return f"{entry['parameters']:,}" + (f" ({omega:,})" if omega else "") if "parameters" in entry else ""
