"""Renamed middleware: states of runs that were saved when some middleware had other names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_NAMES = {
    "AgentsCollector": "MultiAgentCollector",
    "agents_evaluator": "multi_agent_evaluator",
    "population_stepper": "population_trainer",
}
_OLD = re.compile(rf"\b({'|'.join(_NAMES)})\b")


def with_new_names(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a run, with the present names of its middleware."""
    changed = dict(state)
    for entry in ("pipeline", "without_state"):
        changed[entry] = [_new(name) for name in state[entry]]
    for entry in ("parts", "settings", "networks"):
        if isinstance(state.get(entry), Mapping):  # otherwise it is refused later, by name
            changed[entry] = {_new(name): part for name, part in state[entry].items()}
    if state.get("lanes"):
        edges = [{**edge, "edge": _new(edge["edge"])} for edge in state["lanes"]["edges"]]
        changed["lanes"] = {**state["lanes"], "edges": edges}
    return changed


def _new(text: str) -> str:
    return _OLD.sub(lambda found: _NAMES[found[0]], text)
