"""Renamed middleware: states of runs that were saved when some middleware had other names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

_NAMES = {
    "AgentsCollector": "MultiAgentCollector",
    "agents_evaluator": "multi_agent_evaluator",
    "population_stepper": "population_trainer",
}


def with_new_names(state: Mapping[str, Any], in_use: Iterable[str]) -> dict[str, Any]:
    """The state of a run, with the present names of its middleware.

    Args:
        state: a sound state.
        in_use: names of the present middleware and objects. An old name among them is that of something of the script.
    """
    mine = " ".join(in_use)
    names = {old: new for old, new in _NAMES.items() if not re.search(rf"\b{old}\b", mine)}
    old = re.compile(rf"\b({'|'.join(names)})\b")

    def new(name: Any) -> Any:
        is_name = isinstance(name, str) and names  # in a damaged state it may be none, and is refused later
        return old.sub(lambda found: names[found[0]], name) if is_name else name

    changed = dict(state)
    for entry in ("pipeline", "without_state"):
        changed[entry] = [new(name) for name in state[entry]]
    for entry in ("parts", "settings", "networks"):
        if isinstance(state.get(entry), Mapping):  # otherwise it is refused later, by name
            changed[entry] = {new(name): part for name, part in state[entry].items()}
    if state["lanes"]:
        edges = [{**edge, "edge": new(edge["edge"])} for edge in state["lanes"]["edges"]]
        changed["lanes"] = {**state["lanes"], "edges": edges}
    return changed
