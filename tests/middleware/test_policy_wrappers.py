"""for_policy(): a middleware in the context of one policy, both of its steps, and what of it reaches the context of all."""

import pytest

from ding_lite import Task, contract
from ding_lite.contexts import AgentsContext, OnlineRLContext
from ding_lite.middleware import for_policy


def test_a_middleware_of_one_policy_sees_its_context_and_counts_with_all_others():
    ctx = AgentsContext(train_iter=10, parts={"a": OnlineRLContext(train_data="of a"), "b": OnlineRLContext()})
    seen = []

    def learn(own):
        seen.append((own.train_data, own.train_iter))
        own.train_iter += 3
        own.train_output = {"loss": 1.0}

    for_policy("a", learn)(ctx)
    for_policy("b", learn)(ctx)

    assert seen == [("of a", 10), (None, 13)]
    assert (ctx.train_iter, ctx.parts["a"].train_iter, ctx.parts["b"].train_iter) == (16, 13, 16)
    assert ctx.parts["a"].train_output == {"loss": 1.0}
    assert ctx.train_output is None


def test_an_unknown_policy_is_refused_with_the_nearest():
    run = for_policy("lerned", lambda ctx: None)
    with pytest.raises(ValueError, match=r"finds no policy 'lerned' in ctx.parts: did you mean 'learned'\? There are learned"):
        run(AgentsContext(parts={"learned": OnlineRLContext()}))
    with pytest.raises(ValueError, match="AgentsCollector has not collected in this iteration"):
        run(AgentsContext())
    with pytest.raises(TypeError, match=r"for_policy\('a', ...\) wants a middleware, a function of the context, got None"):
        for_policy("a", None)


@pytest.mark.parametrize("has_contract", [False, True])
def test_both_halves_of_a_generator_run_in_the_policys_context(has_contract):
    seen = []

    def halves(own):
        own.train_iter += 1
        yield
        seen.append(own.train_iter)
        own.train_iter += 10

    if has_contract:
        contract(reads=("train_iter",), writes=("train_iter",), stage="learn")(halves)

    def later(ctx):
        ctx.train_iter += 100

    contract(reads=("train_iter",), writes=("train_iter",), stage="learn")(later)
    task = Task()
    with task.start(ctx=AgentsContext()):
        task.use(lambda ctx: setattr(ctx, "parts", {"a": OnlineRLContext()}))
        task.use(for_policy("a", halves)).use(later).run(max_step=2)

    assert seen == [101, 212]
    assert task.ctx.train_iter == 222


def test_an_error_is_thrown_into_the_half_that_waits_and_may_be_handled_there():
    seen = []

    def guard(own):
        try:
            yield
        except OSError as error:
            seen.append(str(error))
            own.train_iter += 1

    def fail(ctx):
        raise OSError("gone")

    task = Task()
    with task.start(ctx=AgentsContext()):
        task.use(lambda ctx: setattr(ctx, "parts", {"a": OnlineRLContext()}))
        task.use(for_policy("a", guard)).use(fail).run(max_step=1)
    assert seen == ["gone"]
    assert task.ctx.train_iter == 1

    def clean_up(own):
        try:
            yield
        finally:
            seen.append("clean")

    task = Task()
    with task.start(ctx=AgentsContext()):
        task.use(lambda ctx: setattr(ctx, "parts", {"a": OnlineRLContext()}))
        task.use(for_policy("a", clean_up)).use(fail)
        with pytest.raises(OSError, match="gone"):
            task.run(max_step=1)
    assert seen == ["gone", "clean"]


def test_several_middleware_in_a_row_are_one():
    task = Task()
    with task.start(ctx=AgentsContext()):

        def first(own):
            own.train_data = 1
            yield
            own.train_output = "backward step"

        task.use(lambda ctx: setattr(ctx, "parts", {"a": OnlineRLContext()}))
        task.use(for_policy("a", task.serial(first, lambda own: setattr(own, "train_data", own.train_data + 1))))
        task.run(max_step=1)

    assert (task.ctx.parts["a"].train_data, task.ctx.parts["a"].train_output) == (2, "backward step")


def test_what_a_middleware_of_one_policy_does_at_the_end_of_a_run_it_does_in_its_context():
    class Learns:
        __name__ = "learns"

        def __call__(self, own):
            own.train_iter += 3
            own.train_data = "of this iteration"

        def end_run(self, own):
            seen.append(("before", own.total_step, own.train_iter, own.train_data))
            own.train_iter += 1
            yield
            seen.append(("after", own.train_iter))

    def collect(ctx):
        ctx.parts = {"a": OnlineRLContext(total_step=ctx.total_step)}

    seen, task = [], Task()
    with task.start(ctx=AgentsContext()):
        task.use(collect).use(for_policy("a", task.serial(Learns()))).run(max_step=2)

    assert seen == [("before", 1, 6, None), ("after", 7)]
    assert task.ctx.train_iter == 7
