"""MultiAgentContext: a context of all agents, whose parts are new in every iteration."""

import pickle

from ding_lite.contexts import MultiAgentContext, OnlineRLContext


def test_parts_are_none_until_somebody_collects_and_are_not_kept():
    ctx = MultiAgentContext(env_step=3)
    assert ctx.parts is None
    ctx.parts = {"learned": OnlineRLContext()}
    ctx = ctx.renew()

    assert (ctx.parts, ctx.env_step, ctx.total_step) == (None, 3, 1)


def test_it_survives_pickling_with_its_parts():
    ctx = MultiAgentContext()
    ctx.parts = {"learned": OnlineRLContext(train_iter=4)}

    assert pickle.loads(pickle.dumps(ctx)).parts["learned"].train_iter == 4
