"""
Data that a config names: a file, or a recipe that makes the same transitions from the same seed.

    data: {file: recorded.npz}
    data: {grid: {levels: [20, 20, 2]}}
    data: {rollouts: {policy: uniform, n_transitions: 1500, start: operator}}

Beside it may stand ``seed``, otherwise the run's own, and ``env``, the environment that is asked where the run's own cannot
start anywhere: ``Pendulum-v1`` has no grid, ``nopg/Pendulum-v0`` with the same dynamics has. And ``mirror``, with the fields
``observation_signs`` and ``action_signs``, adds the transitions' mirror images.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import nopg_envs
from nopg_envs.behaviours import BEHAVIOURS, Behaviour
from sb3_nopg.common.errors import InputError
from sb3_nopg.common.numbers import check_count
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.data.mirror_images import add_mirror_images
from sb3_nopg.data.quantities import Quantities

#: where the transitions come from; a recipe names one of them
SOURCES = ("file", "grid", "rollouts")
_EXAMPLE = "Write for instance data: {rollouts: {policy: uniform, n_transitions: 1500}}"
_EXAMPLES = {"grid": "Write for instance data: {grid: {levels: [20, 20, 2]}}", "rollouts": _EXAMPLE}
_ROLLOUT_FIELDS = ("policy", "n_transitions", "n_episodes", "start", "episode_steps")
# How often the scripted driver does the right thing.
_PUMPING_SHARE = 0.5


def make_dataset(
    data: Any, env: gym.Env, seed: int, folder: str | os.PathLike[str] | None = None, *, advice: str | None = None
) -> TransitionDataset:
    """
    :param data: what a config says under ``data``
    :param env: environment of the run; its state afterwards is unspecified
    :param seed: of the data, unless ``data`` has its own
    :param folder: where a relative path is looked for that the current directory does not have
    :param advice: what to write instead of a grid or rollouts that the environment refuses; as a config has it by default
    :raises InputError: naming the field of ``data`` at fault
    """
    source, content = check_recipe(data)
    dataset = _from_file(content, folder) if source == "file" else _collected(source, data, env, seed, advice)
    mirror = data.get("mirror")
    return dataset if mirror is None else _with_mirror_images(dataset, mirror)


def _with_mirror_images(dataset: TransitionDataset, mirror: Any) -> TransitionDataset:
    names = ("observation_signs", "action_signs")
    fields = _section("mirror", mirror, names)
    for name in names:
        if name not in fields:
            raise InputError(f"data.mirror.{name}", "is missing", "Give 1 or -1 for each dimension")
    return add_mirror_images(dataset, fields["observation_signs"], fields["action_signs"])


def _collected(source: str, data: Mapping[str, Any], env: gym.Env, seed: int, advice: str | None) -> TransitionDataset:
    content = data[source]
    own = data.get("env")
    asked = env if own is None else _make_env(own)
    try:
        arrays = _COLLECTORS[source](content, asked, int(data.get("seed", seed)))
    except InputError:
        raise
    except ValueError as error:
        # Errors of nopg_envs name the argument at fault, which is the field here.
        raise InputError(f"data.{source}", str(error).rstrip("."), advice or _EXAMPLES[source]) from error
    finally:
        if own is not None:
            asked.close()
    if not (isinstance(asked.observation_space, spaces.Box) and isinstance(asked.action_space, spaces.Box)):
        raise InputError("data", f"{asked} has spaces that are no Box", "Flatten or encode them first")
    dims = arrays["observations"].shape[1], arrays["actions"].shape[1]
    return TransitionDataset(
        **arrays,
        observation_space=asked.observation_space,
        action_space=asked.action_space,
        quantities=Quantities.told_by(asked.metadata or {}, *dims),
    )


def check_recipe(data: Any) -> tuple[str, Any]:
    """
    :param data: what a config says under ``data``
    :return: name of the source and what it is given
    """
    if not isinstance(data, Mapping):
        raise InputError("data", f"{data!r} says not where the data come from", _EXAMPLE)
    unknown = sorted(set(map(str, data)) - {*SOURCES, "env", "seed", "mirror"})
    if unknown:
        fix = f"Use one of {', '.join(SOURCES)}, and env, seed, mirror"
        raise InputError(f"data.{unknown[0]}", "is not a field of a recipe", fix)
    named = [source for source in SOURCES if source in data]
    if len(named) != 1:
        raise InputError("data", f"names {len(named)} sources", f"Name one of {', '.join(SOURCES)}")
    (source,) = named
    if source == "file" and {"env", "seed"} & set(data):
        raise InputError("data", "a file needs neither env nor seed", "Leave them out")
    check_count("data.seed", data.get("seed", 0), 0)
    return source, data[source]


def _from_file(path: Any, folder: str | os.PathLike[str] | None) -> TransitionDataset:
    if not isinstance(path, str):
        raise InputError("data.file", f"{path!r} is not a path", "Give the path of a data set")
    candidates = [Path(path).expanduser()]
    if folder is not None:
        candidates.append(Path(folder) / candidates[0])
    for candidate in candidates:
        if candidate.exists():
            return TransitionDataset.load(candidate)
    looked = " and ".join(str(candidate.absolute().parent) for candidate in candidates)
    raise InputError("data.file", f"there is no {path} (looked in {looked})", "Give the path of a data set")


def _make_env(env_id: Any) -> gym.Env:
    if not isinstance(env_id, str):
        raise InputError("data.env", f"{env_id!r} is not the id of an environment", "Give one, such as nopg/Pendulum-v0")
    try:
        return gym.make(env_id)
    except (gym.error.Error, ImportError) as error:
        raise InputError("data.env", str(error).rstrip("."), "Give the id of an environment") from error


def _section(source: str, content: Any, known: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(content, Mapping):
        raise InputError(f"data.{source}", f"{content!r} has no fields", f"Its fields are {', '.join(known)}")
    unknown = sorted(set(map(str, content)) - set(known))
    if unknown:
        raise InputError(f"data.{source}.{unknown[0]}", "is not a field", f"The fields are {', '.join(known)}")
    return content


def _grid(content: Any, env: gym.Env, seed: int) -> dict[str, np.ndarray]:
    fields = _section("grid", content, ("levels",))
    if "levels" not in fields:
        raise InputError("data.grid.levels", "is missing", "Give a count for each state dimension, then for each action")
    # For steps that are random; a grid itself is not.
    env.reset(seed=seed)
    return nopg_envs.grid(env, fields["levels"])


def _rollouts(content: Any, env: gym.Env, seed: int) -> dict[str, np.ndarray]:
    fields = _section("rollouts", content, _ROLLOUT_FIELDS)
    if "policy" not in fields:
        raise InputError("data.rollouts.policy", "is missing", f"Give one of {', '.join(POLICIES)}")
    policy = fields["policy"]
    if policy not in POLICIES:
        raise InputError("data.rollouts.policy", f"{policy!r} is unknown", f"Give one of {', '.join(POLICIES)}")
    if "episode_steps" in fields:
        env = _shortened(env, fields["episode_steps"])
    counts = {name: fields[name] for name in ("n_transitions", "n_episodes") if name in fields}
    behaviour = policy if policy in BEHAVIOURS else _SCRIPTED[policy](env.action_space, np.random.default_rng([seed, 1]))
    return nopg_envs.rollouts(env, behaviour, start=_start(fields.get("start")), seed=seed, **counts)


def _shortened(env: gym.Env, steps: Any) -> gym.Env:
    """Episodes cut early see more of the starts: random actions rarely lead where a box of starts does."""
    check_count("data.rollouts.episode_steps", steps)
    return gym.wrappers.TimeLimit(env, steps)


def _start(start: Any) -> Any:
    """A name or a state as it is; ``{low: [...], high: [...]}`` is a box to draw states from."""
    if not isinstance(start, Mapping):
        return start
    fields = _section("rollouts.start", start, ("low", "high"))
    try:
        low, high = (np.array(fields[name], dtype=np.float64) for name in ("low", "high"))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            "data.rollouts.start", f"{dict(start)} is no box of states", "Give low and high, each a list of numbers"
        ) from error
    if low.shape != high.shape or low.ndim != 1 or not (np.isfinite([low, high]).all() and (low <= high).all()):
        raise InputError("data.rollouts.start", f"low {low} and high {high} are no box", "Give low ≤ high in each dimension")
    return lambda rng: rng.uniform(low, high)


def mountain_car_pumping(action_space: spaces.Box, rng: np.random.Generator) -> Behaviour:
    """
    A mediocre driver of the mountain car: half of the time pushes along the velocity, the rest of the time anyhow.

    :param action_space: of one dimension
    :param rng: drawn from at every call
    """
    low, high = action_space.low.astype(np.float64), action_space.high.astype(np.float64)

    def act(observation: np.ndarray) -> np.ndarray:
        if rng.random() < _PUMPING_SHARE:
            return np.where(observation[1:2] >= 0.0, high, low) * rng.uniform(0.3, 1.0)
        return rng.uniform(low, high)

    return act


_SCRIPTED: dict[str, Callable[[Any, np.random.Generator], Behaviour]] = {"mountain_car_pumping": mountain_car_pumping}
#: behaviours that rollouts know by name
POLICIES = (*BEHAVIOURS, *_SCRIPTED)
_COLLECTORS: dict[str, Callable[[Any, gym.Env, int], dict[str, np.ndarray]]] = {"grid": _grid, "rollouts": _rollouts}
