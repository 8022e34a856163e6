"""Steps: the parts of middleware that run in each iteration, and the edges between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

from ding_lite.pipeline.contexts import Context
from ding_lite.pipeline.contract_guards import FIRST, LATE, SECOND, step_fields
from ding_lite.pipeline.contracts import LANES, state_groups
from ding_lite.pipeline.entries import Entry
from ding_lite.pipeline.generators import may_yield

TAKING = "(taking)"
"""In the name of a step that takes pending work."""
PROCESS, LEARN = LANES.index("process"), LANES.index("learn")


class Leader(Protocol):
    """An object whose state followers copy, such as the learn_mode of a policy."""

    shares_state_with: Sequence[Any]
    """Objects that hold the same state, such as the policy itself: naming one of them in `uses` is naming this one."""

    def snapshot(self) -> Any:
        """An immutable copy of the current state; the same object as before if the state is the same."""

    def snapshot_state(self, snapshot: Any) -> Any:
        """A snapshot as plain data. Needed only to save the state of a run in which iterations overlap."""

    def snapshot_from(self, state: Any) -> Any:
        """The snapshot that `snapshot_state` was called with."""


class Follower(Protocol):
    """An object in the `uses` of a contract that acts on the state of another, its leader."""

    leader: Any
    """The object that it follows, as named in the `uses` of the middleware that change it."""

    def load_snapshot(self, snapshot: Any) -> None:
        """Use this snapshot of the leader from now on; None follows the leader itself again."""


@dataclasses.dataclass(eq=False)
class MiddlewareStep:
    """One step of one middleware, in every iteration."""

    entry: Entry | None
    """The middleware; None for the end of an iteration."""
    is_second: bool
    lane: int
    position: int = 0
    """Position in a sequential iteration."""
    index: int = 0
    """In the order of its lane."""
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    uses: tuple[Any, ...] = ()
    is_opaque: bool = False
    is_late: bool = False
    """Whether it takes the pending work of the first half."""
    inputs: list[Edge] = dataclasses.field(default_factory=list)
    outputs: list[Edge] = dataclasses.field(default_factory=list)

    @property
    def name(self) -> str:
        """Its name in messages."""
        if self.entry is None:
            return "end of iteration"
        if self.is_late:
            return f"{self.entry.name} {TAKING}"
        return f"{self.entry.name} (second half)" if self.is_second else self.entry.name

    def is_user_of(self, thing: object) -> bool:
        """Whether it uses this very object."""
        return any(other is thing for other in self.uses)


@dataclasses.dataclass(eq=False)
class Edge:
    """From the source in iteration k to the target in iteration k + distance: values, snapshots, or only a signal."""

    source: MiddlewareStep
    target: MiddlewareStep
    distance: int
    """Number of tokens before the run."""
    fields: list[str] = dataclasses.field(default_factory=list)
    """Fields of the context that it carries."""
    follows: list[tuple[Leader, Follower]] = dataclasses.field(default_factory=list)
    """(leader, follower) pairs whose state it carries."""
    reasons: list[str] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.target.name} waits for {self.source.name} of {self.distance} iterations before: {self.why}"

    @property
    def why(self) -> str:
        """Why the target waits, for messages."""
        return ", ".join(dict.fromkeys(self.reasons))


def make_steps(entries: Sequence[Entry], cls: type[Context], fields: frozenset[str], is_one_lane: bool) -> list[MiddlewareStep]:
    """Every step of an iteration, in sequential order; the last one ends the iteration.

    Args:
        entries: the pipeline.
        cls, fields: the class of the context, and the names of its fields.
        is_one_lane: whether all of them are on one lane.
    """
    steps = [step for entry in entries for step in _forward_steps(entry, cls, fields)]
    steps += [_step_of(entry, SECOND, cls, fields) for entry in reversed(entries) if may_yield(entry.fn)]
    for step in steps:
        step.lane = LEARN if is_one_lane else step.lane
    _use_until_taken(steps)
    _join_shared_state(steps)
    elsewhere = frozenset[str]().union(*(step.writes for step in steps if step.lane != LEARN))
    return [*steps, MiddlewareStep(None, False, LEARN, reads=elsewhere)]  # at the end, the whole context is collected


def _use_until_taken(steps: Sequence[MiddlewareStep]) -> None:
    """Let pending work count as a use of the objects of its stage that other middleware use, such as environments.

    Others then use these objects only when no work is pending, and the next work is requested after that.
    """
    for step in steps:
        if step.is_late and step.entry is not None and step.entry.contract is not None:
            others = [other for other in steps if other.entry is not step.entry]
            exclusive = step.entry.contract.exclusive
            step.uses = tuple(thing for thing in exclusive if any(other.is_user_of(thing) for other in others))


def _join_shared_state(steps: Sequence[MiddlewareStep]) -> None:
    """Put one object for all that share its state into the steps' `uses`, so that their users take turns."""
    groups = state_groups([thing for step in steps for thing in step.uses])
    if groups:
        for step in steps:
            owners = (groups.get(id(thing), (thing,))[0] for thing in step.uses)
            step.uses = tuple({id(it): it for it in owners}.values())


def _forward_steps(entry: Entry, cls: type[Context], fields: frozenset[str]) -> list[MiddlewareStep]:
    """The first half, and the step on the process lane that takes its pending work, if it may return one."""
    step, terms = _step_of(entry, FIRST, cls, fields), entry.contract
    if terms is None or not terms.writes_late or entry.call is not entry.fn:  # a wrapper takes the pending work at once
        return [step]
    reads, writes = step_fields(cls, terms, LATE)
    return [
        step,
        MiddlewareStep(entry, False, max(PROCESS, step.lane), writes=fields & writes, reads=fields & reads, is_late=True),
    ]


def _step_of(entry: Entry, which: int, cls: type[Context], fields: frozenset[str]) -> MiddlewareStep:
    terms, is_second = entry.contract, which == SECOND
    if terms is None:
        return MiddlewareStep(entry, is_second, LEARN, reads=fields, writes=fields, is_opaque=True)
    reads, writes = step_fields(cls, terms, which, takes_at_once=entry.call is not entry.fn)
    # A step with a lock may wait for other steps, so users of one lock take turns, as for any object.
    uses = terms.uses if entry.lock is None else (*terms.uses, entry.lock)
    return MiddlewareStep(entry, is_second, LANES.index(terms.lane), reads=fields & reads, writes=fields & writes, uses=uses)
