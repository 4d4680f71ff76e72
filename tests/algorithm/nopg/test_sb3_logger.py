"""What goes into Stable-Baselines3's log."""

import pathlib

import numpy as np
import pytest

from helpers.drift import Recorder, both, learn_with_log, make
from sb3_nopg import NOPGD, NOPGS


@pytest.mark.slow
def test_the_log_holds_all_that_tells_how_training_goes(tmp_path: pathlib.Path):
    model = make(NOPGS, n_neighbors=20, solver_tolerance=1e-7)
    rows = learn_with_log(model, tmp_path, 20, log_interval=5)
    assert [int(row["time/total_timesteps"]) for row in rows] == [5, 10, 15, 20]

    def column(name: str) -> np.ndarray:
        return np.array([float(row[name]) for row in rows])

    assert (np.diff(column("train/estimated_return")) > 0.0).all()
    assert (column("train/gradient_norm") > 0.0).all()
    assert ((column("train/truncation_error") > 0.0) & (column("train/truncation_error") < 1.0)).all()
    assert (column("train/n_neighbors") == 20).all()
    assert (column("train/learning_rate") == 1e-2).all()
    assert ((column("train/policy_std") > 0.0) & (column("train/policy_std") < 1.0)).all()
    for name in ("q", "visitation"):
        assert (column(f"solver/{name}_residual") <= 1e-7).all()
        assert (column(f"solver/{name}_iterations") >= 1).all()
    stages = [name for name in rows[0] if name.startswith("time/") and name.endswith("_seconds")]
    assert {"time/policy_seconds", "time/solve_seconds", "time/gradient_seconds", "time/step_seconds"} <= set(stages)
    for name in stages:
        assert (column(name) > 0.0).all()


@pytest.mark.slow
def test_the_log_tells_how_the_nodes_equations_were_solved(tmp_path: pathlib.Path):
    model = make(NOPGD, transitions="model", horizon=0)
    *rows, _ = learn_with_log(model, tmp_path, 9, log_interval=1)
    assert len(rows) == 9
    assert all(float(row["solver/q_residual"]) <= 1e-4 for row in rows)


@pytest.mark.slow
def test_the_log_tells_how_the_candidates_do(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture):
    model = make(NOPGS, transitions="model", learning_rate=0.02)
    with caplog.at_level("INFO"):
        *rows, choice = learn_with_log(model, tmp_path, 18, log_interval=1)
    assert choice["candidates/chosen"] == model.candidates[0].recipe
    assert float(choice["candidates/score"]) == pytest.approx(model.candidates[0].score)
    assert [int(row["time/total_timesteps"]) for row in rows] == list(range(1, 19))
    named = [row["train/candidate"] for row in rows]
    assert list(dict.fromkeys(named))[:3] == ["value_iteration (half)", "own (half)", "riccati (half)"]
    assert named[-1] == f"{model.candidates[0].recipe} (all)"
    for name in ("train/estimated_return", "train/gradient_norm", "time/update_seconds"):
        assert all(np.isfinite(float(row[name])) for row in rows), name
    assert all(0.0 < float(row["train/policy_std"]) < 1.0 for row in rows)
    assert all(0.0 <= float(row["train/survival"]) <= 1.0 for row in rows)
    for candidate in model.candidates:
        assert str(candidate) in caplog.text
    assert model.judgement.text() in caplog.text


@pytest.mark.slow
@both
def test_a_deterministic_policy_logs_no_standard_deviation(transitions: str, tmp_path: pathlib.Path):
    rows = learn_with_log(make(NOPGD, transitions=transitions), tmp_path, 2, log_interval=1)
    # On a model, the last line is about the choice.
    assert len(rows) == 2 + (transitions == "model")
    assert "train/policy_std" not in rows[0]


def test_the_logged_return_is_that_of_the_policy_before_its_update(tmp_path: pathlib.Path):
    model = make(solver_tolerance=1e-10)
    expected = [model.estimated_return()]
    recorder = Recorder(lambda callback: expected.append(callback.model.estimated_return()))
    rows = learn_with_log(model, tmp_path, 3, callback=recorder, log_interval=1)
    np.testing.assert_allclose([float(row["train/estimated_return"]) for row in rows], expected[:3], rtol=1e-7)


@pytest.mark.slow
def test_tensorboard_runs_are_numbered_and_continued(tmp_path: pathlib.Path):
    model = make(tensorboard_log=str(tmp_path))

    def runs() -> list[str]:
        return sorted(path.name for path in tmp_path.iterdir())

    model.learn(2, log_interval=1)
    assert runs() == ["NOPG_1"]
    model.learn(2, log_interval=1)
    assert runs() == ["NOPG_1", "NOPG_2"]
    model.learn(2, log_interval=1, reset_num_timesteps=False)
    assert runs() == ["NOPG_1", "NOPG_2"]
    model.learn(1, log_interval=1, tb_log_name="other")
    assert runs() == ["NOPG_1", "NOPG_2", "other_1"]
    assert all(list((tmp_path / name).glob("events.out.tfevents*")) for name in runs())


def test_verbose_prints_and_silence_does_not(capsys: pytest.CaptureFixture[str]):
    make(verbose=1).learn(2, log_interval=1)
    printed = capsys.readouterr().out
    assert "estimated_return" in printed
    assert "cpu" in printed
    make(verbose=0).learn(2, log_interval=1)
    assert capsys.readouterr().out == ""
