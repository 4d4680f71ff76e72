"""A run that was interrupted ends with the same bits as one that was not."""

import io
import json
import logging
import multiprocessing
import random
import signal
import zipfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from stable_baselines3.common.callbacks import BaseCallback

import sb3_nopg.bellman.solvers.coarse
from helpers.long_runs import build, learn_until_killed, pushed_point
from helpers.models import make_nopg
from sb3_nopg import NOPG, NOPGD, InputError, TransitionDataset
from sb3_nopg.training.callbacks import NOPGCheckpointCallback


class StoppedError(Exception):
    """What ends a run in these tests."""


class InterruptAt(BaseCallback):
    def __init__(self, update: int):
        super().__init__()
        self.update = update

    def _on_step(self) -> bool:
        if self.num_timesteps == self.update:
            raise StoppedError
        return True


def interrupted(path: Path, total: int, at: int, interval: int, data: TransitionDataset, **arguments: Any) -> None:
    with pytest.raises(StoppedError):
        build(data, **arguments).learn(total, callback=[NOPGCheckpointCallback(path, interval), InterruptAt(at)])


def finish(model: NOPG, total: int, callback: BaseCallback | None = None) -> NOPG:
    return model.learn(total - model.num_timesteps, reset_num_timesteps=False, callback=callback)


def assert_same_bits(model: NOPG, reference: NOPG) -> None:
    def flat(value: Any) -> list[Any]:
        if isinstance(value, dict):
            return [part for key in sorted(value, key=str) for part in flat(value[key])]
        if isinstance(value, list | tuple):
            return [part for entry in value for part in flat(entry)]
        return [value]

    ours, theirs = (flat(m.get_parameters()) for m in (model, reference))
    assert len(ours) == len(theirs) > 20
    for own, other in zip(ours, theirs, strict=True):
        if isinstance(own, th.Tensor):
            assert th.equal(own, other)
        else:
            assert own == other
    for own, other in zip(
        model._training.warm_start.q_history.values, reference._training.warm_start.q_history.values, strict=True
    ):
        assert th.equal(own, other)
    assert (model._n_updates, model._noise_epoch) == (reference._n_updates, reference._noise_epoch)
    assert model.num_timesteps == reference.num_timesteps


@pytest.mark.slow
def test_killed_at_14_of_20_and_resumed(tmp_path, monkeypatch):
    # Before the checkpoint and after it.
    monkeypatch.setattr(sb3_nopg.bellman.solvers.coarse, "_UPDATES_BETWEEN_REFRESHES", 8)
    path = tmp_path / "run.ckpt"
    # A copy of this process, which need not import everything again.
    run = multiprocessing.get_context("fork").Process(target=learn_until_killed, args=(path, 14, 20))
    run.start()
    run.join(60.0)
    assert run.exitcode == -signal.SIGKILL
    model = NOPG.resume(path, pushed_point(), device="cpu")
    assert model.num_timesteps == 10
    reference = build(pushed_point(), variant="S", n_action_samples=4, resample_interval=7).learn(20)
    assert_same_bits(finish(model, 20), reference)


def halving(progress_remaining: float) -> float:
    return 0.005 + 0.01 * progress_remaining


SHRINKING = {"policy_kwargs": {"final_std_scale": 0.1}}


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        {"variant": "D"},
        {"variant": "D", "n_next_state_samples": 3, "resample_interval": 5, "weights": "local_linear"},
        {"variant": "D", "precision": "float32", "n_neighbors": 20},
        {"variant": "S", "n_action_samples": 3, "learning_rate": halving, **SHRINKING, "resample_interval": 4},
        {"variant": "S", "n_action_samples": 3, "n_next_state_samples": 2, "resample_interval": 6, "seed": None},
        {"variant": "D", "pessimism": 0.1, "held_out": pushed_point(30, seed=5), "keep": "best_heldout"},
    ],
    ids=["D", "D-next-states", "D-float32", "S-schedules", "S-no-seed", "D-held-out"],
)
def test_resumed_run_has_the_bits_of_an_uninterrupted_one(tmp_path, monkeypatch, arguments):
    # Before the checkpoint and after it.
    monkeypatch.setattr(sb3_nopg.bellman.solvers.coarse, "_UPDATES_BETWEEN_REFRESHES", 8)
    data = pushed_point()
    model = build(data, **arguments)
    # The model that goes on in the same process is the reference: without a seed, there is no second one like it.
    model.learn(20, callback=[NOPGCheckpointCallback(tmp_path / "run.ckpt", 50), _CopyAt(11, tmp_path / "copy.ckpt")])
    given = {"held_out": arguments["held_out"]} if "held_out" in arguments else {}
    resumed = NOPG.resume(tmp_path / "copy.ckpt", data, device="cpu", trust=True, **given)
    assert resumed.num_timesteps == 11
    assert_same_bits(finish(resumed, 20), model)


# Of twelve updates each of three candidates gets two, and the best of them six.
COURSE = {"transitions": "model", "gamma": 0.9, "horizon": 6, "model_kwargs": {"n_nodes": 60}}
MIDST = (1, 2, 3, 6, 8, 12)


def learn_a_course(folder: Path, **arguments: Any) -> NOPG:
    """With a checkpoint of each update in its midst."""
    callback = [_CopyAt(update, folder / f"{update}.ckpt") for update in MIDST]
    return build(pushed_point(), **{**COURSE, **arguments}).learn(12, callback=callback)


@pytest.fixture(scope="module")
def course(small_sizes, tmp_path_factory) -> tuple[NOPG, Path]:
    """What several tests look at and none changes: a course that went to its end, and its checkpoints."""
    folder = tmp_path_factory.mktemp("course")
    return learn_a_course(folder), folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        {"variant": "D"},
        {"variant": "S", "n_action_samples": 3, "learning_rate": halving, **SHRINKING, "seed": None},
        {"variant": "D", "held_out": 0.3, "keep": "best_heldout", "horizon": "auto"},
        {"variant": "D", "horizon": 0},
    ],
    ids=["D", "S-schedules-no-seed", "D-held-out", "D-nodes"],
)
def test_a_course_of_candidates_goes_on_wherever_it_was_broken_off(tmp_path, course, arguments):
    is_plain = arguments == {"variant": "D"}
    model, folder = course if is_plain else (learn_a_course(tmp_path, **arguments), tmp_path)
    for update in MIDST if is_plain else (3, 8):
        resumed = NOPG.resume(folder / f"{update}.ckpt", pushed_point(), device="cpu", trust=True)
        assert (resumed.num_timesteps, resumed.candidates) == (update, ())
        assert_same_bits(finish(resumed, 12), model)
        assert [str(candidate) for candidate in resumed.candidates] == [str(candidate) for candidate in model.candidates]
        assert resumed.estimated_return() == model.estimated_return()


@pytest.mark.slow
@pytest.mark.parametrize(("update", "total"), [(1, 2), (3, 20), (8, 20), (12, 20)])
def test_a_course_that_is_taken_up_may_end_elsewhere(course, update, total):
    _, folder = course
    resumed = finish(NOPG.resume(folder / f"{update}.ckpt", pushed_point(), device="cpu"), total)
    assert resumed.num_timesteps == resumed._n_updates == total
    made = sum(candidate.n_updates for candidate in resumed.candidates)
    # What was over but for the choice is chosen first, and goes on.
    assert made == (total - update if update == 12 else total)


@pytest.mark.slow
def test_a_course_that_an_error_broke_off_goes_on(course):
    model = build(pushed_point(), **COURSE)
    with pytest.raises(StoppedError):
        model.learn(12, callback=InterruptAt(5))
    assert_same_bits(finish(model, 12), course[0])
    assert {candidate.trained_on for candidate in model.candidates} == {"half", "all"}


class _CopyAt(BaseCallback):
    """A checkpoint at one update only."""

    def __init__(self, update: int, path: Path):
        super().__init__()
        self.update, self.path = update, path

    def _on_step(self) -> bool:
        if self.num_timesteps == self.update:
            self.model.save_checkpoint(self.path)
        return True


@pytest.mark.slow
@pytest.mark.parametrize("max_dense_cells", [256, 4], ids=["dense", "sparse"])
def test_the_coarse_model_goes_on_at_its_age(tmp_path, monkeypatch, max_dense_cells):
    monkeypatch.setitem(sb3_nopg.bellman.solvers.coarse._MAX_DENSE_CELLS, "cpu", max_dense_cells)
    monkeypatch.setattr(sb3_nopg.bellman.solvers.coarse, "_UPDATES_BETWEEN_REFRESHES", 8)
    # Small steps of the policy, and many cells: here a coarse model pays.
    data, path, settings = pushed_point(400), tmp_path / "run.ckpt", {"state_bandwidth": 0.15, "learning_rate": 1e-3}
    interrupted(path, 20, 15, 14, data, **settings)
    resumed = NOPG.resume(path, data, device="cpu")
    coarse = resumed.estimator.problem.coarse_model.state()
    assert coarse["age"] == 6
    assert coarse["pays"]
    assert_same_bits(finish(resumed, 20), build(data, **settings).learn(20))


@pytest.mark.slow
def test_random_numbers_of_callbacks_go_on(tmp_path):
    class Draws(BaseCallback):
        def __init__(self) -> None:
            super().__init__()
            self.drawn: list[tuple[float, float, float]] = []

        def _on_step(self) -> bool:
            self.drawn.append((random.random(), np.random.rand(), float(th.rand(1))))  # noqa: NPY002
            return True

    data, path, draws = pushed_point(), tmp_path / "run.ckpt", Draws()
    checkpoint = _CopyAt(6, path)
    build(data).learn(12, callback=[draws, checkpoint])
    again = Draws()
    finish(NOPG.resume(path, data, device="cpu"), 12, again)
    assert again.drawn == draws.drawn[6:]


@pytest.mark.slow
@pytest.mark.parametrize("at", [10, 15])
def test_patience_and_the_best_so_far_are_remembered(tmp_path, at):
    # Steps so large that the first looks at the held-out data see the best of all.
    settings = {"held_out": 0.3, "keep": "best_heldout", "patience": 30, "learning_rate": 0.2}
    data, path = pushed_point(), tmp_path / "run.ckpt"
    model = build(data, **settings).learn(200, callback=_CopyAt(at, path))
    assert at < model.num_timesteps < 200
    resumed = NOPG.resume(path, data, device="cpu")
    assert_same_bits(finish(resumed, 200), model)
    # The memory belongs to the run, not to the model: another run begins without it.
    assert model.learn(10).num_timesteps == 10


@pytest.mark.slow
def test_patience_counts_from_where_training_goes_on():
    model = build(pushed_point(), patience=5).learn(3)
    assert model.learn(4, reset_num_timesteps=False).num_timesteps == 7


@pytest.mark.slow
def test_held_out_data_must_be_given_again(tmp_path):
    data, held_out, path = pushed_point(), pushed_point(30, seed=5), tmp_path / "run.ckpt"
    build(data, held_out=held_out).learn(2, callback=NOPGCheckpointCallback(path))
    with pytest.raises(InputError, match="held_out: None where"):
        NOPG.resume(path, data)
    NOPG.resume(path, data, held_out=held_out)
    with pytest.raises(InputError, match="held_out: 29 transitions"):
        NOPG.resume(path, data, held_out=pushed_point(29, seed=5))


@pytest.mark.slow
@pytest.mark.parametrize("transitions", ["samples", "model"])
def test_start_states_that_an_environment_gave_are_remembered(tmp_path, transitions):
    rng = np.random.default_rng(0)
    states = rng.uniform(-1, 1, (50, 3))
    data = TransitionDataset(states, rng.uniform(-2, 2, (50, 1)), states[:, 0], states, np.zeros(50, dtype=bool))
    settings = {"state_bandwidth": 0.5, "action_bandwidth": 1.0, "transitions": transitions, "model_kwargs": {"n_nodes": 60}}
    model = make_nopg("MlpPolicy", gym.make("Pendulum-v1"), dataset=data, device="cpu", gamma=0.9, **settings)
    model.learn(6, callback=_CopyAt(3, tmp_path / "run.ckpt"))
    # Without an environment, and with one that would start elsewhere.
    for env in (None, gym.make("Pendulum-v1")):
        resumed = NOPG.resume(tmp_path / "run.ckpt", data, env=env, device="cpu")
        assert resumed.initial_states is None
        assert_same_bits(finish(resumed, 6), model)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, COURSE], ids=["samples", "model"])
def test_a_finished_run_has_nothing_left_to_do(tmp_path, settings):
    data = pushed_point()
    model = build(data, **settings).learn(7, callback=NOPGCheckpointCallback(tmp_path / "run.ckpt", interval=5))
    resumed = NOPG.resume(tmp_path / "run.ckpt", data, device="cpu")
    assert resumed.num_timesteps == 7
    assert_same_bits(finish(resumed, 7), model)


def test_the_file_before_survives_until_the_new_one_is_complete(tmp_path, monkeypatch):
    data, path = pushed_point(), tmp_path / "run.ckpt"
    model = build(data).learn(3, callback=NOPGCheckpointCallback(path))
    before = path.read_bytes()

    def full_disk(state: Any, file: Any) -> None:
        file.write(b"half of it")
        raise OSError("No space left on device")

    monkeypatch.setattr(th, "save", full_disk)
    monkeypatch.setattr(NOPG, "save", lambda self, file: file.write(b"model"))
    with pytest.raises(OSError, match="No space"):
        model.save_checkpoint(path)
    assert path.read_bytes() == before
    monkeypatch.undo()
    model.save_checkpoint(path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run.ckpt"]


def test_other_data_is_refused(tmp_path):
    path = tmp_path / "run.ckpt"
    build(pushed_point()).learn(2, callback=NOPGCheckpointCallback(path))
    data = pushed_point()
    rewards = data.rewards.copy()
    rewards[5] += 1e-12
    changed = TransitionDataset(data.observations, data.actions, rewards, data.next_observations, data.terminals)
    for other in (changed, pushed_point(seed=1), pushed_point(79)):
        with pytest.raises(InputError, match=r"dataset: these \d+ transitions are not the 80"):
            NOPG.resume(path, other)


def test_settings_stay_what_they_were(tmp_path):
    path = tmp_path / "run.ckpt"
    build(pushed_point()).learn(2, callback=NOPGCheckpointCallback(path))
    with pytest.raises(InputError, match="gamma: cannot change"):
        NOPG.resume(path, pushed_point(), gamma=0.9)
    assert NOPG.resume(path, pushed_point(), verbose=1).verbose == 1
    # A later version may know a setting by another value.
    _rewrite(path, settings={"gamma": "0.5"})
    with pytest.raises(InputError, match=r"gamma: 0\.99 where .* was made with 0\.5"):
        NOPG.resume(path, pushed_point())


def test_another_class_does_not_take_over(tmp_path):
    path = tmp_path / "run.ckpt"
    build(pushed_point(), variant="S").learn(1, callback=NOPGCheckpointCallback(path))
    with pytest.raises(InputError, match="It goes with NOPGS"):
        NOPGD.resume(path, pushed_point())


def _rewrite(path: Path, settings: dict[str, str] | None = None, **changes: Any) -> None:
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    about = {**json.loads(parts["about.json"]), **changes}
    about["settings"].update(settings or {})
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**parts, "about.json": json.dumps(about).encode()}.items():
            archive.writestr(name, content)


def test_damaged_files_are_told(tmp_path):
    path = tmp_path / "run.ckpt"
    build(pushed_point()).learn(2, callback=NOPGCheckpointCallback(path))
    whole = path.read_bytes()
    place = whole.index(b"state.pt") + 2000
    damaged = {
        "cut": whole[: len(whole) // 2],
        "empty": b"",
        "flipped": whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :],
        "text": b"not a checkpoint at all",
    }
    for content in damaged.values():
        path.write_bytes(content)
        with pytest.raises(InputError, match="damaged or no checkpoint"):
            NOPG.resume(path, pushed_point())
    build(pushed_point()).save(tmp_path / "model.zip")
    with pytest.raises(InputError, match="damaged or no checkpoint"):
        NOPG.resume(tmp_path / "model.zip", pushed_point())
    with pytest.raises(InputError, match="there is no checkpoint"):
        NOPG.resume(tmp_path / "nothing.ckpt", pushed_point())
    path.write_bytes(whole)
    _rewrite(path, format=1)
    with pytest.raises(InputError, match="format 1, not 11"):
        NOPG.resume(path, pushed_point())


@pytest.mark.slow
def test_other_circumstances_are_told(tmp_path, caplog):
    path = tmp_path / "run.ckpt"
    build(pushed_point()).learn(2, callback=NOPGCheckpointCallback(path))
    with caplog.at_level(logging.WARNING):
        NOPG.resume(path, pushed_point())
        assert not caplog.text
        _rewrite(path, **{"torch version": "1.0", "processes": 4})
        NOPG.resume(path, pushed_point())
    assert "torch version 1.0" in caplog.text
    assert "processes 4 and is resumed with 1" in caplog.text


@pytest.mark.parametrize("interval", [0, -1, 2.5, True])
def test_an_interval_counts_updates(tmp_path, interval):
    with pytest.raises(InputError, match="interval"):
        NOPGCheckpointCallback(tmp_path / "run.ckpt", interval)


def test_a_path_names_a_file(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        NOPGCheckpointCallback(tmp_path)
    path = tmp_path / "new" / "folder" / "run.ckpt"
    build(pushed_point()).learn(1, callback=NOPGCheckpointCallback(path))
    assert path.is_file()


@pytest.mark.slow
def test_checkpoints_come_at_their_interval(tmp_path, capsys):
    callback = NOPGCheckpointCallback(tmp_path / "run.ckpt", interval=4, verbose=1)
    build(pushed_point(), verbose=1).learn(9, callback=callback, log_interval=None)
    told = [line.split()[3] for line in capsys.readouterr().out.splitlines() if "Checkpoint of" in line]
    assert told == ["4", "8", "9"]


def test_what_a_checkpoint_holds_can_be_read(tmp_path):
    data = pushed_point()
    build(data).learn(2, callback=NOPGCheckpointCallback(tmp_path / "run.ckpt"))
    with zipfile.ZipFile(tmp_path / "run.ckpt") as archive:
        about = json.loads(archive.read("about.json"))
        loaded = NOPG.load(io.BytesIO(archive.read("model.zip")), device="cpu")
    assert about["num_timesteps"] == 2
    assert about["settings"]["gamma"] == "0.99"
    assert loaded.predict(data.observations[:3])[0].shape == (3, 1)
