"""``nopg`` as people get it: from an installed wheel, in a directory of their own, far from the checkout."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import pytest

import nopg_envs
from helpers.repository import REPOSITORY
from sb3_nopg import TransitionDataset

pytestmark = pytest.mark.slow

NOT_SOURCE = (".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "*.egg-info", "build", "dist", "runs", "flights")


def run(*command: object, folder: Path) -> str:
    # Nothing of this process may lead back to the checkout.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV"))}
    environment.update(OMP_NUM_THREADS="1", SDL_VIDEODRIVER="dummy", NO_COLOR="1", PIP_DISABLE_PIP_VERSION_CHECK="1")
    result = subprocess.run(
        [str(part) for part in command], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def installation(tmp_path_factory) -> Path:
    """A virtual environment with our wheel, and with everybody else's packages as they are here."""
    folder = tmp_path_factory.mktemp("wheel")
    checkout, venv = folder / "checkout", folder / "venv"
    shutil.copytree(REPOSITORY, checkout, ignore=shutil.ignore_patterns(*NOT_SOURCE))
    pip = [sys.executable, "-m", "pip"]
    run(*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, checkout, folder=folder)
    (wheel,) = folder.glob("*.whl")
    shutil.rmtree(checkout)
    run(sys.executable, "-m", "venv", "--without-pip", venv, folder=folder)
    run(*pip, "--python", venv / "bin" / "python", "install", "--quiet", "--no-deps", "--no-index", wheel, folder=folder)
    # A path adds the packages in a folder, but not what its own .pth files add: an editable install of the checkout stays out.
    (packages,) = venv.glob("lib/python*/site-packages")
    others = dict.fromkeys(sysconfig.get_paths()[name] for name in ("purelib", "platlib"))
    (packages / "others.pth").write_text("".join(f"{path}\n" for path in others))
    return venv


MODULES = ("sb3_nopg", "sb3_nopg.commands.main", "nopg_envs", "nopg_robot")
COMMANDS = [
    ["data", "info", "own.npz"],
    # A small discount, so that whatever follows trajectories is done soon.
    ["train", "own.npz", "--env", "nopg/LQR-v0", "--updates", "3", "--gamma", "0.8"],
    ["evaluate", "model.zip", "--episodes", "2", "--json"],
    ["export", "model.zip", "policy.onnx", "--control-period-s", "0.05"],
    ["report", "model.zip", "-o", "report.html"],
]
# One process for all: starting it and importing torch takes longer than most commands.
PROGRAM = """
import contextlib, importlib, io, json, sys
from nopg_envs.demonstrations import demonstration_file
from sb3_nopg.commands.main import main
modules, commands = json.loads(sys.argv[1])
paths = [importlib.import_module(name).__file__ for name in modules] + [str(demonstration_file("mountain_car_scripted"))]
said = []
for words in commands:
    sys.argv = ["nopg", *words]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            ended = main()
        except SystemExit as end:
            ended = end.code
    assert not ended, (words, ended, out.getvalue())
    said.append(out.getvalue())
print(json.dumps([paths, said]))
"""


@pytest.fixture(scope="module")
def used(installation, tmp_path_factory) -> SimpleNamespace:
    """The folder of somebody who has data and uses what is installed, where its files lie, and what each command said."""
    folder = tmp_path_factory.mktemp("own")
    env = gym.make("nopg/LQR-v0")
    arrays = nopg_envs.rollouts(env, "uniform", n_transitions=67, seed=0)
    TransitionDataset(**arrays, observation_space=env.observation_space, action_space=env.action_space).save(
        folder / "own.npz"
    )
    paths, said = json.loads(
        run(installation / "bin" / "python", "-c", PROGRAM, json.dumps([MODULES, COMMANDS]), folder=folder)
    )
    return SimpleNamespace(folder=folder, paths=paths, said=dict(zip((words[0] for words in COMMANDS), said, strict=True)))


def test_the_wheel_is_what_is_tested(installation, used):
    assert len(used.paths) == len(MODULES) + 1
    for path in used.paths:
        assert Path(path).is_relative_to(installation), path


def test_the_program_is_installed(installation, tmp_path):
    assert run(installation / "bin" / "nopg", "--version", folder=tmp_path).startswith("nopg 0.")


def test_from_data_to_a_policy_for_the_rig(used):
    assert "67" in used.said["data"]
    assert "predicted return" in used.said["train"]
    assert [episode["seed"] for episode in json.loads(used.said["evaluate"])["episodes"]] == [0, 1]

    wanted = {"own.npz", "model.zip", "model.progress.csv", "model.json", "policy.onnx", "report.html", "report.json"}
    assert {path.name for path in used.folder.iterdir()} == wanted
    assert "data:image/png" in (used.folder / "report.html").read_text(encoding="utf-8")
