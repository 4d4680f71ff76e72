"""Learning on a rig in rounds: tasks, the shared folder, and the rig's half."""

import math
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from helpers.policy_files import BALANCE, write_policy
from helpers.rigs import quick_rig
from nopg_robot.control.policy import OnnxPolicy
from nopg_robot.control.safety import Intervention, Reason
from nopg_robot.flight.log import read_flight
from nopg_robot.rounds import flights
from nopg_robot.rounds import folder as rounds_folder
from nopg_robot.rounds.exploring import exploring, held_voltages
from nopg_robot.rounds.flights import FlightStoppedError, RigHalf
from nopg_robot.rounds.folder import Learned, LearningFolder, observations_of, working_alone
from nopg_robot.rounds.task import TASKS, load_task, upright_at_the_end
from nopg_robot.run import collection
from nopg_robot.run.session import RunSummary

TASK_FILE = """
from nopg_robot.rounds.task import LearningTask, upright_at_the_end

TASK = LearningTask("mine", "upright", "s2[2]", upright_at_the_end(1.5), flight_s=2.0, first_s=1.0)
"""
LEARNED = Learned("round-01/policy.onnx", "", False, "Fly it.", 0.9, 50, 1.0, 3.0, (1.0, None, None))


@pytest.fixture
def task_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(TASK_FILE)
    return path


@pytest.fixture
def folder(tmp_path, task_file):
    return LearningFolder.create(tmp_path / "learning", str(task_file), quick_rig(), seed=3)


def rig_half(folder, most_seconds=100.0):
    return RigHalf(quick_rig(), folder, most_seconds, lambda what, log, seconds: nullcontext({}))


# --- Tasks ----------------------------------------------------------------------------------------------------------------


def test_a_goal_looks_at_the_end_of_a_flight():
    observations = np.zeros((101, 5))
    observations[:, 2] = -1.0
    observations[40:, 2] = 1.0
    assert upright_at_the_end(1.0)(observations, 0.02)
    assert not upright_at_the_end(1.3)(observations, 0.02)
    # A flight that is shorter than what is asked for has not done it.
    assert not upright_at_the_end(3.0)(np.ones((101, 5)), 0.02)


def test_a_task_of_one_s_own_is_a_python_file(task_file):
    assert load_task(str(task_file)).name == "mine"
    assert load_task("swing_up") is TASKS["swing_up"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1 / 0", "does not run"),
        ("TASK = 3", "does not assign"),
        (TASK_FILE.replace('"upright"', '"sideways"'), "pole: unknown"),
        ("import sys; sys.exit(0)", "does not run .SystemExit"),
        (TASK_FILE.replace("s2[2]", "s2[9]"), r"reward: there is no s2\[9\]; known are s\[0\] to s\[4\], a\[0\], s2"),
        (TASK_FILE.replace("s2[2]", "a[1]"), r"reward: there is no a\[1\]"),
        (TASK_FILE.replace("s2[2]", "speed[0]"), r"reward: there is no speed\[0\]"),
        (TASK_FILE.replace("s2[2]", "s2[2"), "reward: 's2.2' is not a formula"),
        (TASK_FILE.replace("s2[2]", "foo + s2[2]"), "reward: there is no foo; known are"),
        (TASK_FILE.replace("s2[2]", "lambda: 1"), "reward: 'lambda: 1' is not allowed"),
        (TASK_FILE.replace("s2[2]", "np.sqrt(s[0])"), "reward: 'np.sqrt' is not one of abs"),
        (TASK_FILE.replace("s2[2]", "1/0"), "reward: '1/0' is not a finite number for any of 100 states"),
        (
            TASK_FILE.replace("upright_at_the_end(1.5)", "lambda o, period: o[10**6, 0] > 0"),
            "goal: does not answer .*IndexError",
        ),
        (TASK_FILE.replace("upright_at_the_end(1.5)", "lambda o, period_s: o[:, 2] > 0"), "goal: must answer True or False"),
    ],
)
def test_a_task_that_is_none_is_refused(tmp_path, text, told):
    path = tmp_path / "bad.py"
    path.write_text(text)
    with pytest.raises(ValueError, match=told):
        load_task(str(path))


def test_a_reward_that_is_no_number_now_and_then_is_said_to_be(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(TASK_FILE.replace("s2[2]", "log(s[0])"))
    with pytest.warns(UserWarning, match=r"reward: 'log\(s\[0\]\).*' is not a finite number for \d+ of 100 states"):
        load_task(str(path))


def test_a_pole_that_is_let_go_does_not_say_where_the_task_starts():
    with pytest.raises(ValueError, match="with initial_state"):
        replace(TASKS["balance"], fallen_s=1.0)


def test_an_unknown_task_is_refused():
    with pytest.raises(ValueError, match="known are balance, swing_up, or a Python file"):
        load_task("juggle")


# --- The folder -----------------------------------------------------------------------------------------------------------


def test_a_folder_goes_on_with_the_same_task_only(folder, task_file):
    again = LearningFolder.create(folder.path, str(task_file), quick_rig(), seed=3)
    assert again.about == folder.about
    with pytest.raises(ValueError, match="begun with seed 3, and this is 4"):
        LearningFolder.create(folder.path, str(task_file), quick_rig(), seed=4)
    with pytest.raises(ValueError, match=r"begun with task 'task.py', and this is 'balance'"):
        LearningFolder.create(folder.path, "balance", quick_rig(), seed=3)


def test_a_task_that_was_corrected_goes_on_with_the_random_voltages(folder, task_file):
    folder.round(0).write_flown([])
    # What a learner has left that could not go on.
    (folder.round(1).folder / "model.zip").write_bytes(b"half")
    task_file.write_text(TASK_FILE.replace("s2[2]", "s2[2] - s2[0] ** 2"))
    said = []
    again = LearningFolder.create(folder.path, str(task_file), quick_rig(), seed=3, told=said.append)
    assert again.task.reward == "s2[2] - s2[0] ** 2"
    assert again.about == folder.about
    assert again.round(0).is_flown
    assert "has changed: the random voltages" in said[0]
    LearningFolder.create(folder.path, str(task_file), quick_rig(), seed=3, told=said.append)
    assert len(said) == 1


@pytest.mark.parametrize("change", ["first_s=2.0", "first_s=1.0, episode_s=1.0"])
def test_a_task_of_other_random_voltages_needs_a_folder_of_its_own(folder, task_file, change):
    task_file.write_text(TASK_FILE.replace("first_s=1.0", change))
    with pytest.raises(ValueError, match=r"was begun with random_voltages .* choose another folder"):
        LearningFolder.create(folder.path, str(task_file), quick_rig(), seed=3)


def test_a_task_that_was_learned_for_is_not_changed(folder, task_file):
    folder.round(1).write_learned(LEARNED)
    task_file.write_text(TASK_FILE + "# changed\n")
    with pytest.raises(ValueError, match=r"begun with another .* and has learned for that one"):
        LearningFolder.create(folder.path, str(task_file), quick_rig(), seed=3)
    assert (folder.path / "task.py").read_text() == TASK_FILE


def test_a_task_is_not_changed_under_a_learner(folder, task_file):
    task_file.write_text(TASK_FILE + "# changed\n")
    with working_alone(folder.path, "learner"), pytest.raises(ValueError, match="another program is at work"):
        LearningFolder.create(folder.path, str(task_file), quick_rig(), seed=3)


def test_a_folder_of_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(ValueError, match="has files but no"):
        LearningFolder.create(tmp_path, "balance", quick_rig(), seed=0)


def test_a_damaged_folder_says_what_is_damaged(folder):
    for text in ("{", "[]", "{}"):
        (folder.path / "task.json").write_text(text)
        with pytest.raises(ValueError, match=r"task\.json: cannot be read"):
            LearningFolder(folder.path, trust=True)
    one = folder.round(1)
    (one.folder / "learned.json").write_text('{"policy": ""}')
    with pytest.raises(ValueError, match=r"learned\.json: cannot be read .it has no"):
        _ = one.learned


def test_a_task_that_is_a_program_is_run_only_with_trust(folder):
    with pytest.raises(ValueError, match="only run with --trust"):
        LearningFolder(folder.path)
    assert LearningFolder(folder.path, trust=True).task.name == "mine"


def test_flights_and_journals_of_those_cut_off_are_found(folder):
    one = folder.round(1)
    for name in ("flight-01.npz", "flight-02.npz.journal", "flight-01.npz.journal", "learned.json.77.partial"):
        (one.folder / name).touch()
    assert [path.name for path in one.logs()] == ["flight-01.npz", "flight-02.npz.journal"]
    assert one.next_log("flight").name == "flight-03.npz"
    assert one.next_log("explore").name == "explore-01.npz"


def test_a_journal_that_was_never_begun_is_no_flight(folder):
    (folder.round(0).folder / "first-01.npz.journal").write_bytes(b"NOPG")
    assert folder.flights() == []
    assert folder.rig_seconds == 0.0
    assert folder.round(0).next_log("first").name == "first-02.npz"


@pytest.mark.parametrize(("n_steps", "n_flights"), [(0, 0), (1, 0), (2, 1)])
def test_a_flight_of_a_single_step_is_nothing_to_learn_from(folder, monkeypatch, n_steps, n_flights):
    """It is too little for a dataset, and would end every `nopg improve`."""
    (folder.round(1).folder / "flight-01.npz").touch()
    log = SimpleNamespace(transitions=lambda: {"rewards": np.zeros(n_steps)})
    monkeypatch.setattr(rounds_folder, "_read", lambda path: log)
    assert len(folder.flights()) == n_flights


def test_killed_while_it_was_made_a_folder_is_made_again(tmp_path, task_file):
    path = tmp_path / "learning"
    path.mkdir()
    (path / "task.py").write_text("half of")
    (path / ".task.77.partial.json").touch()
    assert LearningFolder.create(path, str(task_file), quick_rig(), seed=3).task.name == "mine"


def test_one_program_of_a_kind_at_a_time(folder):
    with (
        working_alone(folder.path, "rig"),
        working_alone(folder.path, "learner"),
        pytest.raises(ValueError, match="another program is at work"),
        working_alone(folder.path, "rig"),
    ):
        pass
    with working_alone(folder.path, "rig"):
        pass


def test_the_table_has_a_line_for_each_round(folder):
    folder.round(0).write_flown([])
    folder.round(1).write_learned(LEARNED)
    folder.round(1).write_flown([True, False])
    assert folder.round(1).learned == LEARNED
    lines = folder.write_table().read_text().splitlines()
    assert len(lines) == 3
    assert lines[2] == "1,50,1.0,3,0.90,1 - -,0,1,"


# --- Voltages to learn from -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_random_voltages_are_held_and_pull_to_the_middle():
    act = held_voltages(5.0, 0.3, np.random.default_rng(0))
    middle = np.array([act(np.zeros(5))[0] for _ in range(4000)])
    assert np.abs(middle).max() <= 5.0
    assert abs(middle.mean()) < 0.5
    held = np.diff(np.flatnonzero(np.diff(middle)))
    assert held.min() >= 2
    assert held.max() == 19
    right = np.array([act(np.array([0.3, 0, 0, 0, 0]))[0] for _ in range(4000)])
    assert np.abs(right).max() <= 5.0
    assert right.mean() < -2.0


def test_voltages_to_and_fro_change_their_direction_each_time():
    act = held_voltages(5.0, 0.3, np.random.default_rng(0), to_and_fro=True)
    volts = np.array([act(np.zeros(5))[0] for _ in range(2000)])
    changes = np.flatnonzero(np.diff(volts))
    assert np.abs(volts).max() <= 5.0
    assert np.abs(volts).min() >= 2.0
    assert (volts[changes] * volts[changes + 1] < 0).all()
    assert np.diff(changes).min() >= 12
    assert np.diff(changes).max() <= 30


def test_exploration_stays_about_the_policy():
    act = exploring(lambda observation: np.array([4.5]), 5.0, np.random.default_rng(0))
    volts = np.array([act(np.zeros(5))[0] for _ in range(1000)])
    assert volts.max() == 5.0
    assert 3.5 <= volts.min() < 4.0


# --- The rig's half -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_missed_cycle_does_not_take_another_episode(folder, monkeypatch):
    """Where the pole hangs nothing but time ends an episode."""
    folder.task = replace(folder.task, pole="hanging", initial_state=(0.0, 0.0, -1.0, 0.0, 0.0))
    run = collection.run_episode

    def without_the_last_cycle(*arguments, **options):
        episode = run(*arguments, **options)
        return replace(episode, rewards=episode.rewards[:-1])

    monkeypatch.setattr(collection, "run_episode", without_the_last_cycle)
    rig_half(folder).random_voltages(folder.round(0))
    (log,) = folder.round(0).logs()
    assert len(set(read_flight(log).of_phase("collect").episode)) == 1


@pytest.mark.slow
def test_random_voltages_until_there_is_enough(folder):
    rig_half(folder).random_voltages(folder.round(0))
    assert folder.round(0).is_flown
    assert folder.rig_seconds + 0.03 >= 1.0
    assert folder.rig_seconds < 2.0


@pytest.mark.slow
def test_what_was_recorded_before_an_interruption_counts(folder, monkeypatch):
    half, one = rig_half(folder), folder.round(0)
    collect = flights.collect

    def collect_half(behaviour, rig, log, options, **others):
        summary = collect(behaviour, rig, log, replace(options, transitions=25), **others)
        return replace(summary, outcome="failed", fault=Intervention(Reason.PLANT, "cable out", 0.0))

    monkeypatch.setattr(flights, "collect", collect_half)
    with pytest.raises(FlightStoppedError, match="failed in phase"):
        half.random_voltages(one)
    assert not one.is_flown
    before_s = folder.rig_seconds
    assert before_s >= 0.4
    monkeypatch.setattr(flights, "collect", collect)
    half.random_voltages(one)
    assert [path.name for path in one.logs()] == ["first-01.npz", "first-02.npz"]
    # Only what was lacking; an episode may end a little late.
    assert folder.rig_seconds - before_s < 1.0


@pytest.mark.slow
def test_a_pole_that_is_let_go_falls_all_the_way(folder):
    folder.task = replace(folder.task, pole="hanging", fallen_s=2.0, initial_state=(0.0, 0.0, -1.0, 0.0, 0.0))
    rig_half(folder).random_voltages(folder.round(0))
    assert [path.name for path in folder.round(0).logs()] == ["fallen-01.npz", "first-01.npz"]
    cosines = observations_of(read_flight(folder.round(0).logs()[0]))[:, 2]
    assert cosines.max() > 0.99
    assert cosines.min() < 0.0
    assert folder.rig_seconds_of(folder.round(0), "fallen") == pytest.approx(2.0, abs=0.5)


@pytest.mark.slow
def test_a_policy_that_works_flies_twice(folder):
    one = folder.round(1)
    rig_half(folder).fly(one, OnnxPolicy(write_policy(folder.path / "policy.onnx")))
    assert one.succeeded == [True, True]
    assert [path.name for path in one.logs()] == ["flight-01.npz", "flight-02.npz"]
    assert folder.rig_seconds == pytest.approx(4.0, abs=0.1)
    assert observations_of(read_flight(one.logs()[0])).shape == (101, 5)


@pytest.mark.slow
def test_a_policy_that_does_not_work_explores_afterwards(folder):
    one = folder.round(1)
    rig_half(folder).fly(one, OnnxPolicy(write_policy(folder.path / "policy.onnx", gain=-BALANCE)))
    assert one.succeeded == [False]
    assert [path.name for path in one.logs()] == ["explore-01.npz", "flight-01.npz"]
    explored = read_flight(one.logs()[0]).of_phase("collect")
    assert np.ptp(explored.applied_volt) > 0.5


@pytest.mark.slow
def test_rig_time_is_not_exceeded(folder):
    one = folder.round(1)
    rig_half(folder, most_seconds=3.0).fly(one, OnnxPolicy(write_policy(folder.path / "policy.onnx")))
    # There is time for one flight of two seconds; a second one that is cut short would say nothing.
    assert one.succeeded == [True]
    assert folder.rig_seconds == pytest.approx(2.0, abs=0.05)


@pytest.mark.slow
def test_flights_before_an_interruption_count(folder, monkeypatch):
    one, policy = folder.round(1), write_policy(folder.path / "policy.onnx", gain=-BALANCE)

    def interrupted(*arguments, **others):
        raise KeyboardInterrupt

    monkeypatch.setattr(flights, "collect", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rig_half(folder).fly(one, OnnxPolicy(policy))
    monkeypatch.undo()
    monkeypatch.setattr(flights, "deploy", interrupted)
    # The failed flight is not forgotten: only exploration is left to do.
    rig_half(folder).fly(one, OnnxPolicy(policy))
    assert one.succeeded == [False]
    assert [path.name for path in one.logs()] == ["explore-01.npz", "flight-01.npz"]


def test_a_rig_on_which_nothing_can_be_recorded_is_not_tried_for_ever(folder, monkeypatch):
    too_fast = Intervention(Reason.POLE_SPEED, "too fast", 0.0)
    fallen = RunSummary("stopped", "too fast", too_fast, "collect", 0.0, math.nan, math.nan)
    monkeypatch.setattr(flights, "collect", lambda *arguments, **others: fallen)
    with pytest.raises(FlightStoppedError):
        rig_half(folder).random_voltages(folder.round(0))
    assert not folder.round(0).is_flown


@pytest.mark.slow
def test_a_goal_may_answer_as_numpy_does(folder):
    one = folder.round(1)
    folder.task = replace(folder.task, goal=lambda observations, period_s: (observations[-50:, 2] > 0.95).all())
    rig_half(folder).fly(one, OnnxPolicy(write_policy(folder.path / "policy.onnx")))
    assert one.succeeded == [True, True]


def test_a_flight_that_the_operator_stopped_says_nothing_of_its_policy(folder, monkeypatch):
    one = folder.round(1)
    stopped = RunSummary("stopped", "Enter", Intervention(Reason.OPERATOR, "Enter", 0.0), "run", 1.0, math.nan, math.nan)
    monkeypatch.setattr(flights, "deploy", lambda *arguments, **others: stopped)
    with pytest.raises(FlightStoppedError) as caught:
        rig_half(folder).fly(one, OnnxPolicy(write_policy(folder.path / "policy.onnx")))
    assert caught.value.summary is stopped
    assert not one.is_flown
