"""Edges: pass tokens from one step to another, on one thread or between threads.

A step takes a token from each incoming edge, runs, and puts a token on each outgoing edge. The result of a run depends only on
the order of tokens on each edge, not on timing.

Reference:
    Kahn (1974), "The semantics of a simple language for parallel programming", IFIP Congress.
"""

from __future__ import annotations

import copy
import queue
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ding_lite.basics.messages import add_note
from ding_lite.engine.lanes import Lane, LaneThread
from ding_lite.engine.middleware_steps import Edge
from ding_lite.engine.timelines import Timeline
from ding_lite.pipeline.contexts import SCALARS

_CLOSED, _UNSET = object(), object()


class EdgeClosed(IndexError):
    """The edge is closed, so the lane that takes from it ends as well.

    An IndexError, because an empty deque, which is the edge on a single thread, raises that.
    """


class EdgeEnds:
    """Both ends of an edge.

    Args:
        edge: the edge of the plan.
        kept: the fields that carry over; each reader gets its own copy of mutable values.
        taker: the thread that takes from the edge, if another one gives; None if one thread does both.
        timeline: records waiting times.
    """

    def __init__(self, edge: Edge, kept: Sequence[str], taker: LaneThread | None, timeline: Timeline) -> None:
        self.edge, self._kept = edge, frozenset(kept)
        self._names = tuple(edge.fields)
        self.put, self._get, self.pop = _on_one_thread() if taker is None else _between_threads(edge, taker, timeline)
        self._is_between_threads = taker is not None
        self._carries = bool(edge.fields or edge.follows)
        self.token_of = self._token_maker() if self._carries else self._turn_maker()
        """Make a token from the current state of a lane."""
        self.take = self._taker() if self._carries else self._turn_taker()
        """Wait for the next token, and apply it to a lane. Raises IndexError, or EdgeClosed, if there is none."""

    def close(self) -> None:
        """Close the edge: the taker ends when it has taken all tokens."""
        if self._is_between_threads:
            self.put(_CLOSED)

    def begin(self, lane: Lane) -> None:
        """Put the initial tokens, from this lane's context and the leaders' state."""
        for _ in range(self.edge.distance):
            self.put(self.token_of(lane))

    def replace(self, changed: Mapping[str, Any], snapshots: Mapping[int, Any]) -> None:
        """Replace the values of the tokens on this edge.

        Args:
            changed: new values by name of the field.
            snapshots: new snapshots by id of the leader.
        """
        places = {place: changed[name] for place, name in enumerate(self._names) if name in changed}
        leaders = enumerate(id(leader) for leader, _ in self.edge.follows)
        states = {place: snapshots[leader] for place, leader in leaders if leader in snapshots}
        for token in self.tokens() if places or states else ():
            for place, value in places.items():
                token[1][place] = _copied(value, self._names[place])
            for place, snapshot in states.items():
                token[2][place] = snapshot

    def tokens(self) -> list[Any]:
        """The tokens on this edge between two iterations; they stay there."""
        found = list(iter(self.pop, _CLOSED))
        for token in found:
            self.put(token)
        return found

    def state(self, number_of: Callable[[Any, Any], int]) -> list[Any]:
        """The tokens on this edge between two iterations, as plain data if the values are.

        Args:
            number_of: takes a leader and one of its snapshots, and returns the number under which the snapshot is saved.
        """
        if not self._carries:
            return [bool(token) for token in self.tokens()]
        leaders = [leader for leader, _ in self.edge.follows]
        return [
            {
                "skips": bool(skips),
                "values": {name: value for name, value in zip(self._names, values) if value is not _UNSET},
                "snapshots": [number_of(leader, snapshot) for leader, snapshot in zip(leaders, snapshots or ())],
            }
            for skips, values, snapshots in self.tokens()
        ]

    def load_state(self, state: Sequence[Any], snapshots: Sequence[Any]) -> None:
        """Replace the tokens on this edge by saved ones.

        Args:
            state: result of `state`.
            snapshots: the saved snapshots, by number.
        """
        for _ in self.tokens():
            self.pop()
        for saved in state:
            if not self._carries:
                self.put(saved)
                continue
            values = [saved["values"].get(name, _UNSET) for name in self._names]
            found = [snapshots[number] for number in saved["snapshots"]]
            self.put((saved["skips"], values, found or None))

    def set_kept(self, ctx: Any, token: Any) -> None:
        """Write the kept fields of a popped token to the context."""
        if token is not _CLOSED and self._names:
            for name, value in zip(self._names, token[1]):
                if name in self._kept and value is not _UNSET:
                    object.__setattr__(ctx, name, value)

    def _turn_maker(self) -> Callable[[Lane], Any]:
        return (lambda lane: False) if self.edge.distance else (lambda lane: lane.skips)

    def _turn_taker(self) -> Callable[[Lane], None]:
        get = self._get

        def take_turn(lane: Lane) -> None:
            if get():
                lane.skips = True

        return take_turn

    def _token_maker(self) -> Callable[[Lane], Any]:
        names, says_skips, values_of = self._names, self.edge.distance == 0, _values_of(self._names)
        kept = tuple(place for place, name in enumerate(names) if name in self._kept)
        leaders = tuple(leader for leader, _ in self.edge.follows)

        def token_of(lane: Lane) -> Any:
            values = values_of(lane.ctx)
            for place in kept:
                value = values[place]
                if type(value) not in SCALARS and value is not _UNSET:
                    values[place] = _copied(value, names[place])  # because another lane may change it in place
            return says_skips and lane.skips, values, [leader.snapshot() for leader in leaders] if leaders else None

        return token_of

    def _taker(self) -> Callable[[Lane], None]:
        get, names, set_field = self._get, self._names, object.__setattr__
        followers = tuple(follower for _, follower in self.edge.follows)

        def take(lane: Lane) -> None:
            skips, values, snapshots = get()
            ctx = lane.ctx
            for name, value in zip(names, values):
                if value is not _UNSET:
                    set_field(ctx, name, value)
            if snapshots:
                lane.snapshots += zip(followers, snapshots)
            if skips:
                lane.skips = True

        return take


def _values_of(names: Sequence[str]) -> Callable[[Any], list[Any]]:
    """A function of a context that returns the values of these fields, `_UNSET` for those without a value."""
    if len(names) != 1:
        return lambda ctx: [getattr(ctx, name, _UNSET) for name in names]
    (only,) = names
    return lambda ctx: [getattr(ctx, only, _UNSET)]


def giver(ends: Sequence[EdgeEnds]) -> Callable[[Lane], None]:
    """A function that gives to all these edges. It makes all tokens first, because a taker may change the leaders."""
    if len(ends) == 1:
        put_only, token_of_only = ends[0].put, ends[0].token_of
        return lambda lane: put_only(token_of_only(lane))
    if not any(it.edge.follows for it in ends):
        each = tuple((it.put, it.token_of) for it in ends)

        def give(lane: Lane) -> None:
            for put, token_of in each:
                put(token_of(lane))

        return give
    puts, makers = tuple(it.put for it in ends), tuple(it.token_of for it in ends)

    def give_at_once(lane: Lane) -> None:
        for put, token in zip(puts, [token_of(lane) for token_of in makers]):
            put(token)

    return give_at_once


def _copied(value: Any, name: str) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception as error:
        add_note(error, f"when ctx.{name} was copied for another lane: kept fields other than numbers and text are copied")
        raise


def _on_one_thread() -> tuple[Callable[[Any], None], Callable[[], Any], Callable[[], Any]]:
    """put, get and pop. get raises IndexError if the deque is empty, because on one thread it would stay empty."""
    tokens: deque[Any] = deque()
    get = tokens.popleft

    return tokens.append, get, lambda: get() if tokens else _CLOSED


def _between_threads(
    edge: Edge, taker: LaneThread, timeline: Timeline
) -> tuple[Callable[[Any], None], Callable[[], Any], Callable[[], Any]]:
    """put, get and pop. get waits for a token; pop does not."""
    tokens: queue.SimpleQueue[Any] = queue.SimpleQueue()
    next_token, is_empty = tokens.get, tokens.empty
    lane = next(lane for lane in taker.lanes if lane.number == edge.target.lane)

    def get() -> Any:
        token = wait() if is_empty() else next_token()
        if token is _CLOSED:
            tokens.put(_CLOSED)  # it stays closed
            raise EdgeClosed
        return token

    def wait() -> Any:
        begun = time.perf_counter_ns()
        try:
            return next_token()
        finally:
            timeline.waited(lane.number, lane.iteration, begun, time.perf_counter_ns(), edge)

    return tokens.put, get, lambda: _CLOSED if is_empty() else next_token()
