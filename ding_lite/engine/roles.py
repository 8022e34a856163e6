"""Labels and roles: what a script asks to find out what this process is for."""

from __future__ import annotations

import enum
import fnmatch
from collections.abc import Iterable
from typing import ClassVar


class Role(str, enum.Enum):
    """What a process is for, where a script runs in several."""

    LEARNER = "learner"
    COLLECTOR = "collector"
    EVALUATOR = "evaluator"
    FETCHER = "fetcher"


class RolesMixin:
    """Labels, matched by pattern, and roles. A process without any role has them all."""

    role: ClassVar[type[Role]] = Role
    labels: set[str]
    """What `match_labels` looks at."""
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
