"""Members: a run in slices gives what the same pipeline gives alone, and its settings can be changed in between."""

import dataclasses

import pytest
from member_pipelines import dqn, dqn_config, learned, ppo, ppo_config, same
from slow_cases import mostly_slow

from ding_lite import task
from ding_lite.config import EnvConfig, PPOConfig, TD3Config
from ding_lite.contexts import OnlineRLContext
from ding_lite.distributed import Member, reset_config
from ding_lite.engine import Task, contract
from ding_lite.policy_base import FixedSettingError

MODES = pytest.mark.parametrize(
    "mode", [{}, {"max_lag": 1}, {"async_mode": True}], ids=["plain", "lag on one thread", "asynchronous"]
)


CASES = {"ppo": (ppo, ppo_config), "dqn": (dqn, dqn_config)}
each = pytest.mark.parametrize("case", mostly_slow(CASES, "dqn"))


@pytest.fixture
def members():
    """Makes members, which are closed at the end."""
    made = []

    def make(case, **changes):
        pipeline, config = CASES[case]
        made.append(Member(pipeline, config(**changes)))
        return made[-1]

    yield make
    for member in made:
        member.close()


@dataclasses.dataclass
class Windy(EnvConfig):
    wind: float = 0.0


@dataclasses.dataclass
class Model(type(PPOConfig().policy.model)):
    heads: int = 2


def test_sections_of_derived_classes_can_be_changed_and_saved():
    cfg = ppo_config()
    cfg.env, cfg.policy.model = Windy(**cfg.env.to_dict()), Model(**cfg.policy.model.to_dict())
    member = Member(ppo, cfg)
    try:
        member.advance(1)
        member.reset_config({"policy.learn.batch_size": 4})
        with pytest.raises(FixedSettingError, match=r"model.heads cannot be changed in a run"):
            member.reset_config({"policy.model.heads": 3})
        member.load_state_dict(member.state_dict())
        assert member.policy.cfg.learn.batch_size == 4
        assert (type(member.cfg.env), type(member.policy.cfg.model)) == (Windy, Model)
    finally:
        member.close()


@pytest.mark.few
@each
@MODES
def test_a_member_in_slices_gives_what_the_pipeline_gives_alone(case, mode, members):
    pipeline, config = CASES[case]
    cfg, loop = config(**mode), Task()
    with loop.start(async_mode=cfg.async_mode, max_lag=cfg.max_lag, ctx=OnlineRLContext()):
        if case == "dqn":
            policy = pipeline(cfg, loop)
        else:
            from ding_lite.engine.tasks import opened_for

            with opened_for(loop):
                policy = pipeline(cfg)
        loop.run(9, final=False)
        wanted = {name: part for name, part in policy.state_dict().items() if name != "metrics"}
        counts = loop.ctx.env_step, loop.ctx.train_iter, loop.ctx.last_eval_value
    sliced, whole = members(case, **mode), members(case, **mode)
    for iterations in (1, 3, 0, 2, 3):
        sliced.advance(iterations)
    whole.advance(9)
    for member in (sliced, whole):
        assert [one for one in wanted if not same(learned(member)[one], wanted[one])] == []
        ctx = member.task.ctx
        assert (ctx.env_step, ctx.train_iter, ctx.last_eval_value) == counts


@pytest.mark.few
@each
@MODES
def test_a_member_goes_on_from_its_state_with_its_changed_settings(case, mode, members):
    first, again = members(case, **mode), members(case, **mode)
    first.advance(3)
    first.reset_config({"policy.learn.learning_rate": 5e-4, "policy.learn.batch_size": 4})
    first.advance(2)
    again.load_state_dict(first.state_dict())
    assert again.cfg.policy.learn.batch_size == 4
    assert same(again.state_dict(), first.state_dict())
    found, wanted = again.advance(3), first.advance(3)
    found.pop("time_s"), wanted.pop("time_s")
    timed = {name for name in found if "per_s" in name or "throughput" in name}
    assert same({name: found[name] for name in found if name not in timed}, {n: wanted[n] for n in wanted if n not in timed})
    assert same(learned(again), learned(first))
    first.load_state_dict(again.state_dict())
    assert same(first.state_dict(), again.state_dict())


def test_results_have_the_names_of_a_logger_and_are_those_of_the_slice(members):
    member = members("ppo")
    results = member.advance(4)
    assert {"total_step", "env_step", "train_iter", "collect/episode_return_mean", "learn/cur_lr", "eval_value", "time_s"} <= {
        *results
    }
    assert (results["env_step"], results["is_finished"]) == (64, False)
    assert "evaluate/episode_return_mean" in results
    assert results["last_eval_iter"] <= results["train_iter"]
    assert "eval_value" not in member.advance(1)
    assert member.advance(env_steps=20)["env_step"] == 64 + 16 + 32


def test_a_member_that_reaches_its_stop_value_is_finished(members):
    member = members("ppo", **{"env.stop_value": 1.0})
    assert member.advance(5)["is_finished"]
    before = learned(member)
    assert member.advance(5)["is_finished"]
    assert same(learned(member), before)


def test_the_script_task_stays_free():
    with task.start(ctx=OnlineRLContext()):
        task.use(lambda ctx: None)
        member = Member(ppo, ppo_config())
        assert len(task.middleware) == 1
        assert len(member.task.middleware) == 5
        member.close()


def test_a_member_runs_inside_a_middleware_of_another_task():
    alone = Member(ppo, ppo_config())
    alone.advance(4)
    inner = Member(ppo, ppo_config())

    @contract(stage="learn")
    def advances(ctx):
        inner.advance(2)

    with Task().start() as outer:
        outer.use(advances).run(2)
    assert same(learned(inner), learned(alone))
    inner.close(), alone.close()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"policy.model.layer_norm": True}, "model.layer_norm cannot be changed in a run: the networks are made with it"),
        ({"env.id": "Acrobot-v1"}, "env.id cannot be changed in a run: only settings of the policy can"),
        ({"policy.learn.bach_size": 3}, "did you mean 'batch_size'"),
        ({"policy.learn.learning_rate": -1.0}, "at least 0"),
    ],
)
def test_a_change_that_cannot_be_live_is_refused_and_nothing_changes(values, words, members):
    member = members("ppo")
    before = member.cfg.to_dict()
    with pytest.raises((FixedSettingError, ValueError), match=words):
        member.reset_config({"policy.learn.batch_size": 5, **values})
    assert member.cfg.to_dict() == before


def test_a_middleware_may_refuse_a_change(members):
    member = members("ppo")
    member.task.middleware[0].fixed_settings = {"policy.learn.batch_size": "it was read. Start a new run."}
    with pytest.raises(FixedSettingError, match=r"policy.learn.batch_size cannot be changed in this run: it was read\. Start"):
        member.reset_config({"policy.learn.learning_rate": 0.5, "policy.learn.batch_size": 5})
    assert member.cfg.policy.learn.learning_rate == 1e-3


@pytest.mark.parametrize("values", [{"policy.learn.batch_size": 5}, {"policy.learn": {"batch_size": 5}}])
def test_a_change_that_a_middleware_refuses_is_refused_in_a_script_too_by_any_of_its_names(values, members):
    member = members("ppo")
    with task.start():
        task.use(lambda ctx: None)
        task.middleware[0].fixed_settings = {"policy.learn.batch_size": "it was read. Start a new run."}
        member.task.middleware[0].fixed_settings = task.middleware[0].fixed_settings
        for change in (member.reset_config, lambda given: reset_config(member.cfg, member.policy, given)):
            with pytest.raises(FixedSettingError, match="policy.learn.batch_size cannot be changed in this run: it was read"):
                change(values)
    assert member.cfg.policy.learn.batch_size != 5


def test_what_a_middleware_of_another_policy_refuses_may_change(members):
    member = members("ppo")
    with task.start():
        task.use(lambda ctx: None)
        task.middleware[0].__dict__.update(fixed_settings={"policy.learn.batch_size": "it was read."}, fixed_for=object())
        reset_config(member.cfg, member.policy, {"policy.learn.batch_size": 5})
    assert member.cfg.policy.learn.batch_size == 5


def test_mistakes_are_named():
    with pytest.raises(TypeError, match=r"nothing\(cfg\) wants to return the policy of the pipeline, got None"):
        Member(nothing, ppo_config())
    member = Member(ppo, ppo_config())
    with pytest.raises(ValueError, match="a number of iterations, or of env_steps"):
        member.advance()
    with pytest.raises(ValueError, match="was made with another configuration than cfg.policy"):
        reset_config(ppo_config(), member.policy, {"policy.learn.batch_size": 3})
    member.close()
    assert not TD3Config().liveness("id")[0]


def nothing(cfg):
    return None
