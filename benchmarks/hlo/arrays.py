"""Arrays as the text of a compiled program writes their shapes."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from mhsh.planning.hlo import item_bytes

_ARRAY = re.compile(r"\b(pred|[a-z]+\d+\w*)\[([\d,]*)\](?:\{([^}]*)\})?")


class Array(NamedTuple):
    """An array as a shape writes it: bf16[16,128,64]{2,1,0:T(8,128)(2,1)S(1)}."""

    dtype: str
    sizes: tuple[int, ...]
    minor_to_major: tuple[int, ...]  # the axes from the innermost out; empty: as they stand
    tile: tuple[int, ...]  # of the innermost axes, which are padded to a multiple of it; empty: none
    memory_space: int  # 0: the device's main memory; on TPUs 1 is VMEM

    @property
    def padded_bytes(self) -> int:
        """The bytes of the array with its innermost axes padded to whole tiles."""
        order = self.minor_to_major or tuple(reversed(range(len(self.sizes))))
        sizes = [self.sizes[axis] for axis in reversed(order)]
        for back, tile in enumerate(reversed(self.tile), 1):
            if back <= len(sizes):
                sizes[-back] = -(-sizes[-back] // tile) * tile
        return math.prod(sizes) * item_bytes(self.dtype)


def arrays(shape: str) -> list[Array]:
    """The array of a shape, or all those of a tuple."""
    return [_array(*match) for match in _ARRAY.findall(shape)]


def _array(dtype: str, sizes: str, layout: str) -> Array:
    order, _, rest = layout.partition(":")
    tile, space = re.search(r"T\(([\d,]*)\)", rest), re.search(r"S\((\d+)\)", rest)
    return Array(dtype, _numbers(sizes), _numbers(order), _numbers(tile[1]) if tile else (), int(space[1]) if space else 0)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)
