"""Run descriptions: the policies and the environments of a pipeline, as plain data, for the files of a run."""

from __future__ import annotations

import os
import sys
from typing import Any

from ding_lite.basics import json_ready
from ding_lite.basics.optional_attributes import attribute_of, has_attribute
from ding_lite.engine import Task
from ding_lite.envs.names import name_of_envs

_KEPT = ("algorithm", "class", "observation_space", "action_space")


def describe_run(task: Task) -> dict[str, Any]:
    """What a program needs to know of a run to evaluate its policy: the policies and the environments of its pipeline.

    Returns:
        algorithm, the names of the policies' classes, joined; policies, for each its class and spaces; environments, for each
        its stage, name, number, how another program makes one, and with several agents the policy of each; search_path, the
        folders of the script for its own modules.
    """
    policies: list[dict[str, Any]] = []
    environments: dict[int, dict[str, Any]] = {}
    for stage, thing in task.used_objects():
        made_with = attribute_of(thing, "made_with")
        if isinstance(made_with, dict):
            policy = {name: json_ready(made_with[name]) for name in _KEPT}
            if policy not in policies:
                policies.append(policy)
        elif stage in ("evaluate", "collect") and has_attribute(thing, "num_envs"):
            environments.setdefault(id(thing), {"stage": stage, **_environments(thing)})
    return {
        "algorithm": ", ".join(dict.fromkeys(policy["algorithm"] for policy in policies)),
        "policies": policies,
        "environments": list(environments.values()),
        "search_path": [os.path.abspath(folder) for folder in sys.path[:1]],
    }


def _environments(envs: Any) -> dict[str, Any]:
    recipe = getattr(envs, "recipe", None)
    found = {
        "name": name_of_envs(envs),
        "num_envs": int(envs.num_envs),
        "recipe": "it is not made by make_envs()" if recipe is None else recipe,
    }
    slots_of = getattr(envs, "slots_of", None)
    if slots_of:
        found["agents"] = {str(agent): name for name, slots in slots_of.items() for agent in slots.agents}
    return found
