"""Saved players: the policies of a saved run, made anew, and the agents for which each of them acts."""

from __future__ import annotations

import functools
import importlib
import numbers
from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any

from ding_lite.basics import did_you_mean
from ding_lite.envs import LocalVectorEnv
from ding_lite.envs.agent_bases import MultiAgentVectorBase
from ding_lite.policy import Policy, load_policy
from ding_lite.policy.saved_policies import checkpoint_path, saved_names
from ding_lite.policy_base import ActMode
from ding_lite.reports import ReportError
from ding_lite.rollout.collection import LocalWorker
from ding_lite.rollout.multi_agent import MultiAgentWorker

PolicyClass = str | type[Policy]


def with_eps(who: str, settings: Mapping[str, Any] | None, eps: Any) -> dict[str, Any]:
    """The settings to act with, with the probability of random actions, if it is given.

    Args:
        who: name of the function, for messages.
        settings: the others.
        eps: the probability; None for that of `settings`, if any.

    Raises:
        ValueError: it is no probability, or both give it.
    """
    given = dict(settings or {})
    if eps is None:
        return given
    is_number = isinstance(eps, numbers.Real) and not isinstance(eps, bool)
    if not is_number or not (0 <= eps <= 1 or eps == -1):
        raise ValueError(f"{who}(eps={eps!r:.60}): expected a probability, a number in [0, 1], or -1 for no exploration.")
    if "eps" in given:
        raise ValueError(f"{who}(eps={eps!r}, settings={{'eps': {given['eps']!r:.60}}}): give it once.")
    return {**given, "eps": float(eps)}


def _require_settings(policy: Policy, settings: Mapping[str, Any]) -> None:
    missing = next((name for name in policy.acting_settings if name not in settings), None)
    if missing is not None:
        option = "--eps 0.05" if missing == "eps" else f"--settings {missing}=0.05"
        raise ValueError(
            f"{type(policy).__name__} explores by {missing}, which a saved policy does not know: pass it, such as "
            f"{missing}=0.05, on the command line {option}."
        )


class SavedPlayers:
    """The policies of a saved run, which act in new environments.

    Args:
        run, which: as for `load_policy`.
        name: of the policy, if the run has one agent and has saved several.
        policy_class: a class for all policies, or a mapping from names to classes; each is a class, or its place as
            "module:name". A string may also name several, "name=module:name,other=module:name".
        policy_of: function or mapping from an agent to the name of its policy; None for a run with one agent.

    Raises:
        ReportError: a class cannot be found, or `name` is given for a run with several agents.
    """

    def __init__(
        self,
        run: str | PathLike[str],
        which: str,
        name: str | None,
        policy_class: PolicyClass | Mapping[str, PolicyClass] | None,
        policy_of: Callable[[Any], str | None] | Mapping[Any, str] | None,
    ) -> None:
        self._run, self._which, self._name = run, which, name
        self._classes = _classes_in(policy_class)
        self._policy_of: Callable[[Any], Any] | None = policy_of.get if isinstance(policy_of, Mapping) else policy_of
        if name is not None and policy_of is not None:
            raise ReportError(f"the run in {run} has several agents, and all of its policies act: leave the name {name!r} out.")
        self._policies: dict[str, Policy] = {}

    @property
    def has_agents(self) -> bool:
        """Whether the environments have several agents."""
        return self._policy_of is not None

    @property
    def algorithm(self) -> str:
        """Classes of the policies, joined."""
        return ", ".join(dict.fromkeys(type(policy).__name__ for policy in self._policies.values()))

    def worker(
        self,
        envs: LocalVectorEnv | MultiAgentVectorBase,
        settings: Mapping[str, Any],
        deterministic: bool,
        greedy_mode: Callable[[Policy], ActMode] = lambda policy: policy.eval_mode,
    ) -> LocalWorker | MultiAgentWorker:
        """A worker in which the policies act in these environments. The first call loads the policies.

        Args:
            envs: new environments.
            settings: to act with them, see `Policy.predict`; the caller passes them to the worker.
            deterministic: whether to act greedily.
            greedy_mode: the mode of a policy that acts greedily.

        Raises:
            CheckpointError, StateDictError: a policy cannot be loaded.
            ReportError: a policy is not saved, and its class is not given.
            TypeError: a policy does not use a setting.
            ValueError: a policy explores by a setting that is missing; or by one that is given, and it acts greedily.
        """
        if not self._policies:
            self._policies = self._loaded(envs)
        for policy in self._policies.values():
            policy.predict_mode.require_known(settings)
            if not deterministic:
                _require_settings(policy, settings)
            elif idle := [name for name in policy.acting_settings if name in settings]:
                raise ValueError(
                    f"{type(policy).__name__} explores by {idle[0]}, which has no effect on greedy actions: leave it out, or "
                    "explore, deterministic=False, on the command line --explore."
                )
        modes: dict[str, ActMode] = {
            name: greedy_mode(policy) if deterministic else policy.collect_mode for name, policy in self._policies.items()
        }
        if isinstance(envs, MultiAgentVectorBase):
            assert self._policy_of is not None
            return MultiAgentWorker(envs, modes, self._policy_of)
        return LocalWorker(envs, *modes.values())

    def _loaded(self, envs: LocalVectorEnv | MultiAgentVectorBase) -> dict[str, Policy]:
        if not isinstance(envs, MultiAgentVectorBase):
            self._require_known(("",) if self._name is None else (self._name,))
            kind = self._classes.get(self._name, self._classes.get(None))
            return {"": load_policy(self._run, self._which, name=self._name, policy_class=kind)}
        agent_of: dict[str, Any] = {}
        for agent in reversed(envs.possible_agents):
            assert self._policy_of is not None
            name = self._policy_of(agent)
            if not isinstance(name, str):
                raise ReportError(
                    f"the run in {self._run} does not say which policy acts for the agent {agent!r}: take environments with "
                    "the agents of the run, or in Python pass policy_of=, a dict of names by agent."
                )
            agent_of[name] = agent
        self._require_known(agent_of)
        path = checkpoint_path(self._run, self._which)
        saved = saved_names(path)
        if saved is None and len(agent_of) > 1:
            raise ReportError(
                f"{path} holds one policy without a name, and the run has {_listed(agent_of)}: save all of them, "
                f"CkptSaver({{{', '.join(f'{name!r}: ...' for name in agent_of)}}}, ...)."
            )
        return {
            name: self._load(name if saved else None, name) if saved is None or name in saved else self._made(name, agent, envs)
            for name, agent in reversed(agent_of.items())
        }

    def _load(self, saved_as: str | None, name: str) -> Policy:
        kind = self._classes.get(name, self._classes.get(None))
        return load_policy(self._run, self._which, name=saved_as, policy_class=kind)

    def _made(self, name: str, agent: Any, envs: MultiAgentVectorBase) -> Policy:
        """A policy that the run has not saved, which therefore must have no weights."""
        start = f"{checkpoint_path(self._run, self._which)} does not hold the policy {name!r}, which acts for {agent!r}"
        save = f"save it too, CkptSaver({{..., {name!r}: policy}}, ...)"
        kind = self._classes.get(name)
        if kind is None:
            raise ReportError(
                f"{start}: {save}; or if it has no weights, name its class: --policy-class {name}=MODULE:NAME, in Python "
                f"policy_class={{{name!r}: ...}}."
            )
        policy = kind({}, envs.observation_space(agent), envs.action_space(agent))
        if policy.get_weights():
            raise ReportError(f"{start}, and a new {kind.__name__} has other weights than that of the run: {save}.")
        return policy

    def _require_known(self, names: Any) -> None:
        """Raise an error if a class is given for a policy that does not exist."""
        for name in self._classes:
            if name is not None and name not in names:
                known = [known for known in names if known]
                hint = did_you_mean(name, known) if known else "."
                raise ReportError(f"policy_class names the policy {name!r}, but there is {_listed(known) or 'no name'}{hint}")


def _listed(names: Any) -> str:
    return ", ".join(map(repr, names))


def _classes_in(given: PolicyClass | Mapping[str, PolicyClass] | None) -> dict[str | None, type[Policy]]:
    """Classes by the name of the policy; None is the name of the class for all others."""
    if given is None:
        return {}
    if isinstance(given, str):
        pairs = [part.rpartition("=") for part in given.split(",")]
        return {name or None: _class_at(place) for name, _, place in pairs}
    if isinstance(given, Mapping):
        return {name: _class_at(one) for name, one in given.items()}
    return {None: _class_at(given)}


def _class_at(place: PolicyClass) -> type[Policy]:
    found = imported(place) if isinstance(place, str) else place
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise ReportError(f"there is no class of policies at {place!r}: name it as module:name, such as my_module:MyPolicy.")
    return found


def imported(place: str) -> Any:
    """The object at "module:name"; None if there is none."""
    module, _, path = place.partition(":")
    try:
        return functools.reduce(getattr, path.split("."), importlib.import_module(module))
    except (ImportError, AttributeError, ValueError):
        return None
