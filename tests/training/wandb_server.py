"""A stand-in for W&B's server: it answers what W&B's own programs ask and keeps what they upload.

Queries: https://github.com/wandb/wandb/tree/main/core/api/graphql.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from mhsh.storage.files import read_object
from mhsh.storage.run_folder import RunFolder
from mhsh.training.trackers import WANDB_FILE


class UploadedRun:
    """What the server has of one run."""

    def __init__(self) -> None:
        self.history: list[dict[str, Any]] = []
        self.summary = "{}"
        self.config: dict[str, Any] = {}
        self.exit_code: int | None = None


class WandbServer(ThreadingHTTPServer):
    """On the loopback interface, at `url`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.runs: dict[str, UploadedRun] = {}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is not an error."""

    def take_stream(self, run_id: str, body: dict[str, Any]) -> dict[str, Any]:
        """Lines of files, each from an offset on: what lay there is replaced."""
        run = self.runs[run_id]
        files = body.get("files", {})
        if "wandb-history.jsonl" in files:
            offset, lines = files["wandb-history.jsonl"]["offset"], files["wandb-history.jsonl"]["content"]
            assert offset <= len(run.history)
            run.history[offset : offset + len(lines)] = [json.loads(line) for line in lines]
        if "wandb-summary.json" in files:
            run.summary = files["wandb-summary.json"]["content"][-1]
        if body.get("complete"):
            run.exit_code = body["exitcode"]
        return {"limits": {}}

    def answer_query(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        """The data of a GraphQL query; an empty object for one that does not matter here."""
        found = re.search(r"(?:query|mutation)\s+(\w+)", query)
        match found and found[1]:
            case "Viewer":
                return {"viewer": {"id": "u", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}}
            case "UpsertBucket":
                run = self.runs.setdefault(variables["name"], UploadedRun())
                run.config |= json.loads(variables["config"] or "{}")
                return {"upsertBucket": {"bucket": _bucket(variables["name"], run), "inserted": True}}
            case "RunResumeStatus":
                run = self.runs.get(variables["name"])
                bucket = run and _bucket(variables["name"], run)
                return {"model": {"id": "m", "name": "p", "entity": {"id": "e", "name": "me"}, "bucket": bucket}}
            case "CreateRunFiles":
                files = [{"name": name, "uploadUrl": f"{self.url}/files/{name}"} for name in variables["files"]]
                return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
        return {}


def _bucket(run_id: str, run: UploadedRun) -> dict[str, Any]:
    project = {"id": "p", "name": "p", "entity": {"id": "e", "name": "me"}}
    counts = {"historyLineCount": len(run.history), "logLineCount": 0, "eventsLineCount": 0}
    tails = {"historyTail": json.dumps([json.dumps(line) for line in run.history[-1:]]), "eventsTail": "[]"}
    texts = {"summaryMetrics": run.summary, "config": json.dumps(run.config), "wandbConfig": '{"t": 1}'}
    names = {"id": "b", "name": run_id, "displayName": run_id, "description": None, "sweepName": None, "notes": None, "tags": []}
    return names | {"project": project} | counts | tails | texts


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WandbServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        answer: dict[str, Any] = {}
        if self.path.endswith("/file_stream"):
            answer = self.server.take_stream(self.path.split("/")[-2], json.loads(body))
        elif self.path == "/graphql":
            request = json.loads(body)
            answer = {"data": self.server.answer_query(request["query"], request.get("variables") or {})}
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed."""


def only_run(server: WandbServer, folder: RunFolder) -> UploadedRun:
    """What the server has of the run in a folder, and it has no other."""
    [run_id] = server.runs
    assert read_object(folder.path / WANDB_FILE)["id"] == run_id
    return server.runs[run_id]


def lines_of(run: UploadedRun) -> list[dict[str, Any]]:
    """Its history, without what W&B adds (_runtime, _timestamp)."""
    return [{key: value for key, value in line.items() if key == "_step" or not key.startswith("_")} for line in run.history]


def expected_lines(folder: RunFolder) -> list[dict[str, Any]]:
    """metrics.jsonl as W&B shows it: one line a step."""
    lines: dict[int, dict[str, Any]] = {}
    for row in folder.rows():
        numbers = {key: float(value) for key, value in row.items() if isinstance(value, int | float)}
        line = lines.setdefault(row["step"], {"_step": numbers.pop("step")})
        line |= {axis: numbers.pop(axis) for axis in ("tokens", "flops", "seconds")}
        line |= {f"{row['split']}/{key}": value for key, value in numbers.items()}
    return list(lines.values())


def client_variables(url: str) -> dict[str, str]:
    """The environment in which wandb speaks to `url` and nobody else."""
    return {"WANDB_BASE_URL": url, "WANDB_API_KEY": "0" * 40, "WANDB_ERROR_REPORTING": "false"}


@contextlib.contextmanager
def wandb_server() -> Iterator[WandbServer]:
    """A server for the length of the `with`."""
    with WandbServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
