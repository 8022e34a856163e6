"""Own runs: find the task that runs a middleware, and warn of policies that it does not train."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from ding_lite.engine import Task, current_task
from ding_lite.policy import ActMode, LearnMode, Policy


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
    trained = trained_policies()
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


def trained_policies() -> list[LearnMode]:
    """The policies that this run trains; none if this is unknown, because a function without a contract may train any.

    A middleware on the stage learn that names a policy may give it weights, such as the averages of those of another one.
    """
    task = own_run()
    if task.may_use_anything():
        return []
    used = [thing for stage, thing in task.used_objects() if stage == "learn"]
    modes = [thing.learn_mode if isinstance(thing, Policy) else thing for thing in used]
    return [mode for mode in modes if isinstance(mode, LearnMode)]
