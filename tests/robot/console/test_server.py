"""Who is answered, and who is not: the console's process over the network, as any program on this computer may try."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from helpers.consoles import ask, flying, state, wait_for
from nopg_robot.console import server
from nopg_robot.console.feed import STOP_REASON, OperatorConsole

# What a stop must not come of.
FORBIDDEN = {
    "no token": {"token": "/"},
    "a wrong token": {"token": "/" + "x" * 43 + "/"},
    "a token that is no ASCII": {"token": "/%C3%A4/"},
    "another host": {"Host": "evil.example"},
    "another host, right port": {"Host": "evil.example:{port}"},
    "this computer by another name": {"Host": "localhost:{port}"},
    "no host": {"Host": None},
}


@pytest.fixture(scope="module")
def flown():
    with flying() as flown:
        wait_for(lambda: state(flown.console.address)["now"])
        yield flown


def given(case, address):
    port = str(urlsplit(address).port)
    return {name: value and value.replace("{port}", port) for name, value in FORBIDDEN[case].items()}


@pytest.mark.parametrize("case", FORBIDDEN)
@pytest.mark.parametrize(("method", "place"), [("GET", ""), ("GET", "state"), ("GET", "page.js"), ("POST", "stop")])
def test_who_may_not_learns_nothing(flown, case, method, place):
    address = flown.console.address
    status, _, body = ask(address, place, method, **given(case, address))
    assert status == 403
    assert body == b"Forbidden\n"
    assert not flown.console.stop_asked


def test_two_hosts_are_no_host(flown):
    parts = urlsplit(flown.console.address)
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as connection:
        connection.sendall(f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nHost: evil.example\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize(
    ("method", "place", "status"),
    [
        ("GET", "stop", 404),
        ("POST", "state", 404),
        ("GET", "../feed.py", 404),
        ("GET", "server.py", 404),
        ("GET", "%2e%2e/feed.py", 404),
        ("PUT", "stop", 501),
        ("OPTIONS", "stop", 501),
    ],
)
def test_there_is_nothing_else(flown, method, place, status):
    assert ask(flown.console.address, place, method)[0] == status
    assert not flown.console.stop_asked


def test_without_the_last_slash_there_is_nothing(flown):
    assert ask(flown.console.address.removesuffix("/"), "")[0] == 404


@pytest.mark.parametrize("place", ["", "page.js", "page.css", "flight", "state"])
def test_a_browser_is_told_to_trust_nobody_else(flown, place):
    status, headers, _ = ask(flown.console.address, place, Origin="http://evil.example")
    assert status == 200
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert not [name for name in headers if name.lower().startswith("access-control")]


def test_the_page_names_no_other_place(flown):
    for place in ("", "page.js", "page.css"):
        body = ask(flown.console.address, place)[2].decode()
        assert "//" not in body.replace("// ", ""), place


def test_only_this_computer_is_served(flown):
    port = urlsplit(flown.console.address).port
    # On Linux the whole of 127.0.0.0/8 is this computer, and what listens everywhere answers there.
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.2", port), timeout=2):
        pass


def test_points_are_asked_for_by_number(flown):
    first = state(flown.console.address)
    assert len(first["points"]) == first["n_points"] > 0
    for nonsense in ("-1", "x", "1e9", "9" * 30, ""):
        status, _, _ = ask(flown.console.address, f"state?after={nonsense}")
        assert status == 200


def test_the_token_is_in_no_command_line(flown):
    token = urlsplit(flown.console.address).path.strip("/")
    pid = flown.console._process.pid
    command = Path(f"/proc/{pid}/cmdline")
    if not command.exists():
        pytest.skip("no /proc on this system")
    assert token not in command.read_text()
    assert token not in Path(f"/proc/{pid}/environ").read_text()


def test_who_does_not_read_keeps_nobody_waiting(flown):
    """More requests than the system buffers, and never a look at an answer."""
    parts = urlsplit(flown.console.address)
    request = f"GET {parts.path}state HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode() * 200
    deaf = [socket.create_connection((parts.hostname, parts.port)) for _ in range(3)]
    try:
        for connection in deaf:
            connection.setblocking(False)
            try:
                while True:
                    connection.send(request)
            except BlockingIOError:
                pass
        for _ in range(5):
            begin_s = time.monotonic()
            assert state(flown.console.address)["age_s"] < 3.0
            assert time.monotonic() - begin_s < 4.0
    finally:
        for connection in deaf:
            connection.close()


def test_strangers_who_take_all_places_make_room(flown):
    """Whoever shows the token is answered at once, and whoever has shown it keeps the connection."""
    parts = urlsplit(flown.console.address)

    def stranger():
        connection = socket.create_connection((parts.hostname, parts.port), timeout=10)
        connection.sendall(b"POST /stop HTTP/1.1\r\n")
        return connection

    page = http.client.HTTPConnection(parts.hostname, parts.port, timeout=10)
    page.request("GET", f"{parts.path}flight")
    page.getresponse().read()
    kept = page.sock
    strangers = [stranger() for _ in range(server.MOST_CLIENTS + 8)]
    try:
        for _ in range(3):
            begin_s = time.monotonic()
            assert state(flown.console.address)["now"]
            # They are sent away one by one, and not when their time is over.
            assert time.monotonic() - begin_s < server.CLIENT_TIMEOUT_S / 2
        page.request("GET", f"{parts.path}flight")
        assert page.getresponse().status == 200
        assert page.sock is kept
        first = strangers[0]
        first.settimeout(1.0)
        assert first.recv(1) == b""
    finally:
        for connection in (page, *strangers):
            connection.close()


def test_the_stop():
    with flying() as flown:
        address = flown.console.address
        status, _, body = ask(address, "stop", "POST")
        assert (status, body) == (202, b"Stop requested.\n")
        wait_for(lambda: flown.stop.reason)
        assert flown.stop.reason == STOP_REASON
        shown = wait_for(lambda: (found := state(address))["interventions"] and found)
        assert shown["stop_asked"]
        assert shown["now"]["applied_volt"] == 0.0
        flown.end(outcome="stopped", reason="stopped by the console", exit_code=130)
        ended = wait_for(lambda: (found := state(address))["ending"] and found)
        assert ended["ending"]["exit_code"] == 130
        assert ask(address, "stop", "POST")[0] == 409


def test_a_form_without_a_script_stops_too():
    with flying() as flown:
        parts = urlsplit(flown.console.address)
        body = b"a=b"
        with socket.create_connection((parts.hostname, parts.port), timeout=10) as connection:
            head = f"POST {parts.path}stop HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: {len(body)}\r\n"
            connection.sendall(head.encode() + b"Origin: null\r\n\r\n" + body)
            answer = b"".join(iter(lambda: connection.recv(4096), b""))
        assert answer.startswith(b"HTTP/1.1 202 ")
        assert answer.count(b"HTTP/1.1") == 1
        wait_for(lambda: flown.stop.reason)


@pytest.mark.slow
def test_it_goes_by_itself():
    with OperatorConsole(linger_s=0.2) as console:
        process = console._process
        assert process.poll() is None
    assert process.wait(10) == 0
    with pytest.raises(ConnectionRefusedError):
        ask(console.address)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them")
def test_a_program_that_was_killed_is_told():
    script = (
        "import time\nfrom helpers.consoles import flight, snapshot\nfrom nopg_robot.console.feed import OperatorConsole\n"
        "from nopg_robot.run.stop import StopRequest\n"
        "with OperatorConsole(linger_s=20) as console:\n"
        "    console.begin_flight(flight(), StopRequest())\n"
        "    print(console.address, flush=True)\n"
        "    while True:\n        console.update(snapshot(time.monotonic()))\n        time.sleep(0.01)\n"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    try:
        address = process.stdout.readline().strip()
        wait_for(lambda: state(address)["now"])
        assert state(address)["ending"] is None
        # Ctrl-C at the terminal goes to the whole group; the console is not in it.
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        ending = wait_for(lambda: state(address)["ending"])
        assert ending["outcome"] == "lost"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
