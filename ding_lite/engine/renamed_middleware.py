"""Renamed middleware: states of runs that were saved when some middleware, or environments, had other names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

_NAMES = {
    "AgentVectorEnv": "MultiAgentVectorEnv",
    "AgentsCollector": "MultiAgentCollector",
    "agents_evaluator": "multi_agent_evaluator",
    "population_stepper": "population_trainer",
}
_WORD = re.compile(r"\w+")


def with_new_names(state: Mapping[str, Any], own_names: Iterable[str]) -> dict[str, Any]:
    """The state of a run, with the present names of its middleware and objects.

    Args:
        state: the state.
        own_names: the names of the middleware and objects that load it. Those of a script may be former names of others.
    """
    own = {word for name in own_names for word in _WORD.findall(name)}
    names = {old: name for old, name in _NAMES.items() if old not in own}

    def new(text: Any) -> Any:
        # What is no text is refused later, by name.
        return _WORD.sub(lambda found: names.get(found[0], found[0]), text) if isinstance(text, str) else text

    changed = dict(state)
    for entry in ("pipeline", "without_state"):
        changed[entry] = [new(name) for name in state[entry]]
    for entry in ("parts", "settings", "networks"):
        if isinstance(state.get(entry), Mapping):
            changed[entry] = {new(name): part for name, part in state[entry].items()}
    if state.get("lanes"):
        edges = [{**edge, "edge": new(edge["edge"])} for edge in state["lanes"]["edges"]]
        changed["lanes"] = {**state["lanes"], "edges": edges}
    return changed
