"""The Runtime API of one environment, and what of the Extensions API a function needs to ask for SIGTERM.

Every connection has a thread of its own, which ends when the function's process does.
"""

import contextlib
import json
import logging
import socket
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluice_localstack.environment import Environment

LOG = logging.getLogger(__name__)

HOST = "127.0.0.1"
RUNTIME = "/2018-06-01/runtime"
EXTENSION = "/2020-01-01/extension"
MAX_RESPONSE = 6 * 1024 * 1024 + 100  # bytes


class Refusal(Exception):
    """An answer of the API that is no 2xx."""

    def __init__(self, status: int, error_type: str, message: str):
        self.status = status
        self.document = document(error_type, message)


def document(error_type: str, message: str) -> bytes:
    """An error as Lambda writes it."""
    return json.dumps({"errorType": error_type, "errorMessage": message}).encode()


class Gone(Exception):
    """The environment has ended: there is nothing more to answer."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 16

    def __init__(self, environment: "Environment"):
        self.environment = environment
        super().__init__((HOST, 0), Handler)
        threading.Thread(target=self._accept, daemon=True, name="runtime-api").start()

    @property
    def address(self) -> str:
        return f"{HOST}:{self.server_port}"

    def _accept(self) -> None:
        """Unlike serve_forever, which looks up several times a second, this costs nothing while nothing comes."""
        with contextlib.suppress(OSError):  # closed
            while True:
                self.process_request(*self.get_request())

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept
        self.server_close()

    def handle_error(self, request, client_address) -> None:
        LOG.debug("a request of the Runtime API broke off", exc_info=True)  # the function was killed


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 65536  # headers and body in one write: else delayed acknowledgements add 40 ms to each call
    server: Server

    def log_message(self, *args) -> None:
        pass

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_GET

    def _serve(self) -> None:
        environment = self.server.environment
        try:
            body = self._body()
            match self.command, self.path.removeprefix(RUNTIME).split("/")[1:]:
                case "GET", ["invocation", "next"]:
                    call = environment.next()
                    self._reply(200, call.payload, call.headers())
                case "POST", ["invocation", request_id, ("response" | "error") as kind]:
                    environment.answer(request_id, body, kind == "error")
                    self._reply(202)
                case "POST", ["init", "error"]:
                    environment.init_failed(body)
                    self._reply(202)
                case "POST", ["2020-01-01", "extension", "register"]:
                    self._register(environment, body)
                case "GET", ["2020-01-01", "extension", "event", "next"]:
                    environment.await_end()  # nobody registers for events, so none comes
                case _:
                    self._reply(404)
        except Gone:
            self.close_connection = True
        except Refusal as no:
            self._reply(no.status, no.document)

    def _register(self, environment: "Environment", body: bytes) -> None:
        try:
            events = json.loads(body or b"{}").get("events") or []
        except (ValueError, AttributeError):
            events = ["?"]
        if events:
            raise Refusal(403, "Extension.UnsupportedEvents", "Extensions can only ask for SIGTERM here: register for no events")
        environment.register()
        self._reply(
            200,
            json.dumps({"functionName": environment.name, "functionVersion": environment.version, "handler": "bootstrap"}).encode(),
            {"Lambda-Extension-Identifier": str(uuid.uuid4())},
        )

    def _reply(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            size = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(size)
            if len(body) < size:
                raise ConnectionError("truncated")
            return body
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():  # trailers
            pass
        return b"".join(chunks)
