"""From the text of an argument to what the Python API takes."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
from gymnasium import spaces

from nopg_envs.demonstrations import demonstration_file
from sb3_nopg.common.errors import InputError, one_line
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.dynamics.bounds import Limit
from sb3_nopg.recipes import make_dataset

DATA_HELP = (
    "A data file (.npz, .h5, .csv, .parquet, minari:ID, …; see `nopg data`), or a recipe: grid:20,20,2 (levels of each state, "
    "then of each action), rollouts:uniform:1000 (a behaviour, how many transitions, and perhaps :operator to start there), "
    "both with --env; demonstrations:mountain_car_scripted (a set that comes with the package)."
)

LIMIT_HELP = (
    "Ends of a state's column, by number (from 0) or name, beyond which the task counts as lost: 0=-0.35:0.35, or theta=:2; "
    "may be repeated."
)
ANGLE_HELP = (
    "Two of the state's columns, by number (from 0) or name, that are cosine and sine of an angle: 0,1; may be repeated, or "
    "none for no angles. By default they are found."
)
REWARD_HELP = (
    "A formula over s (state), a (action), s2 (next state) and the columns' names instead of the data's rewards: "
    "'cos(s2[1]) - 0.1*a[0]**2', 'cos(next_theta) - 0.1*u**2'."
)
TRUST_HELP = "Read pickles too, in data (.pkl, .npy) and in models (.zip). They can run any program."


def numbers(option: str, text: str) -> list[float]:
    """
    :param option: that the text was given to
    :param text: numbers with commas between them
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(option, f"{text!r} is not a list of numbers", "Separate numbers by commas, like 0.5,1.2") from error


def states(option: str, given: list[str] | None) -> list[list[float]] | None:
    """
    :param option: that the texts were given to
    :param given: states, each as numbers with commas between them
    """
    return [numbers(option, text) for text in given] if given else None


def limits(option: str, given: list[str] | None) -> dict[int | str, Limit] | None:
    """
    :param option: that the texts were given to
    :param given: like ``0=-0.35:0.35``, or ``theta=:2`` where one side has no end
    :return: smallest and largest value of columns
    """
    found: dict[int | str, Limit] = {}
    for text in given or []:
        name, _, ends = text.partition("=")
        column: int | str = int(name) if name.strip().isdecimal() else name.strip()
        low, colon, high = ends.partition(":")
        try:
            if not colon or not name.strip() or column in found:
                raise ValueError
            found[column] = (float(low) if low.strip() else None, float(high) if high.strip() else None)
        except ValueError as error:
            fix = "Write a column's number or name and its ends once, like 0=-0.35:0.35 or theta=:2"
            raise InputError(option, f"{text!r} is no limit", fix) from error
    return found or None


def angles(option: str, given: list[str] | None) -> list[tuple[int | str, int | str]] | None:
    """
    :param option: that the texts were given to
    :param given: like ``0,1`` or ``cos_theta,sin_theta``, or ``none`` by itself
    :return: pairs of columns; None to find them
    """
    if given == ["none"]:
        return []
    pairs = []
    for text in given or []:
        columns = [int(part) if part.strip().isdecimal() else part.strip() for part in text.split(",")]
        if len(columns) != 2 or "" in columns:
            raise InputError(option, f"{text!r} is no pair of columns", "Write two numbers or names, like 0,1, or none")
        pairs.append((columns[0], columns[1]))
    return pairs or None


def labels(text: str | None) -> list[str] | None:
    """
    :param text: names with commas between them
    """
    return None if text is None else [part.strip() for part in text.split(",")]


def make_env(env_id: str, render_mode: str | None = None, options: Mapping[str, Any] | None = None) -> gym.Env:
    """
    :param env_id: as Gymnasium knows it, ours included: importing nopg_envs has made them known
    :param render_mode: for pictures
    :param options: of the environment
    """
    try:
        return gym.make(env_id, render_mode=render_mode, **(options or {}))
    except (gym.error.Error, ImportError, TypeError, ValueError) as error:
        # Gymnasium's own messages mention the id or the package that is missing.
        raise InputError("--env", f"{env_id!r} cannot be made ({one_line(error)})", "Give the id of an environment") from error


def load_data(source: str, env_id: str | None, seed: int, *, trust: bool = False) -> TransitionDataset:
    """
    :param source: a file or a recipe, see `DATA_HELP`
    :param env_id: that a recipe asks for transitions
    :param seed: of a recipe
    :param trust: whether to read pickles, which may run any program
    """
    kind, _, details = source.partition(":")
    if kind == "demonstrations":
        try:
            return TransitionDataset.load(demonstration_file(details))
        except ValueError as error:
            raise InputError("DATA", one_line(error), "Use one of these names, or a file") from error
    recipe = _recipe(source, kind, details)
    if recipe is None:
        return TransitionDataset.load(source, trust=trust)
    if env_id is None:
        raise InputError("DATA", f"the recipe {source!r} asks an environment for transitions", "Say which by --env")
    env = make_env(env_id)
    try:
        return make_dataset(recipe, env, seed, advice=_advice(kind, env))
    finally:
        env.close()


def _recipe(source: str, kind: str, details: str) -> dict[str, Any] | None:
    """As a config of the zoo has it; None for what is no recipe."""
    try:
        if kind == "grid":
            return {"grid": {"levels": [int(level) for level in details.split(",")]}}
        if kind == "rollouts":
            behaviour, count, *start = details.split(":")
            fields: dict[str, Any] = {"policy": behaviour, "n_transitions": int(count)}
            if start:
                (fields["start"],) = start
            return {"rollouts": fields}
    except ValueError as error:
        raise InputError(
            "DATA", f"{source!r} is not a complete recipe", "Write it like grid:20,20,2 or rollouts:uniform:1000"
        ) from error
    return None


def _advice(kind: str, env: gym.Env) -> str:
    """What to write instead of a recipe that this environment refuses."""
    state_space, action_space = getattr(env.unwrapped, "state_space", None), env.action_space
    if kind != "grid" or not isinstance(state_space, spaces.Box) or not isinstance(action_space, spaces.Box):
        return "Write rollouts:uniform:1000"
    levels = ["20"] * state_space.shape[0] + ["2"] * action_space.shape[0]
    return f"Write grid:{','.join(levels)}"
