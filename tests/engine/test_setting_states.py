"""Setting states: settings that a run changes are the same in a resumed run, and those that act on nothing are named."""

import contextlib
import warnings

import pytest
from states import same

from ding_lite import Task, contract
from ding_lite.config import DQNConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import ReplayBuffer
from ding_lite.engine import RunStateError
from ding_lite.envs import make_envs
from ding_lite.middleware import CkptSaver, OffPolicyLearner, StepCollector, data_pusher, eps_greedy_handler
from ding_lite.policy import DQNPolicy

SMALL = {
    "policy.model.encoder_hidden_size_list": [8],
    "policy.collect.n_sample": 16,
    "policy.learn": {"learning_starts": 16, "batch_size": 8, "update_per_collect": 2},
}


def trained(change, folder, steps, resume=None, kind=DQNPolicy, **settings):
    """The policy after a run in which `change(policy, iteration)` is called first, and the warnings."""
    cfg = DQNConfig(exp_name=str(folder)).override({**SMALL, **settings})
    with contextlib.closing(make_envs("CartPole-v1", 2, seed=0)) as envs, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        policy = kind(cfg.policy, envs.single_observation_space, envs.single_action_space)
        buffer_, loop = ReplayBuffer(200, seed=0), Task()

        @contract(reads=("total_step",), uses=(policy,), stage="explore")
        def schedule(ctx):
            change(policy, ctx.total_step)

        with loop.start(ctx=OnlineRLContext(), resume=resume):
            loop.use(schedule)
            loop.use(eps_greedy_handler(cfg))
            loop.use(StepCollector(cfg, policy.collect_mode, envs))
            loop.use(data_pusher(cfg, buffer_))
            loop.use(OffPolicyLearner(cfg, policy.learn_mode, buffer_))
            loop.use(CkptSaver(policy, cfg.exp_name, train_freq=4))
            loop.run(steps)
            return policy, [str(it.message) for it in told], loop.state_dict()


def sets(**values):
    """A change in iteration 3; names have double underscores in place of dots."""

    def change(policy, step):
        if step == 3:
            policy.cfg.override({name.replace("__", "."): value for name, value in values.items()})

    return change


def schedules(policy, step):
    policy.cfg.learn.batch_size = 8 if step < 4 else 16


def resets_too(policy, step):
    if step == 2:
        policy.reset_config({"lr": 0.01})
    if step == 3:
        policy.cfg.discount_factor = 0.5


def nothing(policy, step):
    pass


@pytest.mark.parametrize(
    "change",
    [
        sets(learn__batch_size=16),
        sets(learn__update_per_collect=5),
        sets(learn__grad_clip_norm=1e-3),
        sets(discount_factor=0.5),
        sets(other__eps__end=0.5, learn__target_update_freq=3),
        schedules,
        resets_too,
    ],
    ids=["batch_size", "update_per_collect", "grad_clip_norm", "discount_factor", "two", "a schedule", "with reset_config"],
)
def test_a_resumed_run_goes_on_with_settings_that_the_run_has_changed(change, tmp_path):
    whole, told, _ = trained(change, tmp_path / "whole", 9)
    plain, _, _ = trained(nothing, tmp_path / "plain", 9)
    assert change is not schedules or not same(whole.get_weights(), plain.get_weights())
    _, cut, _ = trained(change, tmp_path / "cut", 5)
    resumed, later, _ = trained(change, tmp_path / "cut", 9, tmp_path / "cut")
    assert same(resumed.get_weights(), whole.get_weights())
    assert resumed.cfg == whole.cfg
    assert told == cut == later == []


def test_settings_that_the_script_changes_between_two_runs_are_those_of_the_script(tmp_path):
    trained(sets(discount_factor=0.5), tmp_path, 5)
    settings = {"policy.learn.batch_size": 4, "policy.discount_factor": 0.9}
    resumed, _, _ = trained(sets(discount_factor=0.5), tmp_path, 6, tmp_path, **settings)
    assert resumed.cfg.learn.batch_size == 4
    assert resumed.cfg.discount_factor == 0.5  # the run has changed it


def test_the_state_has_only_what_the_run_has_changed(tmp_path):
    assert "settings" not in trained(nothing, tmp_path / "a", 4)[2]
    assert trained(sets(learn__batch_size=16), tmp_path / "b", 4)[2]["settings"] == {"LearnMode": {"learn.batch_size": 16}}


class TestWithoutEffect:
    def test_a_setting_that_the_policy_does_not_follow_is_named_once_with_the_fix(self, tmp_path):
        _, told, _ = trained(sets(learn__learning_rate=0.1), tmp_path, 12)
        (words,) = told
        assert "cfg.policy.learn.learning_rate was set to 0.1 during the run without effect" in words
        assert 'policy.reset_config({"learn.learning_rate": 0.1})' in words

    def test_a_setting_that_a_hook_of_a_user_reads_in_each_step_is_not_named(self, tmp_path):
        class Own(DQNPolicy):
            def loss(self, batch):
                loss, stats = super().loss(batch)
                return loss * (1 + self.cfg.learn.learning_rate), stats

        assert trained(sets(learn__learning_rate=0.1), tmp_path, 6, kind=Own)[1] == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.update(settings=[1]), r"\['settings'\] is \[1\], expected a dict"),
        (lambda s: s["settings"].update(other={"a": 1}), r"other has no configuration here"),
        (lambda s: s["settings"]["LearnMode"].update({"learn.batch_sise": 1}), r"has 'learn\.batch_sise', which the config"),
        (lambda s: s["settings"]["LearnMode"].update({"learn.batch_size": "x"}), r"does not fit: .*batch_size"),
    ],
)
def test_a_damaged_entry_is_refused_before_anything_changes(change, message, tmp_path, monkeypatch):
    _, _, state = trained(sets(learn__batch_size=16), tmp_path / "a", 4)
    change(state)

    run = Task.run
    monkeypatch.setattr(Task, "run", lambda self, steps: (self.load_state_dict(state), run(self, steps)))
    with pytest.raises(RunStateError, match=message):
        trained(nothing, tmp_path / "b", 5)
