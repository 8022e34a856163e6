"""IMPALA against V-trace's sums written out, its minibatches of environments, and what padding and lag do to it."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from states import through_a_file

from ding_lite.data import nested, tree
from ding_lite.envs import make_envs
from ding_lite.policy import ColumnError, IMPALAPolicy, IMPALAPolicyConfig
from ding_lite.policy_parts import rollout_replay
from ding_lite.rollout import make_worker

OBS, BOX = spaces.Box(-1, 1, (5,), np.float32), spaces.Box(-1, 1, (2,), np.float32)
GAMMA = 0.9


def made(action_space=None, double_precision: bool = False, observation_space=OBS, **settings) -> IMPALAPolicy:
    settings = {"seed": 0, "model.encoder_hidden_size_list": [8], **{key.replace("__", "."): v for key, v in settings.items()}}
    cfg = IMPALAPolicyConfig().override(
        {"collect.discount_factor": GAMMA, "learn.entropy_weight": 0.0, "learn.lr_schedule": None, **settings}
    )
    policy = IMPALAPolicy(cfg, observation_space, action_space or spaces.Discrete(3))
    if double_precision:
        policy.model.double()
    return policy


def rollout(t: int = 7, b: int = 4, p_end: tuple[float, float] = (0.15, 0.15), start: int = 0, dtype=torch.float64, seed=0):
    """Random episodes, [t, b]: next_obs is the next row's obs, but at the end of an episode something of its own."""
    g = torch.Generator().manual_seed(seed)
    obs, final = torch.randn(2, t + 1, b, 5, generator=g, dtype=torch.float64).to(dtype)
    terminated, truncated = (torch.rand(t, b, generator=g) < p for p in p_end)
    return {
        "obs": obs[:-1],
        "next_obs": torch.where((terminated | truncated).unsqueeze(-1), final[1:], obs[1:]),
        "action": torch.randint(3, (t, b), generator=g) + start,
        "log_prob": (torch.randn(t, b, generator=g, dtype=torch.float64) - 1.1).to(dtype),
        "reward": torch.randn(t, b, generator=g, dtype=torch.float64).to(dtype),
        "terminated": terminated,
        "truncated": truncated,
    }


def of_rows(policy, batch) -> dict:
    """Logit, value and value of the next observation of each step, by place."""
    obs, next_obs = batch["obs"], batch["next_obs"]
    places = [*np.ndindex(tuple(batch["reward"].shape))]
    return {
        it: (*(x[0] for x in policy.model(obs[it].unsqueeze(0))), policy.model.values(next_obs[it].unsqueeze(0))[0])
        for it in places
    }


def loss_by_definition(
    policy, batch, start=0, vtrace=True, rho_clip=1.0, c_clip=1.0, lambda_=0.95, entropy_weight=0.0, outputs=of_rows
):
    """Equation 1 of the paper as the sum that it is, for every step of every environment by itself."""
    shape = tuple(batch["reward"].shape)
    names = ("log_prob", "entropy", "ratio", "value", "next_value")
    found, table = {name: np.zeros(shape) for name in names}, outputs(policy, batch)
    for place in np.ndindex(shape):
        logit, value, following = (x.tolist() for x in table[place])
        total = math.fsum(map(math.exp, logit))
        probability = [math.exp(x) / total for x in logit]
        found["log_prob"][place] = math.log(probability[batch["action"][place] - start])
        found["entropy"][place] = -math.fsum(p * math.log(p) for p in probability)
        found["ratio"][place] = math.exp(found["log_prob"][place] - batch["log_prob"][place].item())
        found["value"][place] = value
        found["next_value"][place] = 0.0 if batch["terminated"][place] else following
    reward, done = batch["reward"].numpy(), (batch["terminated"] | batch["truncated"]).numpy()
    ratio = found["ratio"] if vtrace else np.ones(shape)
    target, advantage = np.zeros(shape), np.zeros(shape)
    for t, b in np.ndindex(shape):
        target[t, b], weight = found["value"][t, b], 1.0
        for k in range(t, shape[0]):
            delta = reward[k, b] + GAMMA * found["next_value"][k, b] - found["value"][k, b]
            target[t, b] += weight * min(rho_clip, ratio[k, b]) * delta
            weight *= GAMMA * lambda_ * min(c_clip, ratio[k, b])
            if done[k, b]:
                break
    for t, b in np.ndindex(shape):
        is_cut = done[t, b] or t + 1 == shape[0]
        after = found["next_value"][t, b] if is_cut else target[t + 1, b]
        advantage[t, b] = min(rho_clip, ratio[t, b]) * (reward[t, b] + GAMMA * after - found["value"][t, b])
    parts = {
        "policy_loss": -(found["log_prob"] * advantage).mean(),
        "vf_loss": ((found["value"] - target) ** 2).mean() / 2,
        "entropy": found["entropy"].mean(),
        "rho_mean": np.minimum(rho_clip, found["ratio"]).mean(),
        "kl": (found["ratio"] - 1 - np.log(found["ratio"])).mean(),
    }
    return {**parts, "total_loss": parts["policy_loss"] + 0.5 * parts["vf_loss"] - entropy_weight * parts["entropy"]}


ENDINGS = {"none": (0.0, 0.0), "terminated": (1.0, 0.0), "truncated": (0.0, 1.0), "some": (0.2, 0.2)}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(("t", "b", "start"), [(7, 3, 0), (1, 1, 0), (1, 3, 2), (6, 1, 0)])
def test_the_loss_matches_the_papers_sums(t, b, start, ending):
    policy = made(spaces.Discrete(3, start=start), double_precision=True, learn__adv_norm=False)
    batch = rollout(t, b, ENDINGS[ending], start)
    loss, stats = policy.loss(tree(batch))
    expected = loss_by_definition(policy, batch, start)

    np.testing.assert_allclose(loss.item(), expected["total_loss"], rtol=1e-10)
    assert stats.keys() == expected.keys()
    for name, wanted in expected.items():
        np.testing.assert_allclose(stats[name], wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("options", [(True, 2.0, 1.0, 1.0, 0.1), (True, 0.5, 3.0, 0.8, 0.0), (False, 1.0, 1.0, 0.9, 0.01)])
def test_each_setting_is_in_the_loss(options):
    options = dict(zip(("vtrace", "rho_clip", "c_clip", "lambda_", "entropy_weight"), options))
    settings = {f"learn__{name}": x for name, x in options.items() if name != "lambda_"}
    policy = made(double_precision=True, learn__adv_norm=False, collect__gae_lambda=options["lambda_"], **settings)
    batch = rollout()
    expected = loss_by_definition(policy, batch, **options)

    np.testing.assert_allclose(policy.loss(tree(batch))[0].item(), expected["total_loss"], rtol=1e-10)


def test_neither_targets_nor_importance_weights_have_a_gradient():
    policy = made(double_precision=True, learn__adv_norm=False, learn__value_weight=0.0)
    batch = rollout(p_end=(1.0, 0.0))
    policy.loss(tree(batch))[0].backward()
    found = [param.grad.clone() for param in policy.model.actor.parameters()]
    policy.model.zero_grad()
    log_prob = policy.model.logits(batch["obs"]).log_softmax(-1).gather(-1, batch["action"].unsqueeze(-1)).squeeze(-1)
    rho = (log_prob.detach() - batch["log_prob"]).exp().clamp(max=1)
    error = batch["reward"] - policy.model.values(batch["obs"]).detach()  # of episodes of one step
    (-(log_prob * rho * error).mean()).backward()

    for grad, param in zip(found, policy.model.actor.parameters(), strict=True):
        torch.testing.assert_close(grad, param.grad, rtol=1e-10, atol=1e-12)
    assert all(param.grad is None for param in policy.model.critic.parameters())


def padded(space, elements, junk: float) -> dict:
    """A batch in which some rows are no steps, and hold junk."""
    batch, valid = rollout(dtype=torch.float32), torch.rand(7, 4, generator=torch.Generator().manual_seed(1)) < 0.7
    valid[0] = True
    batch["truncated"][:-1] |= ~valid[1:]  # what is followed by padding ends an episode
    obs, next_obs = (elements(space, 7, 4, seed=seed) for seed in range(2))
    floats = (obs["x"] if isinstance(obs, dict) else obs, batch["log_prob"], batch["reward"])
    for leaf in floats:
        leaf[~valid.numpy() if isinstance(leaf, np.ndarray) else ~valid] = junk
    return {**batch, "obs": obs, "next_obs": next_obs, "valid": valid}


@pytest.mark.few
@pytest.mark.parametrize("adv_norm", [False, True])
@pytest.mark.parametrize("space", [OBS, spaces.Dict({"keys": spaces.Discrete(4, start=1), "x": spaces.Box(-1, 1, (2, 2))})])
def test_padding_is_not_learned_from_nor_looked_at(space, adv_norm, elements, same):
    policies, outputs = [made(observation_space=space, learn__adv_norm=adv_norm) for _ in range(3)], []
    for policy, junk in zip(policies, (0.0, 1e6, torch.nan), strict=True):
        outputs.append(policy.learn_mode.forward(tree(padded(space, elements, junk))))

    assert same(policies[0].get_weights(), policies[1].get_weights())
    torch.testing.assert_close(outputs[1], outputs[0], rtol=0, atol=0)
    torch.testing.assert_close(outputs[2], outputs[0])


def test_a_batch_without_padding_is_the_same_with_and_without_a_mask():
    policy, batch = made(double_precision=True), rollout()
    masked = {**batch, "valid": torch.ones(7, 4, dtype=torch.bool)}

    torch.testing.assert_close(policy.loss(tree(batch))[0], policy.loss(tree(masked))[0], rtol=1e-12, atol=0)


@pytest.mark.parametrize(("batch_size", "parts"), [(28, 1), (1000, 1), (14, 2), (7, 4), (1, 4)])
def test_each_epoch_takes_a_gradient_step_for_some_environments_whole_columns(batch_size, parts):
    policy = made(learn__batch_size=batch_size, learn__epoch_per_collect=3)
    policy.learn_mode.forward(tree(rollout(dtype=torch.float32)))

    assert policy.train_iter == 3 * parts


def test_over_an_epoch_each_environment_is_learned_from_once():
    policy = made(learn__batch_size=7, learn__learning_rate=0.0, learn__adv_norm=False)
    batch = rollout(dtype=torch.float32)
    output = policy.learn_mode.forward(tree(batch))
    _, whole = policy.loss(tree(batch))

    torch.testing.assert_close({name: output[name] for name in whole}, whole)  # equal parts, no step: as one batch


@pytest.mark.parametrize("space", [BOX, spaces.MultiDiscrete([2, 3]), spaces.Dict({"a": BOX, "b": spaces.MultiBinary(2)})])
def test_what_the_policy_did_just_now_has_importance_weight_1(space):
    policy = made(space, learn__epoch_per_collect=1)
    obs = np.random.default_rng(0).normal(size=(7, 4, 5)).astype(np.float32)
    with torch.inference_mode():
        steps = [policy.collect_mode.forward(row) for row in obs]
    actions = [action for action, *_ in steps]
    action = {name: np.stack([a[name] for a in actions]) for name in actions[0]} if isinstance(actions[0], dict) else None
    batch = rollout(dtype=torch.float32) | {"obs": torch.from_numpy(obs)}
    batch |= {"action": np.stack(actions) if action is None else action}
    batch |= {"log_prob": np.stack([outputs["log_prob"] for _, _, outputs in steps])}
    output = policy.learn_mode.forward(tree(batch))

    assert float(output["rho_mean"]) == pytest.approx(1, abs=1e-5)
    assert float(output["kl"]) == pytest.approx(0, abs=1e-6)


def test_the_pipeline_need_not_add_anything_and_what_it_does_not_give_is_missed_by_name():
    class Greedy(IMPALAPolicy):
        def loss(self, batch):
            return super().loss(batch)[0] + batch.advantage.mean(), {}

    with pytest.raises(ColumnError, match="loss of Greedy reads the column 'advantage'"):
        Greedy(IMPALAPolicyConfig(), OBS, spaces.Discrete(2)).dry_run()
    assert set(made().columns) == {"obs", "next_obs", "action", "log_prob", "reward", "terminated", "truncated"}


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_a_saved_state_goes_on_bit_for_bit(optimizer, same):
    settings = {"learn__optimizer": optimizer, "learn__batch_size": 7, "learn__epoch_per_collect": 2}
    policy, other = made(**settings), made(**settings)
    for seed in range(3):
        policy.learn_mode.forward(tree(rollout(dtype=torch.float32, seed=seed)))
    other.load_state_dict(policy.state_dict())
    for seed in range(3, 8):
        batch = tree(rollout(dtype=torch.float32, seed=seed))
        assert same(policy.learn_mode.forward(batch), other.learn_mode.forward(batch))

    assert same(policy.state_dict(), other.state_dict())


MEMORIES = {
    "lstm": {"model__lstm_size": 6},
    "attention": {"model__attention_window": 4, "model__attention_size": 4, "model__attention_heads": 2},
}


def with_states(policy, batch, seed: int = 1) -> dict:
    """The rollout with a recurrent state in each row, different from the one that the row before would leave."""
    g, states = torch.Generator().manual_seed(seed), {}
    for index, element in enumerate(policy.model.initial_state()):
        shape = (*batch["reward"].shape, *element.shape)
        noise = torch.randn(shape, generator=g).to(batch["reward"].dtype)
        states[f"state_in_{index}"] = noise if element.is_floating_point() else torch.randint(4, shape, generator=g)
    return {**batch, **states}


def stepped(policy, batch) -> dict:
    """As `of_rows`, one step after the other from the state of the first row."""
    model, table, count = policy.model, {}, len(policy.model.initial_state())
    for b in range(batch["reward"].shape[1]):
        state = [batch[f"state_in_{index}"][0, b : b + 1] for index in range(count)]
        for t in range(len(batch["reward"])):
            if t and (batch["terminated"][t - 1, b] or batch["truncated"][t - 1, b]):
                state = model.memory.state_of(1)
            logit, state = model.step(batch["obs"][t, b : b + 1], state)
            value = model.value_function()
            model.step(batch["next_obs"][t, b : b + 1], state)
            table[t, b] = logit[0], value[0], model.value_function()[0]
    return table


@pytest.mark.few
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(("t", "b"), [(7, 3), (1, 2)])
def test_with_a_recurrent_state_the_loss_is_that_of_single_steps(t, b, ending, memory):
    policy = made(double_precision=True, learn__adv_norm=False, **MEMORIES[memory])
    batch = with_states(policy, rollout(t, b, ENDINGS[ending]))
    loss, stats = policy.loss(tree(batch))
    expected = loss_by_definition(policy, batch, outputs=stepped)

    np.testing.assert_allclose(loss.item(), expected["total_loss"], rtol=1e-10)
    for name, wanted in expected.items():
        np.testing.assert_allclose(stats[name], wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.few
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("space", [OBS, spaces.Dict({"keys": spaces.Discrete(4, start=1), "x": spaces.Box(-1, 1, (2, 2))})])
def test_with_a_recurrent_state_padding_is_not_looked_at(space, memory, elements, same):
    policies, outputs = [made(observation_space=space, **MEMORIES[memory]) for _ in range(3)], []
    for policy, junk in zip(policies, (0.0, 1e6, torch.nan), strict=True):
        outputs.append(policy.learn_mode.forward(tree(with_states(policy, padded(space, elements, junk)))))

    assert same(policies[0].get_weights(), policies[1].get_weights())
    torch.testing.assert_close(outputs[2], outputs[0])


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_collected_rollout_has_importance_weight_1_from_the_state_of_acting_on(memory):
    env = make_envs("CartPoleNoVel-v1", 3, seed=0, max_episode_steps=9)
    policy = made(env.single_action_space, False, env.single_observation_space, **MEMORIES[memory])
    worker = make_worker(env, policy.collect_mode)
    for num_steps in (12, 1, 7):
        batch = worker.collect(num_steps).trajectories.batch
        stats = policy.loss(batch)[1]

        assert float(stats["rho_mean"]) == pytest.approx(1, abs=1e-5)
        assert float(stats["kl"]) == pytest.approx(0, abs=1e-9)


def test_minibatches_of_environments_take_their_recurrent_states_with_them():
    policy = made(learn__batch_size=7, learn__learning_rate=0.0, learn__adv_norm=False, **MEMORIES["lstm"])
    batch = tree(with_states(policy, rollout(dtype=torch.float32)))
    output = policy.learn_mode.forward(batch)
    _, whole = policy.loss(batch)

    torch.testing.assert_close({name: output[name] for name in whole}, whole)


# Replayed rollouts.


def learned_from(policy) -> list:
    """The batches of the gradient steps that the policy takes from here on."""
    batches, step = [], policy.gradient_step

    def spy(batch):
        batches.append(dict(nested(batch)))
        return step(batch)

    policy.gradient_step = spy
    return batches


def replaying(proportion, slots, **settings):
    more = {"learn__replay_proportion": proportion, "learn__replay_slots": slots, "learn__epoch_per_collect": 1}
    return made(learn__batch_size=10_000, **more, **settings)


def numbered(number: int, **more) -> dict:
    return {**rollout(dtype=torch.float32, seed=number), "reward": torch.full((7, 4), float(number)), **more}


@pytest.mark.few
@pytest.mark.parametrize(("proportion", "slots"), [(1.0, 3), (2.0, 2), (0.5, 4), (1.5, 2)])
def test_earlier_rollouts_are_more_environments_of_the_new_one(proportion, slots):
    policy, drawn = replaying(proportion, slots), []
    batches = learned_from(policy)
    for number in range(40):
        policy.learn_mode.forward(tree(numbered(number)))
        [found] = {tuple(row.tolist()) for row in batches[number]["reward"]}
        parts = found[::4]
        expected = [rollout(dtype=torch.float32, seed=int(part)) for part in parts]
        assert parts[0] == number
        assert len(set(parts)) == len(parts)
        assert all(number - slots <= part < number for part in parts[1:])
        for name in ("obs", "next_obs", "action", "log_prob", "terminated", "truncated"):
            torch.testing.assert_close(batches[number][name], torch.cat([it[name] for it in expected], 1), rtol=0, atol=0)
        drawn.append(len(parts) - 1)

    assert drawn[0] == 0
    assert set(drawn[3:]) == {int(proportion), math.ceil(proportion)}
    assert np.mean(drawn[3:]) == pytest.approx(proportion, abs=0.25)


def test_rollouts_with_and_without_padding_are_joined_and_states_come_along():
    policy = replaying(1.0, 1, **MEMORIES["lstm"])
    batches = learned_from(policy)
    valid = torch.ones(7, 4, dtype=torch.bool)
    valid[3] = False
    first, second = with_states(policy, numbered(0, valid=valid)), with_states(policy, numbered(1), seed=2)
    policy.learn_mode.forward(tree(first))
    policy.learn_mode.forward(tree(second))

    assert torch.equal(batches[1]["valid"], torch.cat([torch.ones_like(valid), valid], 1))
    assert torch.equal(batches[1]["state_in_1"], torch.cat([second["state_in_1"][:1], first["state_in_1"][:1]], 1))


@pytest.mark.parametrize("settings", [{}, MEMORIES["attention"]])
def test_a_saved_state_has_the_kept_rollouts(settings, same):
    policy, other = replaying(1.5, 2, **settings), replaying(1.5, 2, **settings)
    for seed in range(4):
        policy.learn_mode.forward(tree(with_states(policy, numbered(seed)) if settings else numbered(seed)))
    other.load_state_dict(through_a_file(policy.state_dict()))
    for seed in range(4, 8):
        batch = tree(with_states(policy, numbered(seed)) if settings else numbered(seed))
        assert same(policy.learn_mode.forward(batch), other.learn_mode.forward(batch))

    assert same(policy.state_dict(), other.state_dict())


def test_later_changes_of_a_rollout_do_not_reach_the_kept_one():
    policy, batch = replaying(1.0, 1), numbered(0)
    policy.learn_mode.forward(tree(batch))
    batch["reward"].fill_(100.0)  # a collector uses its memory again
    batches = learned_from(policy)
    policy.learn_mode.forward(tree(numbered(1)))

    assert batches[0]["reward"].unique().tolist() == [0.0, 1.0]


def test_a_replay_that_cannot_work_is_refused_by_name(monkeypatch):
    with pytest.raises(ValueError, match=r"learn\.replay_proportion = 3 and learn\.replay_slots = 2: more rollouts"):
        replaying(3.0, 2)
    with pytest.warns(UserWarning, match=r"learn\.replay_slots = 5 has no effect without learn\.replay_proportion"):
        made(learn__replay_slots=5)
    policy = replaying(1.0, 2)
    policy.learn_mode.forward(tree(numbered(0)))
    with pytest.raises(
        ValueError, match=r"rollouts of the same number of steps, got \{5, 7\}: collect them with a StepCollector"
    ):
        policy.learn_mode.forward(tree(rollout(5, dtype=torch.float32)))
    broken = policy.state_dict()
    broken["attached"]["rollout_replay"]["rollouts"] = [3]
    with pytest.raises(ValueError, match="a kept rollout is a mapping of columns"):
        policy.load_state_dict(broken)
    monkeypatch.setattr(rollout_replay, "available_bytes", lambda: 1000)
    with pytest.raises(MemoryError, match=r"learn\.replay_slots = 2 rollouts .* lower replay_slots"):
        replaying(1.0, 2).learn_mode.forward(tree(numbered(0)))


@pytest.mark.parametrize(("t", "b"), [(4, 4), (6, 4)])
@pytest.mark.parametrize("envs", [2, 4])
def test_a_column_of_objects_stays_beside_its_steps(t, b, envs):
    seen = []

    class Reads(IMPALAPolicy):
        def compute_actions(self, obs, state=(), **kwargs):
            action, state, outputs = super().compute_actions(obs, state, **kwargs)
            return action, state, {**outputs, "number": np.arange(len(obs)), "word": ["0"] * len(obs)}

        def loss(self, batch):
            seen.append((np.array(batch.word.tolist()), batch.number.numpy()))
            return super().loss(batch)

    policy = Reads(IMPALAPolicyConfig().override({"seed": 0, "learn.batch_size": envs * t}), OBS, spaces.Discrete(3))
    policy.dry_run()
    number = torch.arange(t * b).reshape(t, b)
    word = np.array([str(one) for one in range(t * b)], object).reshape(t, b)
    batch = tree({**rollout(t, b, dtype=torch.float32), "number": number, "word": word})
    policy.learn_mode.forward(batch)

    assert [words.shape for words, _ in seen[-2:]] == [(t, envs)] * 2
    assert all((words.astype(int) == numbers).all() for words, numbers in seen[-2:])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda kept: kept[0], r"the kept rollouts are a list, got \{.* of type dict"),
        (lambda kept: [{**kept[0], "obs": "text"}, *kept[1:]], r"tensors \[T, B, ...\], got 'text' as 'obs'"),
        (
            lambda kept: [{**kept[0], "obs": kept[0]["obs"][:, :2]}, *kept[1:]],
            r"tensors \[7, 4, ...\], got \[7, 2, 5\] as 'obs'",
        ),
        (lambda kept: [{**kept[0], "reward": torch.zeros(7)}, *kept[1:]], r"reward \[T, B\], got \[7\]"),
        (
            lambda kept: [kept[0], {name: leaf for name, leaf in kept[1].items() if name != "obs"}],
            "have the same columns, got only some with 'obs'",
        ),
    ],
)
def test_kept_rollouts_that_cannot_be_ones_are_refused_and_change_nothing(change, words):
    policy = replaying(1.0, 2)
    for number in range(2):
        policy.learn_mode.forward(tree(numbered(number)))
    before, broken = policy.state_dict(), policy.state_dict()
    part = broken["attached"]["rollout_replay"]
    part["rollouts"] = change(part["rollouts"])
    with pytest.raises(ValueError, match=words):
        policy.load_state_dict(broken)
    with pytest.raises(ValueError, match=words):
        policy.attachments["rollout_replay"].load_state_dict(part)
    after = policy.state_dict()["attached"]["rollout_replay"]

    assert [one["reward"].unique().tolist() for one in after["rollouts"]] == [[0.0], [1.0]]
    assert torch.equal(after["generator"], before["attached"]["rollout_replay"]["generator"])


def test_a_kept_rollout_without_a_column_that_the_loss_reads_is_named():
    policy = replaying(1.0, 2)
    policy.learn_mode.forward(tree(numbered(0)))
    state = policy.state_dict()
    part = state["attached"]["rollout_replay"]
    part["rollouts"] = [{name: leaf for name, leaf in one.items() if name != "obs"} for one in part["rollouts"]]
    policy.load_state_dict(state)
    with pytest.raises(ValueError, match="a kept rollout lacks the column 'obs', which the loss reads"):
        policy.learn_mode.forward(tree(numbered(1)))
