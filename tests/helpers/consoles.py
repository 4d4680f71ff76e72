"""A console with a flight that the test itself flies."""

import contextlib
import http.client
import json
import math
import threading
import time
from types import SimpleNamespace
from urllib.parse import urlsplit

from nopg_robot.console.feed import OperatorConsole
from nopg_robot.console.flight import describe_flight
from nopg_robot.rig.file import RigFile
from nopg_robot.run.display import Snapshot
from nopg_robot.run.stop import StopRequest

PERIOD_S = 0.01


def snapshot(time_s=0.0, **changes):
    """A cycle; changes of its state in ``state``."""
    state = SimpleNamespace(**{"x": 0.1, "theta": -0.05, "x_dot": 0.2, "theta_dot": -1.5} | changes.pop("state", {}))
    fields = {
        "phase": "run",
        "time_s": time_s,
        "state": state,
        "asked_volt": 1.0,
        "applied_volt": 0.5,
        "late_s": 1e-4,
        "busy_s": 5e-4,
        "misses": 0,
        "interventions": {},
        "message": "The policy runs.",
    }
    return Snapshot(**fields | changes)


def flight(**changes):
    """What a page is told of a flight on the simulated rig."""
    return describe_flight(RigFile.load("simulated"), **{"title": "policy.onnx", "seconds": 20.0} | changes)


class Flown:
    """
    A flight in a thread, a hundred cycles a second; the cart swings, and stands still without voltage when it is stopped.

    :param console: to show it on
    :param stop: seen by it
    """

    def __init__(self, console: OperatorConsole, stop: StopRequest):
        self.console, self.stop = console, stop
        self.interventions: dict[str, int] = {}
        self.is_silent, self._over, self._begin_s = False, threading.Event(), time.monotonic()
        self._thread = threading.Thread(target=self._fly, daemon=True)
        self._thread.start()

    def _fly(self) -> None:
        while not self._over.wait(PERIOD_S):
            time_s = time.monotonic() - self._begin_s
            if self.stop.reason is not None:
                self.interventions["operator"] = 1
            if not self.is_silent:
                x, volt = 0.2 * math.sin(time_s), 0.0 if self.stop.reason else 2.0 + math.cos(time_s)
                self.console.update(
                    snapshot(100.0 + time_s, state={"x": x}, applied_volt=volt, interventions=dict(self.interventions))
                )

    def end(self, **ending) -> None:
        """Land, and tell the console."""
        self._over.set()
        self._thread.join()
        given = {"outcome": "finished", "reason": "20 s are over", "phase": "run", "exit_code": 0}
        self.console.end_flight(given | ending)


@contextlib.contextmanager
def flying(**described):
    """A console that is served, with a flight on it."""
    stop = StopRequest()
    with OperatorConsole(linger_s=1.0) as console:
        console.begin_flight(flight(**described), stop)
        flown = Flown(console, stop)
        try:
            yield flown
        finally:
            flown.end()


def ask(address, place="state", method="GET", token=None, **headers):
    """
    :param address: of a console
    :param place: behind the token
    :param method: of the request
    :param token: another than the address has
    :param headers: in the place of the right ones; None leaves one out
    :return: status, headers and body
    """
    parts = urlsplit(address)
    path = f"{parts.path if token is None else token}{place}"
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=10)
    try:
        connection.putrequest(method, path, skip_host=True)
        for name, value in ({"Host": parts.netloc} | headers).items():
            if value is not None:
                connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def state(address, after=0):
    """The present, as a page gets it."""
    status, _, body = ask(address, f"state?after={after}")
    assert status == 200
    return json.loads(body)


def wait_for(condition, timeout_s=10.0):
    """
    :param condition: true when there is nothing more to wait for
    :return: what it gave
    """
    deadline_s = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.02)
    return found
