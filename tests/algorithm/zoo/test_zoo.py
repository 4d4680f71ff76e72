"""The zoo end to end on a tiny config: train, enjoy, record, continue, search; and everything it refuses."""

import multiprocessing
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

pytest.importorskip("rl_zoo3")

from rl_zoo3.utils import ALGOS

from sb3_nopg import InputError, SolverError
from sb3_nopg.data.buffer import read_replay_buffer
from sb3_nopg.prediction.estimator import Estimator
from sb3_nopg.recipes import check_recipe
from sb3_nopg.training.training import Training
from sb3_nopg.zoo.command_line import main
from sb3_nopg.zoo.configs import shipped_configs
from sb3_nopg.zoo.experiment import OfflineExperimentManager
from sb3_nopg.zoo.registration import register

# What rl_zoo3, moviepy and plotting libraries warn of is theirs.
pytestmark = pytest.mark.filterwarnings("default")

ENV, FOLDER = "nopg/Pendulum-v0", "nopg-Pendulum-v0"
TINY = {
    "n_timesteps": 4,
    "policy": "MlpPolicy",
    "policy_kwargs": {"net_arch": [4]},
    "data": {"rollouts": {"policy": "uniform", "n_transitions": 60}},
    "transitions": "samples",
    "estimator_kwargs": {"state_bandwidth": [0.3, 0.3, 1.0], "action_bandwidth": 1.0, "next_state_bandwidth": 0.1},
}
QUIET = ["--verbose", "0", "--eval-freq", "-1", "--seed", "0"]


@pytest.fixture
def workplace(tmp_path, monkeypatch) -> Path:
    """A directory that is not the checkout, with a tiny config."""
    (tmp_path / "tiny.yml").write_text(yaml.safe_dump({ENV: TINY, "Pendulum-v1": {**TINY, "data": {"file": "no.npz"}}}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    return tmp_path


def train(*arguments: str, algo: str = "nopg_d", env: str = ENV) -> int:
    return main(["train", "--algo", algo, "--env", env, "-conf", "tiny.yml", *QUIET, *arguments])


@pytest.mark.slow
def test_train_enjoy_record(workplace, capfd):
    arguments = ["--eval-freq", "2", "--eval-episodes", "1", "--save-freq", "2", "-tb", "tb", "--progress"]
    assert train(*arguments) == 0
    run = workplace / "logs" / "nopg_d" / f"{FOLDER}_1"
    for name in (f"{FOLDER}.zip", "best_model.zip", "rl_model_2_steps.zip", "rl_model_4_steps.zip"):
        assert (run / name).is_file(), name
    assert not (run / "replay_buffer.pkl").exists()
    assert np.load(run / "evaluations.npz")["timesteps"].tolist() == [2, 4]  # policy updates
    assert list((workplace / "tb").rglob("events.out.tfevents*"))
    # The data can be made again from what was written down.
    assert yaml.safe_load((run / FOLDER / "config.yml").read_text())["data"] == {**TINY["data"], "seed": 0}
    # Learning never stepped the training environment.
    assert len((run / "0.monitor.csv").read_text().splitlines()) == 2

    capfd.readouterr()
    assert main(["enjoy", "--env", ENV, "-n", "501", "--no-render"]) == 0
    told = capfd.readouterr().out
    assert "1 Episodes" in told
    assert "Episode Length 500" in told
    evaluated = float(np.load(run / "evaluations.npz")["results"][-1, 0])
    # The same policy; `enjoy` adds up its rewards in float32.
    assert float(re.search(r"Mean reward: (-?[\d.]+)", told)[1]) == pytest.approx(evaluated, rel=1e-5)

    assert main(["record", "--env", ENV, "-n", "5", "-o", "videos"]) == 0
    (video,) = (workplace / "videos").glob("*.mp4")
    assert video.stat().st_size > 1000


@pytest.mark.slow
def test_a_config_without_settings_trains_on_a_model(workplace, capfd):
    config = {name: TINY[name] for name in ("n_timesteps", "policy", "data")}
    (workplace / "tiny.yml").write_text(yaml.safe_dump({ENV: {**config, "model_kwargs": {"n_nodes": 200}}}))
    assert train() == 0, capfd.readouterr().err
    register()
    model = ALGOS["nopg_d"].load(f"logs/nopg_d/{FOLDER}_1/{FOLDER}.zip", device="cpu")
    assert (model.transitions, model.model_kwargs) == ("model", {"n_nodes": 200})


@pytest.mark.slow
def test_runs_repeat_and_differ_by_seed(workplace):
    for seed in ("5", "5", "6"):
        assert train("--seed", seed) == 0
    register()
    models = [ALGOS["nopg_d"].load(f"logs/nopg_d/{FOLDER}_{run}/{FOLDER}.zip", device="cpu") for run in (1, 2, 3)]
    first, again, other = (model.predict(np.array([-1.0, 0.0, 0.5]), deterministic=True)[0] for model in models)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["nopg_d", "nopg_s", "ddpg"])
def test_continue_on_the_same_data(workplace, algo, capfd):
    if algo == "ddpg":
        own = {name: TINY[name] for name in ("n_timesteps", "policy", "policy_kwargs", "data")}
        (workplace / "tiny.yml").write_text(yaml.safe_dump({ENV: {**own, "batch_size": 8}}))
    assert train(algo=algo) == 0
    first = f"logs/{algo}/{FOLDER}_1/{FOLDER}.zip"
    # With another seed: the data stay those of the first part.
    assert train("-i", first, "--seed", "9", "--save-replay-buffer", algo=algo) == 0
    second = workplace / "logs" / algo / f"{FOLDER}_2"
    assert yaml.safe_load((second / FOLDER / "config.yml").read_text())["data"]["seed"] == 0
    register()
    actions = [
        ALGOS[algo].load(path, device="cpu").predict(np.array([-1.0, 0.0, 0.5]))[0]
        for path in (first, second / f"{FOLDER}.zip")
    ]
    assert not np.array_equal(*actions)  # it went on learning

    # From now on the saved buffer is the data, whatever the seed.
    assert train("-i", str(second / f"{FOLDER}.zip"), "--seed", "10", "--save-replay-buffer", algo=algo) == 0
    third = workplace / "logs" / algo / f"{FOLDER}_3"
    buffers = [read_replay_buffer(run / "replay_buffer.pkl").dataset for run in (second, third)]
    assert len(buffers[0]) == 60
    assert np.array_equal(buffers[0].observations, buffers[1].observations)

    capfd.readouterr()
    changed = ["-params", "data:{'grid': {'levels': [3, 3, 2]}}"]
    assert train("-i", str(second / f"{FOLDER}.zip"), *changed, algo=algo) == 2
    assert "replay_buffer.pkl would replace it" in capfd.readouterr().err


def run_as_program(words: list[str]) -> None:
    """``python -m sb3_nopg.zoo``."""
    sys.argv = ["sb3_nopg.zoo", *words]
    runpy.run_module("sb3_nopg.zoo", run_name="__main__", alter_sys=True)


@pytest.mark.slow
def test_a_search_is_shared_by_two_processes(workplace, capfd):
    arguments = ["--algo", "nopg_s", "--env", ENV, "-conf", "tiny.yml", *QUIET, "--eval-episodes", "1", "--n-evaluations", "1"]
    arguments += ["--storage", "study.log", "--study-name", "tiny", "-params", "n_timesteps:1"]
    # A copy of this process, which need not import everything again.
    words = ["optimize", *arguments, "--n-trials", "2"]
    other = multiprocessing.get_context("fork").Process(target=run_as_program, args=(words,), daemon=True)
    other.start()
    assert main(["optimize", *arguments, "--n-trials", "1"]) == 0
    other.join(timeout=80)
    assert other.exitcode == 0, capfd.readouterr()

    import optuna

    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend("study.log"))
    trials = optuna.load_study(study_name="tiny", storage=storage).trials
    assert sorted(trial.number for trial in trials) == [0, 1, 2]
    assert all(trial.state == optuna.trial.TrialState.COMPLETE for trial in trials)
    assert set(trials[0].params) == {"learning_rate", "one_minus_gamma"}

    # What was found can be trained with.
    assert train("--storage", "study.log", "--study-name", "tiny", "--trial-id", "0", algo="nopg_s") == 0
    (config,) = (workplace / "logs" / "nopg_s").glob(f"{FOLDER}_*/{FOLDER}/config.yml")
    assert yaml.safe_load(config.read_text())["gamma"] == pytest.approx(1 - trials[0].params["one_minus_gamma"])
    assert train("--storage", "study.log", "--study-name", "tiny", "--trial-id", "7", algo="nopg_s") == 2
    assert "no trial 7 of tiny" in capfd.readouterr().err


@pytest.mark.slow
def test_numerics_that_fail_prune_the_trial(workplace, monkeypatch):
    register()

    def fail(self: object, *_: object) -> None:
        raise SolverError("no convergence")

    monkeypatch.setattr(Training, "update", fail)
    arguments = ["--env", ENV, "-conf", "tiny.yml", *QUIET, "--n-trials", "1", "--storage", "study.log", "--study-name", "s"]
    # Nothing was completed, so there is no best trial to report; the process itself lives to say so.
    assert main(["optimize", *arguments]) == 2
    import optuna

    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend("study.log"))
    (trial,) = optuna.load_study(study_name="s", storage=storage).trials
    assert trial.state == optuna.trial.TrialState.PRUNED


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-params", "normalize:True"], "normalize: means nothing"),
        (["-params", "n_envs:4"], "n_envs: 4 environments would stand idle"),
        (["-params", "frame_stack:4"], "frame_stack: means nothing"),
        (["-params", "vec_env_wrapper:'a.B'"], "vec_env_wrapper: means nothing"),
        (["-params", "noise_type:'normal'"], "noise_type: means nothing"),
        (["-params", "train_freq:4"], "train_freq: means nothing"),
        (["-params", "gradient_steps:4"], "gradient_steps: means nothing"),
        (["-params", "learning_starts:4"], "learning_starts: means nothing"),
        (["-params", "buffer_size:4"], "buffer_size: means nothing"),
        (["-params", "replay_buffer_class:'HerReplayBuffer'"], "replay_buffer_class: means nothing"),
        (["-params", "gama:0.9"], "gama: is not an argument of PlayableNOPGD"),
        (["-params", "gamma:1.5"], "gamma: 1.5 is out of range"),
        (["-params", "policy:'CnnPolicy'"], "policy: 'CnnPolicy' is unknown"),
        (["-params", "data:{'grid': {}}"], "data.grid.levels: is missing"),
        (["-params", "data:None"], "data: None says not where"),
        (["-params", "estimator_kwargs:{'state_bandwidth': [1.0]}"], "state_bandwidth: has shape"),
        (["-params", "state_bandwidth:[1.0]"], "state_bandwidth: it is a setting of the estimator"),
        (["-i", "nothing.zip"], "must be a valid path"),
        (["-conf", "nothing.yml"], "nothing.yml"),
        (["--env", "nopg/Pendulum-v9"], "not found in gym registry"),
        (["--env", "Pendulum-v1"], "data.file: there is no no.npz"),
        (["--env", "CartPole-v1"], "Hyperparameters not found"),
        (["--algo", "sac"], "sac does not learn from a data set"),
        (["-params", "policy:MlpPolicy"], "quote text"),
        (["-params", "learning_rate:'1e-3'"], "learning_rate: '1e-3' is text"),
        (["--trial-id", "0"], "trial-id: the study is not named"),
    ],
)
def test_refusals(workplace, capfd, arguments, sentence):
    assert train(*arguments) == 2
    error = capfd.readouterr().err
    assert sentence in error
    assert "Traceback" not in error
    assert not (workplace / "logs").exists() or arguments[-1].startswith(("gamma", "policy", "estimator_kwargs"))


def test_a_config_without_data_is_refused(workplace, capfd):
    content = {name: value for name, value in TINY.items() if name != "data"}
    (workplace / "tiny.yml").write_text(yaml.safe_dump({ENV: content}))
    assert train() == 2
    assert "data: tiny.yml names none" in capfd.readouterr().err


def test_a_config_that_is_no_yaml_is_refused(workplace, capfd):
    (workplace / "tiny.yml").write_text("{")
    assert train() == 2
    assert "tiny.yml" in capfd.readouterr().err


def test_what_is_wrong_with_the_data_is_told_under_a_progress_bar(workplace, capfd, monkeypatch):
    register()

    def fail(self: object, *_: object) -> None:
        raise InputError("initial_states", "neither given nor told", "Pass them")

    monkeypatch.setattr(Estimator, "_build", fail)
    assert train("--progress") == 2
    assert "initial_states: neither given nor told" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "python -m sb3_nopg.zoo train"),
        (["trian"], "there is no command 'trian'"),
        (["enjoy", "--env", ENV, "--no-render"], "folder was not found"),
        (["record", "--env", ENV], "folder was not found"),
        (["optimize", "--env", ENV, "--storage", "study"], "neither a journal nor a database"),
        (["optimize", "--env", ENV, "--storage=study.txt"], "neither a journal nor a database"),
        (["optimize", "--env", ENV, "--algo", "td3"], "rl_zoo3 searches how td3 acts"),
    ],
)
def test_refusals_of_the_other_commands(workplace, capfd, arguments, sentence):
    assert main(arguments) == 2
    assert sentence in capfd.readouterr().err


@pytest.mark.parametrize(
    ("command", "name"),
    [("train", "rl_zoo3"), ("optimize", "optuna"), ("optimize", "pandas"), ("record", "moviepy"), ("plot", "seaborn")],
)
def test_what_is_not_installed_is_named(monkeypatch, capfd, command, name):
    monkeypatch.setattr("importlib.util.find_spec", lambda asked: None if asked == name else object())
    assert main([command]) == 2
    assert capfd.readouterr().err == f'error: {name} must be installed: pip install "sb3-nopg[zoo]"\n'


def test_help(capfd):
    assert main(["--help"]) == 0
    assert "optimize" in capfd.readouterr().out


@pytest.mark.slow
def test_plot(workplace):
    pytest.importorskip("seaborn")
    for seed in ("0", "1"):
        assert train("--eval-freq", "2", "--eval-episodes", "1", "--seed", seed) == 0
    assert main(["plot", "--env", "Pendulum", "--no-display", "--no-million", "-o", "plotted"]) == 0
    assert list(workplace.glob("plotted*"))


ENVIRONMENTS = {
    "Pendulum-v1",
    "MountainCarContinuous-v0",
    "nopg/Pendulum-v0",
    "nopg/LQR-v0",
    "nopg/QuanserCartPoleBalance-v0",
    "nopg/QuanserCartPoleSwingUp-v1",
}


def test_configs_come_with_the_package():
    configs = {name: yaml.safe_load(path.read_text()) for name, path in shipped_configs().items()}
    assert set(configs) == {"nopg_d", "nopg_s", "ddpg", "td3"}
    for content in configs.values():
        assert set(content) == ENVIRONMENTS
        for env_id, entry in content.items():
            check_recipe(entry["data"])
            # A comparison is one on the same data.
            assert entry["data"] == configs["nopg_d"][env_id]["data"]


def test_configs_are_found_inside_an_installed_package(tmp_path, monkeypatch):
    (tmp_path / "sb3_nopg" / "zoo_configs").mkdir(parents=True)
    (tmp_path / "sb3_nopg" / "zoo_configs" / "nopg_d.yml").touch()
    monkeypatch.setattr("sb3_nopg.__file__", str(tmp_path / "sb3_nopg" / "__init__.py"))
    assert shipped_configs() == {"nopg_d": tmp_path / "sb3_nopg" / "zoo_configs" / "nopg_d.yml"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "env"),
    [
        ("nopg", "nopg/Pendulum-v0"),
        ("nopg_d", "nopg/LQR-v0"),
        ("nopg_d", "Pendulum-v1"),
        ("nopg_s", "MountainCarContinuous-v0"),
        ("nopg_s", "nopg/QuanserCartPoleBalance-v0"),
        ("ddpg", "nopg/QuanserCartPoleSwingUp-v1"),
        ("td3", "nopg/LQR-v0"),
    ],
)
def test_shipped_configs_run(workplace, algo, env):
    arguments = ["-n", "1", *QUIET]
    assert main(["train", "--algo", algo, "--env", env, *arguments]) == 0


@pytest.mark.slow
def test_environment_arguments_of_the_config_reach_evaluation_and_video(workplace):
    assert main(["train", "--env", "nopg/LQR-v0", "-n", "2", "--verbose", "0", "--seed", "0", "--eval-freq", "1"]) == 0
    (arguments,) = (workplace / "logs").rglob("args.yml")
    assert "-0.01" in arguments.read_text()
    results = np.load(next((workplace / "logs").rglob("evaluations.npz")))["results"]
    assert (results < 0).all()  # with the environment's own R, inputs are rewarded


def test_our_config_does_not_hide_those_of_rl_zoo3():
    register()
    from sb3_nopg.zoo.experiment import _shipped_config

    assert _shipped_config("td3", "BipedalWalker-v3") is None
    assert _shipped_config("ppo", "Pendulum-v1") is None
    assert _shipped_config("td3", "Pendulum-v1") == str(shipped_configs()["td3"])
    import rl_zoo3.train

    assert rl_zoo3.train.ExperimentManager is OfflineExperimentManager
