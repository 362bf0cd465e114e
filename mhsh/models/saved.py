"""What the backward pass finds saved of a layer, by name; it recomputes everything else."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

_saver: contextvars.ContextVar[Callable[[Array], Array] | None] = contextvars.ContextVar("saver", default=None)


def saved(value: Array, name: str) -> Array:
    """`value`, under the name by which REMAT_POLICIES choose. `recorded` and `replayed` take all
    such values.
    """
    saver = _saver.get()
    return checkpoint_name(value, name) if saver is None else saver(value)


def recorded(function: Callable[..., Any]) -> Callable[..., tuple[Any, tuple[Array, ...]]]:
    """Also returns what is saved of `function`; for jax.vjp, which runs what a derivative saves."""

    def run(*arguments: Any) -> tuple[Any, tuple[Array, ...]]:
        values: list[Array] = []

        def record(value: Array) -> Array:
            values.append(value)
            return value

        with _by(record):
            return function(*arguments), tuple(values)

    return run


def replayed(function: Callable[..., Any], values: Sequence[Array]) -> Callable[..., Any]:
    """Finds what `recorded` has returned, in its order, in place of what it would compute.
    Gradients go the way that they would.
    """

    def run(*arguments: Any) -> Any:
        following = iter(values)
        with _by(lambda value: _instead_of(value, next(following))):
            return function(*arguments)

    return run


@contextlib.contextmanager
def _by(saver: Callable[[Array], Array]) -> Iterator[None]:
    token = _saver.set(saver)
    try:
        yield
    finally:
        _saver.reset(token)


@jax.custom_vjp
def _instead_of(computed: Array, found: Array) -> Array:
    del computed
    return found


_instead_of.defvjp(lambda _, found: (found, None), lambda _, gradient: (gradient, None))
