"""Wall time by kind: every second has one."""

from __future__ import annotations

import pytest

from mhsh.training.tracking import wall_time
from mhsh.training.tracking.wall_time import KINDS, WallTime, format_wall_time


@pytest.fixture
def pass_time(monkeypatch):
    """pass_time(3.0): three seconds later."""
    now = [100.0]
    monkeypatch.setattr(wall_time.time, "monotonic", lambda: now[0])

    def later(seconds: float) -> None:
        now[0] += seconds

    return later


def test_a_second_counts_once_for_the_innermost_kind(pass_time):
    wall = WallTime()
    pass_time(1.0)
    with wall.spent("training"):
        pass_time(10.0)
        with wall.spent("evaluating"):
            pass_time(4.0)
            with wall.spent("compiling"):
                pass_time(2.0)
            pass_time(1.0)
        with pytest.raises(RuntimeError), wall.spent("saving"):
            pass_time(3.0)
            raise RuntimeError
        pass_time(10.0)
        seen = wall.seconds()
    found = dict.fromkeys(KINDS, 0.0) | {"preparing": 1.0, "training": 20.0, "evaluating": 5.0, "compiling": 2.0, "saving": 3.0}
    assert seen == found
    assert format_wall_time(seen) == "65% of the wall time was training; evaluating 16%, saving 10%, compiling 6%, preparing 3%"


def test_waiting_is_the_time_until_an_item_is_there(pass_time):
    def items():
        pass_time(2.0)
        yield "a"
        pass_time(3.0)
        yield "b"
        pass_time(0.5)

    wall = WallTime()
    with wall.spent("training"):
        for _ in wall.waiting(items()):
            pass_time(7.0)
    assert (wall.seconds()["waiting"], wall.seconds()["training"]) == (5.5, 14.0)


def test_an_earlier_process_counts_too(pass_time):
    wall = WallTime()
    pass_time(1.0)
    wall.add({"training": 8.0, "saving": 1.0})
    assert wall.seconds() == dict.fromkeys(KINDS, 0.0) | {"preparing": 1.0, "training": 8.0, "saving": 1.0}
