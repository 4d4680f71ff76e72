"""What the console remembers of a flight."""

import json
import math

import pytest

from nopg_robot.console.board import BIN_S, MOST_POINTS, Board
from nopg_robot.console.channel import CycleReader, CycleWriter, SharedMemory


class Rig:
    """A board with the loop's end of its memory."""

    def __init__(self, memory):
        self.writer = CycleWriter(memory)
        self.board = Board(CycleReader(memory))
        self.board.begin_flight({"id": 1, "seconds": 20.0})

    def cycle(self, time_s, phase="run", x=0.1, theta=0.0, volt=0.5, asked=0.5):
        self.writer.write(phase, 0, time_s, x, theta, 0.0, 0.0, asked, volt, 0.0, 0.0)

    def text(self, flight=1, message="", **interventions):
        content = {"flight": flight, "is_hardware": True, "message": message, "interventions": interventions}
        self.writer.write_text(json.dumps(content).encode())

    def state(self, after=0):
        self.board.absorb()
        return self.board.state(after)


@pytest.fixture
def rig():
    memory = SharedMemory()
    yield Rig(memory)
    memory.close()


def test_before_the_first_cycle_nothing_is_known(rig):
    state = rig.state()
    assert (state["now"], state["age_s"], state["points"], state["ending"]) == (None, None, [], None)


def test_time_counts_from_the_first_cycle_and_the_run_from_its_own(rig):
    for time_s, phase in ((50.0, "home"), (51.0, "home"), (53.0, "run"), (54.5, "run")):
        rig.cycle(time_s, phase)
    state = rig.state()
    assert state["phase"] == "run"
    assert state["now"]["time_s"] == pytest.approx(4.5)
    assert state["acting_since_s"] == pytest.approx(3.0)
    rig.cycle(55.0, "stop")
    assert rig.state()["acting_since_s"] is None


def test_no_peak_of_the_voltage_is_lost(rig):
    for number, volt in enumerate((0.0, 5.0, -4.0, 1.0)):
        rig.cycle(0.2 * BIN_S * number, volt=volt, x=float(number))
    rig.cycle(1.5 * BIN_S)
    (point,) = rig.state()["points"]
    assert point[1:] == [3.0, 0.0, -4.0, 5.0]


def test_a_page_gets_what_it_has_not_got(rig):
    for number in range(5):
        rig.cycle(1.01 * BIN_S * number, x=float(number))
    state = rig.state()
    assert [point[1] for point in state["points"]] == [0.0, 1.0, 2.0, 3.0]
    assert state["n_points"] == 4
    assert rig.state(after=4)["points"] == []
    rig.cycle(1.01 * BIN_S * 5)
    assert [point[1] for point in rig.state(after=4)["points"]] == [4.0]
    # One that comes from another flight, or invents a number.
    assert len(rig.state(after=10**9)["points"]) == 5


def test_the_past_has_an_end(rig):
    for number in range(MOST_POINTS + 50):
        rig.cycle(1.01 * BIN_S * number, x=float(number))
        if number % 100 == 0:
            rig.board.absorb()
    state = rig.state()
    assert len(state["points"]) == MOST_POINTS
    assert state["n_points"] == MOST_POINTS + 49
    # A page that is far behind, and one that lacks the last three.
    assert len(rig.state(after=10)["points"]) == MOST_POINTS
    assert len(rig.state(after=MOST_POINTS + 46)["points"]) == 3


def test_what_is_no_number_is_null(rig):
    rig.cycle(0.0, x=math.nan, asked=math.inf)
    rig.cycle(1.0, x=math.nan)
    state = rig.state()
    assert state["now"]["x"] is None
    assert state["points"][0][1] is None
    json.dumps(state, allow_nan=False)


def test_interventions_with_their_times(rig):
    rig.cycle(10.0)
    rig.text(voltage=1, message="The policy runs.")
    rig.state()
    rig.cycle(12.0)
    rig.text(voltage=7, rail=1)
    state = rig.state()
    assert state["interventions"] == [
        {"reason": "voltage", "count": 7, "first_s": 0.0, "last_s": 2.0},
        {"reason": "rail", "count": 1, "first_s": 2.0, "last_s": 2.0},
    ]
    assert state["is_hardware"] is True


def test_words_of_an_earlier_flight_do_not_count(rig):
    rig.text(message="The first.", operator=1)
    rig.state()
    rig.board.begin_flight({"id": 2})
    state = rig.state()
    assert (state["flight"], state["message"], state["interventions"]) == (2, "", [])
    rig.text(flight=2, message="The second.")
    assert rig.state()["message"] == "The second."


def test_how_it_ended(rig):
    rig.cycle(0.0)
    rig.board.end_flight({"outcome": "stopped", "reason": "x", "interventions": {"operator": 1}})
    # The program closes its end when it is done.
    rig.board.program_is_gone()
    state = rig.state()
    assert state["ending"]["outcome"] == "stopped"
    assert [entry["reason"] for entry in state["interventions"]] == ["operator"]
    assert len(state["points"]) == 1


def test_a_program_that_dies_is_told(rig):
    rig.board.program_is_gone()
    ending = rig.state()["ending"]
    assert ending["outcome"] == "lost"
    assert "Switch the amplifier off" in ending["reason"]


def test_a_stop_also_between_two_flights(rig):
    assert rig.board.ask_to_stop()
    assert rig.writer.stop_asked
    rig.board.end_flight({"outcome": "stopped", "reason": "x"})
    assert not rig.board.ask_to_stop()
    rig.board.begin_flight({"id": 2})
    assert rig.state()["stop_asked"]
