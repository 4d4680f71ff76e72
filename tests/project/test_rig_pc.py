"""
The PC beside the rig: an environment with the wheel of this checkout, what ``robot/requirements.txt`` names, what that needs
in turn, and nothing else. Those packages are the ones installed here: unpacking them once more would take half a minute.
"""

import os
import re
import shutil
import subprocess
import sys
import venv
from importlib.metadata import distribution
from pathlib import Path

import gymnasium as gym
import pytest
from packaging.requirements import Requirement

import nopg_envs  # noqa: F401 (registers the cart-pole)
from helpers.repository import REPOSITORY
from nopg_robot.flight.log import read_flight
from sb3_nopg import NOPG, TransitionDataset

pytest.importorskip("onnx")

pytestmark = pytest.mark.slow

PARTS = ("pyproject.toml", "README.md", "LICENSE", "sb3_nopg", "envs", "robot", "zoo_configs")
BIN = "Scripts" if sys.platform == "win32" else "bin"


def run(*command: object, folder: Path) -> subprocess.CompletedProcess[str]:
    # Nothing of the environment that runs the tests.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)


class RigPC:
    """
    :param folder: with the environment in ``environment``, and an empty place to work in, ``work``
    """

    def __init__(self, folder: Path):
        self.work = folder / "work"
        self._bin = folder / "environment" / BIN

    def run(self, program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        return run(self._bin / program, *arguments, folder=self.work)

    def python(self, script: str) -> str:
        result = self.run("python", "-W", "error", "-c", script)
        assert result.returncode == 0, result.stderr
        return result.stdout.strip()


@pytest.fixture(scope="module")
def rig_pc(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rig_pc")
    # A copy, so that building the wheel leaves nothing in the checkout.
    source = folder / "source"
    source.mkdir()
    for name in PARTS:
        part = REPOSITORY / name
        if part.is_dir():
            shutil.copytree(part, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(part, source)
    venv.create(folder / "environment", with_pip=False)
    pc = RigPC(folder)
    pc.work.mkdir()
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    install = (*pip, "--python", folder / "environment" / BIN / "python", "install", "--quiet")
    for command in (
        (*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder / "wheel", source),
        (*install, "--no-deps", "--no-index", "--find-links", folder / "wheel", "sb3-nopg"),
    ):
        result = run(*command, folder=folder)
        assert result.returncode == 0, result.stderr
    (packages,) = (folder / "environment").glob("lib/python*/site-packages")
    for part in parts_of(needed((REPOSITORY / "robot" / "requirements.txt").read_text(encoding="utf-8").splitlines())):
        (packages / part.name).symlink_to(part, target_is_directory=part.is_dir())
    export_policy(pc.work / "policy.onnx")
    return pc


def needed(lines, extras=frozenset()):
    """Names of the packages that some requirements ask for, and of those that they need."""
    names = set()
    for line in lines:
        if not line or line.startswith("#"):
            continue
        one = Requirement(line)
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras or {""}):
            assert one.specifier.contains(distribution(one.name).version, prereleases=True), line
            names |= {one.name} | needed(distribution(one.name).requires or [], frozenset(one.extras))
    return names


def parts_of(names):
    """Files and folders of packages in the folder that they are installed in."""
    for name in names:
        installed = distribution(name)
        top = {path.parts[0] for path in installed.files or [] if path.parts[0] not in ("..", "__pycache__")}
        yield from (Path(str(installed.locate_file(part))) for part in sorted(top))


def export_policy(path):
    """Of a model that has learned nothing, from data of the simulated cart."""
    env = gym.make("nopg/QuanserCartPoleBalance-v0")
    env.action_space.seed(0)
    observations, actions, rewards, next_observations = [], [], [], []
    observation, _ = env.reset(seed=0)
    for _ in range(30):
        action = env.action_space.sample()
        after, reward, terminated, truncated, _ = env.step(action)
        observations.append(observation), actions.append(action), rewards.append(reward), next_observations.append(after)
        observation = env.reset()[0] if terminated or truncated else after
    data = TransitionDataset(observations, actions, rewards, next_observations, [False] * 30, episode_ids=list(range(30)))
    NOPG("MlpPolicy", env, dataset=data, seed=0).export(path)


def test_every_module_can_be_imported_where_there_is_no_torch(rig_pc):
    """But for those whose driver is the vendor's, which are imported when a rig file names them."""
    script = """
import importlib.util
assert not any(importlib.util.find_spec(name) for name in ("torch", "stable_baselines3", "onnx"))
import importlib, pkgutil, nopg_robot
modules = [m.name for m in pkgutil.walk_packages(nopg_robot.__path__, "nopg_robot.") if not m.name.endswith("__main__")]
for name in modules:
    importlib.import_module(name)
print(len(modules), nopg_robot.__file__)
"""
    count, file = rig_pc.python(script).split(maxsplit=1)
    assert int(count) > 30
    assert "site-packages" in file


def test_rig_files_come_with_the_wheel(rig_pc):
    names = rig_pc.python(
        "from nopg_robot.rig.file import RigFile, shipped_rigs\n"
        "for name in shipped_rigs(): print(name, RigFile.load(name).connection.plant)"
    )
    assert names.splitlines() == [
        "avr_board serial",
        "quanser_ip02_hil hil",
        "quanser_ip02_quarc quarc",
        "serial_board serial",
        "simulated simulated",
    ]


def test_a_policy_is_deployed_and_its_flight_drawn(rig_pc):
    options = ("--fast", "--seconds", "1", "--plain", "--no-plot", "--console")
    result = rig_pc.run("nopg-deploy", "policy.onnx", "--rig", "simulated", *options)
    # A policy that has learned nothing may let the pole fall.
    assert result.returncode in (0, 1), result.stdout + result.stderr
    assert "in phase 'run'" in result.stdout
    # Whose files came with the wheel.
    assert "Console: http://127.0.0.1:" in result.stdout
    log = rig_pc.work / re.search("Flight log: (.*)", result.stdout)[1]
    assert log.is_file()
    drawn = rig_pc.run("python", "-m", "nopg_robot.flight.plot", log)
    assert drawn.returncode == 0, drawn.stderr
    assert log.with_suffix(".png").stat().st_size > 10_000


def test_data_are_collected(rig_pc):
    result = rig_pc.run("nopg-collect", "--rig", "simulated", "--fast", "--episodes", "1", "--log", "data.npz")
    assert result.returncode == 0, result.stdout + result.stderr
    assert len(read_flight(rig_pc.work / "data.npz").transitions()["actions"]) > 5
