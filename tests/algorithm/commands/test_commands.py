"""The commands of ``nopg``: what they write, what they say, and how they end."""

import dataclasses
import inspect
import json
import re
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import typer
from stable_baselines3 import PPO, TD3
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from typer.testing import CliRunner

import nopg_envs
from nopg_robot.control.policy import OnnxPolicy
from sb3_nopg import NOPG, NOPGD, NOPGS, ExportError, InputError, SolverError, TransitionDataset
from sb3_nopg.commands import evaluate as evaluation
from sb3_nopg.commands import export as export_module
from sb3_nopg.commands import main as main_module
from sb3_nopg.commands import train as train_module
from sb3_nopg.commands.arguments import load_data
from sb3_nopg.commands.main import app
from sb3_nopg.common.failures import check_output, one_line_errors
from sb3_nopg.report.making import read_curve

ENV = "nopg/Pendulum-v0"
GRID = "grid:6,6,2"
# For tests of what comes after training.
SHORT = ("--updates", 1, "--transitions", "samples", "--estimator", "state_bandwidth=1", "--estimator", "action_bandwidth=1")


def nopg(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def fine(*arguments: object) -> str:
    result = nopg(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*arguments: object, code: int = 2) -> str:
    """One line on the error stream, nothing else there, and the exit code."""
    result = nopg(*arguments)
    assert result.exit_code == code, result.output
    lines = [line for line in result.stderr.splitlines() if not line.startswith("Note:")]
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("Error: ")
    return lines[0]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model of `nopg train` from a recipe."""
    path = tmp_path_factory.mktemp("trained") / "model.zip"
    output = fine("train", GRID, "--env", ENV, "--gamma", 0.95, "--updates", 4, "--seed", 3, "-o", path)
    return SimpleNamespace(path=path, output=output)


@pytest.fixture
def data_file(tmp_path):
    """A point that is pushed along a line, in episodes."""
    rng = np.random.default_rng(0)
    position, force = rng.uniform(-1, 1, (60, 1)), rng.uniform(-1, 1, (60, 1))
    data = TransitionDataset(
        observations=position,
        actions=force,
        rewards=-(position[:, 0] ** 2),
        next_observations=position + 0.1 * force,
        terminals=np.zeros(60, dtype=bool),
        episode_ids=np.repeat(np.arange(6), 10),
    )
    return data.save(tmp_path / "line.npz")


def test_help_tells_a_newcomer_what_there_is():
    text = fine("--help")
    for name in (
        "train",
        "model",
        "judge",
        "evaluate",
        "report",
        "export",
        "data",
        "demonstrate",
        "deploy",
        "collect",
        "reproduce",
    ):
        assert re.search(rf"^  {name} +[A-Z]", text, flags=re.MULTILINE), name
    assert "Exit codes" in text
    for name in ("train", "model", "judge", "evaluate", "report", "export", "demonstrate"):
        assert "Example: nopg" in fine(name, "--help"), name


def test_every_option_has_help():
    for name, command in typer.main.get_command(app).commands.items():
        for parameter in command.params:
            assert getattr(parameter, "help", None), f"{name} {parameter.name}"


def test_the_options_are_called_as_in_python():
    options = {parameter.name for parameter in typer.main.get_command(app).commands["train"].params}
    ours = options - {"data", "output", "algo", "updates", "overwrite", "trust", "limit", "angle", "reward", "estimator"}
    assert ours <= set(inspect.signature(NOPG.__init__).parameters)
    assert len(ours) >= 10


def test_shells_can_complete():
    environment = {"_NOPG_COMPLETE": "complete_bash", "COMP_WORDS": "nopg ev", "COMP_CWORD": "1"}
    assert CliRunner().invoke(app, [], env=environment, prog_name="nopg").stdout.split() == ["evaluate"]


def test_version():
    assert fine("--version").startswith("nopg 0.")


@pytest.mark.slow
def test_train_is_the_python_api(trained):
    env = gym.make(ENV)
    data = TransitionDataset(**nopg_envs.grid(env, (6, 6, 2)))
    model = NOPGD("MlpPolicy", env, gamma=0.95, dataset=data, seed=3, device="cpu").learn(4)
    loaded = NOPG.load(trained.path)
    states = data.observations[::7]
    np.testing.assert_array_equal(loaded.predict(states)[0], model.predict(states)[0])
    assert f"{model.estimated_return():.4g}" in trained.output
    assert "72 transitions" in trained.output


@pytest.mark.slow
def test_train_logs_every_update_of_a_short_run(trained):
    curve = read_curve(trained.path.with_suffix(".progress.csv"))
    # Where the judge finds none good, further training follows. Returns are of several candidates on several models: they need
    # not rise from one line to the next.
    assert curve[:4, 0].tolist() == [1, 2, 3, 4]
    assert np.isfinite(curve[:, 1]).all()
    assert len(set(curve[:, 1])) == len(curve)


@pytest.mark.slow
def test_train_hands_its_options_over(data_file, tmp_path):
    fine(
        *("train", data_file, "-o", tmp_path / "m.zip", "--algo", "nopg_s", "--policy", "LinearPolicy", "--updates", 1),
        *("--learning-rate", 0.005, "--initial-states", "-0.5", "--initial-states", "0.25", "--transitions", "samples"),
        *("--estimator", "state_bandwidth=[0.3]", "--estimator", "action_bandwidth=silverman", "--device", "cpu"),
        *("--estimator", "state_bandwidth_factor=2", "--estimator", "n_neighbors=None", "--estimator", "weights=local_linear"),
    )
    model = NOPGS.load(tmp_path / "m.zip")
    assert type(model.policy).__name__ == "GaussianLinearPolicy"
    assert model.initial_states.tolist() == [[-0.5], [0.25]]
    assert model.learning_rate == 0.005
    assert model.estimator_kwargs == {
        "state_bandwidth": [0.3],
        "action_bandwidth": "silverman",
        "state_bandwidth_factor": 2,
        "n_neighbors": None,
        "weights": "local_linear",
    }


@pytest.mark.slow
def test_train_hands_the_models_settings_over(data_file, tmp_path):
    said = fine(
        *("train", data_file, "-o", tmp_path / "m.zip", "--updates", 2, "--horizon", "7", "--limit", "0=-2:2"),
        *("--reward", "-abs(s2[0])"),
    )
    model = NOPGD.load(tmp_path / "m.zip")
    assert (model.transitions, model.horizon) == ("model", 7)
    assert model.model_kwargs == {"limits": {0: (-2.0, 2.0)}, "reward": "-abs(s2[0])"}
    for text in ("coordinates", "∞: one affine model", "unexplained", "the reward is given", "limits of 1 column"):
        assert text in said, said


@pytest.mark.slow
def test_train_shows_the_candidates_and_the_margin(data_file, tmp_path):
    said = " ".join(fine("train", data_file, "-o", tmp_path / "m.zip", "--updates", 8).split())
    for recipe in ("value_iteration", "own", "riccati"):
        assert f"{recipe} (half)" in said
    assert "% last" in said
    assert "margin" in said
    assert re.search("predicted to beat|cannot be told apart|is kept", said.replace("│", " "))


def test_the_models_settings_do_not_go_with_samples(data_file, tmp_path):
    for option, value in (("--limit", "0=-2:2"), ("--reward", "s[0]")):
        line = refused("train", data_file, "-o", tmp_path / "m.zip", "--transitions", "samples", option, value)
        assert line.startswith(f"Error: {option}")


def test_the_number_of_updates_is_that_of_learn():
    (updates,) = (p for p in typer.main.get_command(app).commands["train"].params if p.name == "updates")
    assert updates.default == inspect.signature(NOPG.learn).parameters["total_timesteps"].default


@pytest.mark.parametrize(("text", "expected"), [("auto", "auto"), ("0", 0), ("12", 12), ("inf", np.inf)])
def test_horizons(text, expected):
    assert train_module._horizon(text) == expected


def test_pessimism_below_zero_is_refused(data_file, tmp_path):
    assert "pessimism" in refused("train", data_file, "-o", tmp_path / "m.zip", "--estimator", "pessimism=-1")


def test_recipes_give_what_they_name():
    assert len(load_data("rollouts:uniform:25", ENV, 1)) == 25
    first, again = (load_data("rollouts:uniform:25", ENV, seed) for seed in (1, 1))
    np.testing.assert_array_equal(first.actions, again.actions)
    assert (load_data("rollouts:uniform:25", ENV, 2).actions != first.actions).any()
    assert len(load_data("demonstrations:mountain_car_scripted", None, 0)) == 1163
    operator = load_data("rollouts:uniform:30:operator", "nopg/QuanserCartPoleBalance-v0", 0)
    assert len(operator) == 30


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nix.npz"], "nix.npz"),
        (["grid:6,6,2"], "--env"),
        (["grid:6,x,2", "--env", ENV], "recipe"),
        (["grid:6,6", "--env", ENV], "levels must be 3 positive counts, states then actions; got (6, 6). Write grid:20,20,2."),
        (["grid:6,6", "--env", "nopg/LQR-v0"], "Write grid:20,20,2,2."),
        (["grid:99999,99999,99", "--env", ENV], "989,980,200,099 transitions"),
        (["rollouts:uniform:0", "--env", ENV], "Write rollouts:uniform:1000."),
        (["rollouts:uniform", "--env", ENV], "recipe"),
        (["rollouts:nix:10", "--env", ENV], "nix"),
        (["demonstrations:nix"], "mountain_car_scripted"),
        ([GRID, "--env", "Nix-v0"], "Nix-v0"),
        ([GRID, "--env", "no_such_module:Nix-v0"], "no_such_module"),
        ([GRID, "--env", ENV, "--gamma", "1.5"], "gamma"),
        ([GRID, "--env", ENV, "--estimator", "n_neighbors"], "--estimator"),
        ([GRID, "--env", ENV, "--estimator", "weights=a", "--estimator", "weights=b"], "--estimator"),
        ([GRID, "--env", ENV, "--estimator", "neighbors=3"], "estimator_kwargs"),
        ([GRID, "--env", ENV, "--estimator", "state_bandwidth=nix"], "state_bandwidth"),
        ([GRID, "--env", ENV, "--estimator", "action_bandwidth_factor=wide"], "action_bandwidth_factor"),
        ([GRID, "--env", ENV, "--estimator", "n_neighbors=-3"], "n_neighbors"),
        ([GRID, "--env", ENV, "--initial-states", "1,2"], "initial_states"),
        ([GRID, "--env", ENV, "--horizon", "far"], "--horizon"),
        ([GRID, "--env", ENV, "--horizon", "-1"], "horizon"),
        ([GRID, "--env", ENV, "--limit", "0:1"], "--limit"),
        ([GRID, "--env", ENV, "--limit", "0=5:6"], "no sample lies within"),
        ([GRID, "--env", ENV, "--reward", "s[7]"], "s[7]"),
        ([GRID, "--env", ENV, "--device", "abacus"], "--device"),
        ([GRID, "--env", ENV, "-o", "model.tar"], ".zip"),
        ([GRID, "--env", "MountainCarContinuous-v0"], "state_space"),
        ([GRID, "--env", "MountainCarContinuous-v0"], "Write rollouts:uniform:1000."),
    ],
)
def test_what_train_cannot_use_is_one_line(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in refused("train", *arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_number_is_a_number():
    result = nopg("train", GRID, "--updates", "many")
    assert result.exit_code == 2
    assert "--updates" in result.stderr
    assert nopg("train", GRID, "--updates", "0").exit_code == 2
    assert nopg("train").exit_code == 2
    assert nopg("nix").exit_code == 2


@pytest.mark.slow
def test_training_that_fails_leaves_no_model(monkeypatch, tmp_path):
    def diverge(*arguments, **options):
        raise SolverError("The policy's actions are not finite any more.")

    monkeypatch.setattr(NOPGD, "learn", diverge)
    assert "not finite" in refused("train", GRID, "--env", ENV, "-o", tmp_path / "m.zip", code=1)
    assert not (tmp_path / "m.zip").exists()


@pytest.mark.slow
def test_evaluate_counts_every_seed(trained):
    result = json.loads(fine("evaluate", trained.path, "--env", "Pendulum-v1", "--episodes", 3, "--seed", 5, "--json"))
    model, env, returns = NOPG.load(trained.path), gym.make("Pendulum-v1"), []
    for seed in (5, 6, 7):
        observation, done, rewards = env.reset(seed=seed)[0], False, []
        while not done:
            action, _ = model.predict(observation, deterministic=True)
            observation, reward, terminated, truncated, _ = env.step(action)
            rewards.append(reward)
            done = terminated or truncated
        returns.append(sum(rewards))
    assert [episode["seed"] for episode in result["episodes"]] == [5, 6, 7]
    assert [episode["episode_return"] for episode in result["episodes"]] == pytest.approx(returns)
    assert [episode["n_steps"] for episode in result["episodes"]] == [200] * 3
    assert not any(episode["terminated"] for episode in result["episodes"])
    assert result["mean"] == pytest.approx(np.mean(returns))
    assert result["std"] == pytest.approx(np.std(returns, ddof=1))
    low, high = result["confidence_interval_95"]
    # Student's t for two degrees of freedom.
    assert (high - low) / 2 == pytest.approx(4.302653 * np.std(returns, ddof=1) / np.sqrt(3), rel=1e-6)
    discounts = 0.95 ** np.arange(200)
    assert result["episodes"][-1]["discounted_return"] == pytest.approx(float(discounts @ rewards))
    for figure in ("change", "fast"):
        of_each = [episode["chatter"][figure] for episode in result["episodes"]]
        assert result["mean_chatter"][figure] == pytest.approx(np.mean(of_each))


@pytest.mark.slow
def test_evaluate_knows_the_environment_of_the_training(trained):
    text = fine("evaluate", trained.path.with_suffix(""), "--episodes", 2)
    assert re.search(r"│ 1 +│ -\d", text)
    assert "95 % confidence interval" in text
    assert re.search(r"the actuator moves by .* % of its range a step, \d+ % of it faster than four steps", text)
    assert "confidence" not in fine("evaluate", trained.path, "--episodes", 1)


@pytest.mark.slow
def test_evaluate_with_the_policys_noise_is_repeatable(data_file, tmp_path):
    fine("train", GRID, "--env", ENV, "--algo", "nopg_s", *SHORT, "-o", tmp_path / "s.zip")
    first, again, mean = (
        json.loads(fine("evaluate", tmp_path / "s.zip", "--episodes", 1, "--json", *options))["mean"]
        for options in (["--stochastic"], ["--stochastic"], [])
    )
    assert first == again
    assert first != mean


@pytest.mark.slow
def test_a_mean_below_the_minimum_is_no_success(trained):
    result = nopg("evaluate", trained.path, "--episodes", 1, "--minimum", 0)
    assert result.exit_code == 1
    episodes, error = result.stderr.splitlines()
    assert episodes.startswith("episodes: ")
    assert error.startswith("Error: ")
    assert "below" in error
    fine("evaluate", trained.path, "--episodes", 1, "--minimum", -1e6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--env", "MountainCarContinuous-v0"], "observations"),
        (["--env", "CartPole-v1"], "observations"),
        (["--algo", "nix"], "--algo"),
        (["--algo", "td3"], "no model of td3"),
    ],
)
def test_what_evaluate_cannot_use_is_one_line(trained, options, message):
    assert message in refused("evaluate", trained.path, *options)


def test_an_episode_without_an_end_is_given_up(trained, monkeypatch):
    monkeypatch.setattr(evaluation, "LONGEST_EPISODE", 10)
    assert "time limit" in refused("evaluate", trained.path, "--episodes", 1)


@pytest.mark.slow
def test_evaluate_films_the_first_episodes(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "find_spec", lambda name: None)
    assert "pip install moviepy" in refused("evaluate", trained.path, "--video", tmp_path / "films")
    monkeypatch.undo()
    pytest.importorskip("moviepy")
    # Twenty pictures are a film as well as two hundred.
    short = dataclasses.replace(gym.spec("Pendulum-v1"), id="ShortPendulum-v1", max_episode_steps=20)
    monkeypatch.setitem(gym.registry, short.id, short)
    fine("evaluate", trained.path, "--env", short.id, "--episodes", 2, "--video", tmp_path / "films")
    assert [path.name for path in (tmp_path / "films").iterdir()] == ["ShortPendulum-v1-episode-0.mp4"]
    (tmp_path / "file").touch()
    assert "is a file" in refused("evaluate", trained.path, "--video", tmp_path / "file")


def test_files_that_are_no_models_are_one_line(tmp_path, data_file):
    (tmp_path / "empty.zip").touch()
    (tmp_path / "text.zip").write_text("not a model")
    for command in (["evaluate", "--env", ENV], ["report", "-o", tmp_path / "r.html"]):
        for name in ("empty.zip", "text.zip", "line.npz", "nix.zip"):
            assert name in refused(command[0], tmp_path / name, *command[1:])
    assert not (tmp_path / "r.html").exists()


@pytest.mark.slow
def test_models_of_other_algorithms_are_evaluated_and_exported(tmp_path):
    TD3("MlpPolicy", "Pendulum-v1", policy_kwargs={"net_arch": [4]}, buffer_size=10, device="cpu").save(tmp_path / "td3.zip")
    result = json.loads(
        fine("evaluate", tmp_path / "td3.zip", "--algo", "td3", "--env", "Pendulum-v1", "--episodes", 1, "--json", "--trust")
    )
    assert result["std"] is None
    fine("export", tmp_path / "td3.zip", tmp_path / "td3.onnx", "--algo", "td3", "--trust")
    assert (tmp_path / "td3.onnx").stat().st_size > 0


def metadata(path) -> dict:
    onnx = pytest.importorskip("onnx")
    return {entry.key: json.loads(entry.value) for entry in onnx.load(path).metadata_props}


@pytest.mark.slow
def test_export_takes_names_and_knows_the_data(trained, tmp_path):
    text = fine(
        *("export", trained.path, tmp_path / "new" / "p.onnx", "--control-period-s", 0.05, "--action-names", "torque"),
        *("--observation-names", "cos, sin,speed", "--observation-units", "1,1,rad/s", "--action-units", "N m"),
    )
    assert "p.onnx" in text
    written = metadata(tmp_path / "new" / "p.onnx")
    assert written["observation_names"] == ["cos", "sin", "speed"]
    assert written["observation_units"] == ["1", "1", "rad/s"]
    assert (written["action_names"], written["action_units"]) == (["torque"], ["N m"])
    assert written["control_period_s"] == 0.05
    data = load_data(GRID, ENV, 3)
    np.testing.assert_allclose(written["data_high"], data.observations.max(axis=0), rtol=1e-6)


def test_export_without_data_says_so(trained, tmp_path):
    alone = tmp_path / "alone.zip"
    alone.write_bytes(trained.path.read_bytes())
    result = nopg("export", alone, tmp_path / "p.onnx")
    assert result.exit_code == 0
    assert result.stderr.startswith("Note: without --data")
    assert metadata(tmp_path / "p.onnx")["data_low"] == []


def test_export_that_fails_is_one_line(trained, tmp_path, monkeypatch):
    assert ".onnx" in refused("export", trained.path, tmp_path / "p.txt")
    assert "action_names" in refused("export", trained.path, tmp_path / "p.onnx", "--action-names", "a,b")

    def fail(*arguments, **options):
        raise ExportError("The file's actions differ from the model's.")

    monkeypatch.setattr(export_module, "export_policy", fail)
    assert "differ" in refused("export", trained.path, tmp_path / "p.onnx", code=1)


def test_the_rigs_programs_are_reachable():
    assert "Run an exported policy on a cart-pole rig" in fine("deploy", "--help")
    assert "Gather training data" in fine("collect", "--help")
    result = nopg("deploy", "nix.onnx", "--seconds", "1")
    assert result.exit_code == 2
    assert "nix.onnx" in result.output


def test_without_the_rigs_packages_the_way_to_them_is_told(monkeypatch):
    def missing(name):
        raise ImportError("No module named 'onnxruntime'")

    monkeypatch.setattr(main_module, "import_module", missing)
    assert "sb3-nopg[robot]" in refused("deploy", "policy.onnx")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("gamma", "2 is too large", "Try less"), 2),
        (FileNotFoundError("No data set at x"), 2),
        (ImportError("Exporting a policy needs the package onnx"), 2),
        (gym.error.DependencyNotInstalled("box2d"), 2),
        (SolverError("two\nlines"), 1),
        (ExportError("differs"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_of_a_kind_have_an_exit_code(error, code, capsys):
    @one_line_errors
    def command() -> None:
        raise error

    with pytest.raises(typer.Exit) as caught:
        command()
    assert caught.value.exit_code == code
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_defect_is_not_dressed_up_as_a_mistake_of_the_user():
    @one_line_errors
    def command() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        command()


def test_where_a_result_may_go(tmp_path):
    check_output("-o", tmp_path / "new" / "folder" / "file.zip", (".zip",))
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "below.zip"):
        with pytest.raises(InputError):
            check_output("-o", path)


@pytest.mark.slow
def test_a_model_is_not_overwritten_unasked(tmp_path):
    path = tmp_path / "m.zip"
    arguments = ("train", GRID, "--env", ENV, *SHORT, "-o", path)
    fine(*arguments)
    before = path.read_bytes()
    assert "is there already" in refused(*arguments)
    assert path.read_bytes() == before
    fine(*arguments, "--overwrite")


@pytest.mark.slow
def test_a_models_normalization_is_not_forgotten(tmp_path):
    env = VecNormalize(DummyVecEnv([lambda: gym.make("Pendulum-v1")]))
    env.obs_rms.mean, env.obs_rms.var = np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0])
    model = PPO("MlpPolicy", env, n_steps=8, batch_size=8, seed=0, device="cpu")
    path, normalization, policy = tmp_path / "ppo.zip", tmp_path / "vecnormalize.pkl", tmp_path / "policy.onnx"
    model.save(path)
    export = ("export", path, policy, "--algo", "ppo", "--env", "Pendulum-v1")
    assert "a pickle in it" in refused(*export)
    assert "VecNormalize" in nopg(*export, "--trust").stderr
    env.save(str(normalization))
    assert "lies beside the model" in refused(*export, "--trust")
    assert "pickle" in refused(*export, "--vec-normalize", normalization)
    fine(*export, "--vec-normalize", normalization, "--trust")
    observation = np.array([0.5, 0.5, 6.0], dtype=np.float32)
    expected, _ = model.predict(env.normalize_obs(observation), deterministic=True)
    np.testing.assert_allclose(OnnxPolicy(policy)(observation), expected, atol=1e-4)
    normalization.write_bytes(b"nothing")
    assert "cannot be used" in refused(*export, "--vec-normalize", normalization, "--trust")


def test_a_model_of_another_algorithm_is_told_apart(tmp_path):
    PPO("MlpPolicy", "Pendulum-v1", n_steps=8, batch_size=8, device="cpu").save(tmp_path / "ppo.zip")
    assert "--algo" in refused("export", tmp_path / "ppo.zip", tmp_path / "p.onnx", "--trust")


def test_train_has_the_library_s_defaults():
    """Whoever trains from the command line gets what `NOPG(...).learn()` gives."""
    own = inspect.signature(train_module.train).parameters
    library = inspect.signature(NOPG).parameters
    updates = inspect.signature(NOPG.learn).parameters["total_timesteps"].default
    assert own["updates"].default == updates
    shared = set(own) & set(library) - {"seed", "policy", "env"}
    assert {"held_out", "horizon", "keep", "patience", "transitions"} <= shared
    for name in shared:
        default = own[name].default
        assert getattr(default, "value", default) == library[name].default, name
