"""What is under way between two updates, and belongs to neither the data nor the policy."""

from dataclasses import dataclass, field
from typing import Any

from sb3_nopg.bellman.on_samples import WarmStart
from sb3_nopg.training.course import Course
from sb3_nopg.training.keeping import Watch


@dataclass
class Run:
    """
    :param warm_start: solutions for past policies, which the solvers start from
    :param course: of a training on a model; None where none is under way
    :param course_before: state of a course that was broken off
    :param watch: over the score; None before training
    :param support_announced: whether a word was said about thin support
    """

    warm_start: WarmStart = field(default_factory=WarmStart)
    course: Course | None = None
    course_before: dict[str, Any] | None = None
    watch: Watch | None = None
    support_announced: bool = False

    def state(self) -> dict[str, Any]:
        """All of it, for a checkpoint."""
        return {
            "q_history": self.warm_start.q_history.values,
            "visitation_history": self.warm_start.visitation_history.values,
            "course": None if self.course is None else self.course.state(),
            "watch": None if self.watch is None else self.watch.state(),
        }

    @classmethod
    def restored(cls, state: dict[str, Any]) -> "Run":
        """
        :param state: from a checkpoint
        """
        run = cls(course_before=state["course"], support_announced=True)
        if state["watch"] is not None:
            run.watch = Watch.restored(state["watch"])
        for value in state["q_history"]:
            run.warm_start.q_history.add(value)
        for value in state["visitation_history"]:
            run.warm_start.visitation_history.add(value)
        return run
