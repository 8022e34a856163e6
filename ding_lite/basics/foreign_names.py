"""Foreign names: names of other libraries, each with its counterpart here or with what to write instead."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, TypeVar

from ding_lite.basics.messages import did_you_mean

Class = TypeVar("Class", bound=type)
Function = TypeVar("Function", bound=Callable[..., Any])


def foreign_names(
    package: str, advice: Mapping[str, Mapping[str, str]], aliases: Mapping[str, str] | None = None
) -> Callable[[str], Any]:
    """The `__getattr__` of a package, for names of other libraries.

    Args:
        package: the package, such as "ding_lite.data".
        advice: for each library, its names with what to write instead.
        aliases: names that give an object of this library, with its full name, such as "ding_lite.data.ReplayBuffer". Its
            module is imported when the name is first used.

    Returns:
        A function of a name that raises an ImportError with the advice, or an AttributeError if it does not know the name. With
        an AttributeError, `from package import name` would not show the advice.
    """

    def get(name: str) -> Any:
        if aliases is not None and name in aliases:
            module, _, attribute = aliases[name].rpartition(".")
            return getattr(importlib.import_module(module), attribute)
        for library, names in advice.items():
            if name in names:
                raise ImportError(f"{package} has no {name!r}, a name of {library}: {names[name]}", name=package)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get


def refuse_foreign_modules(package: str, advice: Mapping[str, Mapping[str, str]]) -> None:
    """Let imports of modules of other libraries below a package raise a ModuleNotFoundError with advice.

    Python asks for it only if it has found no such module.

    Args:
        package: the package, such as "ding_lite".
        advice: for each library, its modules below the package with what to write instead.
    """
    texts = {
        f"{package}.{name}": f"{package} has no module {name!r}, a name of {library}: {text}"
        for library, names in advice.items()
        for name, text in names.items()
    }
    sys.meta_path.append(_ForeignModules(texts))


class _ForeignModules:
    """A finder of modules that finds none. `importlib.util.find_spec`, which asks whether there is one, gets no error."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in self._texts and not self._is_asked():
            raise ModuleNotFoundError(self._texts[name], name=name)

    @staticmethod
    def _is_asked() -> bool:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_name in ("find_spec", "_find_spec"):
            if frame.f_globals.get("__name__") == "importlib.util":
                return True
            frame = frame.f_back
        return False


def foreign_attributes(advice: Mapping[str, str]) -> Callable[[Class], Class]:
    """A class decorator: reading an attribute of another library raises an AttributeError with advice.

    Not a `__getattr__`, which would make every access to an attribute of the class slower.

    Args:
        advice: the attributes with what to write instead.
    """

    def decorate(cls: Class) -> Class:
        for name, text in advice.items():
            setattr(cls, name, _ForeignAttribute(name, text))
        return cls

    return decorate


class _ForeignAttribute:
    """An attribute that a class does not have. Base classes behind it, such as mixins of a subclass, may have it."""

    def __init__(self, name: str, advice: str) -> None:
        self._name, self._advice = name, advice

    def __get__(self, owner: Any, cls: type) -> Any:
        behind = list(cls.__mro__)
        place = next(index for index, it in enumerate(behind) if vars(it).get(self._name) is self)
        for other in behind[place + 1 :]:
            found = vars(other).get(self._name, self)
            if type(found) is not _ForeignAttribute:
                return found.__get__(owner, cls) if hasattr(found, "__get__") else found
        raise AttributeError(f"{cls.__name__} has no {self._name!r}: {self._advice}", name=self._name, obj=owner)


def foreign_arguments(advice: Mapping[str, str], counts_positional: bool = True) -> Callable[[Function], Function]:
    """A decorator of a function or an `__init__` that refuses arguments of other libraries, or of earlier versions, and gives
    the nearest name for other unknown ones.

    Args:
        advice: the arguments with what to write instead.
        counts_positional: whether positional arguments in excess are taken for these, in order.

    Example:
        >>> @foreign_arguments({"colour": "the color is ink=."})
        ... def paint(ink="blue"): ...
        >>> paint(colour="red")
        Traceback (most recent call last):
            ...
        TypeError: paint() has no argument 'colour': the color is ink=.
    """

    def decorate(fn: Function) -> Function:
        name = fn.__qualname__.removesuffix(".__init__")
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        known = inspect.signature(fn).parameters
        room = sum(it.kind in positional for it in known.values())
        takes_any = any(it.kind is inspect.Parameter.VAR_KEYWORD for it in known.values())

        @functools.wraps(fn)
        def called(*args: Any, **kwargs: Any) -> Any:
            if kwargs or len(args) > room:
                for argument in (*kwargs, *[*advice][: max(len(args) - room, 0) if counts_positional else 0]):
                    if argument in advice:
                        raise TypeError(f"{name}() has no argument {argument!r}: {advice[argument]}")
                    near = "" if takes_any or argument in known else did_you_mean(argument, known)
                    if near.endswith("?"):  # else Python's own error is as good
                        raise TypeError(f"{name}() has no argument {argument!r}{near}")
            return fn(*args, **kwargs)

        return called  # type: ignore[return-value]

    return decorate
