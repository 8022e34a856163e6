"""for_policy(): a middleware in the context of one policy, both of its steps, and what of it reaches the context of all."""

import threading

import pytest

from ding_lite import Task, contract
from ding_lite.contexts import MultiAgentContext, OnlineRLContext
from ding_lite.engine import ContractError, PipelineError
from ding_lite.middleware import for_policy
from ding_lite.pipeline.contracts import NestedContext


def test_a_middleware_of_one_policy_sees_its_context_and_counts_with_all_others():
    ctx = MultiAgentContext(train_iter=10, parts={"a": OnlineRLContext(train_data="of a"), "b": OnlineRLContext()})
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
        run(MultiAgentContext(parts={"learned": OnlineRLContext()}))
    with pytest.raises(ValueError, match="MultiAgentCollector has not collected in this iteration"):
        run(MultiAgentContext())
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
    with task.start(ctx=MultiAgentContext()):
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
    with task.start(ctx=MultiAgentContext()):
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
    with task.start(ctx=MultiAgentContext()):
        task.use(lambda ctx: setattr(ctx, "parts", {"a": OnlineRLContext()}))
        task.use(for_policy("a", clean_up)).use(fail)
        with pytest.raises(OSError, match="gone"):
            task.run(max_step=1)
    assert seen == ["gone", "clean"]


def test_several_middleware_in_a_row_are_one():
    task = Task()
    with task.start(ctx=MultiAgentContext()):

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
    with task.start(ctx=MultiAgentContext()):
        task.use(collect).use(for_policy("a", task.serial(Learns()))).run(max_step=2)

    assert seen == [("before", 1, 6, None), ("after", 7)]
    assert task.ctx.train_iter == 7


@contract(
    writes=("parts",),
    creates=tuple(NestedContext("parts", one, OnlineRLContext, ("trajectories",), f"for_policy({one!r}, ...)") for one in "ab"),
    stage="collect",
)
def collect_for_two(ctx):
    ctx.parts = {one: OnlineRLContext(total_step=ctx.total_step, trajectories=[one, ctx.total_step]) for one in "ab"}


def counting_learner():
    @contract(reads=("train_iter",), writes=("train_iter",), stage="learn")
    def learn(ctx):
        ctx.train_iter += 1

    return learn


@pytest.mark.parametrize("mode", [{}, {"max_lag": 1}, {"async_mode": True}], ids=str)
@pytest.mark.parametrize("is_serial", [False, True])
def test_a_class_with_a_contract_gets_the_context_of_its_policy_at_the_end_of_a_run_too(mode, is_serial):
    class Records:
        __name__ = "records"

        def __init__(self):
            contract(reads=("trajectories",), writes=("train_data",), may_read=("train_data",), stage="process")(self)

        def __call__(self, own):
            own.train_data = own.trajectories

        def end_run(self, own):
            assert isinstance(own, OnlineRLContext)
            assert not isinstance(own, MultiAgentContext)
            ended.append((own.total_step, own.train_data))
            own.train_data = "written"

    ended, task = [], Task()
    with task.start(ctx=MultiAgentContext(), **mode):
        task.use(collect_for_two)
        for one in "aab":
            task.use(for_policy(one, task.serial(Records()) if is_serial else Records()))
        task.run(max_step=3)

    assert ended == [(2, None), (2, "written"), (2, None)]  # two middleware of one policy share its context


@pytest.mark.parametrize("mode", [{}, {"max_lag": 1}, {"async_mode": True}], ids=str)
def test_after_a_run_the_contexts_of_all_policies_are_those_of_the_last_iteration(mode):
    class Learns:
        def __init__(self):
            contract(reads=("trajectories",), writes=("train_output",), stage="learn")(self)

        def __call__(self, own):
            own.train_output = own.trajectories

        def end_run(self, own):
            own.train_output = "at the end"

    for final in (False, True):
        task = Task()
        with task.start(ctx=MultiAgentContext(), **mode):
            task.use(collect_for_two).use(for_policy("b", Learns())).run(max_step=3, final=final)
        found = {name: (own.total_step, own.trajectories, own.train_output) for name, own in task.ctx.parts.items()}
        assert found == {"a": (2, ["a", 2], None), "b": (2, ["b", 2], "at the end" if final else ["b", 2])}


@pytest.mark.parametrize("names", ["a", "ab"])
def test_what_an_end_run_changes_in_the_dict_of_contexts_is_kept(names):
    class Changes:
        def __init__(self, change):
            self.change = change

        def __call__(self, ctx):
            ctx.parts = {name: OnlineRLContext(total_step=ctx.total_step, train_output=name) for name in names}

        def end_run(self, ctx):
            self.change(ctx.parts)

    def after(change):
        task = Task()
        with task.start(ctx=MultiAgentContext()):
            task.use(Changes(change)).run(max_step=3)
        return {name: (own.total_step, own.train_output) for name, own in task.ctx.parts.items()}

    unchanged = {name: (2, name) for name in names}
    assert after(lambda parts: None) == unchanged
    assert after(lambda parts: parts.clear()) == {}
    assert after(lambda parts: parts.update(a=OnlineRLContext(total_step=9))) == {**unchanged, "a": (9, None)}
    assert after(lambda parts: parts.update(c=parts["a"])) == {**unchanged, "c": (2, "a")}


def test_what_is_not_in_the_contract_is_refused_at_the_end_of_a_run_as_well():
    class Counts:
        __name__ = "counts"

        def __init__(self):
            contract(reads=("trajectories",), stage="process")(self)

        def __call__(self, own):
            own.trajectories  # noqa: B018

        def end_run(self, own):
            own.train_iter += 1

    task = Task()
    with task.start(ctx=MultiAgentContext()):
        task.use(collect_for_two).use(for_policy("a", Counts()))
        with pytest.raises(ContractError, match="end_run.* reads ctx.train_iter .* and its contract does not name it"):
            task.run(max_step=1)


def test_learners_of_two_policies_at_the_same_time_are_refused_because_both_add_to_one_counter():
    task = Task()
    with task.start(ctx=MultiAgentContext()):
        both = task.parallel(for_policy("a", counting_learner()), for_policy("b", counting_learner()))
        with pytest.raises(
            PipelineError, match=r"one problem:\n.*writes ctx.train_iter, which for_policy\('b', counting_learner\).*serial"
        ):
            task.use(collect_for_two).use(both).run(max_step=3)
    with task.start(ctx=MultiAgentContext()):
        both = task.parallel(for_policy("a", counting_learner()), counting_learner())
        with pytest.raises(PipelineError, match="writes ctx.train_iter, which counting_learner in parallel"):
            task.use(collect_for_two).use(both).run(max_step=3)
    with task.start(ctx=MultiAgentContext()):
        looks = contract(reads=("train_iter",), stage="process")(lambda own: own.train_iter)
        both = task.parallel(for_policy("a", counting_learner()), for_policy("b", looks))
        with pytest.raises(PipelineError, match="writes ctx.train_iter, which .* reads"):
            task.use(collect_for_two).use(both).run(max_step=3)


def test_middleware_of_two_policies_that_count_nothing_may_run_at_the_same_time():
    @contract(reads=("trajectories", "train_iter"), writes=("train_data",), may_write=("learn_metrics",), stage="process")
    def prepare(own):
        own.train_data = own.trajectories
        own.learn_metrics = [{"size": 1.0}]

    task = Task()
    with task.start(ctx=MultiAgentContext()):
        task.use(collect_for_two).use(task.parallel(for_policy("a", prepare), for_policy("b", prepare)))
        task.use(task.serial(for_policy("a", counting_learner()), for_policy("b", counting_learner()))).run(max_step=3)
    assert task.ctx.train_iter == 6
    assert sorted(map(str, task.ctx.learn_metrics)) == ["{'a': {'size': 1.0}}", "{'b': {'size': 1.0}}"]


@pytest.mark.parametrize("is_serial", [False, True])
def test_a_lane_that_is_ahead_does_not_end_the_context_on_which_a_later_lane_still_works(recwarn, is_serial):
    is_ahead = threading.Event()

    @contract(reads=("trajectories", "train_iter"), writes=("train_data",), stage="process")
    def prepare(own):
        own.train_data = own.trajectories
        if own.total_step == 1:
            is_ahead.set()

    @contract(reads=("train_iter", "train_data"), writes=("train_iter",), stage="learn")
    def learn(own):
        assert own.total_step or is_ahead.wait(60)  # the other lane is in the next iteration then
        assert own.train_data == ["a", own.total_step]
        own.train_iter += 1

    task = Task()
    with task.start(ctx=MultiAgentContext(), async_mode=True):
        task.use(collect_for_two).use(for_policy("a", task.serial(prepare) if is_serial else prepare))
        task.use(for_policy("a", learn)).run(max_step=7)
    assert task.ctx.train_iter == 7
    assert not [one for one in recwarn if "in a later iteration" in str(one.message)]


@pytest.mark.parametrize("mode", [{"max_lag": 1}, {"async_mode": True}], ids=str)
def test_the_context_of_a_policy_that_is_read_when_its_iteration_is_over_on_all_lanes_is_a_warning(mode):
    held = []

    @contract(reads=("trajectories",), uses=(held,), stage="process")
    def hold(own):
        held.append(own)
        if len(held) == 4:
            held[0].trajectories  # noqa: B018

    task = Task()
    with task.start(ctx=MultiAgentContext(), **mode):
        task.use(collect_for_two).use(for_policy("a", hold)).use(for_policy("a", counting_learner()))
        with pytest.warns(UserWarning, match="ctx.trajectories of iteration 0 was read in a later iteration"):
            task.run(max_step=8)
