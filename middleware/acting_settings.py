"""Settings: values from the pipeline that a policy needs to act, such as epsilon."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ding_lite.contexts import OnlineRLContext
from ding_lite.policy import CollectMode

_USUAL = {"eps": "eps_greedy_handler(cfg)"}


class ActingSettings:
    """The keyword arguments that a collector passes to its policies: ctx.collect_kwargs, with defaults from the script.

    Args:
        who: name of the collector, for messages.
        policies: the policies that act.
        given: the script's `collect_kwargs`; None for none.

    Raises:
        TypeError: `given` is not a dict with string keys.
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
        """Contract terms for the settings that an earlier middleware has to provide."""

    def at(self, ctx: OnlineRLContext) -> dict[str, Any]:
        """The keyword arguments of this iteration."""
        return {**self._given, **ctx.collect_kwargs}


def _advice(who: str, name: str) -> str:
    usual = _USUAL.get(name)
    add = f"add task.use({usual})" if usual else f"add a middleware that sets ctx.collect_kwargs[{name!r}]"
    fixed = "to act without random actions" if name == "eps" else "for a fixed value"
    return f'{add} before it; or, {fixed}, write {who}(..., collect_kwargs={{"{name}": {0.0 if name == "eps" else "..."}}}).'
