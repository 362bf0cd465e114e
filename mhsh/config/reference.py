"""The reference of all fields: docs/config.md, and what `mhsh configs` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mhsh.config.fields import HEADS_PER_LAYER, LAYERS_AT_EQUAL_SIZE, Field, fields_of, section_class, section_names
from mhsh.config.schema import OBJECTIVES, ROLES

_INTRODUCTION = f"""# The fields of a config

*`mhsh configs --markdown > docs/config.md` writes this page from `mhsh/config/schema.py`.*

Set any field on the command line: `--config.train.batch_size=64`. `mhsh configs` lists the configs
that come with mhsh, and `mhsh configs NAME:VARIANT` prints one. A run's `config.json` holds every
field.

Two fields of a config file change the shape of its model where they are not 0:

- `{HEADS_PER_LAYER}` = n groups the same heads otherwise: L' = L N / n, N' = n, F' = F n / N.
- `{LAYERS_AT_EQUAL_SIZE}` = L' puts as many parameters into L' layers of as many heads:
  D and H times sqrt(L / L'), and F for the rest.

The role of a field says what a difference between two runs does to their comparison:

"""


def markdown() -> str:
    """The page docs/config.md."""
    parts = [_INTRODUCTION, *(f"- `{role}`: {meaning}\n" for role, meaning in ROLES.items())]
    for heading, doc, fields in sections():
        parts += [f"\n## {heading}\n", f"{doc}\n\n", "| field | value | default | role | meaning |\n|---|---|---|---|---|\n"]
        for field in fields:
            cells = (f"`{field.path}`", value_text(field), str(field.default), field.role, field.doc)
            parts.append(f"| {' | '.join(cells)} |\n".replace("*", r"\*"))
    return "".join(parts)


def text() -> str:
    """The same as plain lines for a terminal."""
    parts = [f"{role}: {meaning}" for role, meaning in ROLES.items()]
    for heading, doc, fields in sections():
        parts += ["", f"{heading}: {doc}"]
        parts += [f"  {field.path} ({value_text(field)}; {field.role})\n      {field.doc}" for field in fields]
    return "\n".join(parts)


def sections() -> Iterator[tuple[str, str, Sequence[Field]]]:
    """The heading, the meaning and the fields of every section; the data section once a kind."""
    for section in section_names():
        objectives: dict[type, list[str]] = {}
        for objective in OBJECTIVES:
            objectives.setdefault(section_class(section, objective), []).append(objective)
        for cls, names in objectives.items():
            heading = section if len(objectives) == 1 else f"{section}, where model.objective is {' or '.join(names)}"
            yield heading, (cls.__doc__ or "").split("\n")[0], list(fields_of(section, cls).values())


def value_text(field: Field) -> str:
    """The type and the bounds of a field: `int, 1 or more`; of a choice the values alone."""
    if field.kind is str:
        return field.allowed or "str"
    return ", ".join(filter(None, [field.kind.__name__, field.allowed]))
