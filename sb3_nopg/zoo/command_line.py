"""
rl-baselines3-zoo with the algorithms nopg, nopg_d and nopg_s, and ddpg and td3 on fixed data.

    python -m sb3_nopg.zoo train --algo nopg_d --env Pendulum-v1 --seed 0 --progress
    python -m sb3_nopg.zoo enjoy --algo nopg_d --env Pendulum-v1
    python -m sb3_nopg.zoo record --algo nopg_d --env Pendulum-v1 -n 200
    python -m sb3_nopg.zoo plot --algos nopg_d --env Pendulum-v1 --no-million
    python -m sb3_nopg.zoo optimize --algo nopg_s --env Pendulum-v1 --n-trials 20 --study-name pendulum --storage study.log

Everything after the command is rl_zoo3's own; COMMAND --help lists it. A --storage that ends in .log is a journal: processes,
and machines with a common folder, that give the same one and the same --study-name share a search.
"""

import importlib.util
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

COMMANDS = ("train", "enjoy", "record", "plot", "optimize")
# Where rl_zoo3's own default means something else to an algorithm of some hundred updates without an environment. They come
# before what the user types, which therefore wins.
_TRAIN_DEFAULTS = ["--algo", "nopg_d", "--eval-freq", "50"]
_DEFAULTS = {
    "train": _TRAIN_DEFAULTS,
    # It would open a browser for each of its plots.
    "optimize": [*_TRAIN_DEFAULTS, "--optimize-hyperparameters", "--n-evaluations", "4", "--no-optim-plots"],
    # Where train writes. Elsewhere rl_zoo3 looks for models of others, and asks the network for them.
    "enjoy": ["--algo", "nopg_d", "--folder", "logs"],
    "record": ["--algo", "nopg_d", "--folder", "logs"],
    "plot": ["--algos", "nopg_d", "--exp-folders", "logs"],
}
# What rl_zoo3 uses there without declaring it.
_NEEDED = {"record": ("moviepy",), "plot": ("seaborn",), "optimize": ("pandas",)}


def main(arguments: list[str]) -> int:
    """
    :param arguments: of the command line, without the program
    :return: exit code: 0, or 2 for what the caller can put right
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        (sys.stdout if arguments else sys.stderr).write(f"{__doc__}\n" if __doc__ else "")
        return 0 if arguments else 2
    command, *rest = arguments
    if command not in COMMANDS:
        return _fail(f"there is no command {command!r}; the commands are {', '.join(COMMANDS)}")
    missing = [name for name in ("rl_zoo3", "optuna", *_NEEDED.get(command, ())) if importlib.util.find_spec(name) is None]
    if missing:
        return _fail(f'{" and ".join(missing)} must be installed: pip install "sb3-nopg[zoo]"')
    return _run(command, rest)


def _run(command: str, rest: list[str]) -> int:
    # Only now, because rl_zoo3 takes seconds to load and is an extra.
    import gymnasium as gym
    import yaml

    from sb3_nopg.common.errors import SolverError
    from sb3_nopg.zoo.registration import register

    register()
    try:
        if command == "optimize":
            _check_storage(rest)
        with _arguments(command, [*_DEFAULTS[command], *rest]):
            _script(command)()
    # rl_zoo3 tells users of their mistakes by assertions.
    except (ValueError, AssertionError, SolverError, OSError, yaml.YAMLError, gym.error.Error, ImportError) as error:
        return _fail(str(error) or type(error).__name__)
    except (NameError, SyntaxError) as error:
        return _fail(f"{error}; rl_zoo3 reads values on the command line as Python: quote text, policy:\"'MlpPolicy'\"")
    return 0


def _script(command: str) -> Callable[[], object]:
    if command == "record":
        # rl_zoo3 has this one as a script only.
        return lambda: runpy.run_module("rl_zoo3.record_video", run_name="__main__")
    if command == "plot":
        from rl_zoo3.plots import all_plots

        return all_plots
    if command == "enjoy":
        from rl_zoo3.enjoy import enjoy

        return enjoy
    from rl_zoo3.train import train

    return train


@contextmanager
def _arguments(command: str, arguments: list[str]) -> Iterator[None]:
    """rl_zoo3 reads ``sys.argv``."""
    before = sys.argv
    sys.argv = [f"python -m sb3_nopg.zoo {command}", *arguments]
    try:
        yield
    finally:
        sys.argv = before


def _check_storage(arguments: list[str]) -> None:
    values = [argument.partition("=")[2] for argument in arguments if argument.startswith("--storage=")]
    values += [following for option, following in pairwise(arguments) if option == "--storage"]
    for storage in values:
        if not storage.endswith(".log") and "://" not in storage:
            raise ValueError(
                f"--storage: {storage!r} is neither a journal nor a database; "
                "give a file that ends in .log, or an address such as sqlite:///study.db"
            )


def _fail(problem: str) -> int:
    sys.stderr.write(f"error: {problem}\n")
    return 2
