"""Batches that do not fit the spaces of the policy that learns from them: errors by name, and a warning if nothing fails."""

import warnings
from typing import ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite.data import ReplayBuffer, tree
from ding_lite.policy import BCPolicy, DiscreteCQLPolicy, DQNPolicy, Policy, PPOPolicy, TD3BCPolicy, build_policy
from ding_lite.policy_check import ColumnError

OBS, TWO = spaces.Box(-8, 8, (3,), np.float32), spaces.Box(-2, 2, (2,), np.float32)
ONE, CHOICE = spaces.Box(-2, 2, (1,), np.float32), spaces.Discrete(2)
ROWS = 8


def batch(**columns):
    fitting = {
        "obs": torch.zeros(ROWS, 3),
        "action": torch.zeros(ROWS, 2),
        "reward": torch.zeros(ROWS),
        "next_obs": torch.zeros(ROWS, 3),
        "terminated": torch.zeros(ROWS, dtype=torch.bool),
        "truncated": torch.zeros(ROWS, dtype=torch.bool),
    }
    return {**fitting, **columns}


def made(kind=TD3BCPolicy, action=TWO, obs=OBS):
    return kind({"seed": 0, "model": {"encoder_hidden_size_list": [8]}}, obs, action)


WIDE, INTS = torch.zeros(ROWS, 4), torch.zeros(ROWS, 1, dtype=torch.int64)


@pytest.mark.parametrize(
    ("policy", "columns", "words"),
    [
        (made(), {"obs": WIDE, "next_obs": WIDE}, r"batch.obs is float32 \[8, 4\], expected float32 \[8, 3\] for Box"),
        (made(), {"obs": torch.zeros(ROWS, 1)}, r"batch.obs is float32 \[8, 1\], expected float32 \[8, 3\]"),
        (made(), {"next_obs": WIDE}, r"batch.next_obs is float32 \[8, 4\]"),
        (made(), {"action": torch.zeros(ROWS, 3)}, r"batch.action is float32 \[8, 3\], expected float32 \[8, 2\]"),
        (made(BCPolicy), {"action": torch.zeros(ROWS, 1)}, r"batch.action is float32 \[8, 1\], expected float32 \[8, 2\]"),
        (made(BCPolicy, CHOICE), {"action": INTS}, r"batch.action is int64 \[8, 1\], expected int64 \[8\] for Discrete\(2\)"),
        (made(DiscreteCQLPolicy, CHOICE), {"action": torch.zeros(ROWS)}, "float32 .*, expected integers of Discrete"),
        (made(), {"terminated": torch.zeros(ROWS)}, "batch.terminated is float32 .*, expected bool: batch.terminated > 0"),
        (made(), {"reward": torch.zeros(ROWS, 1)}, r"batch.reward is float32 \[8, 1\], expected \[8\]: batch.reward.squeeze"),
        (made(), {"truncated": INTS > 0, "terminated": INTS > 0}, r"batch.terminated is bool \[8, 1\], expected \[8\]: "),
    ],
    ids=lambda value: None if isinstance(value, str) else "",
)
def test_a_column_that_makes_learning_fail_is_named_with_what_was_expected(policy, columns, words):
    kind = type(policy).__name__
    with pytest.raises(ValueError, match=f"{kind} cannot learn from this batch: .*{words}") as caught:
        policy.learn_mode.forward(batch(**columns))
    assert caught.value.__cause__ is not None
    assert policy.train_iter in (0, 1)  # 1 if its statistics of observations failed, after the step


def test_a_batch_of_sequences_is_judged_by_the_leading_dimensions_of_its_rewards():
    policy = made()
    sequences = {name: torch.stack([column] * 4) for name, column in batch(obs=WIDE).items()}
    with pytest.raises(ValueError, match=r"batch.obs is float32 \[4, 8, 4\], expected float32 \[4, 8, 3\]"):
        policy.learn_mode.forward(sequences)


def test_parts_of_nested_spaces_are_named():
    nested = spaces.Dict(a=OBS, b=CHOICE)
    policy, ints = made(obs=nested), torch.zeros(ROWS, dtype=torch.int64)
    both = {"a": WIDE, "b": ints}
    with pytest.raises(ValueError, match=r"batch.obs\['a'\] is float32 \[8, 4\]"):
        policy.learn_mode.forward(batch(obs=both, next_obs=both))
    lacking = {"a": torch.zeros(ROWS, 3)}
    with pytest.raises(ValueError, match=r"batch.obs lacks the key 'b', it has \['a'\]: give all of \['a', 'b'\]"):
        policy.learn_mode.forward(batch(obs=lacking, next_obs=lacking))
    with pytest.raises(ValueError, match=r"batch.obs is float32 \[8, 3\], expected a dict with the keys \['a', 'b'\]"):
        policy.learn_mode.forward(batch())


def test_rows_of_a_buffer_without_the_columns_that_the_policy_reads_are_refused_with_their_names():
    policy, buffer = made(), ReplayBuffer(100, seed=0)
    buffer.push({"observations": np.zeros((ROWS, 3), np.float32), "rewards": np.zeros(ROWS, np.float32)})
    found = buffer.sample(4, columns=policy.columns)
    with pytest.raises(ColumnError, match="reads the columns obs, action, reward, .* the batch has no columns"):
        policy.learn_mode.forward(found)


@pytest.mark.parametrize("action", [torch.zeros(ROWS, 1), torch.zeros(ROWS)], ids=["one number", "no dimension"])
def test_an_action_that_broadcasts_is_warned_of_once(action):
    policy = made(action=TWO if action.ndim == 2 else ONE)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        policy.learn_mode.forward(batch(action=action))
        policy.learn_mode.forward(batch(action=action))
    (warned,) = caught
    assert "TD3BCPolicy learns from a batch that does not fit its spaces" in str(warned.message)
    assert f"batch.action is float32 {list(action.shape)}, expected" in str(warned.message)


def test_batches_that_fit_and_those_that_hooks_of_a_user_prepare_cause_no_warning():
    def postprocess(policy, batch):
        batch["obs"] = batch.features[:, :3]
        return batch

    def loss(policy, model, dist_class, batch):
        logit, _ = model.from_batch(batch)
        return -dist_class(logit, model).logp(batch.action).mean()

    own = build_policy("OwnPolicy", loss_fn=loss, postprocess_fn=postprocess, base=BCPolicy)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made().learn_mode.forward(batch())
        made(action=ONE).learn_mode.forward(batch(action=torch.zeros(ROWS, 1)))
        made(own).learn(tree(batch(obs=WIDE, features=WIDE)))


def test_an_error_that_the_batch_does_not_cause_stays_as_it_is():
    class Failing(TD3BCPolicy):
        def loss(self, batch):
            raise RuntimeError("of the loss")

    with pytest.raises(RuntimeError, match="^of the loss") as caught:
        made(Failing).learn_mode.forward(batch())
    assert caught.value.__cause__ is None
    assert "learning from obs [8, 3]" in caught.value.__notes__[0]


class Sampled(DQNPolicy):
    """Learns by a function of the batch."""

    def learn_on_batch(self, samples):
        return {"mine": type(self).read(samples)}


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (lambda samples: samples["rewards"], "reads the column 'rewards', and the batch has none: did you mean 'reward'"),
        (lambda samples: samples.new_obs, "reads the column 'new_obs', and the batch has none: did you mean 'next_obs'"),
        (lambda samples: samples["dones"], r"'dones', and the batch has none: an episode ends where terminated \| truncated"),
        (lambda samples: samples["mine"], r"'mine', and the batch has none\. It has .* only have the columns"),
    ],
)
def test_a_column_that_learn_on_batch_reads_by_a_wrong_name_is_a_column_error_as_in_a_loss(read, words):
    kind = type("Mine", (Sampled,), {"read": staticmethod(read)})
    policy = kind(None, spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2))
    flags = torch.zeros(3, dtype=torch.bool)
    rows = {"obs": torch.zeros(3, 4), "next_obs": torch.zeros(3, 4), "action": torch.zeros(3, dtype=torch.int64)}
    with pytest.raises(ColumnError, match=f"learning of Mine .*{words}"):
        policy.learn_mode.forward(tree({**rows, "reward": torch.zeros(3), "terminated": flags, "truncated": flags}))


def test_an_error_of_a_dict_of_the_users_own_stays_as_it_is():
    kind = type("Mine", (Sampled,), {"read": staticmethod(lambda samples: {}["rewards"])})
    policy = kind(None, spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2))
    with pytest.raises(KeyError, match="^'rewards'$"):
        policy.learn_mode.forward(tree({"obs": torch.zeros(3, 4), "reward": torch.zeros(3)}))


def test_data_with_one_flag_done_are_told_that_there_are_two():
    policy = DQNPolicy(None, spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2))
    rows = {"obs": torch.zeros(3, 4), "next_obs": torch.zeros(3, 4), "action": torch.zeros(3, dtype=torch.int64)}
    with pytest.raises(ColumnError, match="reads the column 'terminated'.*one flag done need both in its place"):
        policy.learn_mode.forward(tree({**rows, "reward": torch.zeros(3), "done": torch.zeros(3, dtype=torch.bool)}))


class Distilled(DQNPolicy):
    """Reads columns that its pipeline adds."""

    derived: ClassVar = {**DQNPolicy.derived, "target": (), "teacher": (3,), "info.speed": ()}

    def loss(self, batch):
        loss, stats = super().loss(batch)
        return loss + (batch.reward - batch.target).square().mean() + batch.teacher.mean() + batch.info.speed.mean(), stats


def distilled(**columns):
    fitting = {"target": torch.zeros(ROWS), "teacher": torch.zeros(ROWS, 3), "info": {"speed": torch.zeros(ROWS)}}
    return batch(action=torch.zeros(ROWS, dtype=torch.int64), **{**fitting, **columns})


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"target": torch.zeros(ROWS, 1)}, r"batch.target is float32 \[8, 1\], expected \[8\], .* batch.target.squeeze\(-1\)"),
        ({"teacher": torch.zeros(ROWS, 2)}, r"batch.teacher is float32 \[8, 2\], expected \[8, 3\], .*'teacher': \(2,\)\}"),
        ({"teacher": torch.zeros(ROWS)}, r"batch.teacher is float32 \[8\], expected \[8, 3\], because Distilled.derived decl"),
        ({"info": {"speed": torch.zeros(ROWS, 1)}}, r"batch.info.speed is float32 \[8, 1\], expected \[8\]"),
        ({"discount": torch.zeros(ROWS, 1)}, r"batch.discount is float32 \[8, 1\], expected \[8\]"),
    ],
    ids=lambda value: None if isinstance(value, str) else "",
)
def test_a_column_with_other_elements_than_declared_is_refused_before_learning(columns, words):
    policy = made(Distilled, CHOICE)
    policy.dry_run()
    before = policy.get_weights()
    with pytest.raises(ValueError, match=f"Distilled cannot learn from this batch: {words}"):
        policy.learn_mode.forward(distilled(**columns))
    torch.testing.assert_close(policy.get_weights(), before, rtol=0, atol=0)
    policy.learn_mode.forward(distilled())


class OfOutputs(Policy):
    """Learns from an output of acting alone."""

    learns_from = "transitions"

    def compute_actions(self, obs, state=None, *, explore=True, **kwargs):
        return super().compute_actions(obs, state, explore=explore)[0], state, {"logit": obs[:, :2]}

    def loss(self, batch):
        return sum(it.sum() for it in self.model.parameters()) * batch.logit.mean()


def test_shapes_are_not_checked_where_nothing_says_which_dimensions_are_rows():
    policy = made(OfOutputs, CHOICE)
    policy.dry_run()
    policy.learn_mode.forward(tree({"logit": torch.zeros(4, 2)}))
    other = made(OfOutputs, CHOICE)
    other.dry_run()
    with pytest.raises(ValueError, match=r"batch.logit is float32 \[8, 3\], expected \[8, 2\], because acting returns it so"):
        other.learn_mode.forward(distilled(logit=torch.zeros(ROWS, 3)))


@pytest.mark.parametrize("lstm", [None, 4])
@pytest.mark.parametrize("name", ["log_prob", "advantage"])
def test_a_column_of_a_rollout_that_would_broadcast_is_refused(name, lstm):
    policy = PPOPolicy({"model.encoder_hidden_size_list": [8], "model.lstm_size": lstm}, OBS, CHOICE)
    policy.dry_run()
    rollout = {key: column.unflatten(0, (4, 2)) for key, column in distilled().items() if key not in ("info", "teacher")}
    rollout |= dict.fromkeys(("log_prob", "value", "advantage", "return_"), rollout["reward"])
    for index, element in enumerate(policy.collect_mode.get_initial_state(2)):
        rollout[f"state_in_{index}"] = element.expand(4, *element.shape).clone()
    source = "acting returns it so" if name == "log_prob" else r"PPOPolicy.derived declares \(\)"
    words = rf"batch.{name} is float32 \[4, 2, 1\], expected \[4, 2\], because {source}: write batch.{name}.squeeze"
    with pytest.raises(ValueError, match=words):
        policy.learn_mode.forward({**rollout, name: rollout[name].unsqueeze(-1)})
    policy.learn_mode.forward(rollout)
