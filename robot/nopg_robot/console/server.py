"""
The console's process: serves the page to this computer alone, and passes the stop on.

``nopg_robot.console.feed`` starts it and speaks to it in lines of JSON, see :func:`main`. It imports the standard library
only, runs at a lower priority than the control loop, and shares no lock with it.

Pages ask again and again instead of holding a stream open: a browser has six connections to a host, and six pages with a
stream each would leave none for the stop.
"""

import contextlib
import hmac
import json
import os
import signal
import socket
import sys
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any
from urllib.parse import parse_qs, urlsplit

from nopg_robot.console.board import Board
from nopg_robot.console.channel import CycleReader, SharedMemory

HOST = "127.0.0.1"
# How often the loop's cycles are looked at.
POLL_S = 0.02
# A client that does not read, or says nothing, is cut off after so long, and nobody gets more than so many connections.
CLIENT_TIMEOUT_S = 5.0
MOST_CLIENTS = 32
# Until a stranger who was shown the door has left his place.
_ROOM_S = 0.5
NICENESS = 10
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_FILES = {"": ("page.html", "text/html"), "page.js": ("page.js", "text/javascript"), "page.css": ("page.css", "text/css")}


class Handler(BaseHTTPRequestHandler):
    """One request. The first part of its path is the token; whoever does not have it learns nothing."""

    server: "ConsoleServer"
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "nopg", ""
    timeout = CLIENT_TIMEOUT_S
    # Head and body of an answer are two packets, and the second does not wait for a word about the first.
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """The page and its files, what it must know of a flight, and the present."""
        place = self._place()
        if place is None:
            return
        board = self.server.board
        if place in _FILES:
            name, kind = _FILES[place]
            self._answer(self.server.files[name], f"{kind}; charset=utf-8")
        elif place == "flight":
            self._answer_json(board.flight())
        elif place == "state":
            self._answer_json(board.state(_after(self.path)))
        else:
            self._refuse(HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        """The stop."""
        # What a form sends along is of no interest, and would be taken for the next request.
        self.close_connection = True
        place = self._place()
        if place is None:
            return
        if place != "stop":
            self._refuse(HTTPStatus.NOT_FOUND)
        elif self.server.board.ask_to_stop():
            self._answer(b"Stop requested.\n", "text/plain", HTTPStatus.ACCEPTED)
        else:
            self._answer(b"The flight is over.\n", "text/plain", HTTPStatus.CONFLICT)

    def _place(self) -> str | None:
        """:return: what is asked for, behind the token; None if that was answered with a refusal"""
        # A page of another site whose name was made to mean this computer sends that name.
        if self.headers.get_all("Host", []) != [self.server.own_name]:
            self._refuse(HTTPStatus.FORBIDDEN)
            return None
        token, slash, place = urlsplit(self.path).path.removeprefix("/").partition("/")
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self.server.token):
            self._refuse(HTTPStatus.FORBIDDEN)
            return None
        self.server.keep(self.connection)
        # Without the slash a page would look for its files beside the token.
        return place if slash else "missing"

    def _refuse(self, status: HTTPStatus) -> None:
        self.close_connection = True
        self._answer(f"{status.phrase}\n".encode(), "text/plain", status)

    def _answer_json(self, content: Any) -> None:
        self._answer(json.dumps(content, allow_nan=False).encode(), "application/json")

    def _answer(self, content: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it, and the token stands in every line."""


class ConsoleServer(ThreadingHTTPServer):
    """
    :param board: what pages show
    :param token: that addresses must have
    """

    daemon_threads = True
    # Those that come at once, as of several pages.
    request_queue_size = 2 * MOST_CLIENTS

    def __init__(self, board: Board, token: str):
        super().__init__((HOST, 0), Handler)
        self.board, self.token = board, token.encode()
        self.own_name = f"{HOST}:{self.server_port}"
        folder = resources.files("nopg_robot.console")
        self.files = {name: folder.joinpath(name).read_bytes() for name, _ in _FILES.values()}
        self._places = threading.BoundedSemaphore(MOST_CLIENTS)
        # Connections that have not shown the token, older first.
        self._strangers: dict[Any, None] = {}
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        """
        A thread for each connection, as long as there are not too many. Then the stranger who came first makes room: programs
        that fill all places and never show the token would keep the operator from the stop.
        """
        if not self._places.acquire(blocking=False):
            self._dismiss_a_stranger()
            if not self._places.acquire(timeout=_ROOM_S):
                self.shutdown_request(request)
                return
        with self._lock:
            self._strangers[request] = None
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """In the connection's thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.keep(request)
            self._places.release()

    def keep(self, request: Any) -> None:
        """:param request: connection that need not make room for others: it has shown the token, or is over"""
        with self._lock:
            self._strangers.pop(request, None)

    def _dismiss_a_stranger(self) -> None:
        with self._lock:
            first = next(iter(self._strangers), None)
            if first is not None:
                del self._strangers[first]
                with contextlib.suppress(OSError):
                    first.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A page that was closed in the middle of an answer; nobody is left to be told."""


def _after(path: str) -> int:
    text = parse_qs(urlsplit(path).query).get("after", ["0"])[0]
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0


def main() -> None:
    """
    Lines on standard input, from the program that flies: ``{"memory": …, "token": …, "linger_s": …}``, then for each flight
    ``{"flight": …}`` and ``{"ended": …}``. The answer to the first is the port. When the input ends, pages may still look for
    ``linger_s`` seconds.
    """
    # Ctrl-C is meant for the program that flies; this one ends after it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(AttributeError, OSError):
        os.nice(NICENESS)
    setup = json.loads(sys.stdin.readline())
    board = Board(CycleReader(SharedMemory(setup["memory"])))
    server = ConsoleServer(board, setup["token"])
    threading.Thread(target=server.serve_forever, name="pages", daemon=True).start()
    threading.Thread(target=_keep_absorbing, args=(board,), name="cycles", daemon=True).start()
    print(server.server_port, flush=True)  # noqa: T201 - to the program that started this one
    for line in sys.stdin:
        content = json.loads(line)
        if "flight" in content:
            board.begin_flight(content["flight"])
        else:
            board.end_flight(content["ended"])
    board.program_is_gone()
    time.sleep(setup["linger_s"])


def _keep_absorbing(board: Board) -> None:
    while True:
        board.absorb()
        time.sleep(POLL_S)


if __name__ == "__main__":
    main()
