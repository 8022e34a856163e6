"""Labels and roles: the purpose of this process, for scripts that run in several."""

from __future__ import annotations

import enum
import fnmatch
from collections.abc import Iterable
from typing import ClassVar


class Role(str, enum.Enum):
    """The purpose of a process, if a script runs in several."""

    LEARNER = "learner"
    COLLECTOR = "collector"
    EVALUATOR = "evaluator"
    FETCHER = "fetcher"


class RolesMixin:
    """Labels and roles of a process. A process without any role has all roles."""

    role: ClassVar[type[Role]] = Role
    labels: set[str]
    """Labels for `match_labels`."""
    _roles: set[str]

    def match_labels(self, patterns: Iterable[str] | str) -> bool:
        """Whether one of the labels matches one of these patterns (`*` and `?` as in file names)."""
        wanted = [patterns] if isinstance(patterns, str) else patterns
        return any(fnmatch.filter(self.labels, pattern) for pattern in wanted)

    @property
    def roles(self) -> set[str]:
        """The roles given by `add_role`."""
        return self._roles

    def add_role(self, role: str) -> None:
        """Give this process a role."""
        self._roles.add(role)

    def has_role(self, role: str) -> bool:
        """Whether this process has that role."""
        return not self._roles or role in self._roles
