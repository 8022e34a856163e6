"""Lane states: the contexts of lanes and the tokens on edges, at the beginning of a run and between two iterations."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ding_lite.engine.edges import EdgeEnds
from ding_lite.engine.lanes import Lane
from ding_lite.engine.last_values import LastValues, values_of
from ding_lite.engine.middleware_steps import LEARN, TAKING, Edge
from ding_lite.engine.plans import Plan
from ding_lite.pipeline.contexts import Context, factories_of, is_scalar, with_own_values
from ding_lite.pipeline.contracts import LANES
from ding_lite.pipeline.pipeline_checks import PipelineError


class LaneStates:
    """What lanes and edges hold between two iterations: kept values of each lane, and tokens with values and snapshots.

    Args:
        plan: the edges.
        lanes: the lanes of a network.
        ends: the ends of its edges.
    """

    def __init__(self, plan: Plan, lanes: Sequence[Lane], ends: Mapping[Edge, EdgeEnds]) -> None:
        self._plan, self._lanes, self._ends = plan, lanes, ends

    def save(self) -> dict[str, Any]:
        """A copy of the state, as plain data if the kept fields are."""
        numbers: dict[tuple[int, int], int] = {}
        saved: list[dict[str, Any]] = []
        leaders = self._leaders()

        def number_of(leader: Any, snapshot: Any) -> int:
            key = id(leader), id(snapshot)
            if key not in numbers:
                numbers[key] = len(saved)
                saved.append({"leader": leaders.index(leader), "state": leader.snapshot_state(snapshot)})
            return numbers[key]

        edges = [{"edge": str(edge), "tokens": self._ends[edge].state(number_of)} for edge in self._plan.edges]
        lanes = [values_of(lane.ctx, self._plan.kept) for lane in self._lanes]
        now = [number_of(leader, leader.snapshot()) for leader in leaders]
        return {"edges": copy.deepcopy(edges), "snapshots": saved, "lanes": copy.deepcopy(lanes), "leaders": now}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state; before the first run. Kept fields and leaders that the script has changed since it was
        loaded are passed to all lanes.

        Raises:
            ValueError: the state belongs to other edges, because the contracts or the pipeline have changed.
        """
        mine, theirs = [str(edge) for edge in self._plan.edges], [saved["edge"] for saved in state["edges"]]
        if mine != theirs:
            raise ValueError(_difference(mine, theirs))
        leaders = self._leaders()
        snapshots = [leaders[saved["leader"]].snapshot_from(saved["state"]) for saved in state["snapshots"]]
        for edge, saved in zip(self._plan.edges, state["edges"]):
            self._ends[edge].load_state(copy.deepcopy(saved["tokens"]), snapshots)
        for lane, kept in zip(self._lanes, copy.deepcopy(state["lanes"])):
            for name, value in kept.items() if lane.number != LEARN else ():  # that lane has the context of the task
                object.__setattr__(lane.ctx, name, value)
        numbers = state.get("leaders", ())  # not in older states
        known = [(leader, snapshots[number]) for leader, number in zip(leaders, numbers)]
        self.pass_on(LastValues(state["lanes"][LEARN], known), self._lanes[LEARN].ctx)

    def _leaders(self) -> list[Any]:
        """The objects that followers on other lanes act on, in the order of the edges."""
        return list({id(leader): leader for edge in self._plan.edges for leader, _ in edge.follows}.values())

    def last_values(self, ctx: Context) -> LastValues:
        """What every lane knows, if it has the kept fields of this context, and acts on the leaders as they are."""
        return LastValues(values_of(ctx, self._plan.kept), [(leader, leader.snapshot()) for leader in self._leaders()])

    def pass_on(self, last: LastValues, ctx: Context) -> bool:
        """Pass kept fields and leaders that were changed since then to all lanes. Returns whether there were any."""
        kept, snapshots = last.changes(ctx, self._plan.kept)
        if kept or snapshots:
            self._replace(kept, snapshots)
        return bool(kept or snapshots)

    def _replace(self, changed: Mapping[str, Any], snapshots: Mapping[int, Any]) -> None:
        """Replace what was changed since the last run.

        Args:
            changed: kept fields that were set; every lane sees the new value.
            snapshots: new snapshots of the leaders that were changed, by id; every follower acts on them.
        """
        learn = self._lanes[LEARN]
        for lane in (learn, *self._others()):
            for name, value in (dict(changed) if lane is learn else copy.deepcopy(dict(changed))).items():
                object.__setattr__(lane.ctx, name, value)
        for ends in self._ends.values():
            ends.replace(changed, snapshots)

    def go_on(self, ctx: Context) -> None:
        """Prepare for one more run, whose first iteration has this context."""
        learn = self._lanes[LEARN]
        learn.ctx, learn.is_renewed = ctx, True
        for lane in self._others():
            mine = values_of(lane.ctx, self._plan.kept)
            lane.ctx, lane.is_renewed = copy_for_lane(ctx, self._plan, lane.number), True
            for name, value in mine.items():
                object.__setattr__(lane.ctx, name, value)

    def _others(self) -> list[Lane]:
        """The lanes with steps, but that which learns."""
        return [lane for lane in self._lanes if lane.number != LEARN and self._plan.lanes[lane.number]]


def refuse_factories_that_count(ctx: Context, plan: Plan) -> None:
    """Refuse a default_factory with varying values, such as a counter or clock, for fields that several lanes touch.

    Raises:
        PipelineError: there is one; each lane would start an iteration with a different value.
    """
    touched = [{name for step in lane if step.entry is not None for name in step.reads | step.writes} for lane in plan.lanes]
    users = Counter(name for names in touched for name in names)
    for name, make in factories_of(ctx):
        if users[name] > 1 and name not in plan.kept:
            first, second = make(), make()
            if is_scalar(first) and repr(first) != repr(second):
                raise PipelineError(
                    f"the default_factory of {type(ctx).__name__}.{name} gives another value each time ({first!r}, then "
                    f"{second!r}), and several lanes touch the field: each would start an iteration with a different value. "
                    f"Set ctx.{name} in a middleware instead."
                )


def copy_for_lane(ctx: Context, plan: Plan, lane: int) -> Context:
    """A copy of the context for another lane, which may change its start values in place.

    Raises:
        PipelineError: a value that the lane touches cannot be copied.
    """
    touched = frozenset[str]().union(*(step.reads | step.writes for step in plan.lanes[lane]))
    return with_own_values(ctx, touched, LANES[lane])


def _difference(mine: Sequence[str], theirs: Sequence[str]) -> str:
    """How the edges of a saved state differ from those of this pipeline, and the fix.

    Args:
        mine, theirs: the edges here and in the state, as text.
    """
    here, there = ([edge for edge in edges if TAKING in edge] for edges in (mine, theirs))
    if bool(here) != bool(there):
        name = (here or there)[0].partition(f" {TAKING}")[0].rpartition(" ")[2]
        was, now = ("processes of their own", "its process") if there else ("its process", "processes of their own")
        return (
            f"the saved run stepped the environments of {name} in {was}, and this one steps them in {now}: make them with the "
            "same backend and number of workers, such as make_envs(..., workers=1, backend="
            f'"{"process" if there else "local"}").'
        )
    other = next((edge for edge in (*theirs, *mine) if edge not in mine or edge not in theirs), "their order")
    return (
        f"the saved state belongs to a pipeline in which middleware depend on each other in another way ({other}): resume with "
        "the same middleware, contracts and lag."
    )
