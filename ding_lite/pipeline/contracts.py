"""Contracts: declarations of what a middleware reads, writes and uses."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, TypeVar

from ding_lite.basics.foreign_names import foreign_arguments
from ding_lite.basics.messages import call_of
from ding_lite.basics.optional_attributes import attribute_of, has_attribute

Function = TypeVar("Function", bound=Callable[..., Any])

STAGES = ("evaluate", "explore", "collect", "process", "learn", "record")
LANES = ("evaluate", "collect", "process", "learn")
"""The lanes of a run whose iterations overlap. `Contract.lane` decides the lane of a middleware."""
_LANE_OF = {"evaluate": "evaluate", "explore": "collect", "collect": "collect", "process": "process"}
_ATTRIBUTE = "__contract__"
_OBJECTS = ("uses", "fills", "draws", "exclusive", "creates")
_NOT_OBJECTS = (FunctionType, BuiltinFunctionType, MethodType, functools.partial, type)


@dataclasses.dataclass(frozen=True)
class NestedContext:
    """A context that a middleware makes anew in each iteration, inside a field of the iteration's own context."""

    field: str
    """The field, which holds such contexts by name."""

    name: str
    """Name of this context."""

    context: type[Any]
    """Its class, which can be called without arguments."""

    writes: tuple[str, ...]
    """Its fields that are filled when it is made."""

    call: str
    """How a script puts a middleware into it, with `...` for the middleware: `for_policy('learned', ...)`."""

    owns: tuple[Any, ...] = ()
    """Objects that belong to it, such as what a policy acts and learns with: a middleware that works on another context made
    beside it, and uses these alone, is refused."""


Made = NestedContext  # its name in earlier versions


@dataclasses.dataclass(frozen=True, eq=False)
class Contract:
    """What one middleware touches. Both halves of a generator count, unless `reads_after` or `writes_after` names them."""

    reads: tuple[str, ...] = ()
    """Context fields that it needs: each must be kept, have a start value other than None, or be written by an earlier
    middleware."""

    writes: tuple[str, ...] = ()
    """Context fields that it sets."""

    uses: tuple[Any, ...] = ()
    """Shared mutable objects that it touches (a buffer, an environment, a policy's learner side), by identity."""

    stage: str | None = None
    """One of `STAGES`, or None. It decides the lane of an asynchronous run, and the place in pictures of the pipeline."""

    may_read: tuple[str, ...] = ()
    """Fields that it reads if the context has them; no middleware needs to write them."""

    reads_after: tuple[str, ...] = ()
    """Fields that only what follows the `yield` needs: any middleware of the iteration may write them."""

    writes_after: tuple[str, ...] = ()
    """Fields that only what follows the `yield` sets."""

    writes_late: tuple[str, ...] = ()
    """Fields that are set when the `PendingWork` is taken, which it returns where others do the work."""

    may_write: tuple[str, ...] = ()
    """Fields that it sets if the context has them; in a contract with `writes_late`, only late."""

    fills: tuple[Any, ...] = ()
    """Objects that it puts data into; each is in `uses` too."""

    draws: tuple[Any, ...] = ()
    """Objects that it takes data from; each is in `uses` too."""

    exclusive: tuple[Any, ...] = ()
    """Objects that belong to its stage alone, such as an environment; each is in `uses` too."""

    needs: tuple[str, ...] = ()
    """Settings inside a field that an earlier middleware must set, each as "field.key"."""

    provides: tuple[str, ...] = ()
    """Settings inside a field that it sets, each as "field.key". A writer of the field without such names may set any."""

    creates: tuple[NestedContext, ...] = ()
    """Contexts that it creates inside a field."""

    hints: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Advice for messages: under "draws", the call of the middleware that usually fills the object, such as
    `data_pusher(cfg, buffer_)`; under a name of `needs`, what to do if no middleware provides it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "uses", _distinct((*self.fills, *self.draws, *self.uses, *self.exclusive)))

    @property
    def all_writes(self) -> tuple[str, ...]:
        """Fields that its first half sets, at once or late."""
        return (*self.writes, *self.writes_late)

    @property
    def lane(self) -> str:
        """The lane of an asynchronous run: evaluate, collect, process or learn."""
        return _LANE_OF.get(self.stage or "", "learn")


@foreign_arguments({"alone": "it is called `exclusive` now.", "makes": "it is called `creates` now."}, counts_positional=False)
def contract(
    reads: Iterable[str] = (),
    writes: Iterable[str] = (),
    uses: Iterable[Any] = (),
    stage: str | None = None,
    *,
    may_read: Iterable[str] = (),
    reads_after: Iterable[str] = (),
    writes_after: Iterable[str] = (),
    writes_late: Iterable[str] = (),
    may_write: Iterable[str] = (),
    fills: Iterable[Any] = (),
    draws: Iterable[Any] = (),
    exclusive: Iterable[Any] = (),
    needs: Iterable[str] = (),
    provides: Iterable[str] = (),
    creates: Iterable[NestedContext] = (),
    hints: Mapping[str, str] | None = None,
) -> Callable[[Function], Function]:
    """Declare what a middleware touches. Decorates a function, or is called on an object: `contract(...)(self)`.

    Contracts are checked before a run, enforced during the run, and determine the order in asynchronous mode. A contract must
    name everything that the middleware touches, in both halves of a generator.

    Args:
        reads: context fields that it needs.
        writes: context fields that it sets.
        uses: shared mutable objects that it touches, compared by identity.
        stage: one of evaluate, explore, collect, process, learn, record.
        may_read: fields that it reads if the context has them.
        reads_after, writes_after: fields that only the code after the `yield` reads or sets.
        writes_late: fields that are set when the returned `PendingWork` is taken.
        may_write: fields that it sets if the context has them; with `writes_late`, only late.
        fills: objects that it puts data into, such as a replay buffer; they count as used.
        draws: objects that it takes data from; they count as used. The pipeline is refused if such an object is empty and no
            earlier middleware fills it.
        exclusive: objects that no middleware of another stage may name as `exclusive`, such as an environment; they count as
            used.
        needs: settings that it requires in a dict of the context, such as "collect_kwargs.eps" for ctx.collect_kwargs["eps"];
            the field must be among those that it reads.
        provides: settings that it sets there; the field must be among those that it writes.
        creates: contexts that it creates inside a field, for middleware that run on these.
        hints: advice for messages, see `Contract.hints`.

    Raises:
        ValueError: a stage that does not exist; a setting that is not "field.key" of a field that it reads or writes.
        TypeError: a field that is no string, or one string where several names were meant; objects that are not given as
            several, in a tuple; hints that are no dict; or it decorates what can hold no contract, such as a bound method.

    Example:
        >>> @contract(reads=("trajectories",), stage="process")
        ... def count(ctx):
        ...     print(len(ctx.trajectories))
        >>> contract_of(count).reads
        ('trajectories',)
    """
    if callable(reads):
        name = attribute_of(reads, "__name__", type(reads).__name__)
        raise TypeError(f"@contract above {name} has no terms: write @contract(reads=..., writes=..., uses=..., stage=...).")
    if stage is not None and stage not in STAGES:
        raise ValueError(f"contract(stage={stage!r}): there is no such stage, use one of {', '.join(STAGES)}.")
    terms = _terms(
        "contract",
        stage,
        {"reads": reads, "may_read": may_read, "reads_after": reads_after},
        {"writes": writes, "writes_after": writes_after, "writes_late": writes_late, "may_write": may_write},
        {"uses": uses, "fills": fills, "draws": draws, "exclusive": exclusive},
        {"needs": needs, "provides": provides},
        creates,
        hints,
    )
    _require_fields("contract", terms, terms)

    def attach(fn: Function) -> Function:
        if not callable(fn):
            found = f"{fn!r:.60} of type {type(fn).__name__}"
            raise TypeError(f"contract(...) decorates a middleware, a callable, got {found}.")
        if not isinstance(fn, _NOT_OBJECTS):
            _require_what_it_has(fn, terms)
        _attach(fn, terms)
        return fn

    return attach


def extend_contract(
    middleware: Function,
    reads: Iterable[str] = (),
    writes: Iterable[str] = (),
    uses: Iterable[Any] = (),
    *,
    may_read: Iterable[str] = (),
    reads_after: Iterable[str] = (),
    writes_after: Iterable[str] = (),
    writes_late: Iterable[str] = (),
    may_write: Iterable[str] = (),
    fills: Iterable[Any] = (),
    draws: Iterable[Any] = (),
    exclusive: Iterable[Any] = (),
    needs: Iterable[str] = (),
    provides: Iterable[str] = (),
    creates: Iterable[NestedContext] = (),
    hints: Mapping[str, str] | None = None,
) -> Function:
    """Add terms to the contract of a middleware, in a class derived from another: `extend_contract(self, reads=("env_step",))`.

    It is the last line of `__init__`. The contract keeps its stage and all that it names; `contract(...)(self)` replaces it.

    Args:
        middleware: the object, or a function with a contract.
        reads: fields that it also reads. One that the contract already writes, such as the output of a learner, needs no
            earlier middleware that writes it: it counts as one in `may_read`.
        writes, uses, may_read, reads_after, writes_after, writes_late, may_write, fills, draws, exclusive, needs, provides,
            creates, hints: further terms, see `contract`.

    Returns:
        The middleware.

    Raises:
        ValueError: it has no contract, for example because `super().__init__` comes later; a setting that is not "field.key" of
            a field that it reads or writes.
        TypeError: as for `contract`.

    Example:
        >>> class Count:
        ...     def __init__(self):
        ...         contract(reads=("trajectories",), stage="process")(self)
        ...     def __call__(self, ctx):
        ...         print(len(ctx.trajectories))
        >>> class CountSteps(Count):
        ...     def __init__(self):
        ...         super().__init__()
        ...         extend_contract(self, reads=("env_step",))
        >>> contract_of(CountSteps()).reads, contract_of(CountSteps()).stage
        (('trajectories', 'env_step'), 'process')
    """
    if not callable(middleware):
        found = f"{middleware!r:.60} of type {type(middleware).__name__}"
        raise TypeError(f"extend_contract(...) wants a middleware, a callable, got {found}: write extend_contract(self, ...).")
    before = _inherited_contract(middleware)
    if before is None:
        name = attribute_of(middleware, "__qualname__", type(middleware).__qualname__)
        raise ValueError(
            f"extend_contract({name}): it has no contract yet. Call it behind super().__init__(...), as the last line of "
            "__init__; where no parent class has a contract either, write contract(...)(self) instead."
        )
    added = _terms(
        "extend_contract",
        None,
        {"reads": reads, "may_read": may_read, "reads_after": reads_after},
        {"writes": writes, "writes_after": writes_after, "writes_late": writes_late, "may_write": may_write},
        {"uses": uses, "fills": fills, "draws": draws, "exclusive": exclusive},
        {"needs": needs, "provides": provides},
        creates,
        hints,
    )
    own = {*before.all_writes, *before.may_write}  # what it writes itself it need not be given
    needed = tuple(name for name in added.reads if name not in own)
    added = dataclasses.replace(added, reads=needed, may_read=(*added.may_read, *(it for it in added.reads if it in own)))
    terms = _sum(before, added)
    _require_fields("extend_contract", added, terms)
    _attach(middleware, terms)
    return middleware


def _terms(
    call: str,
    stage: str | None,
    reads: Mapping[str, Iterable[str]],
    writes: Mapping[str, Iterable[str]],
    objects: Mapping[str, Iterable[Any]],
    settings: Mapping[str, Iterable[str]],
    creates: Iterable[NestedContext],
    hints: Mapping[str, str] | None,
) -> Contract:
    """A contract with these terms, each checked; `call` is the function named in messages."""
    names = {term: _names(f"{call}({term}=", given) for term, given in {**reads, **writes, **settings}.items()}
    held = {term: _objects(f"{call}({term}=", given) for term, given in objects.items()}
    terms = Contract(**names, **held, stage=stage, creates=_contexts(call, creates), hints=_hints(call, hints))
    if "total_step" in (*terms.all_writes, *terms.may_write, *terms.writes_after):
        raise ValueError(f"{call}(writes=('total_step',)): the task counts iterations there; declare a counter of your own.")
    return terms


def _sum(before: Contract, added: Contract) -> Contract:
    """A contract with the terms of both, and the stage of the first."""
    names = [field.name for field in dataclasses.fields(Contract) if field.name not in (*_OBJECTS, "stage", "hints")]
    merged: dict[str, Any] = {name: tuple(dict.fromkeys((*getattr(before, name), *getattr(added, name)))) for name in names}
    merged |= {name: _distinct((*getattr(before, name), *getattr(added, name))) for name in _OBJECTS}
    return dataclasses.replace(before, **merged, hints={**before.hints, **added.hints})


def _attach(fn: Callable[..., Any], terms: Contract) -> None:
    try:
        setattr(fn, _ATTRIBUTE, terms)
    except (AttributeError, TypeError):
        name = attribute_of(fn, "__qualname__", type(fn).__qualname__)
        raise TypeError(
            f"contract(...)({name}): a {type(fn).__name__} holds no contract. Put it on a partial, and use what "
            "comes back: task.use(contract(...)(functools.partial(it)))."
        ) from None


def _require_what_it_has(thing: Callable[..., Any], terms: Contract) -> None:
    """Refuse to replace the contract of an object by one without its stage, or without an object that it names."""
    before = contract_of(thing)
    if before is None:
        return
    groups = state_groups([*before.uses, *terms.uses])
    same = [(it, *groups.get(id(it), ())) for it in before.uses]
    lost = [f"uses={type(it[0]).__name__}" for it in same if not any(use is other for use in terms.uses for other in it)]
    lost += [f"stage={before.stage!r}"] if before.stage is not None and terms.stage is None else []
    if lost:
        name = type(thing).__name__
        raise ValueError(
            f"contract(...)({name}) replaces the contract that this object has already, and loses {', '.join(lost)}, by which "
            f"an asynchronous run orders it. Add to the contract instead, as the last line of {name}.__init__: "
            f"extend_contract(self, {', '.join(_further(before, terms))}), from ding_lite import extend_contract."
        )


def contract_of(fn: Callable[..., Any]) -> Contract | None:
    """The contract of a middleware, or None for a plain function, of which nothing is known. The outermost one counts: that of
    a partial before that of its function, that of an object before that of its class."""
    terms = attribute_of(fn, _ATTRIBUTE)
    if terms is None and isinstance(fn, functools.partial):
        return contract_of(fn.func)
    of_call = attribute_of(call_of(fn), _ATTRIBUTE)  # it stands on `def __call__`
    if terms is None or (of_call is not None and _is_of_parent_class(fn)):
        terms = of_call
    return terms if isinstance(terms, Contract) else None


def _further(before: Contract, terms: Contract) -> list[str]:
    """The terms of a contract that another one does not have, as code; objects without their names."""
    names = ("reads", "writes", "may_read", "reads_after", "writes_after", "writes_late", "may_write", "needs", "provides")
    found = []
    for term in names:
        more = [f'"{one}"' for one in getattr(terms, term) if one not in getattr(before, term)]
        found += [f"{term}=({', '.join(more)}{',' if len(more) == 1 else ''})"] if more else []
    has_more = any(all(it is not use for use in before.uses) for it in terms.uses)
    return [*found, *(["uses=(...)"] if has_more or not found else [])]


def _inherited_contract(fn: Callable[..., Any]) -> Contract | None:
    """The contract of a middleware, else the nearest one in its parent classes, whose `__call__` it replaces."""
    places = [it for cls in type(fn).__mro__ for it in (vars(cls).get(_ATTRIBUTE), vars(cls).get("__call__"))]
    found = (it if isinstance(it, Contract) else attribute_of(it, _ATTRIBUTE) for it in places)
    return contract_of(fn) or next((it for it in found if isinstance(it, Contract)), None)


def inherits_contract(fn: object) -> bool:
    """Whether a middleware is an object whose contract may come from a parent class, so that its own class can extend it."""
    is_object = not isinstance(fn, _NOT_OBJECTS)
    return is_object and any("__call__" in vars(cls) for cls in type(fn).__mro__[1:])


def line_to_add(fn: object, **terms: Iterable[str]) -> str:
    """The code that adds terms to the contract of a middleware, and its place, for messages.

    Args:
        fn: the middleware.
        **terms: the values of each term, as code.
    """
    given = [(term, tuple(values)) for term, values in terms.items()]
    listed = ", ".join(f"{term}=({', '.join(values)}{',' if len(values) == 1 else ''})" for term, values in given)
    if inherits_contract(fn):
        return f"extend_contract(self, {listed}) as the last line of {type(fn).__name__}.__init__"
    return f"@contract(..., {listed})"


def _is_of_parent_class(fn: object) -> bool:
    """Whether the contract of an object stands on a class whose `__call__` a subclass replaces."""
    nearest = next(vars(cls) for cls in type(fn).__mro__ if _ATTRIBUTE in vars(cls) or "__call__" in vars(cls))
    return _ATTRIBUTE not in nearest and _ATTRIBUTE not in attribute_of(fn, "__dict__", {})


def joint_contract(fns: Iterable[Callable[..., Any]], side_by_side: bool = False) -> Contract | None:
    """The joint contract of several middleware, run in order or at the same time; None if one of them has none."""
    parts = [contract_of(fn) for fn in fns]
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    written: set[str] = set()
    needed: list[str] = []
    for part in known:
        needed += [name for name in part.reads if side_by_side or name not in written]
        written.update(part.all_writes)
    needed_after: list[str] = []
    for part in reversed(known):  # as second halves run
        needed_after += [name for name in part.reads_after if name not in written]
        written.update(part.writes_after)

    def merged(term: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for part in known for name in getattr(part, term)))

    return Contract(
        reads=tuple(dict.fromkeys(needed)),
        writes=merged("all_writes"),
        uses=_distinct(thing for part in known for thing in part.uses),
        stage=known[0].stage,
        may_read=merged("may_read"),
        reads_after=tuple(dict.fromkeys(needed_after)),
        writes_after=merged("writes_after"),
        may_write=merged("may_write"),
        fills=_distinct(thing for part in known for thing in part.fills),
        draws=_distinct(thing for part in known for thing in part.draws),
        exclusive=_distinct(thing for part in known for thing in part.exclusive),
        needs=merged("needs"),
        provides=merged("provides"),
        creates=tuple(made for part in known for made in part.creates),
    )


def _distinct(things: Iterable[Any]) -> tuple[Any, ...]:
    """Each object once, in order."""
    return tuple({id(thing): thing for thing in things}.values())


def _objects(term: str, things: Iterable[Any]) -> tuple[Any, ...]:
    """The objects of a term, which is code up to the value: "contract(uses="."""
    if isinstance(things, (str, Mapping)) or not has_attribute(things, "__iter__"):
        raise TypeError(
            f"{term}...) wants several objects, got one {type(things).__name__}: write {term.partition('(')[2]}(it,)."
        )
    return tuple(things)


def _contexts(call: str, things: Iterable[NestedContext]) -> tuple[NestedContext, ...]:
    found = _objects(f"{call}(creates=", things)
    for thing in found:
        if not isinstance(thing, NestedContext):
            raise TypeError(
                f"{call}(creates=...) wants objects of NestedContext, got {thing!r:.60} of type {type(thing).__name__}: "
                "write creates=(NestedContext(...),)."
            )
    return found


def _hints(call: str, hints: Mapping[str, str] | None) -> dict[str, str]:
    if hints is not None and not isinstance(hints, Mapping):
        raise TypeError(f"{call}(hints=...) wants a dict of texts, got {hints!r:.60} of type {type(hints).__name__}.")
    return dict(hints or {})


def _require_fields(call: str, terms: Contract, whole: Contract) -> None:
    """Refuse a setting in these terms that is not "field.key", or whose field the whole contract does not touch."""
    read, written = (*whole.reads, *whole.may_read), (*whole.all_writes, *whole.may_write)
    for term, settings, other, fields in (
        ("needs", terms.needs, "reads", read),
        ("provides", terms.provides, "writes", written),
    ):
        for setting in settings:
            field, dot, key = setting.partition(".")
            if not (field and dot and key):
                raise ValueError(
                    f"{call}({term}=...) wants settings as 'field.key', such as 'collect_kwargs.eps', got {setting!r}."
                )
            if field not in fields:
                raise ValueError(f"{call}({term}=({setting!r},)) refers to ctx.{field}: add {field!r} to {other}.")


def of_both_halves(terms: Contract) -> Contract:
    """The same contract, in which each step may touch everything that either step may touch."""
    return dataclasses.replace(
        terms,
        reads=(*terms.reads, *terms.reads_after),
        writes=(*terms.all_writes, *terms.writes_after),
        reads_after=(),
        writes_after=(),
        writes_late=(),
    )


def _names(term: str, names: Iterable[str]) -> tuple[str, ...]:
    """The names of a term, which is code up to the value: "contract(reads="."""
    if isinstance(names, str):
        raise TypeError(f"{term}{names!r}) wants several names, got one string: write ({names!r},).")
    if not isinstance(names, Iterable):
        raise TypeError(
            f"{term}{names!r}) wants names of context fields, got a {type(names).__name__}: write "
            f"{term.partition('(')[2]}(), or leave it out, if there are none."
        )
    found = tuple(names)
    for name in found:
        if not isinstance(name, str):
            raise TypeError(f"{term}...) wants names of context fields, got {name!r} of type {type(name).__name__}.")
    return found


def names_object(thing: Any, terms: Contract) -> bool:
    """Whether a contract names an object, or one that shares its state."""
    if any(use is thing for use in terms.uses):  # most often; of a policy, the others are all its parameters
        return True
    return any(use is it for it in attribute_of(thing, "shares_state_with", ()) for use in terms.uses)


def leader_of(thing: Any) -> Any:
    """The object whose snapshots another one acts on, in its attribute `leader`; None if it follows none.

    A follower has a method `load_snapshot`, and its leader a method `snapshot`: an attribute of this name alone may be
    anything.
    """
    if not callable(attribute_of(thing, "load_snapshot")):
        return None
    leader = attribute_of(thing, "leader")
    return leader if callable(attribute_of(leader, "snapshot")) else None


def state_groups(uses: Sequence[Any]) -> dict[int, tuple[Any, ...]]:
    """For each object that shares its state with an object in `uses`, by id: all that share this state, its owner first.

    The owner is the object with an attribute `shares_state_with`, such as the learn_mode of a policy.

    Args:
        uses: the objects in all contracts of a pipeline; their leaders count as well.
    """
    owners = [*uses, *(leader for thing in uses if (leader := leader_of(thing)) is not None)]
    groups = [(owner, *attribute_of(owner, "shares_state_with", ())) for owner in owners]
    return {id(thing): group for group in groups if len(group) > 1 for thing in group}
