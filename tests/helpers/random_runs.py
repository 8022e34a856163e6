"""What tests of random pipelines share: how many cases they try, how their middleware are paced, and a follower."""

import os
import random
import time
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings


def case_count(usual: int) -> int:
    """RANDOM_CASES, or the usual number."""
    return int(os.environ.get("RANDOM_CASES", usual))


def cases(usual: int) -> settings:
    """As many cases as RANDOM_CASES says, or the usual number."""
    return settings(
        max_examples=case_count(usual),
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )


def pacing(seed: int) -> Callable[[float], None]:
    """Sleeps for up to so long, so that lanes meet in another order each time."""
    draw = random.Random(seed)

    def pace(delay: float) -> None:
        if delay:
            time.sleep(delay * draw.random())

    return pace


class Copycat:
    """Acts on the state of another object, such as an acting policy, and has a random generator of its own."""

    def __init__(self, leader: Any) -> None:
        self.leader, self.adopted, self.random = leader, None, random.Random(7)

    def load_snapshot(self, snapshot: Any) -> None:
        self.adopted = snapshot

    @property
    def value(self) -> Any:
        return self.leader.value if self.adopted is None else self.adopted
