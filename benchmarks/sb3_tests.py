"""
Stable-Baselines3's own tests of TD3, with NOPG in TD3's place: which pass, which do not, and why.

    pip download --no-binary :all: --no-deps stable-baselines3==VERSION     (the version that is installed)
    tar xzf stable_baselines3-VERSION.tar.gz
    python benchmarks/sb3_tests.py stable_baselines3-VERSION/tests

Every test that makes a TD3 runs as it is, but for those that SB3 itself marks as expensive. ``StandIn`` is what stands between
them and NOPG. Tests with other spaces than flat Boxes are left out: NOPG has none.
"""

import argparse
import inspect
import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import pytest
import stable_baselines3
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm, maybe_make_env
from stable_baselines3.common.vec_env import VecEnv

from machine import conditions
from sb3_nopg import NOPGD, TransitionDataset

RESULT = Path(__file__).parent / "results" / "sb3_tests.json"
# As many as TD3 makes in SB3's test of what it learns.
N_STEPS = 400
TD3 = stable_baselines3.TD3
# What a failed test asks for, by its name. A failure without an entry is a fault of ours.
GROWING, CRITIC = "a buffer that grows while it learns", "critics, of which NOPG has none"
WHY = {
    "test_run.py::test_offpolicy_multi_env": f"{GROWING}: it counts an update for each step of each environment",
    "test_n_step_replay.py::test_run": f"{GROWING}: that of TD3 with `n_steps`",
    "test_save_load.py::test_save_load_replay_buffer": f"{GROWING}: it extends it, once it is on a GPU, be there one or not",
    "test_save_load.py::test_warn_buffer": f"{GROWING}: its warning that the last episode is cut",
    "test_train_eval_mode.py::test_td3_train_with_batch_norm": CRITIC,
    "test_train_eval_mode.py::test_offpolicy_collect_rollout_batch_norm": CRITIC,
    "test_train_eval_mode.py::test_predict_with_dropout_batch_norm": CRITIC,
    "test_vec_normalize.py::test_offpolicy_normalization": "VecNormalize, which is refused and says why",
}


class StandIn(NOPGD):
    """
    NOPG as TD3's tests call it: what TD3 would collect is recorded with random actions before, and arguments about collecting,
    critics and exploration are dropped. Data are attached wherever there is an environment.
    """

    n_made: ClassVar[int] = 0

    def __init__(self, policy: Any, env: Any, *args: Any, policy_kwargs: dict[str, Any] | None = None, **settings: Any):
        type(self).n_made += 1
        if env is not None:
            env = BaseAlgorithm._wrap_env(maybe_make_env(env, 0), 0)
            if settings.get("_init_setup_model", True):
                settings["dataset"] = random_steps(env)
        ours = inspect.signature(NOPGD.__init__).parameters
        settings = {name: value for name, value in settings.items() if name in ours or name not in OF_TD3}
        if policy_kwargs is not None:
            settings["policy_kwargs"] = {name: value for name, value in policy_kwargs.items() if name != "n_critics"}
        super().__init__(policy, env, *args, **settings)

    def learn(self, *args: Any, tb_log_name: str = "TD3", **settings: Any) -> Any:
        return super().learn(*args, tb_log_name=tb_log_name, **settings)

    @classmethod
    def load(cls, path: Any, env: Any = None, **settings: Any) -> Any:
        settings = {name: value for name, value in settings.items() if name not in OF_TD3 or name == "device"}
        model = super().load(path, env, **settings)
        if env is not None:
            model.set_dataset(random_steps(model.env))
        return model


StandIn.__name__ = StandIn.__qualname__ = "TD3"
OF_TD3 = set(inspect.signature(TD3.__init__).parameters) - set(inspect.signature(NOPGD.__init__).parameters)


def random_steps(env: VecEnv) -> TransitionDataset:
    """Of the first of the environments."""
    for space in (env.observation_space, env.action_space):
        if not isinstance(space, spaces.Box) or (space is env.observation_space and len(space.shape) != 1):
            pytest.skip(f"no flat Box: {type(space).__name__}{space.shape or ''}")
    env.seed(0)
    env.action_space.seed(0)
    columns: dict[str, list[Any]] = {name: [] for name in ("observations", "actions", "rewards", "next_observations")}
    terminals, timeouts, before = [], [], env.reset()
    for _ in range(N_STEPS):
        action = env.action_space.sample()
        after, rewards, dones, infos = env.step(np.stack([action] * env.num_envs))
        done, late = bool(dones[0]), bool(infos[0].get("TimeLimit.truncated", False))
        reached = infos[0]["terminal_observation"] if done else after[0]
        row = (before[0], action.reshape(-1), float(rewards[0]), reached)
        for name, value in zip(columns, row, strict=True):
            columns[name].append(np.array(value))
        terminals.append(done and not late), timeouts.append(late)
        before = after
    return TransitionDataset(
        **columns,
        terminals=terminals,
        timeouts=timeouts,
        observation_space=env.observation_space,
    )


class Listener:
    """Chooses the tests that make a TD3, and writes down how each of them ends."""

    def __init__(self) -> None:
        self.ended: dict[str, tuple[str, str]] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if makes_td3(item)]
        for item in items:
            if item.get_closest_marker("expensive"):
                item.add_marker(pytest.mark.skip(reason="expensive, says SB3"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        if call.when == "setup":
            StandIn.n_made = 0
        report = yield
        if report.when == "call" or report.outcome != "passed":
            said = "" if call.excinfo is None else re.sub(r"^[\w.]*Skipped(: )?", "", call.excinfo.exconly().splitlines()[0])
            name = item.nodeid.split("/")[-1]
            if report.skipped or (report.passed and not StandIn.n_made):
                outcome, said = "left out", said or "ends before it makes a TD3"
            else:
                outcome = report.outcome
                why = WHY.get(name.partition("[")[0])
                said = f"asks for {why} ({said})" if said and why else said
            self.ended[name] = (outcome, said)
        return report


def makes_td3(item: pytest.Item) -> bool:
    assert isinstance(item, pytest.Function)
    given = item.callspec.params.values() if hasattr(item, "callspec") else ()
    named = getattr(item.module, "MODEL_DICT", {})
    classes = [value for one in given for value in (named[one][:1] if isinstance(one, str) and one in named else [one])]
    algorithms = [value for value in classes if isinstance(value, type) and issubclass(value, BaseAlgorithm)]
    return StandIn in algorithms if algorithms else "TD3" in item.function.__code__.co_names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", type=Path, help="folder with SB3's tests, from its source distribution")
    parser.add_argument(
        "-k", dest="only", default="", help="only tests that pytest's -k chooses; the others keep their results"
    )
    arguments = parser.parse_args()
    listener = Listener()
    started = conditions(("stable_baselines3", "torch", "gymnasium"))
    # Others may need packages that are not here.
    files = [str(path) for path in sorted(arguments.tests.glob("test_*.py")) if re.search(r"\bTD3\b", path.read_text())]
    with mock.patch.object(stable_baselines3, "TD3", StandIn):
        pytest.main(["-p", "no:cacheprovider", "-q", "--tb=short", "-k", arguments.only, *files], [listener])
    result: dict[str, Any] = {"runs": [], "tests": {}}
    if arguments.only and RESULT.exists():
        result = json.loads(RESULT.read_text())
    head = subprocess.run(
        ["git", "rev-parse", "--short=7", "HEAD"], cwd=RESULT.parent, capture_output=True, text=True, check=True
    )
    result["runs"].append({**started, "commit": head.stdout.strip(), "steps": N_STEPS})
    run = len(result["runs"])
    result["tests"] |= {name: {"outcome": ended, "why": why, "run": run} for name, (ended, why) in listener.ended.items()}
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    RESULT.with_suffix(".md").write_text(written(result))


def written(result: dict[str, Any]) -> str:
    """
    :param result: runs, and how each test ended in the last run that it was in
    :return: Markdown
    """
    tests = result["tests"]
    counts = Counter(test["outcome"] for test in tests.values())
    runs = [
        f"{number}. `{run['command']}`, commit {run['commit']}, {run['steps']} random steps, load {run['load_average'][0]}. "
        + run.get("note", "")
        for number, run in enumerate(result["runs"], 1)
    ]
    rows = [
        f"| `{name}` | {test['outcome']} | {test['why']} | {test['run']} |"
        for name, test in tests.items()
        if test["outcome"] != "passed"
    ]
    passed = [f"`{name}` ({test['run']})" for name, test in tests.items() if test["outcome"] == "passed"]
    return "\n\n".join(
        [
            f"# SB3's tests of TD3, version {result['runs'][-1]['stable_baselines3']}, with NOPG in its place",
            f"{counts['passed']} passed, {counts['failed']} failed, {counts['left out']} left out.",
            "\n".join(run.strip() for run in runs),
            "\n".join(["| test | | why | run |", "| --- | --- | --- | --- |", *rows]),
            f"Passed, and in which run: {', '.join(passed)}\n",
        ]
    )


if __name__ == "__main__":
    main()
