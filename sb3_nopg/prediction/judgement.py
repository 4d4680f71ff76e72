"""What a judge says of policies: what each is predicted to earn, and whether the data tell them apart."""

from dataclasses import dataclass

from sb3_nopg.prediction.chatter import Chatter

# More flights than this are no advice.
_MOST_FLIGHTS = 100


@dataclass(frozen=True)
class Leaving:
    """
    Trajectories that leave the data.

    :param share: of all
    :param after: steps, the median
    :param by: the column that most of them leave by
    """

    share: float
    after: int
    by: str

    def text(self) -> str:
        share = "" if self.share == 1.0 else f" in {100 * self.share:.0f} % of its trajectories"
        return f"leaves what was recorded{share} after about {self.after} steps, by {self.by}"


@dataclass(frozen=True)
class Judged:
    """
    What is predicted of one policy.

    :param name: of the policy
    :param score: undiscounted rewards along a trajectory, the mean of all; what follows where one leaves the data counts as
        the worst that was recorded
    :param low: lower end of the score's interval, over models and starts; None where one model judges alone
    :param high: upper end, where what follows outside of the data counts as the best that was recorded
    :param lasting: share of the trajectories that neither end nor leave the data
    :param chatter: how much the actuator moves, and how fast
    :param leaving: how trajectories leave the data; None where none does
    """

    name: str
    score: float
    low: float | None
    high: float | None
    lasting: float
    chatter: Chatter
    leaving: Leaving | None = None

    def interval(self) -> str:
        """In words."""
        return "not known" if self.low is None or self.high is None else f"{self.low:.4g} to {self.high:.4g}"


@dataclass(frozen=True)
class Judgement:
    """
    Policies, best first, and what can be said of the order.

    :param ranking: all of them
    :param n_steps: that trajectories were followed at most
    :param n_trajectories: of each policy
    :param margin: by how much the first is predicted to beat the second; None for one policy. Negative where the first was
        chosen for another reason
    :param told_apart: whether that is more than models and starts disagree about, whatever follows outside of the data; None
        for one policy, and where one model judges alone
    :param flights: short flights of each of the two that would decide it; None where nothing is to be decided
    :param unexplained: share of the changes' variance that the models leave unexplained where they have not seen them
    :param notes: what a reader should know
    :param is_clear: whether the margin is more than models and starts disagree about if the worst follows outside of the data
    """

    ranking: tuple[Judged, ...]
    n_steps: int
    n_trajectories: int
    margin: float | None
    told_apart: bool | None
    flights: int | None
    unexplained: float
    notes: tuple[str, ...] = ()
    is_clear: bool = False

    def text(self) -> str:
        """What it comes to, in a sentence or two."""
        first = self.ranking[0]
        if self.margin is not None and self.margin < 0:
            better = f"{self.ranking[1].name} scores {-self.margin:.3g} higher, which is too little to tell"
            return f"{first.name} is kept; {better}."
        if len(self.ranking) == 1:
            leaves = "" if first.leaving is None else f" It {first.leaving.text()}: what follows is not known."
            return f"{first.name} is predicted to earn {first.score:.4g} ({first.interval()}).{leaves}"
        second = self.ranking[1]
        if self.told_apart:
            return f"{first.name} is predicted to beat {second.name} by {self.margin:.3g}."
        if second.leaving is not None and self.is_clear:
            return (
                f"These data cannot rank {second.name}: it {second.leaving.text()}. If the worst follows there, "
                f"{first.name} is ahead by {self.margin:.3g}."
            )
        if self.told_apart is None and self.is_clear:
            return (
                f"{first.name} is predicted to beat {second.name} by {self.margin:.3g}, by one model alone: how sure that is, "
                "these data cannot tell."
            )
        if self.flights is None or self.flights > _MOST_FLIGHTS:
            return (
                f"{first.name} and {second.name} cannot be told apart, and more than {_MOST_FLIGHTS} flights would not do it."
            )
        flights = f"{self.flights} short flight{'s' if self.flights > 1 else ''} of each"
        return f"{first.name} and {second.name} cannot be told apart by these data: {flights} would decide it."
