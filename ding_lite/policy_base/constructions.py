"""Constructions: the arguments with which a policy was made, so that its learners can make the same one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class Construction:
    """The arguments of a policy's constructor. A copy of the policy has the same ones.

    Args:
        args, kwargs: the arguments.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args, self.kwargs = args, kwargs
        self._place: int | str | None = None  # of the configuration

    def __deepcopy__(self, memo: dict[int, Any]) -> Construction:
        return self

    def note_cfg(self, cfg: Any) -> None:
        """Note which argument is the configuration."""
        places: list[tuple[int | str, Any]] = [*enumerate(self.args), *self.kwargs.items()]
        self._place = next((place for place, it in places if it is cfg), None)

    @property
    def cfg(self) -> Any:
        """The argument that is the configuration.

        Raises:
            LookupError: none is.
        """
        if self._place is None:
            raise LookupError("no argument is the configuration")
        return self.args[self._place] if isinstance(self._place, int) else self.kwargs[self._place]

    def with_cfg(self, cfg: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with another configuration."""
        if isinstance(self._place, int):
            return (*self.args[: self._place], cfg, *self.args[self._place + 1 :]), self.kwargs
        return self.args, {**self.kwargs, str(self._place): cfg}


def noting_arguments(init: Callable[..., None]) -> Callable[..., None]:
    """Wrap a constructor of a policy: the arguments of the outermost one are noted as `constructed_with`."""

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if "constructed_with" not in vars(self):
            self.constructed_with = Construction(args, kwargs)
        init(self, *args, **kwargs)

    return __init__
