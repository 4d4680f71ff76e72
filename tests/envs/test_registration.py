"""The environments are found: by importing the package, by naming it, and through the entry point of the distribution."""

import subprocess
import sys

import gymnasium as gym
import pytest

from helpers.repository import REPOSITORY

pytestmark = pytest.mark.slow

IDS = ("nopg/LQR-v0", "nopg/Pendulum-v0", "nopg/QuanserCartPoleBalance-v0", "nopg/QuanserCartPoleSwingUp-v1")


def run_afresh(*lines: str) -> None:
    """Run lines of Python in an interpreter of its own, where nothing is registered yet."""
    code = "\n".join(["import gymnasium as gym", f"IDS = {IDS!r}", *lines])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_unknown_before_the_import_and_made_after_it():
    run_afresh(
        "assert not set(IDS) & set(gym.registry)",
        "import nopg_envs",
        "for env_id in IDS:",
        "    env = gym.make(env_id)",
        "    assert env.spec.id == env_id",
        "    observation, _ = env.reset(seed=0)",
        "    assert env.observation_space.contains(observation)",
    )


@pytest.mark.parametrize("env_id", IDS)
def test_made_without_an_import_by_naming_the_package(env_id: str):
    run_afresh(f"env = gym.make('nopg_envs:{env_id}')", "env.reset(seed=0)", "env.step(env.action_space.sample())")


def test_importing_needs_neither_torch_nor_stable_baselines3():
    run_afresh("import nopg_envs, sys", "assert not {'torch', 'stable_baselines3'} & set(sys.modules)")


def test_entry_point_of_the_distribution_registers_all_of_them():
    tomllib = pytest.importorskip("tomllib", reason="part of Python from 3.11 on")
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ((name, value),) = project["entry-points"]["gymnasium.envs"].items()
    # By this name Gymnasium's own loader, up to its version 1.0, called what the entry point leads to.
    assert name == "__root__"
    run_afresh(
        "from importlib.metadata import EntryPoint",
        f"register = EntryPoint({name!r}, {value!r}, 'gymnasium.envs').load()",
        "for env_id in IDS:",
        "    gym.registry.pop(env_id, None)",
        "register()",
        "assert set(IDS) <= set(gym.registry)",
    )


def test_versions_that_are_gone_name_their_successor():
    run_afresh(
        "import nopg_envs",
        "try:",
        "    gym.make('nopg/QuanserCartPoleSwingUp-v0')",
        "except gym.error.DeprecatedEnv as error:",
        "    assert 'nopg/QuanserCartPoleSwingUp-v1' in str(error), error",
        "else:",
        "    raise AssertionError('made')",
    )


def test_registering_twice_is_quiet():
    import nopg_envs

    nopg_envs.register_envs()
    before = {env_id: gym.spec(env_id) for env_id in IDS}
    nopg_envs.register_envs()
    assert {env_id: gym.spec(env_id) for env_id in IDS} == before
