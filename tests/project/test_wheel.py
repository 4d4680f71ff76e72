"""``nopg`` as people get it: from an installed wheel, in a directory of their own, far from the checkout."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

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


def test_the_wheel_is_what_is_tested(installation, tmp_path):
    names = ("sb3_nopg", "sb3_nopg.commands.main", "nopg_envs", "nopg_robot")
    program = f"import importlib; [print(importlib.import_module(name).__file__) for name in {names}]\n"
    program += "from nopg_envs.demonstrations import demonstration_file; print(demonstration_file('mountain_car_scripted'))"
    paths = run(installation / "bin" / "python", "-c", program, folder=tmp_path).splitlines()
    assert len(paths) == len(names) + 1
    for path in paths:
        assert Path(path).is_relative_to(installation), path


# One process for all commands: starting it and importing torch takes longer than most of them.
COMMANDS = """
import contextlib, io, json, sys
from sb3_nopg.commands.main import main
said = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["nopg", *words]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            ended = main()
        except SystemExit as end:
            ended = end.code
    assert not ended, (words, ended, out.getvalue())
    said.append(out.getvalue())
print(json.dumps(said))
"""


def test_from_data_to_a_policy_for_the_rig(installation, tmp_path):
    env = gym.make("nopg/LQR-v0")
    arrays = nopg_envs.rollouts(env, "uniform", n_transitions=67, seed=0)
    TransitionDataset(**arrays, observation_space=env.observation_space, action_space=env.action_space).save(
        tmp_path / "own.npz"
    )

    assert "67" in run(installation / "bin" / "nopg", "data", "info", "own.npz", folder=tmp_path)
    commands = [
        # A small discount, so that whatever follows trajectories is done soon.
        ["train", "own.npz", "--env", "nopg/LQR-v0", "--updates", "3", "--gamma", "0.8"],
        ["evaluate", "model.zip", "--episodes", "2", "--json"],
        ["export", "model.zip", "policy.onnx", "--control-period-s", "0.05"],
        ["report", "model.zip", "-o", "report.html"],
    ]
    trained, evaluated, *_ = json.loads(
        run(installation / "bin" / "python", "-c", COMMANDS, json.dumps(commands), folder=tmp_path)
    )
    assert "predicted return" in trained
    assert [episode["seed"] for episode in json.loads(evaluated)["episodes"]] == [0, 1]

    wanted = {"own.npz", "model.zip", "model.progress.csv", "model.json", "policy.onnx", "report.html", "report.json"}
    assert {path.name for path in tmp_path.iterdir()} == wanted
    assert "data:image/png" in (tmp_path / "report.html").read_text(encoding="utf-8")
