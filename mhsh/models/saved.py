"""The values of a layer that the backward pass finds saved, by name; it recomputes all others."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

_saver: contextvars.ContextVar[Callable[[Array], Array] | None] = contextvars.ContextVar("saver", default=None)


def mark_saved(value: Array, name: str) -> Array:
    """`value`, under the name by which REMAT_POLICIES choose. `record_saved` and `replay_saved`
    take all such values.
    """
    saver = _saver.get()
    return checkpoint_name(value, name) if saver is None else saver(value)


def record_saved(function: Callable[..., Any]) -> Callable[..., tuple[Any, tuple[Array, ...]]]:
    """`function`, which then also returns its saved values: for jax.vjp, which runs what a
    derivative saves.
    """

    def run(*arguments: Any) -> tuple[Any, tuple[Array, ...]]:
        values: list[Array] = []

        def record(value: Array) -> Array:
            values.append(value)
            return value

        with _use_saver(record):
            return function(*arguments), tuple(values)

    return run


def replay_saved(function: Callable[..., Any], values: Sequence[Array]) -> Callable[..., Any]:
    """`function`, which then finds the values that `record_saved` returned, in their order, in
    place of those that it would compute. Gradients take the way that they would take without it.
    """

    def run(*arguments: Any) -> Any:
        following = iter(values)
        with _use_saver(lambda value: _replace_value(value, next(following))):
            return function(*arguments)

    return run


@contextlib.contextmanager
def _use_saver(saver: Callable[[Array], Array]) -> Iterator[None]:
    token = _saver.set(saver)
    try:
        yield
    finally:
        _saver.reset(token)


@jax.custom_vjp
def _replace_value(computed: Array, saved: Array) -> Array:
    return saved


_replace_value.defvjp(lambda _, found: (found, None), lambda _, gradient: (gradient, None))
