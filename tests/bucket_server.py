"""An emulator of Google Cloud Storage on the loopback interface: gcp-storage-emulator, with what it
lacks of generations (https://cloud.google.com/storage/docs/request-preconditions).

    python -m tests.bucket_server PORT BUCKET
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from gcp_storage_emulator import server
from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import objects

_ONE_AT_A_TIME = threading.Lock()
# https://docs.cloud.google.com/storage/docs/performing-resumable-uploads#status-check
_FINISHED: set[str] = set()


def with_generations(handler: Any) -> Any:
    """The handler, answering 412 where ifGenerationMatch names another generation than the object's
    (0: there is none), 304 where ifGenerationNotMatch names it, and telling it to who downloads. An
    upload in parts that is finished is answered again, to who has not heard it.
    """

    def run(request: Any, response: Any, storage: Any, *args: Any, **kwargs: Any) -> None:
        generation, upload = _generation(request, storage), request.query.get("upload_id", [None])[0]
        if upload in _FINISHED:
            response.json(storage.get_file_obj(request.params["bucket_name"], request.query["name"][0]))
        elif request.query.get("ifGenerationMatch", [generation])[0] != generation:
            response.status = HTTPStatus.PRECONDITION_FAILED
        elif request.query.get("ifGenerationNotMatch", [None])[0] == generation != "0":
            response.status = HTTPStatus.NOT_MODIFIED
        else:
            if handler in (objects.get, objects.download):
                response["x-goog-generation"] = generation
            handler(request, response, storage, *args, **kwargs)
            if upload is not None and response.status == HTTPStatus.OK:
                _FINISHED.add(upload)

    return run


def one_at_a_time(handler: Any) -> Any:
    """The handler, called by one thread at a time, after the whole request has come: a client that
    stops in the middle of it holds nobody up.
    """

    def run(request: Any, *args: Any, **kwargs: Any) -> None:
        if request.method in ("POST", "PUT", "PATCH"):
            _ = request.data  # kept by the request
        with _ONE_AT_A_TIME:
            handler(request, *args, **kwargs)

    return run


def _generation(request: Any, storage: Any) -> str:
    name = request.params.get("object_id") or request.query.get("name", [None])[0] or request.data["meta"]["name"]
    try:
        return storage.get_file_obj(request.params["bucket_name"], name)["generation"]
    except NotFound:
        return "0"


def _handlers() -> Iterator[tuple[str, dict[str, Any]]]:
    wrapped = {each: each for each in (objects.insert, objects.upload_partial, objects.delete, objects.get, objects.download)} | {
        objects.compose: compose
    }
    for pattern, methods in server.HANDLERS:
        handlers = {name: with_generations(wrapped[each]) if each in wrapped else each for name, each in methods.items()}
        yield pattern, {name: one_at_a_time(each) for name, each in handlers.items()}


def compose(request: Any, response: Any, storage: Any, *args: Any, **kwargs: Any) -> None:
    """objects.compose, of sources whose generation is named: 404 where there is none with it. A
    composite object has no MD5 (https://cloud.google.com/storage/docs/composite-objects).
    """
    bucket = request.params["bucket_name"]
    for source in request.data["sourceObjects"]:
        try:
            found = storage.get_file_obj(bucket, source["name"])["generation"]
        except NotFound:
            found = None
        if found is None or found != source.get("generation", found):
            response.status = HTTPStatus.NOT_FOUND
            return
    objects.compose(request, response, storage, *args, **kwargs)


def main() -> None:
    """Serves until it is stopped."""
    server.HANDLERS = tuple(_handlers())
    server.server.HTTPServer = server.server.ThreadingHTTPServer  # or a client that stops while it reads stops them all
    server.create_server("127.0.0.1", int(sys.argv[1]), in_memory=True, default_bucket=sys.argv[2]).run()


if __name__ == "__main__":
    os.environ.pop("STORAGE_EMULATOR_HOST", None)
    main()
