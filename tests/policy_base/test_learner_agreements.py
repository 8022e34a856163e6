"""What learners have of the script, and the script of its learners; what only one of them has is an error."""

import contextlib
import random
import sys
import threading
import warnings

import numpy as np
import pytest
import torch
from interpreted_steps import interpreting
from learner_policies import ACTIONS, OBS, SMALL, Apart, Several, dqn, learned, state_of, transitions, with_reward
from states import same

from ding_lite.policy import DQNPolicy
from ding_lite.policy_base import learner_groups
from ding_lite.policy_base.learner_sync_checks import ScriptAttributes
from ding_lite.policy_base.sent_warnings import collecting_warnings, show_warnings
from ding_lite.processes.pickles import dumps, loads


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    monkeypatch.setattr(learner_groups, "_host_factory", lambda cfg, who: lambda: (Apart, lambda: "127.0.0.1"))


def change_weights(policy):
    with torch.no_grad():
        policy.params[0].add_(1)


def change_data(policy):
    policy.params[0].data.mul_(-1)


def replace_weight(policy):
    module = next(it for it in policy.model.modules() if isinstance(it, torch.nn.Linear))
    module.weight = torch.nn.Parameter(module.weight.detach() + 1)


def change_target(policy):
    with torch.no_grad():
        next(policy.target_model.parameters()).add_(1)


def change_setting(policy):
    policy.cfg.discount_factor = 0.5


def change_rate(policy):
    policy.optimizer.param_groups[0]["lr"] = 0.5


def change_moments(policy):
    policy.state_dict()  # gives the script the moments of the learner
    policy.optimizer.state[policy.params[0]]["exp_avg"].zero_()


@pytest.mark.few
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (change_weights, r"^the weights of .*set_weights\(\)"),
        (change_data, r"^the weights of .*set_weights\(\)"),
        (replace_weight, r"^the weights of .*set_weights\(\)"),
        (change_target, r"^tensors of a network outside of the model.*load_state_dict\(\)"),
        (change_setting, r"^cfg.discount_factor of .*reset_config\(\)"),
        (change_rate, r"^param_groups of an optimizer of .*reset_config\(\)"),
        (change_moments, r"^tensors of .*, or of an optimizer, of "),
    ],
)
def test_changes_past_the_methods_are_refused(change, words):
    policy = dqn(1)
    kept = policy.state_dict()
    learned(policy)
    change(policy)

    with pytest.raises(RuntimeError, match=rf"{words}.*") as caught:
        learned(policy)
    assert "changed in the script, and its learners do not have this change" in str(caught.value)
    if change is change_setting:
        policy.state_dict()
        with pytest.raises(RuntimeError, match=words):
            learned(policy)
    elif change is not change_moments:  # there, the script has the state of the learners already
        with pytest.raises(RuntimeError, match=words):
            policy.state_dict()  # would lose the change
    if change is change_setting:
        policy.cfg.discount_factor = dqn(0).cfg.discount_factor
    if change is not replace_weight:  # the optimizer still has the old one
        policy.load_state_dict(kept)
        whole = dqn(0)
        whole.load_state_dict(kept)
        assert same(learned(policy), learned(whole))


class Scaled(DQNPolicy):
    scale, carried = 1.0, 0

    def before_loss_init(self):
        super().before_loss_init()
        self.rows, self.level, self.table = self.cfg.learn.batch_size, "low", torch.zeros(2)

    def learn_on_batch(self, batch):
        self.calls = getattr(self, "calls", 0) + 1
        return {**super().learn_on_batch(batch), "scale": self.scale}

    def state_dict(self):
        return {**super().state_dict(), "carried": self.carried}

    def load_state_dict(self, state):
        super().load_state_dict({name: part for name, part in state.items() if name != "carried"})
        self.carried = state.get("carried", 0)


@pytest.fixture
def no_other_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_attributes_that_the_script_sets_and_learners_do_not_have_are_named_once(no_other_warning):
    policy = dqn(1, Scaled)
    learned(policy)
    policy.learn_mode.release()
    policy.scale, policy.level, policy._own = 0.1, "low", np.arange(3)
    with pytest.warns(UserWarning, match=r"^scale, _own of Scaled were set in the script .*write a setting of") as found:
        assert learned(policy)[-1]["scale"] == 1.0
    assert len(found) == 1

    policy.table[0] = 1.0
    with pytest.warns(UserWarning, match=r"^table of Scaled was set in the script after .* do not have this value:") as found:
        policy.state_dict()
    assert len(found) == 1
    policy.level = "high"
    with pytest.warns(UserWarning, match=r"^level of Scaled"):
        learned(policy)
    policy.set_weights(policy.get_weights())
    learned(policy)


def test_large_attributes_are_named_when_they_are_replaced(no_other_warning):
    policy = dqn(1, Scaled)
    learned(policy)
    policy.array, policy.tensor = np.zeros(100_000), torch.zeros(100_000)
    with pytest.warns(UserWarning, match=r"^array, tensor of Scaled were set in the script"):
        learned(policy)

    checked = ScriptAttributes(policy)
    policy.array = np.ones(100_000)
    with pytest.warns(UserWarning, match=r"^array of Scaled was set in the script"):
        checked.warn_of_changes(policy)
    checked.note(policy)
    checked.warn_of_changes(policy)


class Word(str):
    """A text that cannot be pickled."""

    def __reduce__(self):
        raise TypeError("this text stays here")


def test_attributes_of_any_class_neither_end_the_run_nor_are_sent_again(no_other_warning):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, which calls them a prototype
        nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])
    policy = dqn(1, Scaled)
    policy.dry_run()
    policy.nested, policy.word, policy.table = nested, Word("a"), torch.ones(3)
    with pytest.warns(UserWarning, match=r"^table, word of Scaled were set in the script"):
        learned(policy)
    policy.set_weights(policy.get_weights())
    sent = policy.learners._attributes.since_made(policy)
    learned(policy)
    assert sent.keys() == {"carried"}  # which its state has


def test_attributes_that_are_part_of_the_state_or_that_the_library_changes_are_not_named(no_other_warning):
    policy = dqn(1, Scaled, **{"learn.on_nonfinite": "restore"})
    policy.carried = 3
    for change in (lambda: None, lambda: policy.reset_config({"lr": 1e-4}), policy.dry_run, policy.snapshot):
        change()
        policy.eval_mode.forward(np.zeros((1, 4), np.float32))
        learned(policy)
        policy.load_state_dict(policy.state_dict())
        learned(policy)
        policy.learn_mode.release()


def test_settings_follow_each_method_that_changes_them_and_nothing_else():
    policies = [dqn(0), dqn(1)]
    for policy in policies:
        kept = policy.state_dict()
        learned(policy)
        policy.reset_config({"discount_factor": 0.1})
        learned(policy)
        policy.load_state_dict(kept)  # without this setting
        learned(policy)
    assert same(*map(state_of, policies))

    policies[1].cfg.learn.target_update_freq = 7
    policies[1].reset_config({"discount_factor": 0.2})
    with pytest.raises(RuntimeError, match=r"^cfg.learn.target_update_freq of DQNPolicy changed"):
        learned(policies[1])


def test_changes_before_learners_start_reach_them():
    policies = [dqn(0), dqn(1)]
    for policy in policies:
        for change in (change_weights, change_data, change_target, change_setting, change_rate):
            change(policy)
        learned(policy)
        policy.learn_mode.release()
        for change in (change_weights, change_target, change_rate):
            change(policy)

    assert same(*map(learned, policies))
    assert same(*map(state_of, policies))


@pytest.mark.filterwarnings("error")
def test_a_setting_given_as_a_mapping_and_changed_in_the_script_is_refused():
    policy = DQNPolicy({"learners.num_learners": 1, **SMALL}, OBS, ACTIONS)
    change_setting(policy)

    with pytest.raises(TypeError, match="or the script after it, changes the configuration: discount_factor"):
        learned(policy)


def test_autocast_of_the_script_holds_for_learners():
    policies = [dqn(0), dqn(1)]

    with torch.autocast("cpu", torch.bfloat16):
        outputs = [learned(policy)[-1] for policy in policies]

    assert all(output["q_value"].dtype == torch.bfloat16 for output in outputs)
    assert same(*({name: value.float() for name, value in output.items()} for output in outputs))
    assert same(*map(state_of, policies))


def test_autocast_around_several_steps_computes_with_new_weights():
    policies = [dqn(0, Several) for _ in range(2)]
    for policy, caches in zip(policies, (True, False)):
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=caches):
            learned(policy)

    assert same(*map(state_of, policies))


class Resetting(DQNPolicy):
    """A policy whose hook changes a setting, by `reset_config` or directly."""

    def learn_on_batch(self, batch):
        if self.train_iter == 2:
            self.reset_config({"discount_factor": 0.1, "learn.batch_size": 16})
        if bool((batch.reward == 16).any()):
            self.cfg.learn.target_update_freq = 7
        if bool((batch.reward == 15).any()):
            self.reset_config({"discount_factor": 0.2})
        return super().learn_on_batch(batch)


def test_settings_that_hooks_change_reach_the_script():
    policies = [dqn(0, Resetting), dqn(1, Resetting)]
    for policy in policies:
        learned(policy)
        assert (policy.cfg.discount_factor, policy.cfg.learn.batch_size) == (0.1, 16)
        policy.learn_mode.release()
    assert same(*map(learned, policies))
    assert same(*map(state_of, policies))

    resumed = dqn(0, Resetting)
    resumed.load_state_dict(policies[1].state_dict())
    assert resumed.cfg.discount_factor == 0.1
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"a hook of Resetting has set cfg.learn.target_update_freq in a learner"):
            policies[1].learn_mode.forward(with_reward(16))


class Failing(DQNPolicy):
    """A policy that draws, warns, and then fails."""

    def learn_on_batch(self, batch):
        noise = torch.rand(()) + np.random.rand() + random.random()  # noqa: NPY002
        warnings.warn("a warning of a hook", RuntimeWarning, stacklevel=1)
        if bool((batch.reward == 17).any()):
            raise ZeroDivisionError("a mistake")
        return {**super().learn_on_batch(batch), "noise": noise}


@pytest.mark.filterwarnings("ignore:.*global random generator", "ignore:a warning of a hook")
def test_global_random_numbers_move_also_in_a_batch_that_fails():
    found = []
    for learners in (0, 1):
        policy = dqn(learners, Failing)
        seed_globally(5)
        with pytest.raises(ZeroDivisionError):
            policy.learn_mode.forward(with_reward(17))
        found.append((learned(policy), torch.rand(3), np.random.rand(), random.random()))  # noqa: NPY002

    assert same(*found)


def seed_globally(seed):
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)


def test_warnings_are_shown_in_the_script():
    shown = []
    for learners in (0, 1):
        policy = dqn(learners, Failing)
        vars(sys.modules[__name__]).pop("__warningregistry__", None)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")
            warnings.simplefilter("default", RuntimeWarning)
            learned(policy)
            with pytest.raises(ZeroDivisionError):
                policy.learn_mode.forward(with_reward(17))
        shown.append([(str(one.message), one.category, one.filename, one.lineno) for one in caught])

    # A learner in this process changes the filters here, so that Python forgets what it has shown.
    assert list(dict.fromkeys(shown[1])) == shown[0]
    assert len(shown[0]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        with pytest.raises(RuntimeWarning, match="a warning of a hook"):
            learned(policy, [0])


class Consuming(DQNPolicy):
    """A policy whose constructor changes its arguments, and draws random numbers."""

    def __init__(self, cfg, obs, act, rng, numbers, table):
        table.append(len(table))
        drawn = float(torch.rand(())) + np.random.rand()  # noqa: NPY002
        self.scale = float(rng.normal()) + next(numbers) + sum(table) + drawn
        super().__init__(cfg, obs, act)

    def learn_on_batch(self, batch):
        return {**super().learn_on_batch(batch), "scale": self.scale}


def test_learners_get_arguments_as_they_were_given():
    found = []
    for learners in (0, 1):
        seed_globally(4)
        settings = {"learners.num_learners": learners, **SMALL}
        policy = Consuming(settings, OBS, ACTIONS, np.random.default_rng(1), iter([1, 2]), [3])
        settings.clear()
        found.append(learned(policy))
        policy.learn_mode.release()
        found[-1] += [*learned(policy), torch.rand(2)]

    assert same(*found)


class Locked(DQNPolicy):
    """A policy with an argument that cannot be pickled."""

    def __init__(self, lock, cfg, obs, act):
        super().__init__(cfg, obs, act)


def test_an_argument_that_cannot_be_sent_is_refused_by_name():
    with pytest.raises(TypeError, match=r"argument 0 of its constructor cannot be sent to them: .*num_learners=0"):
        Locked(threading.Lock(), {"learners.num_learners": 1}, OBS, ACTIONS)
    Locked(threading.Lock(), {"learners.num_learners": 0}, OBS, ACTIONS)


def test_a_warning_that_was_sent_is_shown_once():
    found = []
    with contextlib.suppress(ZeroDivisionError), collecting_warnings(found):
        for _ in range(3):
            warnings.warn("one of several", RuntimeWarning, stacklevel=1)
        raise ZeroDivisionError
    assert [(one.message, one.category, one.filename) for one in found] == [("one of several", RuntimeWarning, __file__)]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        show_warnings(found)
        show_warnings(loads(dumps(found)))
    assert [(str(one.message), one.filename) for one in caught] == [("one of several", __file__)]


def test_compiled_steps_of_a_learner_are_those_of_the_script():
    batch = transitions()
    batch.unread = torch.zeros(8)  # no hook reads it
    policies = [dqn(0, **{"learn.compile": "on"}), dqn(1, **{"learn.compile": "on"})]
    with interpreting():
        assert same(*(policy.learn_mode.forward(batch) for policy in policies))
        assert policies[0].compiled_steps.taken == 1

        assert same(*map(state_of, policies))


class Scheduled(DQNPolicy):
    """A policy with a scheduler of torch."""

    def after_init(self):
        super().after_init()
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, gamma=0.5)
        self.attach("scheduler", self.scheduler)

    def learn_on_batch(self, batch):
        output = super().learn_on_batch(batch)
        self.scheduler.step()
        return output


def test_the_learning_rate_of_a_scheduler_is_logged_with_and_without_learners():
    found = []
    for learners in (0, 1):
        policy = dqn(learners, Scheduled)
        outputs = learned(policy)
        policy.learn_mode.release()
        found.append([*outputs, *learned(policy)])

    assert [output["cur_lr"].item() for output in found[0]] == pytest.approx([1e-3, 1e-3, 5e-4, 5e-4, 2.5e-4, 2.5e-4])
    assert same(*found)


def test_a_release_that_fails_is_an_error_also_later():
    policy = dqn(1)
    learned(policy)
    change_weights(policy)

    with pytest.raises(RuntimeError, match="the weights of DQNPolicy changed in the script"):
        policy.learn_mode.release()
    with pytest.raises(RuntimeError, match="state of the learners of DQNPolicy is lost"):
        policy.state_dict()
