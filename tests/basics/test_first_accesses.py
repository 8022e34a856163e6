"""FirstAccesses: what methods read before they have set it, whatever way their code takes."""

import contextlib
import functools

import pytest
import torch

from ding_lite.basics.first_accesses import FirstAccesses


def of_self(it):
    return it.x


def setting_x(it):
    it.x = 1


def setting_later(it, other):
    return lambda: it.x


class Base:
    def run(self):
        self.x = 1
        return self.x

    def hook(self):
        return 0


class SetsFirst:
    def plain(self):
        self.x = 1
        return self.x

    def both_ways(self, it):
        if it:
            self.x = 1
        else:
            self.x = 2
        return self.x

    def in_a_loop(self, it):
        for one in it:
            self.x = one
            self.x += 1

    def then_in_a_loop(self, it):
        self.x = 0
        while it.more():
            self.x += it.next()

    def in_a_with(self, it):
        with torch.no_grad(), it:
            self.x = 1
        return self.x

    def before_try(self, it):
        self.x = 1
        try:
            it()
        except ValueError:
            return self.x
        finally:
            self.x += 1
        return self.x

    def in_try(self, it):
        try:
            self.x = it()
        except ValueError:
            raise KeyError from None
        return self.x

    def unpacked(self, it):
        self.x, y = it
        return self.x + y

    def in_a_comprehension(self, it):
        self.x = 1
        return [self.x + one for one in it], {one: self.x + one for one in it}

    def by_a_method(self, it):
        self.plain()
        return self.x

    def for_a_method(self, it):
        self.x = it
        return self._reads(it)

    def _reads(self, it):
        return self.x + it

    def by_a_function(self):
        setting_x(self)
        return of_self(self)

    def with_a_default(self):
        self.x = 1
        return getattr(self, "x", 0)

    def early(self, it):
        if it:
            return 0
        self.x = 1
        return self.x

    def after_yield(self, ctx):
        self.x = 1
        yield
        ctx.y = self.x

    @torch.no_grad()
    def decorated(self):
        self.x = 1
        return self.x

    @property
    def twice(self):
        return self.x * 2

    def by_a_property(self):
        self.x = 1
        return self.twice

    @functools.cached_property
    def computed(self):
        return self.x

    def of_other(self, it):
        self.x = it.x
        return self.x


class ReadsFirst:
    def plain(self):
        y = self.x
        self.x = 1
        return y

    def counts(self):
        self.x += 1

    def one_way(self, it):
        if it:
            self.x = 1
        return self.x

    def maybe_no_turn(self, it):
        for one in it:
            self.x = one
        return self.x

    def after_an_error(self, it):
        try:
            self.x = it()
        except ValueError:
            it.failed = True
        return self.x

    def after_a_suppressed_error(self, it):
        with contextlib.suppress(ValueError):
            self.x = it()
        return self.x

    def as_an_argument_of_what_sets(self):
        return self._sets(self.x)

    def _sets(self, y):
        self.x = y
        return y

    def by_name(self, it):
        getattr(self, it)
        self.x = 1

    def all(self):
        found = dict(vars(self))
        self.x = 1
        return found

    def of_dict(self):
        found = dict(self.__dict__)
        self.x = 1
        return found

    def of_other_functions(self):
        of_self(self)
        self.x = 1

    def elsewhere(self, it):
        it.append(self)
        self.x = 1

    def returns_itself(self):
        return self

    def later(self, it):
        self.x = 1
        it.call = lambda: self.x

    def method_later(self, it):
        self.x = 1
        it.call = self.plain

    def deletes(self):
        del self.x

    def in_place(self):
        self.x.append(1)

    def an_item(self):
        self.x[0] = 1

    @property
    def twice(self):
        return self.x * 2

    def by_a_property(self):
        _ = self.twice
        self.x = 1

    @functools.cached_property
    def computed(self):
        return self.x

    def by_a_cached_property(self):
        _ = self.computed
        self.x = 1


def names_of(kind):
    return [name for name, it in vars(kind).items() if not name.startswith("_") and callable(it)]


@pytest.mark.parametrize("name", names_of(SetsFirst))
def test_what_is_set_on_every_way_to_its_first_use_is_not_read_first(name):
    assert "x" not in FirstAccesses(SetsFirst).of(name).read


@pytest.mark.parametrize("name", names_of(ReadsFirst))
def test_anything_else_counts_as_read_first(name):
    assert "x" in FirstAccesses(ReadsFirst).of(name).read


def test_methods_of_parent_classes_are_called_by_super_and_by_name():
    class Derived(Base):
        def run(self):
            y = super().run()
            return y + self.x

        def by_name(self):
            Base.run(self)
            return self.x

        def by_class(self):
            super(Derived, self).run()  # noqa: UP008
            return self.x

        def hook(self):
            return self.x

        def first(self):
            return self.hook() + super().run()

    found = FirstAccesses(Derived)
    assert all(found.of(name) == (frozenset(), {"x"}) for name in ("run", "by_name", "by_class"))
    assert found.of("first").read == {"x"}
    assert found.of("run", "hook").read == frozenset()
    assert found.of("hook", "run").read == {"x"}


def test_setters_of_properties_set_what_they_set():
    class Scaled:
        @property
        def x(self):
            return self._x

        @x.setter
        def x(self, value):
            self._x = value

        def run(self):
            self.x = 1
            return self.x

    assert FirstAccesses(Scaled).of("run").read == frozenset()
    assert FirstAccesses(Scaled).of("run").set == {"_x"}


def test_a_class_with_its_own_way_to_read_attributes_is_not_known():
    assert FirstAccesses(Base).is_known
    assert not FirstAccesses(type("Own", (Base,), {"__getattr__": lambda self, name: 0})).is_known


def test_decorators_of_the_script_may_do_anything():
    def sometimes(fn):
        @functools.wraps(fn)
        def call(self):
            return self.n and fn(self)

        return call

    class Decorated:
        @sometimes
        def run(self):
            self.x = 1

        def after(self):
            self.run()
            return self.x

    assert FirstAccesses(Decorated).of("after").read >= {"x"}
