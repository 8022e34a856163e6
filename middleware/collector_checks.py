"""Checks of collectors before a run: settings without effect, policies that nothing trains, and modes that two share."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from ding_lite.basics.optional_attributes import attribute_of
from ding_lite.config import RunConfig
from ding_lite.middleware.arguments import SettingsReadOnce
from ding_lite.middleware.own_runs import own_run, trained_policies
from ding_lite.policy import CollectMode


class CollectorChecks:
    """What a collector checks before each run. A collector keeps it as `checks`, where those of other collectors find it.

    Args:
        who: name of the collector.
        cfg: configuration of the run.
        setting: the setting of the policy that the collector has read, by dotted name, such as "collect.n_sample".
        modes: the modes with which it acts.
        is_in_pieces: whether its environments are in pieces, each with its own copies of the policies.
    """

    def __init__(self, who: str, cfg: RunConfig, setting: str, modes: Sequence[CollectMode], is_in_pieces: bool) -> None:
        self._who, self._modes, self._is_in_pieces = who, tuple(modes), is_in_pieces
        self._warn_of_settings = SettingsReadOnce(who, cfg, setting)
        self._warn_if_idle = IdleCollectorCheck(who, modes)

    def __call__(self) -> None:
        """Warn of what has no effect, or not the expected one. To be called in `begin_run`."""
        self._warn_of_settings()
        self._warn_if_idle()
        self._warn_of_shared_modes()

    def _warn_of_shared_modes(self) -> None:
        """Warn if a collector in pieces shares a mode with another one: their copies draw the same random numbers."""
        found = [attribute_of(one, "checks") for one in own_run().middleware_objects()]
        checks = list(dict.fromkeys(one for one in found if isinstance(one, CollectorChecks)))
        for mode in self._modes:
            sharing = [one for one in checks if any(mode is its for its in one._modes)]
            if len(sharing) > 1 and next((one for one in sharing if one._is_in_pieces), None) is self:
                name = getattr(mode, "name", "a policy")
                warnings.warn(
                    f"{self._who} and another collector act with the same collect_mode of {name}, in "
                    "environments made with workers=...: both draw the same random numbers, and a resumed run differs from an "
                    "unbroken one. Use one collector with more environments, or environments without workers.",
                    stacklevel=4,
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
        trained, used = trained_policies(), own_run().used_objects()
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


def _is_untrained(mode: CollectMode) -> bool:
    """Whether a policy could learn, and its weights are those that it was made with."""
    actor: Any = mode.actor
    return (actor.has_loss or actor.has_own_learning) and mode.learner.version == 0
