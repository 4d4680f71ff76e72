"""A whole run on the simulated rig, and everything that may end it early, in simulated time."""

import math
import os
import signal
import time

import numpy as np
import pytest

from helpers.rigs import balance, changed, fast_rig, metadata, quick_rig
from nopg_robot.commands import command_line
from nopg_robot.control.observation import NAMES, DataRange, Observer
from nopg_robot.control.safety import Checks, Reason
from nopg_robot.flight.log import read_flight
from nopg_robot.flight.recorder import FlightRecorder
from nopg_robot.plants import Rig, open_rig, simulated_twin
from nopg_robot.plants.simulated import SimulatedPlant
from nopg_robot.rig.errors import DefectError, PlantError, PolicyError, RecorderError
from nopg_robot.rig.file import RigFile
from nopg_robot.rig.sections import LONGEST_PUSH_S, MOST_PHASE_VOLT
from nopg_robot.run import deployment
from nopg_robot.run.deployment import RunOptions, check_policy, deploy
from nopg_robot.run.display import NullDisplay
from nopg_robot.run.loop import ControlLoop, SafetyStop
from nopg_robot.run.session import Session
from nopg_robot.run.stop import StopRequest
from nopg_robot.run.watchdog import GuardedPlant
from nopg_robot.virtual.simulated_cart import SimulatedCart


class Saboteur:
    """
    Does something to the cart when a phase begins.

    :param phase: in which it acts
    :param act: what it does, once, of the cart and the stop request
    """

    def __init__(self, phase, act):
        self._phase, self._act, self._done, self.cart = phase, act, False, None
        self.stop = StopRequest()

    def connected(self, rig):
        self.cart = rig.plant.cart

    def update(self, snapshot):
        if snapshot.phase == self._phase and not self._done:
            self._done = True
            self._act(self)


def run(tmp_path, *, rig=None, policy=balance, seconds=1.0, saboteur=None, **options):
    saboteur = saboteur or Saboteur("never", lambda s: None)
    path = tmp_path / "flight.npz"
    summary = deploy(
        policy,
        metadata(),
        rig or quick_rig(),
        path,
        RunOptions(seconds=seconds, **options),
        display=saboteur,
        stop=saboteur.stop,
        on_connect=saboteur.connected,
    )
    return summary, read_flight(path), saboteur.cart


def assert_cut(log, cart):
    """Zero volts at the cart, and zero in the log from the fault on."""
    assert cart.voltage == 0.0
    assert log.applied_volt[-1] == 0.0
    assert log.complete


@pytest.mark.slow
def test_the_whole_sequence_in_order(tmp_path):
    """On the rig as it is shipped; other tests have a quicker one."""
    summary, log, cart = run(tmp_path, rig=fast_rig(), seconds=5.0)
    assert summary.outcome == "finished"
    assert summary.fault is None
    assert list(dict.fromkeys(log.phase)) == ["hang", "self-test", "home", "calm", "place", "lift", "run", "stop"]
    assert summary.span_m == pytest.approx(0.814, abs=1e-3)
    assert summary.seconds == pytest.approx(5.0)
    assert summary.mean_reward > 0.999
    assert cart.voltage == 0.0
    running = log.phase == "run"
    assert np.count_nonzero(running) == 5 * 500 + 1
    assert np.abs(log.theta[running]).max() < 0.1
    # Homing put zero in the middle of the rail, whatever the encoder said at the start.
    assert log.x[running][0] == pytest.approx(0.0, abs=0.011)
    x_true = cart.state[0]
    assert log.x[-1] == pytest.approx(x_true, abs=2e-3)


@pytest.mark.slow
def test_phases_meet_stops_softly_with_all_that_a_rig_file_may_say(tmp_path):
    rig = quick_rig(
        self_test={"voltage_volt": MOST_PHASE_VOLT, "push_s": LONGEST_PUSH_S},
        homing={"voltage_volt": MOST_PHASE_VOLT},
        centring={"voltage_volt": MOST_PHASE_VOLT},
    )
    summary, log, cart = run(tmp_path, rig=rig, seconds=0.1)
    assert summary.outcome == "finished"
    # Homing crosses the whole rail, at the speed that the voltage gives.
    assert 0.35 < cart.hardest_impact_m_s < 0.45
    pushed = log.x[log.phase == "self-test"]
    assert np.ptp(pushed) < rig.limits.rail_length_m / 2.0


@pytest.mark.slow
def test_the_log_loads_as_a_data_set(tmp_path):
    from sb3_nopg import TransitionDataset

    _, log, _ = run(tmp_path, seconds=4.0)
    data = TransitionDataset(**log.transitions())
    assert len(data) == 200
    assert not data.terminals.any()
    assert np.abs(data.actions).max() <= 5.0


@pytest.mark.slow
def test_it_waits_for_a_pole_that_hangs(tmp_path):
    rig = changed(quick_rig(), connection={"operator": False})
    summary, log, _ = run(tmp_path, rig=rig, pole="hanging", policy=lambda observation: 0.0)
    assert summary.outcome == "finished"
    assert "lift" not in log.phase
    assert abs(abs(log.theta[log.phase == "run"][0]) - math.pi) < 0.02


def test_a_dry_run_never_moves_the_motor(tmp_path):
    summary, log, cart = run(tmp_path, dry_run=True, policy=lambda observation: 3.0)
    assert summary.outcome == "finished"
    assert set(log.phase) == {"run", "stop"}
    assert not log.applied_volt.any()
    assert (log.asked_volt[log.phase == "run"][:-1] == 3.0).all()
    assert cart.state[0] == pytest.approx(0.05, abs=5e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (math.nan, "policy_output"),
        (math.inf, "policy_output"),
        (np.zeros(2), "policy_output"),
        (None, "policy_output"),
        ("5", "policy_output"),
        (RuntimeError("no memory"), "policy_error"),
    ],
)
def test_what_a_policy_must_not_return(tmp_path, answer, reason):
    calls = []

    def policy(observation):
        calls.append(observation)
        if len(calls) <= 20:
            return balance(observation)
        if isinstance(answer, Exception):
            raise answer
        return answer

    summary, log, cart = run(tmp_path, policy=policy)
    assert summary.outcome == "stopped"
    assert summary.fault.reason.value == reason
    assert summary.seconds == pytest.approx(20 / 50)
    assert_cut(log, cart)
    # In the very cycle of the bad answer.
    n_samples = 20 * round(250 / 50)
    assert np.flatnonzero(log.phase == "run")[n_samples] == len(log.phase) - 1
    assert [i.reason for i in log.interventions][-1] == reason


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (lambda s: setattr(s.cart, "count_jump", 3000), "jump"),
        (lambda s: setattr(s.cart, "frozen_cart", True), None),
        (lambda s: setattr(s.cart, "frozen_pole", True), None),
        (lambda s: setattr(s.cart, "motor_sign", -1), None),
        (lambda s: s.stop.request("Ctrl-C"), "operator"),
    ],
)
def test_faults_in_mid_run_cut_the_motor(tmp_path, fault, reason):
    summary, log, cart = run(tmp_path, seconds=10.0, saboteur=Saboteur("run", fault))
    assert summary.outcome == "stopped"
    assert summary.phase == "run"
    if reason is not None:
        assert summary.fault.reason.value == reason
    assert_cut(log, cart)
    assert cart.hardest_impact_m_s == 0.0 or cart.hardest_impact_m_s < 0.3


@pytest.mark.slow
def test_a_frozen_pole_is_found_though_the_cart_moves(tmp_path):
    """A policy that only looks at the cart would never notice."""

    def shuttle(observation):
        return 2.0 * math.copysign(1.0, math.sin(2.0 * math.pi * shuttle.calls / 50.0))

    shuttle.calls = 0

    def policy(observation):
        shuttle.calls += 1
        return shuttle(observation)

    saboteur = Saboteur("run", lambda s: setattr(s.cart, "frozen_pole", True))
    summary, log, cart = run(tmp_path, policy=policy, saboteur=saboteur, pole="hanging", seconds=5.0, rig=no_hand())
    assert summary.fault.reason.value == "frozen_pole"
    assert_cut(log, cart)


@pytest.mark.slow
def test_a_frozen_cart_is_found(tmp_path):
    saboteur = Saboteur("run", lambda s: setattr(s.cart, "frozen_cart", True))
    summary, log, cart = run(tmp_path, policy=lambda o: 2.0, saboteur=saboteur, pole="hanging", seconds=5.0, rig=no_hand())
    assert summary.fault.reason.value == "frozen_cart"
    assert_cut(log, cart)


def no_hand():
    return changed(quick_rig(), connection={"operator": False})


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["hang", "self-test", "home", "place", "lift", "run", "stop"])
def test_the_operator_stops_in_every_phase(tmp_path, phase):
    saboteur = Saboteur(phase, lambda s: s.stop.request("Ctrl-C"))
    summary, log, cart = run(tmp_path, saboteur=saboteur)
    if phase == "stop":
        # The run is over and the motor off: there is nothing left to stop.
        assert summary.outcome == "finished" or summary.fault.reason.value == "operator"
    else:
        assert summary.outcome == "stopped"
        assert summary.fault.reason.value == "operator"
        assert summary.phase == phase
    assert_cut(log, cart)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP])
def test_signals_stop_in_order(tmp_path, number):
    saboteur = Saboteur("run", lambda s: os.kill(os.getpid(), number))
    before = signal.getsignal(number)
    if before is signal.SIG_IGN:
        # These tests were started with nohup, the program in them was not.
        signal.signal(number, signal.SIG_DFL)
    try:
        with saboteur.stop:
            summary, log, cart = run(tmp_path, saboteur=saboteur)
    finally:
        signal.signal(number, before)
    assert summary.fault.reason.value == "operator"
    assert_cut(log, cart)


def test_nohup_is_respected(monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_signal_interrupts_at_once(tmp_path):
    stop = StopRequest()
    stop.in_order = True
    with stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.reason == "terminate signal"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert stop.reason == "terminate signal"


def test_a_motor_that_turns_the_wrong_way_fails_the_self_test(tmp_path):
    summary, log, cart = run(tmp_path, saboteur=Saboteur("hang", lambda s: setattr(s.cart, "motor_sign", -1)))
    assert summary.outcome == "failed"
    assert summary.phase == "self-test"
    assert "motor.sign" in summary.reason
    assert_cut(log, cart)


@pytest.mark.slow
def test_wrong_signs_in_the_rig_file_fail_the_self_test(tmp_path):
    for number, section in enumerate(
        ({"motor": {"sign": -1}}, {"sensors": {"cart_sign": -1}}, {"sensors": {"pole_sign": -1}})
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        summary, _, cart = run(folder, rig=quick_rig(**section))
        assert summary.phase == "self-test"
        assert "sign" in summary.reason
        assert cart.voltage == 0.0


@pytest.mark.slow
def test_both_signs_of_motor_and_cart_the_other_way_round_are_fine(tmp_path):
    """A rig whose x points the other way: motor, cart and pole all change sign."""
    rig = quick_rig(motor={"sign": -1}, sensors={"cart_sign": -1, "pole_sign": -1})
    summary, _, _ = run(tmp_path, rig=rig, seconds=3.0)
    assert summary.outcome == "finished"


@pytest.mark.parametrize("which", ["frozen_cart", "frozen_pole"])
def test_a_dead_encoder_fails_the_self_test(tmp_path, which):
    summary, log, cart = run(tmp_path, saboteur=Saboteur("hang", lambda s: setattr(s.cart, which, True)))
    assert summary.phase == "self-test"
    assert "encoder" in summary.reason
    assert_cut(log, cart)


@pytest.mark.slow
def test_a_stop_that_is_not_where_homing_expects_it(tmp_path):
    saboteur = Saboteur("home", lambda s: setattr(s.cart, "rail_ends_m", (-0.407, 0.3)))
    summary, log, cart = run(tmp_path, saboteur=saboteur)
    assert summary.phase == "home"
    assert "707" in summary.reason
    assert_cut(log, cart)


@pytest.mark.slow
def test_nobody_lifts_the_pole(tmp_path):
    rig = changed(no_hand(), start={"timeout_s": 3.0})
    summary, log, cart = run(tmp_path, rig=rig)
    assert summary.phase in ("hang", "lift")
    assert "3 s" in summary.reason
    assert_cut(log, cart)


def start_from(x, monkeypatch):
    """The next rig that is opened has its cart there."""
    rig = quick_rig()
    plant = SimulatedPlant(rig.connection, rig.sensors, SimulatedCart(start=(x, math.pi, 0.0, 0.0)))
    plant.open()
    monkeypatch.setattr(deployment, "open_rig", lambda *args, **kwargs: Rig(plant, rig))


@pytest.mark.slow
def test_counters_of_16_bits_wrap_around(tmp_path, monkeypatch):
    """The rail has 35,782 counts: from one end on, a 16-bit counter that began at zero passes 32,767."""
    start_from(-0.4, monkeypatch)
    summary, log, _ = run(tmp_path, seconds=2.0)
    assert summary.outcome == "finished"
    assert np.abs(np.diff(log.raw_cart)).max() > 60_000


@pytest.mark.slow
def test_outside_of_the_training_data(tmp_path):
    seen = metadata(data_low=(-1.0, -1.0, 0.0, -0.001, -9.0), data_high=(1.0, 1.0, 1.0, 0.001, 9.0))
    for number, (rule, outcome) in enumerate((("warn", "finished"), ("stop", "stopped"), ("ignore", "finished"))):
        path = tmp_path / f"{number}.npz"
        summary = deploy(balance, seen, quick_rig(limits={"outside_data": rule}), path, RunOptions(seconds=0.5))
        assert summary.outcome == outcome
        assert ("outside_data" in summary.interventions) == (rule != "ignore")
        if rule == "warn":
            assert "x_dot" in next(i.message for i in read_flight(path).interventions if i.reason == "outside_data")


@pytest.mark.slow
def test_a_recorder_that_fails_ends_the_run(tmp_path, monkeypatch):
    saboteur = Saboteur("run", lambda s: monkeypatch.setattr(deployment.FlightRecorder, "record", fail))

    def fail(self, sample):
        raise RecorderError("no space left on device")

    summary, _, cart = run(tmp_path, saboteur=saboteur)
    assert summary.outcome == "stopped"
    assert summary.fault.reason.value == "recorder"
    assert cart.voltage == 0.0


def test_a_policy_that_does_not_fit_is_refused_before_anything_moves(tmp_path):
    path = tmp_path / "flight.npz"
    for wrong, word in (
        (metadata(control_period_s=0.01), "control_hz"),
        (metadata(observation_names=("a", "b", "c", "d", "e")), "observation_names"),
        (metadata(action_names=("a", "b"), action_low=(0, 0), action_high=(1, 1)), "one motor"),
    ):
        with pytest.raises(PolicyError, match=word):
            deploy(balance, wrong, quick_rig(), path, RunOptions())
    assert not path.exists()


@pytest.mark.parametrize("share", [-3e-4, 3e-4])
def test_a_period_that_another_clock_has_measured_fits(share):
    """Of a recording: a logger's clock is off by 300 ppm."""
    period_s = (1.0 + share) / quick_rig().rates.control_hz
    assert not check_policy(metadata(control_period_s=period_s, data_low=(0.0,) * 5, data_high=(1.0,) * 5), quick_rig())


def test_what_an_operator_should_know():
    notes = check_policy(metadata(action_high=(10.0,), control_period_s=None), quick_rig())
    assert any("10 V" in note for note in notes)
    assert any("control rate" in note for note in notes)
    assert not check_policy(metadata(data_low=(0.0,) * 5, data_high=(1.0,) * 5), quick_rig())


@pytest.mark.parametrize(
    ("field", "value"), [("pole", "sideways"), ("seconds", 0.0), ("seconds", math.nan), ("seconds", math.inf)]
)
def test_bad_options_name_the_field(field, value):
    with pytest.raises(ValueError, match=field):
        RunOptions(**{field: value})


def test_a_rig_that_does_not_answer(tmp_path):
    rig = changed(RigFile.load("quanser_ip02_quarc"), connection={"host": "127.0.0.1", "port": 1})
    path = tmp_path / "flight.npz"
    summary = deploy(balance, metadata(), rig, path, RunOptions())
    assert (summary.outcome, summary.phase) == ("failed", "connect")
    assert "127.0.0.1" in summary.reason
    assert read_flight(path).interventions[0].reason == "plant"


def test_auto_falls_back_and_says_so():
    rig = changed(
        RigFile.load("quanser_ip02_quarc"), connection={"host": "127.0.0.1", "port": 1}, limits={"rail_length_m": 0.6}
    )
    opened = open_rig(rig, "auto")
    with opened.plant:
        assert "127.0.0.1" in opened.fallback
        assert isinstance(opened.plant, SimulatedPlant)
        assert opened.plant.cart.parameters.rail_length_m == 0.6
        assert opened.file.limits == rig.limits
    with pytest.raises(PlantError, match=r"127\.0\.0\.1"):
        open_rig(rig, "auto", require_hardware=True)
    with pytest.raises(PlantError, match="simulation"):
        open_rig(quick_rig(), require_hardware=True)
    with pytest.raises(PlantError, match="simulation"):
        open_rig(rig, "simulated", require_hardware=True)
    stub = changed(RigFile.load("quanser_ip02_hil"), connection={"module": "nopg_robot.virtual.hil_stub"})
    with pytest.raises(PlantError, match="stand-in"):
        open_rig(stub, require_hardware=True)
    with pytest.raises(ValueError, match="plant"):
        open_rig(rig, "real")


@pytest.mark.slow
def test_a_simulated_twin_runs_through_the_whole_sequence(tmp_path):
    twin = simulated_twin(RigFile.load("quanser_ip02_quarc"), real_time=False)
    assert isinstance(open_rig(twin), Rig)
    summary, _, _ = run(tmp_path, rig=twin)
    assert summary.outcome == "finished"


@pytest.mark.slow
@pytest.mark.parametrize("x", [-0.407, 0.2, 0.407])
def test_a_cart_that_starts_anywhere(tmp_path, monkeypatch, x):
    """Even against a stop, where the first push of the self-test goes nowhere."""
    start_from(x, monkeypatch)
    summary, _, _ = run(tmp_path)
    assert summary.outcome == "finished", summary.reason
    assert summary.span_m == pytest.approx(0.814, abs=1e-3)


@pytest.mark.slow
def test_a_display_that_fails_is_switched_off_and_the_run_goes_on(tmp_path, caplog):
    class BrokenPipe:
        calls = 0

        def update(self, snapshot):
            self.calls += 1
            raise SystemExit(1)

    display = BrokenPipe()
    summary = deploy(balance, metadata(), quick_rig(), tmp_path / "flight.npz", RunOptions(seconds=1.0), display=display)
    assert summary.outcome == "finished"
    assert display.calls == 1
    assert "switched off" in caplog.text


@pytest.mark.slow
def test_a_rig_that_cannot_be_closed_does_not_lose_the_summary(tmp_path, monkeypatch):
    monkeypatch.setattr(SimulatedPlant, "close", fail_to_close)
    summary, log, _ = run(tmp_path)
    assert summary.outcome == "stopped"
    assert summary.seconds == pytest.approx(1.0)
    # An operator reads the first words.
    assert summary.reason.startswith("SWITCH THE AMPLIFIER OFF: the card does not answer. ")
    assert log.summary["reason"] == summary.reason


def fail_to_close(self):
    raise PlantError("the card does not answer")


def test_a_defect_is_told_apart_from_everything_else(tmp_path, monkeypatch):
    def defect(session, *args):
        session.loop.begin("run", "", Checks(rail=False, angle=False, frozen=False))
        session.loop.cycle(lambda state: 1.0, acts=True)
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(deployment, "_sequence", defect)
    connected = []
    with pytest.raises(DefectError, match="ZeroDivisionError"):
        deploy(balance, metadata(), quick_rig(), tmp_path / "flight.npz", RunOptions(), on_connect=connected.append)
    assert connected[0].plant.cart.voltage == 0.0
    assert command_line.run(raise_defect) == 70


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        (KeyboardInterrupt, "stopped by the operator"),
        (ZeroDivisionError, "ZeroDivisionError"),
        (RecorderError, "the disk is full"),
    ],
)
@pytest.mark.parametrize("problem", [PlantError, OSError, KeyboardInterrupt, None])
def test_however_it_ends_the_operator_reads_first_that_the_motor_may_be_on(
    tmp_path, monkeypatch, capsys, ending, said, problem
):
    def ends(session, *args):
        raise ending("the disk is full") if ending is RecorderError else ending

    def close(self):
        raise problem("no answer")

    monkeypatch.setattr(deployment, "_sequence", ends)
    if problem is not None:
        monkeypatch.setattr(SimulatedPlant, "close", close)
    code = command_line.run(lambda: deploy(balance, metadata(), quick_rig(), tmp_path / "flight.npz", RunOptions()))
    told = capsys.readouterr().err
    assert ("error: SWITCH THE AMPLIFIER OFF: " in told) == (problem is not None)
    assert "the motor was cut" not in told or problem is None
    if problem in (PlantError, None):
        assert said in told
        assert code == {KeyboardInterrupt: 130, ZeroDivisionError: 70, RecorderError: 2}[ending]


def raise_defect():
    raise DefectError("division by zero")


def test_a_fault_that_is_no_end_of_an_episode_forbids_another(tmp_path):
    rig = quick_rig()
    recorder = FlightRecorder(tmp_path / "flight.npz", {})
    with recorder, Session(open_rig(rig), recorder, NullDisplay(), StopRequest()) as session:
        session.loop.supervisor.latch(Reason.ANGLE, "fell", 0.0)
        session.loop.begin_episode()
        session.loop.supervisor.latch(Reason.JUMP, "jumped", 0.0)
        with pytest.raises(SafetyStop, match="jumped"):
            session.loop.begin_episode()
        recorder.close({})


@pytest.mark.slow
def test_a_jump_while_the_cart_rolls_out_is_no_finished_run(tmp_path):
    saboteur = Saboteur("stop", lambda s: setattr(s.cart, "count_jump", 4000))
    summary, _, _ = run(tmp_path, saboteur=saboteur)
    assert summary.outcome == "stopped"
    assert summary.fault.reason.value == "jump"


def test_a_plant_is_closed_although_it_never_came_to_a_session(tmp_path, monkeypatch):
    closed = []
    monkeypatch.setattr(deployment, "Session", lambda *args: 1 / 0)
    monkeypatch.setattr(SimulatedPlant, "close", lambda self: closed.append(self))
    with pytest.raises(DefectError, match="ZeroDivisionError"):
        deploy(balance, metadata(), quick_rig(), tmp_path / "flight.npz", RunOptions())
    assert closed


def test_a_plant_that_cannot_be_closed_and_never_came_to_a_session(tmp_path, monkeypatch):
    monkeypatch.setattr(deployment, "Session", lambda *args: 1 / 0)
    monkeypatch.setattr(SimulatedPlant, "close", fail_to_close)
    with pytest.raises(DefectError, match=r"^SWITCH THE AMPLIFIER OFF: the card does not answer\. ZeroDivisionError"):
        deploy(balance, metadata(), quick_rig(), tmp_path / "flight.npz", RunOptions())


class Stubborn(SimulatedPlant):
    """Refuses to be cut, at first."""

    refusals = 0

    def write(self, volt):
        if volt == 0.0 and self.refusals > 0:
            self.refusals -= 1
            raise (PlantError if self.refusals else RuntimeError)("not now")
        return super().write(volt)


@pytest.mark.parametrize("refusals", [0, 1, 3])
def test_the_guard_tries_until_the_motor_is_off(refusals):
    rig = changed(quick_rig(), connection={"real_time": True})
    plant = Stubborn(rig.connection, rig.sensors)
    plant.open()
    with GuardedPlant(plant, 0.05) as guarded:
        guarded.write(2.0)
        plant.refusals = refusals
        deadline = time.perf_counter() + 5.0
        while plant.cart.voltage != 0.0 and time.perf_counter() < deadline:
            time.sleep(0.01)
        assert plant.cart.voltage == 0.0
        assert "has not written" in guarded.tripped
        assert guarded.write(2.0) == 0.0


def test_a_loop_that_wakes_up_before_the_guard_does_not_drive_on():
    rig = changed(quick_rig(), connection={"real_time": True})
    plant = SimulatedPlant(rig.connection, rig.sensors)
    plant.open()
    # Not entered: there is no guard thread that could come first.
    guarded = GuardedPlant(plant, 0.05)
    assert guarded.write(2.0) == 2.0
    time.sleep(0.1)
    assert guarded.write(2.0) == 0.0
    assert guarded.tripped


def test_what_was_said_of_a_state_is_not_said_in_the_next_phase(tmp_path):
    file = quick_rig()
    plant = SimulatedPlant(file.connection, file.sensors)
    seen = DataRange(NAMES, [9.0] * 5, [10.0] * 5, 0.0)
    recorder = FlightRecorder(tmp_path / "log.npz", {})
    with plant, recorder, ControlLoop(plant, file, recorder, NullDisplay(), StopRequest()) as loop:
        loop.begin("run", "", Checks(rail=False, angle=False))
        loop.act(lambda observation: 0.0, Observer(), seen)
        assert loop.interventions["outside_data"] == 1
        loop.begin("place", "", Checks(rail=False, angle=False))
        loop.drive(lambda state: 0.0, lambda state, time_s: time_s > 3.0, 4.0)
        assert loop.interventions["outside_data"] == 1


@pytest.mark.slow
def test_a_pole_that_swings_at_first(tmp_path, monkeypatch):
    """Its encoder says zero where it happened to be; hanging is where it comes to rest."""
    file = quick_rig()
    cart = SimulatedCart(start=(0.05, math.pi + 0.3, 0.0, 0.0))
    plant = SimulatedPlant(file.connection, file.sensors, cart)
    plant.open()
    monkeypatch.setattr(deployment, "open_rig", lambda *arguments, **options: Rig(plant, file))
    summary = deploy(balance, metadata(), file, tmp_path / "log.npz", RunOptions(seconds=1.0))
    assert summary.outcome == "finished", summary.reason
    log = read_flight(tmp_path / "log.npz")
    assert log.theta[-1] == pytest.approx(math.remainder(cart.state[1], 2.0 * math.pi), abs=0.02)


@pytest.mark.slow
def test_a_cart_that_has_not_begun_to_move_is_not_at_its_stop(tmp_path):
    file = quick_rig(homing={"still_s": 0.02})
    summary = deploy(balance, metadata(), file, tmp_path / "log.npz", RunOptions(seconds=0.1))
    assert summary.outcome == "finished", summary.reason
    assert summary.span_m == pytest.approx(0.814, abs=2e-3)
