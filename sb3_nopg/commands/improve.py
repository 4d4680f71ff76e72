"""``nopg improve``: the learner's half of a round on a rig, from a folder that both see."""

import hashlib
import inspect
import pathlib
import time
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import typer
from rich.console import Console

import nopg_envs  # noqa: F401 - makes the environments known
from nopg_envs.cartpole.env import QuanserCartPoleEnv
from nopg_envs.cartpole.parameters import CartPoleParameters
from nopg_robot.flight.log import FlightLog
from nopg_robot.rounds.flights import ENOUGH_FLIGHTS
from nopg_robot.rounds.folder import TASK_FILE, Learned, LearningFolder, Round, working_alone
from sb3_nopg import NOPG, DynamicsModel, TransitionDataset
from sb3_nopg.commands.models import TrainingRecord
from sb3_nopg.commands.rig_parameters import NotToldError, identified
from sb3_nopg.commands.stress import stress_of
from sb3_nopg.commands.waiting import waiting
from sb3_nopg.common.errors import InputError
from sb3_nopg.common.failures import note, one_line_errors
from sb3_nopg.common.files import replacing
from sb3_nopg.data.fingerprint import dataset_fingerprint
from sb3_nopg.prediction.flown import FlownAgainstPredicted, flown_against_predicted
from sb3_nopg.prediction.flown_picture import plot_flown
from sb3_nopg.prediction.following import follow
from sb3_nopg.prediction.judge import judge
from sb3_nopg.prediction.promised_errors import PromisedErrors
from sb3_nopg.report.making import make_report
from sb3_nopg.report.page import write_report

_UPDATES = inspect.signature(NOPG.learn).parameters["total_timesteps"].default
# Their spaces, names and units are the rig's; for learning they are never stepped.
_ENVS = {"upright": "nopg/QuanserCartPoleBalance-v0", "hanging": "nopg/QuanserCartPoleSwingUp-v1"}
#: share of predicted flights that must reach the goal before flights are believed
_ENOUGH_PREDICTED = 0.8
_N_PREDICTED = 32


@one_line_errors
def improve(
    folder: Annotated[pathlib.Path, typer.Argument(metavar="FLIGHTS_DIR", help="That nopg-learn has made.")],
    updates: Annotated[int, typer.Option(min=1, help="Of the policy, of all candidates together.")] = _UPDATES,
    review: Annotated[bool, typer.Option("--review", help="Only look whether the last flights settle it.")] = False,
    trust: Annotated[bool, typer.Option("--trust", help="Run a task that is a Python file of the folder.")] = False,
) -> None:
    """
    Compare the last flights with their prediction, learn from all of them, judge the new policy against the one before, and
    leave what the rig is to fly next.

    Example: nopg improve runs/learn-balance
    """
    try:
        shared = LearningFolder(folder, trust=trust)
    except ValueError as error:
        raise InputError("FLIGHTS_DIR", str(error), "See docs/learning.md") from error
    flown = [one for one in shared.rounds if one.is_flown]
    if not flown:
        raise InputError("FLIGHTS_DIR", f"nothing has been flown yet in {folder}", "Run nopg-learn on the rig first")
    following = shared.round(flown[-1].number + 1)
    # One learner after the other: one that was left behind by a program that was killed is waited for.
    with working_alone(folder, "learner", lambda: note("another learner is at work in this folder; waiting for it")):
        there = following.learned
        if there is None or (there.policy == "" and not there.done and not review):
            _Learner(shared, flown[-1], following).work(updates, review=review)
    learned = following.learned
    assert learned is not None
    shared.write_table()
    console = Console(soft_wrap=True, highlight=False)
    console.print(learned.says, markup=False)
    if not learned.done and learned.policy:
        named = f" --task YOUR_{TASK_FILE}" if shared.about["task"] == TASK_FILE else ""
        console.print(f"On the rig: nopg-learn --folder {folder}{named} --rig YOUR_RIG.yaml", markup=False)


def _is_good(succeeded: list[bool]) -> bool:
    """Whether a round's flights say that its policy does the task."""
    return len(succeeded) >= ENOUGH_FLIGHTS and all(succeeded)


class _Learner:
    """
    :param shared: folder
    :param last: round that was flown
    :param following: round that comes next
    """

    def __init__(self, shared: LearningFolder, last: Round, following: Round):
        self.shared, self.task, self.last, self.following = shared, shared.task, last, following
        self._seed = int(shared.about["seed"])
        self._limit_volt, self._period_s = float(shared.about["voltage_volt"]), 1.0 / float(shared.about["control_hz"])
        control_hz = float(shared.about["control_hz"])
        self._env_options: dict[str, Any] = {"voltage_limit_volt": self._limit_volt, "control_hz": control_hz}
        self._env = gym.make(_ENVS[self.task.pole], **self._env_options)
        self._data = self._recorded(shared.flights())
        self._begun_s = time.perf_counter()

    def work(self, updates: int, *, review: bool) -> None:
        """
        :param updates: of the policy
        :param review: learn nothing
        """
        compared = self._look_back()
        says = [] if compared is None else [compared.text()]
        scale = 1.0 if compared is None else compared.noise_scale
        ratios = (None, None, None) if compared is None else compared.ratios
        last, share = self.last.learned, 0.0
        if last is not None:
            with waiting("predicting the last policy by all that is known now"):
                share = self._predicted_share(self._fit(self._data, scale), self.shared.path / last.policy)
            good = self.last.succeeded
            says.append(f"{sum(good)} of {len(good)} flights reached the goal; {share:.0%} of predicted ones do.")
            if _is_good(good):
                if share >= _ENOUGH_PREDICTED:
                    says.append(f"Flights and prediction agree: the task is done, by {last.policy}.")
                    self._leave(last.policy, True, says, share, ratios, scale)
                    return
                says.append(f"{last.policy} flies better than the model knows, which is no agreement.")
        if review:
            self._leave("", False, says, share, ratios, scale)
            return
        model = self._learn(updates, scale)
        policy = self._export(model)
        share = self._predicted_share(model.dynamics, policy)
        if last is not None:
            proven = self._proven()
            earlier = self.shared.path / (proven or last.policy)
            text, better = self._judge(policy, earlier)
            says.append(text)
            earlier_share = self._predicted_share(model.dynamics, earlier)
            # What has flown well is given up for what is predicted to do better, and for nothing else. What has not flown well
            # flies again only if it is predicted to do better in both ways.
            if proven is None:
                keeps = better is False and share < earlier_share
            else:
                keeps = better is False or (better is None and share <= earlier_share)
            if keeps:
                policy, share = earlier, earlier_share
        chosen = policy.relative_to(self.shared.path).as_posix()
        says.append(f"The policy to fly next is {chosen}; {share:.0%} of its predicted flights reach the goal.")
        self._leave(chosen, False, says, share, ratios, scale)

    def _proven(self) -> str | None:
        """The last policy whose flights all reached the goal when it last flew."""
        seen: set[str] = set()
        for one in reversed(self.shared.rounds):
            if one.learned is None or not one.is_flown or one.learned.policy in seen:
                continue
            seen.add(one.learned.policy)
            if _is_good(one.succeeded):
                return one.learned.policy
        return None

    def _look_back(self) -> FlownAgainstPredicted | None:
        """Each of the last flights, beside what the model from before them says."""
        earlier = self.shared.flights(before=self.last.number)
        flights = self.shared.flights()[len(earlier) :]
        if not earlier or not flights:
            return None
        before = self._recorded(earlier)
        flown = {log.path.name.partition(".")[0]: self._recorded([log]) for log in flights}
        with waiting("comparing the flights with their prediction"):
            promised = PromisedErrors(self._fit(before, 1.0), before)
            compared = flown_against_predicted(promised, flown)
            names = self._env.metadata["observation_names"]
            picture = self.last.folder / "predicted.png"
            plot_flown(promised, flown, picture, period_s=self._period_s, names=names)
        return compared

    def _learn(self, updates: int, noise_scale: float) -> NOPG:
        model = NOPG(
            "MlpPolicy",
            self._env,
            dataset=self._data,
            gamma=self.task.gamma,
            initial_states=self._starts(),
            model_kwargs={"reward": self.task.reward, "noise_scale": noise_scale},
            seed=self._seed + self.following.number,
            device="cpu",
        )
        model.learn(updates, progress_bar=True)
        return model

    def _export(self, model: NOPG) -> pathlib.Path:
        folder = self.following.folder
        model.save(folder / "model.zip")
        # The data are the folder's flights, relabelled: no file or recipe.
        seed, fingerprint = self._seed + self.following.number, dataset_fingerprint(self._data)
        TrainingRecord(None, _ENVS[self.task.pole], seed, fingerprint, self._env_options).save(folder / "model.zip")
        stress = stress_of(model, self._parameters())
        with waiting("writing the report"):
            write_report(make_report(model, stress=stress), folder / "report.html")
            return model.export(folder / "policy.onnx")

    def _parameters(self) -> CartPoleParameters:
        """Of the rig by its flights, left in the round's folder; the simulator's own where they tell no better."""
        simulated = self._env.unwrapped
        assert isinstance(simulated, QuanserCartPoleEnv)
        logs = [path for one in self.shared.rounds for path in one.logs()]
        nominal = simulated.options.nominal
        try:
            with waiting("identifying the rig from its flights"):
                found = identified(logs, nominal, self._seed)
        except NotToldError as reason:
            note(f"the report's simulated rigs are drawn around the shipped parameters: {reason}")
            return nominal
        with replacing(self.following.folder / "parameters.yaml") as partial:
            found.save(partial)
        return found

    def _judge(self, new: pathlib.Path, earlier: pathlib.Path) -> tuple[str, bool | None]:
        """What the data say of both, and whether the new one is better, None where that is not clear."""
        with waiting("judging the new policy against the last"):
            judgement = judge(
                self._data,
                {"the new policy": str(new), "the earlier one": str(earlier)},
                gamma=self.task.gamma,
                initial_states=self._starts(),
                n_steps=round(self.task.flight_s / self._period_s),
                reward=self.task.reward,
                seed=self._seed,
            )
        better = judgement.ranking[0].name == "the new policy" if judgement.is_clear else None
        return judgement.text()[:1].upper() + judgement.text()[1:], better

    def _predicted_share(self, model: DynamicsModel, policy: pathlib.Path) -> float:
        """Of predicted flights, how many reach the goal."""
        starts = self._starts()
        starts = starts[np.linspace(0, len(starts) - 1, _N_PREDICTED).astype(int)]
        n_steps = round(self.task.flight_s / self._period_s)
        followed = follow(model, str(policy), starts, n_steps, noise_seed=self._seed)
        lasting = np.flatnonzero(followed.lasting)
        return sum(self.task.goal(followed.states[:, one], self._period_s) for one in lasting) / len(starts)

    def _starts(self) -> np.ndarray:
        if self.task.initial_state is not None:
            return np.array([self.task.initial_state])
        assert self._data.episode_starts is not None
        return np.asarray(self._data.observations[self._data.episode_starts], dtype=np.float64)

    def _fit(self, data: TransitionDataset, noise_scale: float) -> DynamicsModel:
        return DynamicsModel.fit(data, reward=self.task.reward, noise_scale=noise_scale, seed=self._seed)

    def _recorded(self, flights: list[FlightLog]) -> TransitionDataset:
        if not flights:
            raise InputError("FLIGHTS_DIR", "no flight has recorded anything", "Run nopg-learn on the rig")
        spaces: dict[str, Any] = {"action_space": self._env.action_space}
        parts = [TransitionDataset(**{**log.transitions(), **spaces}) for log in flights]
        merged = parts[0] if len(parts) == 1 else TransitionDataset.merge(*parts)
        return merged.relabel(self.task.reward)

    def _leave(
        self,
        policy: str,
        done: bool,
        says: list[str],
        share: float,
        ratios: tuple[float | None, ...],
        noise_scale: float,
    ) -> None:
        took_s = time.perf_counter() - self._begun_s
        digest = hashlib.sha256((self.shared.path / policy).read_bytes()).hexdigest() if policy else ""
        learned = Learned(
            policy, digest, done, "\n".join(says), share, len(self._data), self.shared.rig_seconds, took_s, ratios, noise_scale
        )
        self.following.write_learned(learned)
