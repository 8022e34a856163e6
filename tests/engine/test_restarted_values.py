"""What a method such as reset() sets anew, whatever way its code takes, and what lasts longer."""

import numpy as np

from ding_lite.engine.restarted_values import restarted_by


class Base:
    def reset(self, seed=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.steps = 0
        self._place()

    def _place(self):
        self.x, self.y = 0.0, 1.0


class Env(Base):
    def __init__(self):
        self.level, self.board, self.items, self.half = 1.0, np.zeros(4), [], np.zeros(4)

    def reset(self, seed=None):
        super().reset(seed)
        self.episodes += 1
        self.best = max(self.best, self.total)
        self.total = 0.0
        self.board[:] = 0
        self.items.clear()
        self.half[:2] = 0
        if self.level > 3:
            self.level = 1.0
        if self.episodes > 2:
            self.mode = "hard"

    def step(self):
        self.steps += 1
        self.total_steps += 1
        self.half += 1
        self.level += 0.1
        return self.mode


def test_what_reset_always_sets_before_it_reads_it_or_fills_is_new_and_so_is_a_count_that_nothing_reads():
    assert restarted_by(Env, "reset").values == {"steps", "x", "y", "board", "items", "total_steps"}


def test_what_reset_sets_on_some_way_is_told_too():
    assert {"rng", "level", "mode", "episodes", "total"} <= restarted_by(Env, "reset").stored


def test_a_class_without_the_method_or_with_its_own_access_to_attributes_is_unknown():
    class Computes(Env):
        def __setattr__(self, name, value):
            super().__setattr__(name, value)

    assert not restarted_by(Computes, "reset").values
    assert not restarted_by(Env, "renew").values


def test_a_count_may_be_read_where_a_method_gives_the_object_away():
    class Shows(Env):
        def show(self):
            print(self)
            print(vars(self))

    assert restarted_by(Shows, "reset").values == {"steps", "x", "y", "board", "items"}
