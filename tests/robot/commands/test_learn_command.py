"""``nopg-learn``, with a learner that is another program, and killed in the middle."""

import contextlib
import hashlib
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from helpers.policy_files import write_policy
from helpers.repository import REPOSITORY
from helpers.rigs import QUICK_PHASES, changed, quick_rig
from nopg_robot.commands.command_line import ExitCode
from nopg_robot.commands.learn import app
from nopg_robot.rig.file import RigFile, is_virtual
from nopg_robot.rounds.folder import Learned, LearningFolder, asked_before
from nopg_robot.virtual.simulated_cart import SimulatedCart
from nopg_robot.virtual.tcp import VirtualQuarcServer

TASK_FILE = """
from nopg_robot.rounds.task import LearningTask, upright_at_the_end

TASK = LearningTask("mine", "upright", "s2[2]", upright_at_the_end(1.5), flight_s=2.0, first_s=3.0)
"""


REVIEW = Learned("", "", False, "Not done.", 0.0, 50, 3.0, 1.0)


class OtherComputer(threading.Thread):
    """Leaves a policy for the first round, and says that the task is done when it has flown well twice."""

    def __init__(self, folder: Path):
        super().__init__(daemon=True)
        self._folder = folder

    def run(self) -> None:
        while not (self._folder / "round-00" / "flown.json").exists():
            time.sleep(0.05)
        folder = LearningFolder(self._folder, trust=True)
        one = folder.round(1)
        policy = write_policy(one.folder / "policy.onnx")
        digest = hashlib.sha256(policy.read_bytes()).hexdigest()
        one.write_learned(Learned("round-01/policy.onnx", digest, False, "Fly it.", 1.0, 50, 3.0, 1.0))
        while not one.is_flown:
            time.sleep(0.05)
        folder.round(2).write_learned(
            Learned("round-01/policy.onnx", digest, one.succeeded == [True, True], "Done.", 1.0, 99, 7.0, 1.0)
        )


@pytest.fixture
def arguments(tmp_path):
    task = tmp_path / "mine.py"
    task.write_text(TASK_FILE)
    rig = tmp_path / "rig.yaml"
    rig.write_text(quick_rig().to_yaml(), encoding="utf-8")
    options = ["--task", str(task), "--folder", str(tmp_path / "learning"), "--learner", "elsewhere", "--rig", str(rig)]
    return [*options, "--fast", "--plain", "--yes"]


@pytest.mark.slow
def test_it_learns_and_stops_by_itself(tmp_path, arguments):
    OtherComputer(tmp_path / "learning").start()
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == ExitCode.FINISHED, result.output
    assert "nopg improve" in result.output
    lines = (tmp_path / "learning" / "rounds.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["round", "0", "1", "2"]
    assert lines[-1].endswith("yes")


@pytest.mark.slow
def test_one_page_shows_all_flights(tmp_path, arguments):
    OtherComputer(tmp_path / "learning").start()
    result = CliRunner().invoke(app, [*arguments, "--console"])
    assert result.exit_code == ExitCode.FINISHED, result.output
    assert result.output.count("http://127.0.0.1:") == 1


def test_an_unknown_learner_is_refused(arguments):
    result = CliRunner().invoke(app, [*arguments, "--learner", "nowhere"])
    assert result.exit_code == ExitCode.USAGE
    assert "known are here, elsewhere and auto" in result.output


@pytest.mark.slow
def test_what_a_killed_learner_has_left_is_learned_again(tmp_path, arguments):
    folder = LearningFolder.create(tmp_path / "learning", arguments[1], quick_rig(), seed=0)
    folder.round(0).write_flown([])
    (folder.round(1).folder / "model.zip").write_bytes(b"half")
    (folder.round(1).folder / "learned.json.77.partial").touch()
    OtherComputer(folder.path).start()
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == ExitCode.FINISHED, result.output
    assert folder.round(1).succeeded == [True, True]


def test_a_policy_that_is_not_the_judged_one_does_not_fly(tmp_path, arguments):
    folder = LearningFolder.create(tmp_path / "learning", arguments[1], quick_rig(), seed=0)
    folder.round(0).write_flown([])
    write_policy(folder.round(1).folder / "policy.onnx")
    folder.round(1).write_learned(Learned("round-01/policy.onnx", "0" * 64, False, "Fly it.", 1.0, 50, 3.0, 1.0))
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == ExitCode.USAGE
    assert "is not the file that the learner has judged" in result.output
    assert not folder.round(1).logs()


def test_a_folder_knows_its_task_and_its_seed(tmp_path):
    LearningFolder.create(tmp_path / "learning", "swing_up", quick_rig(), seed=7)
    assert asked_before(tmp_path / "learning") == ("swing_up", 7)
    assert asked_before(tmp_path / "nothing") == ("balance", 0)


def test_a_task_of_one_s_own_must_be_named_again(tmp_path, arguments):
    LearningFolder.create(tmp_path / "learning", arguments[1], quick_rig(), seed=0)
    result = CliRunner().invoke(app, arguments[2:])
    assert result.exit_code == ExitCode.USAGE
    assert "name it with --task" in result.output


@pytest.mark.slow
def test_killed_in_a_flight_it_goes_on_where_it_was(tmp_path, arguments):
    program = [sys.executable, "-m", "nopg_robot.commands.learn", *arguments]
    killed = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    journal = tmp_path / "learning" / "round-00" / "first-01.npz.journal"
    deadline_s = time.monotonic() + 60.0
    # Killed when something has been recorded that could be lost.
    while time.monotonic() < deadline_s and not (
        journal.exists() and LearningFolder(tmp_path / "learning", trust=True).rig_seconds > 0
    ):
        time.sleep(0.1)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert journal.exists()
    assert not (tmp_path / "learning" / "round-00" / "flown.json").exists()
    folder = LearningFolder(tmp_path / "learning", trust=True)
    before_s = folder.rig_seconds
    assert before_s > 0
    OtherComputer(folder.path).start()
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == ExitCode.FINISHED, result.output
    assert [path.name for path in folder.round(0).logs()] == ["first-01.npz.journal", "first-02.npz"]


def test_a_task_that_is_not_learned_has_an_exit_code_of_its_own(tmp_path, arguments):
    flown_once(tmp_path / "learning", arguments[1]).round(2).write_learned(REVIEW)
    result = CliRunner().invoke(app, [*arguments, "--rounds", "1"])
    assert result.exit_code == ExitCode.NOT_LEARNED, result.output
    assert "not done" in result.output


@pytest.fixture
def learner(monkeypatch):
    """Somebody in the learner's place, who leaves a review or nothing and ends with some code."""

    def take_place(code: int, review_in: LearningFolder | None = None) -> None:
        def end(program: list[str], check: bool) -> subprocess.CompletedProcess[str]:
            if review_in is not None:
                review_in.round(2).write_learned(REVIEW)
            return subprocess.CompletedProcess(program, code)

        monkeypatch.setattr("nopg_robot.commands.learn.subprocess.run", end)

    return take_place


def flown_once(path: Path, task: str) -> LearningFolder:
    folder = LearningFolder.create(path, task, quick_rig(), seed=0)
    folder.round(0).write_flown([])
    folder.round(1).write_learned(Learned("round-01/policy.onnx", "", False, "Fly it.", 0.0, 50, 3.0, 1.0))
    folder.round(1).write_flown([False])
    return folder


@pytest.mark.parametrize(("code", "said"), [(-signal.SIGKILL, "was killed by SIGKILL"), (70, "ended with exit code 70")])
def test_a_learner_that_dies_after_its_work_has_done_it(tmp_path, arguments, learner, code, said):
    learner(code, flown_once(tmp_path / "learning", arguments[1]))
    result = CliRunner().invoke(app, [*arguments, "--rounds", "1", "--learner", "here"])
    assert result.exit_code == ExitCode.NOT_LEARNED, result.output
    assert f"{said}, after its work was done" in result.output


@pytest.mark.parametrize(
    ("code", "said", "expected"),
    [
        (-signal.SIGKILL, "was killed by SIGKILL; it may have run out of memory", ExitCode.LEARNER_KILLED),
        (-99, "was killed by signal 99", ExitCode.LEARNER_KILLED),
        (-signal.SIGINT, "was killed by SIGINT", ExitCode.OPERATOR),
        (2, "ended with exit code 2; see what it says above", ExitCode.USAGE),
        (70, "ended with exit code 70", ExitCode.DEFECT),
        (0, "ended with exit code 0", ExitCode.DEFECT),
    ],
)
def test_a_learner_that_leaves_nothing(tmp_path, arguments, learner, code, said, expected):
    # A review from before is no policy, and one more round is asked for now.
    flown_once(tmp_path / "learning", arguments[1]).round(2).write_learned(REVIEW)
    learner(code)
    result = CliRunner().invoke(app, [*arguments, "--rounds", "2", "--learner", "here"])
    assert result.exit_code == expected, result.output
    assert said in result.output
    assert "The same command goes on from here" in result.output


def test_rig_time_must_do_for_the_random_voltages(arguments):
    result = CliRunner().invoke(app, [*arguments, "--rig-seconds", "2"])
    assert result.exit_code == ExitCode.USAGE
    assert "must be above the task's 3 s of random voltages" in result.output


def test_what_is_refused_leaves_no_folder_that_is_for_it_alone(tmp_path, arguments):
    Path(arguments[1]).write_text(TASK_FILE.replace("flight_s=", "flight_s=1e6 + "))
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == ExitCode.USAGE
    assert "longer than the rig file's limits.max_seconds" in result.output
    assert not (tmp_path / "learning").exists()


def test_nobody_flies_a_real_rig_without_being_asked(tmp_path):
    result = CliRunner().invoke(app, ["--rig", "quanser_ip02_quarc", "--yes", "--folder", str(tmp_path / "learning")])
    assert result.exit_code == ExitCode.USAGE
    assert "somebody must agree" in result.output
    assert not (tmp_path / "learning").exists()


def test_without_a_terminal_nobody_can_agree(tmp_path, arguments):
    OtherComputer(tmp_path / "learning").start()
    result = CliRunner().invoke(app, arguments[:-1])
    assert result.exit_code == ExitCode.USAGE
    assert "run it in a terminal" in result.output
    assert not list((tmp_path / "learning" / "round-01").glob("*.npz*"))


@pytest.mark.parametrize(
    ("name", "connection", "virtual"),
    [
        ("simulated", {}, True),
        ("quanser_ip02_quarc", {"host": "127.0.0.1"}, False),
        ("quanser_ip02_quarc", {"host": "127.0.0.1", "virtual": True}, True),
        ("serial_board", {"port": "/dev/pts/7"}, False),
        ("serial_board", {"port": "/dev/pts/7", "virtual": True}, True),
        ("serial_board", {"port": "/dev/ttyACM0"}, False),
        ("quanser_ip02_hil", {}, False),
    ],
)
def test_which_rigs_fly_unasked(name, connection, virtual):
    assert is_virtual(changed(RigFile.load(name), connection=connection)) is virtual


HANGING_TASK = """
from nopg_robot.rounds.task import LearningTask

TASK = LearningTask("swing", "hanging", "s2[2]", lambda observations, period_s: True, flight_s=2.0, first_s=2.0)
"""
# A computer that runs tests pauses now and then.
PATIENT_S, LOAD_S = 0.5, 0.25


def wait_until(condition, seconds: float) -> bool:
    deadline_s = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True


@contextlib.contextmanager
def console_under_load(address):
    """A program that looks ten times a second, and one that asks and never reads."""
    clients = Path(REPOSITORY / "benchmarks" / "console_clients.py")
    running = [subprocess.Popen([sys.executable, clients, kind, address]) for kind in ("reads", "never_reads")]
    try:
        yield
        assert all(client.poll() is None for client in running)
    finally:
        for client in running:
            client.kill()
            client.wait()


@pytest.mark.real_time
def test_cable_out_in_the_middle_of_learning_with_the_console_under_load(tmp_path):
    task, folder = tmp_path / "swing.py", tmp_path / "learning"
    task.write_text(HANGING_TASK)
    # It keeps its voltage for ever, unless somebody connects again and takes it away.
    with VirtualQuarcServer(SimulatedCart(lifts_pole=False), watchdog_s=None) as server:
        host, port = server.address
        rig = changed(
            RigFile.load("quanser_ip02_quarc"),
            connection={"host": host, "port": port, "watchdog_s": None, "read_timeout_s": 0.2, "virtual": True},
            limits={"stale_s": PATIENT_S},
            timing={"miss_s": 0.1, "watchdog_s": PATIENT_S},
            **QUICK_PHASES | {"centring": {"voltage_volt": 2.5}},
        )
        (tmp_path / "rig.yaml").write_text(rig.to_yaml())
        program = [sys.executable, "-m", "nopg_robot.commands.learn", "--rig", str(tmp_path / "rig.yaml")]
        program += ["--task", str(task), "--folder", str(folder), "--learner", "elsewhere", "--yes", "--plain"]
        learning = subprocess.Popen([*program, "--console"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        address = next(found[0] for line in learning.stdout if (found := re.search(r"http://127\.0\.0\.1:\S+", line)))
        journal = folder / "round-00" / "first-01.npz.journal"
        with console_under_load(address):
            assert wait_until(lambda: journal.exists() and LearningFolder(folder, trust=True).rig_seconds > 0.2, 60.0)
            # Random voltages pass through zero.
            assert wait_until(lambda: abs(server.cart.voltage) > 0.1, 10.0)
            before_s = time.perf_counter()
            server.drop()
            dropped_s = time.perf_counter()
            output, _ = learning.communicate(timeout=30.0)
        assert learning.returncode in (ExitCode.SAFETY_STOP, ExitCode.NO_CONNECTION), output
        assert "Nothing is lost" in output
        zero_s, volt = server.applied_voltages[-1]
        assert volt == 0.0
        # A control period, and what a computer needs that does other things as well.
        assert before_s < zero_s < dropped_s + 0.02 + LOAD_S
        before_s = LearningFolder(folder, trust=True).rig_seconds
        assert before_s > 0.2
        # The cable is in again.
        learning = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            assert wait_until((folder / "round-00" / "flown.json").exists, 60.0)
        finally:
            learning.terminate()
            learning.wait()
    recorded = LearningFolder(folder, trust=True)
    assert len(recorded.round(0).logs()) == 2
    assert before_s < 2.0 <= recorded.rig_seconds + 0.1
