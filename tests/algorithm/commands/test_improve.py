"""``nopg improve``: the learner's half of a round on a rig."""

import shutil
from contextlib import nullcontext

import numpy as np
import pytest
from typer.testing import CliRunner

from helpers.policy_files import write_policy
from helpers.rigs import QUICK_PHASES, fast_rig
from nopg_envs.cartpole.parameters import PARAMETER_SETS, CartPoleParameters
from nopg_robot.control.policy import OnnxPolicy
from nopg_robot.rounds.flights import RigHalf
from nopg_robot.rounds.folder import Learned, LearningFolder
from sb3_nopg.commands import improve
from sb3_nopg.commands.main import app
from sb3_nopg.commands.models import TrainingRecord
from sb3_nopg.commands.stress import stress_of
from sb3_nopg.prediction.rollouts import Rollouts

# Most of a flight's time is what comes before it: homing, centring, waiting for the pole to stand. And a loop that looks a
# hundred times a second is enough for a simulated cart.
QUICK_RIG = fast_rig(**QUICK_PHASES, rates={"sample_hz": 100.0})


def run(*words):
    return CliRunner().invoke(app, ["improve", *map(str, words)])


def nowhere(model, policy, starts, n_steps, noise_seed=None):
    """A prediction in which everything falls at once."""
    n = len(starts)
    states = np.full((n_steps + 1, n, 5), np.nan)
    return Rollouts(states, states[1:, :, :1], states[1:, :, 0], np.zeros(n, int), np.ones(n, bool), np.full(n, -1))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Random voltages of a few seconds, which are enough for a model."""
    folder = LearningFolder.create(tmp_path_factory.mktemp("learning") / "balance", "balance", QUICK_RIG, seed=0)
    RigHalf(QUICK_RIG, folder, 5.0, lambda what, log, seconds: nullcontext({})).random_voltages(folder.round(0))
    return folder


def test_a_folder_that_is_none_is_refused(tmp_path):
    result = run(tmp_path)
    assert result.exit_code == 2
    assert "nopg-learn makes such a folder" in result.output


def test_nothing_flown_is_nothing_to_learn_from(tmp_path):
    folder = LearningFolder.create(tmp_path / "learning", "balance", fast_rig(), seed=0)
    result = run(folder.path)
    assert result.exit_code == 2
    assert "nothing has been flown yet" in result.output


def test_a_task_that_is_a_program_needs_trust(tmp_path):
    task = tmp_path / "mine.py"
    task.write_text("from nopg_robot.rounds.task import TASKS\n\nTASK = TASKS['balance']\n")
    folder = LearningFolder.create(tmp_path / "learning", str(task), fast_rig(), seed=0)
    assert "only run with --trust" in run(folder.path).output
    assert "nothing has been flown yet" in run(folder.path, "--trust").output


@pytest.mark.slow
@pytest.mark.usefixtures("without_pictures")
def test_it_learns_judges_and_sees_when_the_task_is_done(recorded, monkeypatch):
    own, asked = PARAMETER_SETS["identified"].replace(input_gain=1.0), []

    def by_the_flights(logs, start, seed):
        asked.append((logs, start))
        return own

    def stressed(model, parameters):
        asked.append(parameters)
        return stress_of(model, parameters)

    with monkeypatch.context() as patched:
        patched.setattr(improve, "identified", by_the_flights)
        patched.setattr(improve, "stress_of", stressed)
        result = run(recorded.path, "--updates", 2)
    assert result.exit_code == 0, result.output
    assert "On the rig: nopg-learn" in result.output
    first = recorded.round(1)
    assert {path.name for path in first.folder.iterdir()} >= {"learned.json", "policy.onnx", "model.zip", "report.html"}
    record = TrainingRecord.load(first.folder / "model.zip")
    options = record.make_env().unwrapped.options
    assert (options.task, options.control_hz, options.voltage_limit_volt) == ("balance", 50.0, 5.0)
    # Simulated rigs are drawn around the one that the flights tell.
    assert asked == [(recorded.round(0).logs(), PARAMETER_SETS["identified"]), own]
    assert CartPoleParameters.load(first.folder / "parameters.yaml") == own
    assert first.learned.n_transitions == pytest.approx(400, abs=40)
    written = (first.folder / "policy.onnx").stat().st_mtime
    assert run(recorded.path).exit_code == 0
    assert (first.folder / "policy.onnx").stat().st_mtime == written

    # A policy that works flies in its place: flights and prediction agree, and nothing more is learned.
    write_policy(first.folder / "policy.onnx")
    RigHalf(QUICK_RIG, recorded, 1000.0, lambda what, log, seconds: nullcontext({})).fly(
        first, OnnxPolicy(first.folder / "policy.onnx")
    )
    assert first.succeeded == [True, True]
    # What works is kept, whatever the model says of it.
    with monkeypatch.context() as patched:
        patched.setattr(improve, "follow", nowhere)
        result = run(recorded.path, "--updates", 2)
    assert result.exit_code == 0, result.output
    assert "round-01/policy.onnx flies better than the model knows" in result.output
    assert "The policy to fly next is round-01/policy.onnx" in result.output
    kept = recorded.round(2).learned
    assert (kept.policy, kept.done, kept.predicted_to_succeed) == ("round-01/policy.onnx", False, 0.0)
    (recorded.round(2).folder / "learned.json").unlink()
    result = run(recorded.path)
    assert result.exit_code == 0, result.output
    done = recorded.round(2).learned
    assert done.done
    assert done.policy == "round-01/policy.onnx"
    assert done.predicted_to_succeed >= 0.8
    assert all(ratio is None or np.isfinite(ratio) for ratio in done.error_ratios)
    assert done.error_ratios[0] is not None
    assert (first.folder / "predicted.png").exists()


@pytest.fixture(scope="module")
def flown_well(recorded, tmp_path_factory):
    """A policy has reached the goal twice, and one after it has not."""
    path = tmp_path_factory.mktemp("flown") / "balance"
    shutil.copytree(recorded.path, path, ignore=shutil.ignore_patterns("round-0[1-9]"))
    folder = LearningFolder(path)
    for number, succeeded in ((1, [True, True]), (2, [False])):
        one = folder.round(number)
        write_policy(one.folder / "policy.onnx")
        one.write_learned(Learned(f"round-{number:02d}/policy.onnx", "", False, "", 0.0, 1, 1.0, 1.0))
        one.write_flown(succeeded)
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("without_pictures")
@pytest.mark.parametrize(
    ("better", "shares", "flies"),
    [(None, (0.5, 0.4), 3), (None, (0.4, 0.4), 1), (True, (0.1, 0.4), 3), (False, (0.5, 0.4), 1)],
)
def test_what_has_flown_well_is_given_up_for_what_is_predicted_to_do_better(flown_well, better, shares, flies, monkeypatch):
    flown_well.round(1).write_flown([True, True])
    chosen(flown_well, "round-01", better, shares, flies, monkeypatch)


@pytest.mark.slow
@pytest.mark.usefixtures("without_pictures")
@pytest.mark.parametrize(
    ("better", "shares", "flies"),
    [(False, (0.0, 0.0), 3), (False, (0.1, 0.4), 2), (None, (0.1, 0.4), 3), (True, (0.1, 0.4), 3)],
)
def test_what_has_not_flies_again_only_if_nothing_speaks_for_the_new_policy(flown_well, better, shares, flies, monkeypatch):
    flown_well.round(1).write_flown([True, False])
    chosen(flown_well, "round-02", better, shares, flies, monkeypatch)


def chosen(flown_well, held_against, better, shares, flies, monkeypatch):
    compared = []

    def judged(learner, new, earlier):
        compared.append((new.parent.name, earlier.parent.name))
        return "", better

    by_round = {"round-03": shares[0], "round-01": 0.0, "round-02": 0.0, held_against: shares[1]}
    monkeypatch.setattr(improve._Learner, "_judge", judged)
    monkeypatch.setattr(improve._Learner, "_export", lambda self, model: self.following.folder / "policy.onnx")
    monkeypatch.setattr(improve._Learner, "_predicted_share", lambda self, model, policy: by_round[policy.parent.name])
    (flown_well.round(3).folder / "learned.json").unlink(missing_ok=True)
    write_policy(flown_well.round(3).folder / "policy.onnx")
    result = run(flown_well.path, "--updates", 2)
    assert result.exit_code == 0, result.output
    learned = flown_well.round(3).learned
    assert compared == [("round-03", held_against)]
    assert (learned.policy, learned.predicted_to_succeed) == (f"round-0{flies}/policy.onnx", by_round[f"round-0{flies}"])


@pytest.mark.slow
def test_a_review_learns_nothing(recorded):
    one = recorded.round(7)
    write_policy(one.folder / "policy.onnx", gain=np.ones(5))
    one.write_learned(Learned("round-07/policy.onnx", "", False, "", 0.0, 1, 1.0, 1.0))
    one.write_flown([False])
    result = run(recorded.path, "--review")
    assert result.exit_code == 0, result.output
    assert "0 of 1 flights reached the goal" in result.output
    assert recorded.round(8).learned.policy == ""
