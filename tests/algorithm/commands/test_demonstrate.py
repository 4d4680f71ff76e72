"""``nopg demonstrate``: what a person drove becomes a data set, whatever happens meanwhile."""

import gymnasium as gym
import numpy as np
import pygame
import pytest
from gymnasium import spaces
from typer.testing import CliRunner

import sb3_nopg.commands.demonstrate as command
from helpers.demonstrations import InjectedWindow, key, without_display
from sb3_nopg import TransitionDataset
from sb3_nopg.commands.main import app


@pytest.fixture
def injected(monkeypatch):
    monkeypatch.setattr(command, "DemonstrationWindow", InjectedWindow)
    monkeypatch.setattr(InjectedWindow, "script", [])
    return InjectedWindow.script


def demonstrate(*arguments: str):
    return CliRunner().invoke(app, ["demonstrate", "--env", "MountainCarContinuous-v0", *arguments])


@pytest.mark.slow
def test_the_command_line_gives_a_data_set(injected, tmp_path):
    injected += [[key(pygame.K_RIGHT)], [], [key(pygame.K_RETURN)], [key(pygame.K_RIGHT, False)], [], [key(pygame.K_d)]]
    injected += [[key(pygame.K_LEFT)], [], [], [key(pygame.K_ESCAPE)]]
    output = tmp_path / "new" / "demo.npz"
    result = demonstrate("--episodes", "3", "--seed", "4", "-o", str(output))
    assert result.exit_code == 0, result.output
    data = TransitionDataset.load(output)
    assert data.actions[:, 0].tolist() == [1, 1, -1, -1, -1]
    assert data.episode_ids.tolist() == [0, 0, 1, 1, 1]
    assert data.timeouts.tolist() == [False, True, False, False, True]
    assert not data.terminals.any()
    assert data.action_space == spaces.Box(-1.0, 1.0, (1,))
    first, _ = gym.make("MountainCarContinuous-v0").reset(seed=4)
    np.testing.assert_array_equal(data.observations[0], first)


def test_without_a_display_nobody_drives(injected, monkeypatch, tmp_path):
    without_display(monkeypatch)
    injected += [[], [], [key(pygame.K_RETURN)]]
    result = demonstrate("-o", str(tmp_path / "demo.npz"))
    assert result.exit_code == 2
    assert "no display" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["demo.txt", "demo.npy"])
def test_what_cannot_be_written_is_refused_before_anybody_drives(injected, tmp_path, name):
    injected += [[], [], [key(pygame.K_RETURN)]]
    result = demonstrate("-o", str(tmp_path / name))
    assert result.exit_code == 2
    assert name in result.stderr
    assert len(injected) == 3


def test_a_recording_is_never_overwritten(injected, tmp_path):
    output = tmp_path / "demo.npz"
    output.write_text("precious")
    result = demonstrate("-o", str(output))
    assert result.exit_code == 2
    assert "exists already" in result.stderr
    assert output.read_text() == "precious"
    # The ending is added, so this is the same file.
    assert "exists already" in demonstrate("-o", str(tmp_path / "demo")).stderr


def test_nothing_kept_is_no_success(injected, tmp_path):
    injected += [[key(pygame.K_ESCAPE)]]
    result = demonstrate("-o", str(tmp_path / "demo.npz"))
    assert result.exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_what_was_driven_survives_a_failure(injected, tmp_path, monkeypatch):
    injected += [[], [], [key(pygame.K_RETURN)], []]
    steps = gym.envs.classic_control.Continuous_MountainCarEnv.step
    calls = []

    def failing(self, action):
        calls.append(action)
        if len(calls) == 3:
            raise OSError("the cable came off")
        return steps(self, action)

    monkeypatch.setattr(gym.envs.classic_control.Continuous_MountainCarEnv, "step", failing)
    result = demonstrate("-o", str(tmp_path / "demo.npz"))
    assert result.exit_code == 2
    assert "cable" in result.stderr
    assert len(TransitionDataset.load(tmp_path / "demo.npz")) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env", "CartPole-v1"], "continuous"),
        (["--env", "Nix-v0"], "cannot be made"),
        (["--env", "MountainCarContinuous-v0", "--fps", "0"], "--fps"),
    ],
)
def test_what_cannot_be_driven_is_one_line(injected, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["demonstrate", *arguments])
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
