"""Acting settings: what acting takes from the pipeline, such as how often it acts at random."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ding_lite.contexts import OnlineRLContext
from ding_lite.policy import CollectMode

_USUAL = {"eps": "eps_greedy_handler(cfg)"}


class ActingSettings:
    """What a collector passes to its policies: ctx.collect_kwargs, and behind it what the script gave to the collector.

    Args:
        who: the collector.
        policies: that act.
        given: by the script, by name; None for nothing.

    Raises:
        TypeError: `given` is no dict whose keys are names.
    """

    def __init__(self, who: str, policies: Iterable[CollectMode], given: Mapping[str, Any] | None) -> None:
        if given is not None and not (isinstance(given, Mapping) and all(isinstance(name, str) for name in given)):
            raise TypeError(f"{who}(collect_kwargs={given!r:.80}) wants settings by name, such as {{'eps': 0.1}}.")
        self._given = dict(given or {})
        wanted = dict.fromkeys(name for policy in policies for name in getattr(policy, "acting_settings", ()))
        needed = [name for name in wanted if name not in self._given]
        self.terms: Any = {
            "needs": tuple(f"collect_kwargs.{name}" for name in needed),
            "hints": {f"collect_kwargs.{name}": _advice(who, name) for name in needed},
        }
        """The terms of a contract that say what an earlier middleware has to set."""

    def at(self, ctx: OnlineRLContext) -> dict[str, Any]:
        """For the policies, in this iteration."""
        return {**self._given, **ctx.collect_kwargs}


def _advice(who: str, name: str) -> str:
    usual = _USUAL.get(name)
    add = f"add task.use({usual})" if usual else f"add a middleware that sets ctx.collect_kwargs[{name!r}]"
    fixed = "to act without random actions" if name == "eps" else "for a fixed value"
    return f'{add} before it; or, {fixed}, write {who}(..., collect_kwargs={{"{name}": {0.0 if name == "eps" else "..."}}}).'
