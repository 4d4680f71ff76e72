"""The judge: ranks policies from anywhere by the data alone, and says what the data cannot tell."""

import functools

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import PPO, TD3

import sb3_nopg.prediction.judge
from helpers.systems import cart, linear, linear_reward, record, truth
from sb3_nopg import NOPG, InputError, TransitionDataset, judge
from sb3_nopg.prediction.judge import halves, steps_ahead
from sb3_nopg.prediction.policy_files import actor_of, data_learned_from

pytestmark = pytest.mark.usefixtures("few_nodes")
GAMMA = 0.9


@pytest.fixture
def few_nodes(monkeypatch):
    """Models for judging have as many nodes as pays, and there are more of them; tests have no time for that."""
    monkeypatch.setattr(sb3_nopg.prediction.judge, "N_NODES", 150)
    monkeypatch.setattr(sb3_nopg.prediction.judge, "N_MODELS", 2)


def upright(states, actions, next_states):
    """Going on pays."""
    return 1.0 - 0.3 * np.square(states).sum(axis=1)


def off_the_rail(state: np.ndarray) -> bool:
    return bool(np.abs(state).max() > 1.5)


@functools.cache
def recorded(seed: int = 0) -> TransitionDataset:
    return record(cart, upright, start=(0.8, 0.8), n_episodes=16, ends=off_the_rail, seed=seed)


def holds(observations):
    return -2.0 * observations[:, :1] - 1.5 * observations[:, 1:]


def sleeps(observations):
    return np.zeros((len(observations), 1))


def pushes(observations):
    return np.sign(observations[:, :1] + 1e-9)


def chatters(observations):
    return np.sign(np.sin(1e4 * observations[:, :1]))


class CartEnv(gym.Env):
    """For spaces alone."""

    observation_space, action_space = spaces.Box(-3, 3, (2,)), spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, dtype=np.float32), {}

    def step(self, action):
        raise AssertionError("an environment was stepped")


@pytest.mark.slow
def test_good_policies_come_before_bad_ones(monkeypatch):
    # As far ahead as users look with this discount.
    monkeypatch.setattr("sb3_nopg.prediction.judge._MOST_STEPS", 200)
    found = judge(recorded(), {"pushes": pushes, "chatters": chatters, "holds": holds, "sleeps": sleeps}, gamma=GAMMA)
    by_name = {judged.name: judged for judged in found.ranking}
    assert (found.ranking[0].name, found.ranking[-1].name) == ("holds", "pushes")
    assert by_name["holds"].lasting > 0.9 > 0.1 > by_name["pushes"].lasting
    for judged in found.ranking:
        assert judged.low <= judged.score <= judged.high
    assert by_name["chatters"].chatter.change > 5 * by_name["holds"].chatter.change
    # White noise has half of its variance there.
    assert by_name["chatters"].chatter.fast == pytest.approx(0.5, abs=0.1)
    assert found.n_steps == steps_ahead(GAMMA) == 100
    assert found.n_trajectories >= 32
    assert found.notes == ()
    # And that is more than chance.
    assert found.told_apart
    assert found.flights is None
    assert found.margin == pytest.approx(found.ranking[0].score - found.ranking[1].score)
    assert found.text().startswith(f"holds is predicted to beat {found.ranking[1].name}")


@pytest.mark.slow
def test_scores_are_what_the_system_pays():
    starts = np.array([[0.4, 0.0], [-0.3, 0.3], [0.2, -0.4]])
    reward = "1 - 0.3 * s[0]**2 - 0.3 * s[1]**2"
    found = judge(recorded(), {"holds": holds}, initial_states=starts, n_steps=60, reward=reward)
    path = truth(cart, holds, starts, 60)
    expected = np.mean([upright(path[:-1, i], None, None).sum() for i in range(3)])
    assert found.ranking[0].score == pytest.approx(expected, abs=0.1)
    assert found.ranking[0].lasting == 1.0
    assert found.margin is None
    assert found.told_apart is None
    assert "predicted to earn" in found.text()


@pytest.mark.slow
def test_the_same_policy_twice_is_not_told_apart():
    found = judge(recorded(), {"one": holds, "other": holds}, gamma=GAMMA)
    assert found.margin == 0.0
    assert found.told_apart is False
    assert found.flights is None
    assert "cannot be told apart" in found.text()


@pytest.mark.slow
def test_two_that_differ_by_a_hair_need_flights():
    """Better from some starts and worse from others: the margin is small beside what starts differ by."""
    left, right = (lambda o, side=side: holds(o) + side * 0.3 for side in (-1.0, 1.0))
    found = judge(recorded(), {"left": left, "right": right}, gamma=GAMMA)
    assert found.told_apart is False
    assert found.flights is None or found.flights >= 1
    assert "cannot be told apart" in found.text()


@pytest.mark.slow
def test_the_same_seed_says_the_same():
    one, same, other = (judge(recorded(), {"sleeps": sleeps}, gamma=GAMMA, n_steps=20, seed=seed) for seed in (1, 1, 2))
    assert one == same
    assert one != other


@pytest.mark.slow
def test_limits_and_rewards_are_the_user_s():
    data, policies = recorded(), {"holds": holds, "sleeps": sleeps}
    lost = judge(data, policies, gamma=GAMMA, n_steps=30, limits={0: (-0.05, 0.05)})
    assert lost.ranking[0].lasting < 0.5
    paid = judge(data, policies, gamma=GAMMA, n_steps=30, reward="1 + 0 * s[0]")
    assert paid.ranking[0].score == pytest.approx(30.0)


@pytest.mark.slow
def test_one_episode_makes_one_judge_who_is_sure_of_nothing():
    data = record(linear, linear_reward, n_episodes=1, length=60)
    found = judge(data, {"sleeps": sleeps, "pushes": pushes}, gamma=GAMMA, initial_states=[[0.3, 0.0]], n_steps=30)
    assert "too few episodes" in found.notes[0]
    assert [(judged.low, judged.high) for judged in found.ranking] == [(None, None)] * 2
    assert found.told_apart is None
    assert found.margin > 0.0
    assert "by one model alone" in found.text()
    alone = judge(data, {"sleeps": sleeps}, gamma=GAMMA, initial_states=[[0.3, 0.0]], n_steps=30)
    assert "(not known)" in alone.text()


# --- What lies outside of the data -----------------------------------------------------------------------------------------


def push_on(observations):
    return np.ones((len(observations), 1))


@functools.cache
def slow_cart() -> TransitionDataset:
    """Recorded from rest by weak pushes, without an end: who pushes on leaves all that was seen."""
    return record(cart, upright, start=(0.2, 0.2), n_episodes=16, length=8)


@pytest.mark.slow
def test_a_policy_that_leaves_the_data_is_not_ranked_by_what_nobody_knows():
    def hovers(observations):
        return holds(observations - [0.15, 0.0])

    reward, n_steps = "1 - 10 * s[0]**2", 40
    found = judge(slow_cart(), {"hovers": hovers, "pushes on": push_on}, gamma=GAMMA, n_steps=n_steps, reward=reward)
    first, second = found.ranking
    assert (first.name, second.name) == ("hovers", "pushes on")
    assert first.leaving is None
    assert second.leaving.share == 1.0
    assert 1 <= second.leaving.after < n_steps
    # Clear if the worst follows, and open as long as nobody knows.
    assert found.is_clear
    assert found.told_apart is False
    after = f"leaves what was recorded after about {second.leaving.after} steps, by column"
    assert found.text().startswith(f"These data cannot rank pushes on: it {after}")
    assert second.low <= second.score < first.score < second.high
    # Where even the best that was recorded would not do, it is worse whatever follows.
    assert judge(slow_cart(), {"holds": holds, "pushes on": push_on}, gamma=GAMMA, n_steps=n_steps).told_apart


@pytest.mark.slow
def test_what_passes_a_limit_is_lost_whatever_follows():
    found = judge(
        slow_cart(), {"holds": holds, "pushes on": push_on}, gamma=GAMMA, n_steps=40, limits={0: (-0.25, 0.25), 1: (-0.3, 0.3)}
    )
    assert found.ranking[1].name == "pushes on"
    assert found.ranking[1].leaving is None
    assert found.told_apart is True
    assert "is predicted to beat" in found.text()


@pytest.mark.slow
def test_an_end_may_be_the_best_that_follows():
    """Every step costs, and a goal on the right ends it: who leaves the data on the left may have found another."""
    data = record(cart, start=(0.2, 0.2), n_episodes=16, length=12, ends=lambda state: state[0] > 0.3)
    found = judge(data, {"waits": holds, "goes left": lambda o: -push_on(o)}, gamma=GAMMA, n_steps=40, reward="0 * s[0] - 1")
    left = next(judged for judged in found.ranking if judged.name == "goes left")
    assert left.leaving.share > 0.9
    assert left.low == pytest.approx(-40.0, abs=3.0)
    assert left.high == pytest.approx(-left.leaving.after - 1.0, abs=5.0)
    assert not found.told_apart


@pytest.mark.slow
def test_starts_of_the_data_beyond_the_limits_are_noted():
    (note,) = judge(slow_cart(), {"holds": holds}, gamma=GAMMA, n_steps=10, limits={0: (-0.1, 0.1)}).notes
    n_lost = int((np.abs(slow_cart().observations[slow_cart().episode_starts, 0]) > 0.1).sum())
    assert n_lost
    assert note.startswith(f"{n_lost} of the 16 starts")
    # One that lies just on a limit, in single precision, does not.
    single = np.array([[0.1, 0.0]], dtype=np.float32)
    assert (
        judge(slow_cart(), {"holds": holds}, gamma=GAMMA, n_steps=2, limits={0: (-0.1, 0.1)}, initial_states=single).notes
        == ()
    )


@pytest.mark.slow
def test_ends_that_tempt_are_noted():
    punished = "0 * s[0] - 1"
    (note,) = judge(recorded(), {"holds": holds}, gamma=GAMMA, n_steps=20, reward=punished).notes
    assert "Ending the task is worth more than going on" in note


@pytest.mark.slow
def test_data_without_episodes():
    data = recorded()
    loose = TransitionDataset(data.observations, data.actions, data.rewards, data.next_observations, data.terminals)
    with pytest.raises(InputError) as caught:
        judge(loose, {"holds": holds}, gamma=GAMMA)
    assert caught.value.field == "initial_states"
    found = judge(loose, {"holds": holds, "sleeps": sleeps}, gamma=GAMMA, initial_states=[[0.4, 0.0]], n_steps=50)
    assert found.ranking[0].name == "holds"


def test_halves_share_no_episode():
    data = recorded()
    one, other = halves(data, 0)
    assert not (one & other).any()
    assert (one | other).all()
    assert not set(data.episode_ids[one]) & set(data.episode_ids[other])
    assert halves(record(cart, n_episodes=3), 0) == (None, None)


# --- Policies from anywhere ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained() -> NOPG:
    return NOPG("MlpPolicy", None, dataset=recorded(), gamma=GAMMA, seed=0, device="cpu", model_kwargs={"n_nodes": 100}).learn(
        4
    )


@pytest.mark.slow
def test_a_policy_that_was_trained_on_these_very_data_is_named(trained, tmp_path):
    trained.save(tmp_path / "mine.zip")
    policies = {"model": trained, "file": tmp_path / "mine.zip", "holds": holds}
    own = judge(recorded(), policies, gamma=GAMMA, n_steps=10)
    (note,) = own.notes
    assert "trained on these very data" in note
    assert "model" in note
    assert "file" in note
    assert "holds" not in note
    assert judge(recorded(seed=1), policies, gamma=GAMMA, n_steps=10).notes == ()


def test_a_model_that_never_learned_has_learned_from_nothing(tmp_path):
    model = NOPG("MlpPolicy", None, dataset=recorded(), gamma=GAMMA, seed=0, device="cpu")
    assert data_learned_from(model) is None
    model.save(tmp_path / "new.zip")
    assert data_learned_from(tmp_path / "new.zip") is None


@pytest.mark.slow
def test_policies_from_anywhere_do_the_same(trained, tmp_path):
    data = recorded()
    trained.save(tmp_path / "mine.zip")
    trained.export(tmp_path / "mine.onnx")
    expected = trained.predict(data.observations[:20].astype(np.float32), deterministic=True)[0]
    for policy in (trained, tmp_path / "mine.zip", str(tmp_path / "mine.zip"), tmp_path / "mine.onnx"):
        np.testing.assert_allclose(actor_of(policy, data)(data.observations[:20]), expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [PPO, TD3])
def test_models_of_sb3(algorithm, tmp_path):
    model = algorithm("MlpPolicy", CartEnv(), seed=0, device="cpu")
    model.save(tmp_path / "theirs.zip")
    data = recorded()
    expected = model.predict(data.observations[:20].astype(np.float32), deterministic=True)[0]
    for policy in (model, tmp_path / "theirs.zip"):
        np.testing.assert_allclose(actor_of(policy, data, trust=True)(data.observations[:20]), expected, atol=1e-6)
    found = judge(data, {"theirs": tmp_path / "theirs.zip", "holds": holds}, gamma=GAMMA, n_steps=50, trust=True)
    assert found.ranking[0].name == "holds"


# --- Bad input -------------------------------------------------------------------------------------------------------------


def fails(observations):
    raise RuntimeError("out of order")


@pytest.mark.slow
def test_actions_that_are_no_numbers_somewhere_on_the_way_are_refused():
    def lost(observations):
        return np.where(np.abs(observations[:, :1]) > 0.5, np.nan, 1.0)

    with pytest.raises(InputError, match=r"the action of lost at \[.*\] is \[nan\]"):
        judge(recorded(), {"holds": holds, "lost": lost}, gamma=GAMMA, initial_states=[[0.4, 0.0]])


@pytest.mark.slow
def test_a_reward_that_is_no_number_beyond_the_data_is_refused():
    data = slow_cart()
    fastest = max(data.observations[:, 1].max(), data.next_observations[:, 1].max())
    with pytest.raises(InputError, match="where a predicted trajectory goes") as caught:
        judge(data, {"pushes on": push_on}, gamma=GAMMA, reward=f"sqrt({fastest + 0.001} - s2[1])")
    assert caught.value.field == "reward"


@pytest.mark.parametrize(
    "policies",
    [
        {},
        [holds],
        {"x": 5},
        {"x": fails},
        {"x": lambda o: np.zeros((len(o), 2))},
        {"x": lambda o: np.full((len(o), 1), np.nan)},
        {"x": lambda o: "left"},
        {"x": "nowhere.zip"},
        {"x": __file__},
    ],
)
def test_what_is_no_policy_is_refused(policies):
    with pytest.raises(InputError) as caught:
        judge(recorded(), policies, gamma=GAMMA)
    assert caught.value.field == "policies"


@pytest.mark.parametrize("suffix", [".zip", ".onnx"])
def test_files_that_hold_no_policy_are_refused(suffix, tmp_path):
    path = tmp_path / f"broken{suffix}"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(InputError) as caught:
        judge(recorded(), {"broken": path}, gamma=GAMMA)
    assert caught.value.field == "policies"
    assert path.name in str(caught.value)


@pytest.mark.slow
def test_a_policy_for_another_system_is_refused(tmp_path):
    class Wider(CartEnv):
        observation_space = spaces.Box(-3, 3, (5,))

    PPO("MlpPolicy", Wider(), device="cpu").save(tmp_path / "wider.zip")
    with pytest.raises(InputError) as caught:
        judge(recorded(), {"wider": tmp_path / "wider.zip"}, gamma=GAMMA, trust=True)
    assert caught.value.field == "policies"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("gamma", {"gamma": 1.0}),
        ("gamma", {"gamma": -0.5}),
        ("gamma", {"gamma": "much"}),
        ("level", {"level": 1.0}),
        ("level", {"level": 0.0}),
        ("n_steps", {"n_steps": 0}),
        ("n_steps", {"n_steps": 2.5}),
        ("initial_states", {"initial_states": [[0.1, 0.2, 0.3]]}),
        ("initial_states", {"initial_states": [[0.1, np.nan]]}),
        ("initial_states", {"initial_states": []}),
        ("initial_states", {"initial_states": [[0.9, 0.0]], "limits": {0: (-0.5, 0.5)}}),
        ("limits", {"limits": {0: (5.0, 6.0)}}),
        ("angles", {"angles": [(0, 1)]}),
        ("reward", {"reward": "log(s[0])"}),
    ],
)
def test_questions_that_make_no_sense_are_refused(field, settings):
    with pytest.raises(InputError) as caught:
        judge(recorded(), {"holds": holds}, **{"gamma": GAMMA, **settings})
    assert caught.value.field == field
