"""Own runs: find the task that runs a middleware, and warn of policies that it does not train."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from ding_lite.basics.optional_attributes import attribute_of
from ding_lite.engine import Task, current_task
from ding_lite.policy import ActMode, CollectMode, LearnMode, Policy


def own_run() -> Task:
    """The task that runs the caller, or the open task around it.

    If there is none, because a middleware is called by hand, the result is a new synchronous task. So an earlier run of the
    global task has no influence.
    """
    found = current_task()
    return found if found.running else Task()


def warn_of_idle_policies(who: str, what: str, policies: Sequence[object]) -> None:
    """Warn if the run trains policies, and none of these is one of them. A function without a contract may train any.

    Args:
        who: name of the middleware.
        what: what it does with them, such as "evaluates".
        policies: policies, or modes of policies. Those of other libraries are not checked.
    """
    trained = _trained_policies()
    known = [one for one in policies if isinstance(one, (ActMode, LearnMode, Policy))]
    if not trained or not known or len(known) < len(policies):
        return
    if not any(mode.trains(one) for mode in trained for one in known):
        several = "of the policies" if len(known) > 1 else "the policy"
        warnings.warn(
            f"{who} {what} {several} that no learner of this run trains: its weights do not change. Pass the policy whose "
            "learn_mode the learner has.",
            stacklevel=3,
        )


class IdleCollectorCheck:
    """Warns once if the run trains policies, and its collectors act only with others, which could learn and never have.

    Rule-based policies and trained ones, such as experts, may collect for others. The first collector of a run warns for all.

    Args:
        who: name of the collector.
        policies: the modes with which it collects.
    """

    def __init__(self, who: str, policies: Sequence[object]) -> None:
        self._who, self._policies, self._is_done = who, policies, False

    def __call__(self) -> None:
        if self._is_done:
            return
        self._is_done = True
        trained, used = _trained_policies(), own_run().used_objects()
        acting = [thing for stage, thing in used if stage == "collect" and isinstance(thing, CollectMode)]
        if not trained or not acting or not any(acting[0] is one for one in self._policies):
            return
        if any(mode.trains(one) for mode in trained for one in acting) or not all(map(_is_untrained, acting)):
            return
        names = ", ".join(dict.fromkeys(mode.name for mode in trained))
        warnings.warn(
            f"{self._who} collects with a policy that no learner of this run trains, and so does every other collector: the "
            f"{names} that learns never acts, and the policy that acts does not improve. Pass the collect_mode of the policy "
            "whose learn_mode the learner has. For demonstrations of another policy, add a second collector.",
            stacklevel=2,
        )


class SharedModeCheck:
    """Warns before a run if a collector in pieces shares a mode with another one: their copies draw the same random numbers.

    Args:
        who: name of the collector.
        modes: the modes with which it acts.
        is_in_pieces: whether its environments are in pieces, each with its own copies of the policies.
    """

    def __init__(self, who: str, modes: Sequence[CollectMode], is_in_pieces: bool) -> None:
        self._who, self._modes, self._is_in_pieces = who, modes, is_in_pieces

    def __call__(self) -> None:
        found = [attribute_of(one, "shared_modes") for one in own_run().middleware_objects()]
        checks = list(dict.fromkeys(one for one in found if isinstance(one, SharedModeCheck)))
        for mode in self._modes:
            sharing = [one for one in checks if any(mode is its for its in one._modes)]
            if len(sharing) > 1 and next((one for one in sharing if one._is_in_pieces), None) is self:
                name = getattr(mode, "name", "a policy")
                warnings.warn(
                    f"{self._who} and another collector act with the same collect_mode of {name}, in "
                    "environments made with workers=...: both draw the same random numbers, and a resumed run differs from an "
                    "unbroken one. Use one collector with more environments, or environments without workers.",
                    stacklevel=3,
                )


def _trained_policies() -> list[LearnMode]:
    """The policies that this run trains; none if this is unknown, because a function without a contract may train any.

    A middleware on the stage learn that names a policy may give it weights, such as the averages of those of another one.
    """
    task = own_run()
    if task.may_use_anything():
        return []
    used = [thing for stage, thing in task.used_objects() if stage == "learn"]
    modes = [thing.learn_mode if isinstance(thing, Policy) else thing for thing in used]
    return [mode for mode in modes if isinstance(mode, LearnMode)]


def _is_untrained(mode: CollectMode) -> bool:
    """Whether a policy could learn, and its weights are those that it was made with."""
    actor: Any = mode.actor
    return (actor.has_loss or actor.has_own_learning) and mode.learner.version == 0
