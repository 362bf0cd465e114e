"""The rows of a run in a bucket: what a flush costs, and that a lost answer, a kill and a process
that has lost the run take no row away and add none twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from etils import epath

from mhsh.errors import Unavailable, UserError
from mhsh.storage import outage
from mhsh.storage.run_folder import RunFolder
from tests.faulty_bucket import FaultyBucket

REFUSED = "another process has taken this run, and writes gs://runs/.*metrics.jsonl; this one has stopped"


@pytest.fixture
def run(faulty: FaultyBucket, request: pytest.FixtureRequest) -> str:
    return f"gs://runs/{request.node.name}"


def rows(*steps: int, by: str = "one") -> list[dict[str, Any]]:
    return [{"step": step, "split": "train", "loss": 1.0, "by": by} for step in steps]


def written(run: str) -> list[tuple[int, str]]:
    """Step and writer of every row."""
    lines = (epath.Path(run) / "metrics.jsonl").read_text().splitlines()
    return [(row["step"], row["by"]) for row in map(json.loads, lines)]


def begun(run: str, *steps: int) -> RunFolder:
    folder = RunFolder(run)
    folder.append_metrics(rows(*steps))
    return folder


def each_request(faulty: FaultyBucket, run: str, act: Callable[[str], object]) -> Iterator[tuple[str, int]]:
    """A folder for each request of `act`, and the number of that request in its folder."""
    begin = len(faulty.requests)
    act(f"{run}/undisturbed")
    for k in range(len(faulty.requests) - begin):
        yield f"{run}/{k}", k


def test_a_flush_costs_the_same_however_long_the_run_is(faulty: FaultyBucket, run: str) -> None:
    costs = []
    for count in (10, 10_000):
        folder = begun(f"{run}/{count}", *range(100_000, 100_000 + count))
        begin = len(faulty.requests)
        folder.append_metrics(rows(*range(200_000, 200_010)))
        costs.append(([method for method, _ in faulty.requests[begin:]], sum(faulty.sent[begin:])))
    (few, short), (many, long) = costs
    assert few == many == ["POST", "POST"]
    assert abs(long - short) < 100  # the lengths of names


def test_a_run_of_before_goes_on(faulty: FaultyBucket, run: str) -> None:
    """Its metrics.jsonl bears no writer's mark."""
    (epath.Path(run) / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(1, 2, 3)))
    folder = RunFolder(run)
    assert folder.cut_metrics(2, 2, False).num_kept == 2
    folder.append_metrics(rows(3, by="two"))
    assert written(run) == [(1, "one"), (2, "one"), (3, "two")]


@pytest.mark.parametrize("fault", [503, "cut"])
def test_rows_whose_answer_was_lost_are_there_once(faulty: FaultyBucket, run: str, fault: int | str) -> None:
    """The rows of a failed flush are given again, with more. `cut`: the request was done."""

    def flushes(path: str, at: int = -1) -> None:
        folder = RunFolder(path)
        begin = len(faulty.requests)
        faulty.decide = lambda number, method, path: fault if number == begin + at else None
        unwritten: list[dict[str, Any]] = []
        for step in range(1, 5):
            unwritten += rows(step)
            try:
                with outage.one_try():
                    folder.append_metrics(unwritten)
                unwritten = []
            except Unavailable:
                continue
        assert not unwritten

    for path, k in each_request(faulty, run, flushes):
        if k < 6:  # the last flush is given again by nobody here
            flushes(path, k)
            assert written(path) == [(step, "one") for step in range(1, 5)], k


def test_a_process_that_has_lost_the_run_changes_nothing(faulty: FaultyBucket, run: str) -> None:
    """Another one resumes before any request of its flush: its rows are there as a whole before
    that, and cut, or never.
    """

    def late(path: str, at: int = -1) -> None:
        folder = begun(path, 1, 2, 3)
        begin, new = len(faulty.requests), RunFolder(path)

        def decide(number: int, method: str, request: str) -> None:
            if number == begin + at:
                new.cut_metrics(2, 2, False)
                new.append_metrics(rows(3, by="two"))

        faulty.decide = decide
        try:
            folder.append_metrics(rows(4))
            assert at < 0
        except UserError as error:
            assert "another process has taken this run" in str(error)
        faulty.decide = lambda number, method, path: None
        if at >= 0:
            new.append_metrics(rows(4, by="two"))
            assert written(path) == [(1, "one"), (2, "one"), (3, "two"), (4, "two")], at
            for change in (lambda: folder.append_metrics(rows(5)), lambda: folder.cut_metrics(1, 1, False)):
                with pytest.raises(UserError, match=REFUSED):
                    change()
            assert len(written(path)) == 4

    for k in range(2):
        late(f"{run}/{k}", k)


def test_a_resume_that_is_killed_before_any_request_takes_nothing_away(faulty: FaultyBucket, run: str) -> None:
    def resume(path: str, at: int = -1) -> None:
        begun(path, 1, 2, 3)
        begin = len(faulty.requests)
        faulty.decide = lambda number, method, path: 401 if 0 <= at <= number - begin else None
        try:
            RunFolder(path).cut_metrics(2, 2, False)
        except UserError:
            assert at >= 0
        faulty.decide = lambda number, method, path: None

    for path, k in each_request(faulty, run, resume):
        resume(path, k)
        assert written(path)[:2] == [(1, "one"), (2, "one")]
        again = RunFolder(path)
        assert again.cut_metrics(2, 2, False).num_kept == 2 and len(written(path)) == 2
        again.append_metrics(rows(3, by="two"))
        assert written(path)[2:] == [(3, "two")]
