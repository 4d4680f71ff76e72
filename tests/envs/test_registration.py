"""The environments are found: by importing the package, by naming it, and through the entry point of the distribution."""

import subprocess
import sys
from importlib.metadata import EntryPoint

import gymnasium as gym
import pytest

import nopg_envs
from helpers.repository import REPOSITORY

IDS = ("nopg/LQR-v0", "nopg/Pendulum-v0", "nopg/QuanserCartPoleBalance-v0", "nopg/QuanserCartPoleSwingUp-v1")


def run_afresh(*lines: str) -> None:
    """Run lines of Python in an interpreter of its own, where nothing is registered yet."""
    code = "\n".join(["import gymnasium as gym", f"IDS = {IDS!r}", *lines])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_unknown_before_the_import_which_needs_neither_torch_nor_stable_baselines3_and_made_after_it():
    run_afresh(
        "import sys",
        "assert not set(IDS) & set(gym.registry)",
        "import nopg_envs",
        "assert not {'torch', 'stable_baselines3'} & set(sys.modules)",
        "for env_id in IDS:",
        "    env = gym.make(env_id)",
        "    assert env.spec.id == env_id",
        "    observation, _ = env.reset(seed=0)",
        "    assert env.observation_space.contains(observation)",
    )


@pytest.mark.slow
def test_made_without_an_import_by_naming_the_package():
    run_afresh(
        "import sys",
        "for env_id in IDS:",
        # As before anything was imported.
        "    for name in [name for name in sys.modules if name.partition('.')[0] == 'nopg_envs']:",
        "        del sys.modules[name]",
        "    for known in IDS:",
        "        gym.registry.pop(known, None)",
        "    env = gym.make(f'nopg_envs:{env_id}')",
        "    env.reset(seed=0)",
        "    env.step(env.action_space.sample())",
    )


def test_entry_point_of_the_distribution_registers_all_of_them(monkeypatch):
    tomllib = pytest.importorskip("tomllib", reason="part of Python from 3.11 on")
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ((name, value),) = project["entry-points"]["gymnasium.envs"].items()
    # By this name Gymnasium's own loader, up to its version 1.0, called what the entry point leads to.
    assert name == "__root__"
    register = EntryPoint(name, value, "gymnasium.envs").load()
    for env_id in IDS:
        monkeypatch.delitem(gym.registry, env_id)
    register()
    assert set(IDS) <= set(gym.registry)


def test_versions_that_are_gone_name_their_successor():
    with (
        pytest.warns(DeprecationWarning, match="out of date"),
        pytest.raises(gym.error.DeprecatedEnv, match="nopg/QuanserCartPoleSwingUp-v1"),
    ):
        gym.make("nopg/QuanserCartPoleSwingUp-v0")


def test_registering_twice_is_quiet():
    nopg_envs.register_envs()
    before = {env_id: gym.spec(env_id) for env_id in IDS}
    nopg_envs.register_envs()
    assert {env_id: gym.spec(env_id) for env_id in IDS} == before
