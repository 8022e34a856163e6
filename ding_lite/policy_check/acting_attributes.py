"""Attributes of a policy that its acting hooks use: copies of the policy act, and do not see what learning assigns."""

from __future__ import annotations

import dis
import functools
import inspect
import weakref
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, NamedTuple

from torch import nn
from torch.optim import Optimizer

from ding_lite.basics.attribute_reads import attributes_set, instructions_of, is_method_load, names_not_saved, names_of
from ding_lite.basics.closures import function_of, names_in, parts_of
from ding_lite.basics.messages import warn_caller
from ding_lite.basics.origins import is_of_ding_lite, is_of_script, module_of
from ding_lite.basics.reached_functions import reached_functions
from ding_lite.pipeline.code_in_use import methods_of_script
from ding_lite.pipeline.contexts import is_scalar
from ding_lite.pipeline.fingerprints import Print, changed, fingerprint
from ding_lite.pipeline.value_kinds import holds_data_alone, is_data

_ACTING = ("compute_actions", "extra_action_out", "get_initial_state")
_LEARNING = (
    *("postprocess", "learn_on_batch", "loss_batch", "before_step", "loss", "compute_gradients", "gradients", "after_step"),
    *("stats", "after_learning", "with_values"),
)
_GENERATORS = ("generator_state", "load_generator_state")
_BY_TEXT = frozenset({"getattr", "setattr", "vars", "__dict__"})  # what takes the name of an attribute as a string
_NOTED = "changed_by_acting"  # key in the results of the dry run
_MOST_CALLS = 1024  # of `learn` between two comparisons of contents
_MOST_ITEMS = 200  # that are compared of a list, dict or deque
_NOTHING = object()
_uses: weakref.WeakKeyDictionary[type, _Uses] = weakref.WeakKeyDictionary()
_ADVICE = (
    "Compute it from self.train_iter, which a copy has with its weights; or register it as a buffer of the model; or return it "
    "from get_weights() and set it in set_weights(weights)."
)


class _Uses(NamedTuple):
    """How a policy's hooks use attributes, by the names in the code of the script that they reach."""

    read: frozenset[str]
    """Acting reads them, and they are neither of the library's classes nor part of the weights."""
    assigned: frozenset[str]
    """Acting assigns them."""
    learned: frozenset[str]
    """Learning names them, so it may change them."""


class AttributesOfActing:
    """Warns of attributes that the script's acting hooks read, and to which learning gives other values.

    Numbers are compared after each batch; contents, such as those of lists, arrays and objects, after the first batch, the
    second, the fourth and so on, because this takes longer. No value is kept here: what a policy holds counts as saved.

    Args:
        policy: a policy, before it learns.
    """

    def __init__(self, policy: Any) -> None:
        self._calls = 0
        found = {name: _value(policy, name) for name in (*read_by_acting(policy), *_spaces_read(policy))}
        self._numbers = {name: it for name, it in found.items() if is_scalar(it)}
        self._contents = {name: _Seen(id(it), _print(policy, it)) for name, it in found.items() if not is_scalar(it)}

    def compare(self, policy: Any) -> None:
        """Warn, once for each attribute, if learning has changed its value."""
        self._calls += 1
        kind = type(policy).__name__
        for name, before in list(self._numbers.items()):
            now = _value(policy, name)
            if not (now is before or (is_scalar(now) and now == before)):
                del self._numbers[name]
                _warn_of_assigned(f"self.{name} of {kind}, from {before!r:.40} to {now!r:.40}")
        if self._contents and (self._calls & (self._calls - 1) == 0 or self._calls % _MOST_CALLS == 0):
            self._compare_contents(policy, kind)

    def _compare_contents(self, policy: Any, kind: str) -> None:
        cls: Any = type(policy)
        # Computed here, because the dry run may come after the first batch.
        may_change_in_place = _uses_of(policy).learned - _noted(policy) - names_not_saved(cls)
        # With weights of its own, a policy shares no objects of the script with its copies.
        works: set[str] = set() if policy.has_own_weights or _acts_elsewhere(policy) else _saved_with(policy)
        for name, before in list(self._contents.items()):
            now = _value(policy, name)
            is_same = id(now) == before.identity
            if is_same and (name not in may_change_in_place or name in works):
                continue
            place = before.change(policy, now)
            if place is None:
                continue
            del self._contents[name]
            if is_same and policy.has_own_weights:
                _warn_of_assigned(f"self.{name}{place} of {kind} in place")
            elif is_same:
                _warn_of_contents(f"self.{name}{place} of {kind}")
            else:
                _warn_of_assigned(f"self.{name} of {kind}, to {now!r:.40}")


class _Seen(NamedTuple):
    """A value that was seen earlier, without the value."""

    identity: int
    found: Print

    def change(self, policy: Any, now: Any) -> str | None:
        """What has changed since, such as ".rows[0]", empty for the value itself; None if nothing has."""
        found = _print(policy, now)
        if not found or isinstance(now, FunctionType):  # whose content is unknown
            return None if id(now) == self.identity else ""
        return changed(self.found, found, private="numbers but None")


def _warn_of_assigned(what: str) -> None:
    warn_caller(
        f"learning changes {what}, and its acting hooks read it. Copies of the policy act. They get only the weights, and keep "
        f"the earlier value. {_ADVICE}"
    )


def _warn_of_contents(what: str) -> None:
    warn_caller(
        f"learning changes {what} in place, and its acting hooks read it. Copies of the policy act. Those in worker processes "
        "keep the earlier value. Those in this process share the object, so if iterations overlap, they see changes that do "
        f"not belong to their weights. {_ADVICE} If it does not matter, as in a cache, list the attribute in not_saved of the "
        "class."
    )


def read_by_acting(policy: Any) -> list[str]:
    """The attributes, not of the library's classes, that the script's acting hooks read, and that are not parts of weights."""
    return sorted(name for name in _uses_of(policy).read if _value(policy, name) is not _NOTHING)


def changed_by_acting(policy: Any) -> list[str]:
    """The attributes, not of the library's classes, that the script's acting hooks read and may change, such as a counter, a
    list or a random generator.

    Those that only learning may change are left out, and those in states of random generators.
    """
    uses = _uses_of(policy)
    return sorted(uses.read - (uses.learned - uses.assigned - _noted(policy)))


def code_of_acting(policy: Any, explores: bool) -> Iterator[tuple[Any, Sequence[FunctionType]]]:
    """The functions of the script that run while a policy acts: those of its hooks and of its networks, each with the object
    whose methods they are.

    Args:
        policy: the copy that acts.
        explores: whether it explores. If not, and `compute_actions` asks its argument `explore`, nothing is returned, because
            it is unknown what runs then.
    """
    functions = [fn for fn in _of_script(policy, _ACTING) if is_of_script(module_of(fn))]
    if explores or not any(fn.__name__ == "compute_actions" and _asks(fn, "explore") for fn in functions):
        yield policy, functions
        yield from _code_of_networks(policy)


def code_of_learning(policy: Any, with_values_alone: bool = False) -> Iterator[tuple[Any, Sequence[FunctionType]]]:
    """The functions of the script that run while a policy learns: see `code_of_acting`.

    Args:
        policy: the policy.
        with_values_alone: whether only `with_values` is called, as by estimators.
    """
    hooks = ("with_values",) if with_values_alone else _LEARNING
    yield policy, [fn for fn in _of_script(policy, hooks) if is_of_script(module_of(fn))]
    yield from _code_of_networks(policy)


def _code_of_networks(policy: Any) -> Iterator[tuple[Any, Sequence[FunctionType]]]:
    model = vars(policy).get("model")
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    one_of_each = {type(one): one for one in reversed(modules) if is_of_script(type(one).__module__)}
    yield from ((one, methods_of_script(one)) for one in one_of_each.values())


def _asks(fn: FunctionType, name: str) -> bool:
    """Whether a function decides by an argument what it does."""
    code = instructions_of(fn.__code__)
    following = [code[index + 1 : index + 3] for index, it in enumerate(code) if it.argval == name and "LOAD" in it.opname]
    return any("JUMP" in it.opname or it.opname in ("TO_BOOL", "UNARY_NOT") for some in following for it in some)


class ChangesByActing:
    """Finds what a copy of a policy changes while it acts in the dry run.

    Args:
        policy: the policy.
        actor: the copy, before it acts.
    """

    def __init__(self, policy: Any, actor: Any) -> None:
        self._policy, self._actor = policy, actor
        self._attached = {name: it for name, it in policy.attachments.items() if not isinstance(it, (nn.Module, Optimizer))}
        self._before = {name: _print(actor, vars(actor)[name]) for name in _uses_of(policy).read & vars(actor).keys()}
        self._attached_before = {name: _print(policy, it) for name, it in self._attached.items()}

    def note(self) -> None:
        """Note the attributes that the copy has changed, for `changed_by_acting` and `AttributesOfActing`; and warn of attached
        objects that it has changed, because all copies share them."""
        policy, own = self._policy, vars(self._actor)
        noted = [name for name, found in self._before.items() if _differs(found, _print(self._actor, own.get(name)))]
        policy.dry_run_results[_NOTED] = frozenset(noted)
        for name, it in self._attached.items():
            if _differs(self._attached_before[name], _print(policy, it)):
                warn_caller(
                    f"acting changes the {type(it).__name__} that {type(policy).__name__} has attached as {name!r}. The copies "
                    "that collect and evaluate share it, or have one each in worker processes. So runs whose iterations "
                    "overlap cannot be repeated, and a resumed run may differ from an unbroken one. Draw random numbers from "
                    "self.rng or self.generator, which each copy has of its own, and which are saved; and make values that "
                    "acting changes part of the recurrent state (get_initial_state), which each environment has of its own."
                )


def _differs(before: Print, now: Print) -> bool:
    return changed(before, now, private="numbers but None") is not None


def _uses_of(policy: Any) -> _Uses:
    kind = type(policy)
    if kind not in _uses:
        acting = list(_of_script(policy, _ACTING))
        left_out = _known_to_library(kind) | _names_of_weights(policy) | _names_in(_overrides(kind, *_GENERATORS))
        _uses[kind] = _Uses(
            _attributes_read(policy, acting) - left_out,
            frozenset(name for fn in acting for name in attributes_set(fn)),
            _names_in(_of_script(policy, _LEARNING)) if acting else frozenset(),
        )
    return _uses[kind]


def _attributes_read(policy: Any, functions: Sequence[FunctionType]) -> frozenset[str]:
    """The attributes that these functions may read of the policy. They may reach it under any name, as in `holder.policy.eps`,
    so these are all attributes that they read, but not what they call and the policy cannot, such as `dist.entropy()` if its
    `entropy` is a number."""
    found = {it for fn in functions for it in _read_in(fn, type(policy))}
    return frozenset(name for name, is_called in found if not is_called or callable(getattr(policy, name, None)))


def _read_in(fn: FunctionType, kind: type) -> Iterator[tuple[str, bool]]:
    """The attributes that a function and those inside it read, of any object but global ones that are no such policy; and
    whether they are called."""
    for code in parts_of(fn.__code__):
        before = None
        for now in instructions_of(code):
            if now.opname in ("LOAD_ATTR", "LOAD_METHOD") and not _is_elsewhere(before, fn, kind):
                yield now.argval, is_method_load(now)
            before = now
        if not _BY_TEXT.isdisjoint(code.co_names):
            yield from ((it, False) for it in code.co_consts if isinstance(it, str))


def _is_elsewhere(load: dis.Instruction | None, fn: FunctionType, kind: type) -> bool:
    """Whether an instruction loads a global variable that is neither a policy nor a class of this one."""
    if load is None or load.opname != "LOAD_GLOBAL" or load.argval not in fn.__globals__:
        return False
    value = fn.__globals__[load.argval]
    return not issubclass(kind, value) if isinstance(value, type) else not isinstance(value, kind)


def _names_in(functions: Iterator[FunctionType]) -> frozenset[str]:
    return frozenset(name for fn in functions for name in names_in(fn.__code__))


def _spaces_read(policy: Any) -> Collection[str]:
    """The observation space, if acting and learning use it, since a script may set attributes of it."""
    is_read = "observation_space" in _attributes_read(policy, list(_of_script(policy, _ACTING)))
    return ("observation_space",) if is_read and "observation_space" in _uses_of(policy).learned else ()


def _of_script(policy: Any, hooks: Sequence[str]) -> Iterator[FunctionType]:
    """The functions of the script that these hooks reach."""
    for hook in hooks:
        for fn in reached_functions(getattr(type(policy), hook, None), policy):
            if not is_of_ding_lite(fn.__module__):
                yield fn


def _overrides(kind: type, *names: str) -> Iterator[FunctionType]:
    """The methods of these names in classes of the script."""
    members = (function_of(vars(base).get(name)) for base in kind.__mro__ for name in names)
    return (inspect.unwrap(it) for it in members if isinstance(it, FunctionType) and not is_of_ding_lite(it.__module__))


def _names_of_weights(policy: Any) -> frozenset[str]:
    """The names in `get_weights` and `set_weights`, if they are overridden."""
    if not policy.has_own_weights:
        return frozenset()
    found = (reached_functions(getattr(type(policy), name), policy) for name in ("get_weights", "set_weights"))
    return _names_in(fn for functions in found for fn in functions)


def _known_to_library(kind: type) -> set[str]:
    return names_of([base for base in kind.__mro__ if is_of_ding_lite(base.__module__)])


def _noted(policy: Any) -> frozenset[str]:
    """The attributes that acting has changed in the dry run."""
    found: frozenset[str] = policy.dry_run_results.get(_NOTED, frozenset())
    return found


def _saved_with(policy: Any) -> set[str]:
    """The attributes that are attached, or that a `state_dict` of the script names."""
    attached = {id(it) for it in policy.attachments.values()}
    return {name for name, it in vars(policy).items() if id(it) in attached} | _names_in(_overrides(type(policy), "state_dict"))


def _acts_elsewhere(policy: Any) -> bool:
    """Whether a copy acts in another iteration than the one that learns, or in a worker process."""
    modes: Mapping[str, Any] = vars(policy)
    return any(mode.is_elsewhere for mode in (modes.get("collect_mode"), modes.get("eval_mode")) if mode is not None)


def _print(policy: Any, value: Any) -> Print:
    """A fingerprint of what a script holds in a value: without weights of the model, and without objects of libraries."""
    model = policy.model
    parts = (it for module in model.modules() for it in (module, *module._parameters.values(), *module._buffers.values()))
    weights = {id(it): it for it in parts}
    return fingerprint(value, inside_of=functools.partial(_inside, weights))


def _inside(weights: Mapping[int, Any], value: Any) -> Sequence[tuple[str, Any]] | None:
    """Nothing inside of weights, policies, and objects of libraries, which may be large, such as buffers; some items of a long
    list or dict, whose length counts too; else the usual."""
    kind = type(value)
    if id(value) in weights or isinstance(value, Optimizer) or hasattr(kind, "learn_mode"):
        return ()
    if kind in (list, tuple, deque, dict) and len(value) > _MOST_ITEMS:
        items = [*(list(value.items()) if kind is dict else enumerate(list(value)))]  # another thread may append meanwhile
        return [(f"[{key!r:.40}]", inner) for key, inner in items[:: len(items) // _MOST_ITEMS + 1]]
    return None if is_data(value) or is_of_script(kind.__module__) or holds_data_alone(kind) else ()


def _value(policy: Any, name: str) -> Any:
    """An attribute of a policy that is neither a method nor a property."""
    found = inspect.getattr_static(policy, name, _NOTHING)
    return _NOTHING if hasattr(type(found), "__get__") else found
