"""Policies with action masks: targets against loops over the allowed actions, exploration, log-probabilities, and errors."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

import ding_lite.config
from ding_lite.basics import save_checkpoint
from ding_lite.data import tree
from ding_lite.datasets import DatasetError, offline_datasets, open_dataset
from ding_lite.envs import ActionMaskError, SpaceError
from ding_lite.middleware import offline_data_fetcher
from ding_lite.nn import masked
from ding_lite.policy import (
    A2CPolicy,
    BCPolicy,
    C51Policy,
    DecisionTransformerPolicy,
    DiscreteCQLPolicy,
    DiscreteIQLPolicy,
    DQNPolicy,
    IMPALAPolicy,
    IQNPolicy,
    Policy,
    PPOPolicy,
    QRDQNPolicy,
    R2D2Policy,
    RainbowPolicy,
    REINFORCEPolicy,
    SACPolicy,
    build_policy,
    load_policy,
)

START, A, ROWS, GAMMA = 3, 4, 24, 0.9
OBS = spaces.Dict(x=spaces.Box(-1, 1, (5,)), action_mask=spaces.MultiBinary(A))
ACTIONS = spaces.Discrete(A, start=START)
SMALL = {"seed": 0, "discount_factor": GAMMA, "model.encoder_hidden_size_list": [8]}


def made(kind, moved_apart=None, observation_space=OBS, action_space=ACTIONS, **settings):
    cfg = kind.config_type().override({name.replace("__", "."): value for name, value in settings.items()})
    for name, value in SMALL.items():
        if name != "discount_factor" or hasattr(cfg, name):
            cfg.override({name: value})
    policy = kind(cfg, observation_space, action_space)
    if moved_apart is not None:
        moved_apart(policy)
        policy.model.double()
        policy.target_model.double()
    return policy


def masks_for(*lead, seed=0, num_actions=A):
    """Masks that allow one action at least."""
    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(*lead, num_actions, generator=g) < 0.4
    first = torch.randint(num_actions, lead, generator=g).unsqueeze(-1)
    return mask.scatter(-1, first, True).to(torch.int8)


def masked_rows(transitions, seed=0):
    """Transitions whose terminal next states allow nothing."""
    batch = transitions(ROWS, A, START, seed=seed)
    mask, next_mask = masks_for(ROWS, seed=seed), masks_for(ROWS, seed=seed + 1)
    next_mask[batch["terminated"]] = 0
    batch["obs"] = {"x": batch["obs"], "action_mask": mask}
    batch["next_obs"] = {"x": batch["next_obs"], "action_mask": next_mask}
    batch["action"] = mask.double().argmax(-1) + START
    return batch


def row_of(obs, row):
    return {name: part[row : row + 1] for name, part in obs.items()}


def best_allowed(values, mask):
    """The allowed action with the highest value; None without an allowed one."""
    allowed = [action for action in range(len(values)) if mask[action]]
    return max(allowed, key=lambda action: values[action]) if allowed else None


def targets_by_definition(policy, batch, mean, outcome):
    """For each row, reward, discount and the target network's output for the best allowed next action.

    Args:
        mean: the mean return of each action from an output of a network.
        outcome: the output of a network for observations.
    """
    for row in range(ROWS):
        next_obs = row_of(batch["next_obs"], row)
        online, judged = outcome(policy.model, next_obs)[0].tolist(), outcome(policy.target_model, next_obs)[0].tolist()
        values = [mean(action) for action in (online if policy.cfg.double else judged)]
        best = best_allowed(values, next_obs["action_mask"][0].tolist())
        discount = 0.0 if batch["terminated"][row] else GAMMA
        yield row, batch["reward"][row].item(), discount, judged[0 if best is None else best]


def taken(output, batch, row):
    return output[0].tolist()[batch["action"][row].item() - START]


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
class TestTargets:
    def test_dqn(self, double, seed, transitions, moved_apart):
        policy, batch = made(DQNPolicy, moved_apart, double=double), masked_rows(transitions, seed)
        losses = []
        for row, reward, discount, future in targets_by_definition(policy, batch, float, lambda net, obs: net(obs)):
            error = abs(reward + discount * future - taken(policy.model(row_of(batch["obs"], row)), batch, row))
            losses.append(error**2 / 2 if error < 1 else error - 0.5)

        np.testing.assert_allclose(policy.loss(tree(batch))[0].item(), np.mean(losses), rtol=1e-12)

    def test_qrdqn(self, double, seed, transitions, moved_apart):
        policy, batch = made(QRDQNPolicy, moved_apart, double=double, model__num_quantiles=3), masked_rows(transitions, seed)
        losses = []
        for row, reward, discount, future in targets_by_definition(policy, batch, np.mean, lambda net, obs: net(obs)):
            value = taken(policy.model(row_of(batch["obs"], row)), batch, row)
            losses.append(quantile_loss(value, [reward + discount * one for one in future], [1 / 6, 3 / 6, 5 / 6]))

        np.testing.assert_allclose(policy.loss(tree(batch))[0].item(), np.mean(losses), rtol=1e-6)

    def test_iqn(self, double, seed, transitions, moved_apart):
        settings = {"model__num_quantiles": 3, "model__num_target_quantiles": 4, "model__num_acting_quantiles": 2}
        policy, batch = made(IQNPolicy, moved_apart, double=double, **settings), masked_rows(transitions, seed)
        generator = torch.Generator()
        generator.set_state(policy.generator.get_state())
        next_tau, tau = torch.rand(ROWS, 4, generator=generator), torch.rand(ROWS, 3, generator=generator)
        losses = []
        for row in range(ROWS):
            next_obs = row_of(batch["next_obs"], row)
            chooser = policy.model if double else policy.target_model
            values = [np.mean(action) for action in chooser(next_obs, torch.tensor([0.25, 0.75]))[0].tolist()]
            best = best_allowed(values, next_obs["action_mask"][0].tolist()) or 0
            discount = 0.0 if batch["terminated"][row] else GAMMA
            future = policy.target_model(next_obs, next_tau[row : row + 1])[0].tolist()[best]
            value = taken(policy.model(row_of(batch["obs"], row), tau[row : row + 1]), batch, row)
            target = [batch["reward"][row].item() + discount * one for one in future]
            losses.append(quantile_loss(value, target, tau[row].tolist()))

        np.testing.assert_allclose(policy.loss(tree(batch))[0].item(), np.mean(losses), rtol=1e-6)

    @pytest.mark.parametrize("kind", [C51Policy, RainbowPolicy])
    def test_c51(self, kind, double, seed, transitions, moved_apart):
        settings = {"model__n_atom": 5, "model__v_min": -2.0, "model__v_max": 2.0}
        policy, batch = made(kind, moved_apart, double=double, **settings), masked_rows(transitions, seed)
        for network in (policy.model, policy.target_model):
            for name, param in network.named_parameters():
                if "sigma" in name:
                    param.data.zero_()
        atoms = np.linspace(-2, 2, 5)
        outcome = lambda net, obs: net(obs).softmax(-1)  # noqa: E731
        losses = []
        for row, reward, discount, prob in targets_by_definition(policy, batch, lambda p: float(np.dot(atoms, p)), outcome):
            target = np.zeros(5)
            for atom, p in zip(atoms, prob):
                place = min(max(reward + discount * atom, -2), 2) + 2
                low = math.floor(place)
                target[low] += p * (low + 1 - place)
                target[min(low + 1, 4)] += p * (place - low)
            now = taken(outcome(policy.model, row_of(batch["obs"], row)), batch, row)
            losses.append(-sum(t * math.log(p) for t, p in zip(target, now)))

        np.testing.assert_allclose(policy.loss(tree(batch))[0].item(), np.mean(losses), rtol=1e-9)


def quantile_loss(value, target, tau):
    total = 0.0
    for one, level in zip(value, tau):
        for aim in target:
            error = aim - one
            huber = error**2 / 2 if abs(error) <= 1 else abs(error) - 0.5
            total += abs(level - (error < 0)) * huber / len(target)
    return total


def test_r2d2_chooses_among_the_allowed_next_actions_in_each_step(moved_apart):
    """Without rescaling and burn-in, for returns of one step, in sequences that continue until their last step."""
    lengths = {"learn__burn_in": 1, "learn__unroll_len": 3, "nstep": 1, "learn__rescale_eps": 1.0}
    policy = made(R2D2Policy, moved_apart, model__lstm_size=5, **lengths)
    n, length = 6, 4
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, length + 1, 5, generator=g, dtype=torch.float64)
    mask = masks_for(n, length + 1)
    terminated = torch.zeros(n, length, dtype=torch.bool)
    terminated[:2, -1] = True
    mask[:2, -1] = 0
    state = torch.randn(2, n, 5, generator=g, dtype=torch.float64)
    batch = {
        "obs": {"x": x[:, :-1], "action_mask": mask[:, :-1]},
        "next_obs": {"x": x[:, 1:], "action_mask": mask[:, 1:]},
        "action": mask[:, :-1].double().argmax(-1) + START,
        "reward": torch.randn(n, length, generator=g, dtype=torch.float64),
        "terminated": terminated,
        "truncated": torch.zeros_like(terminated),
        "valid": torch.ones_like(terminated),
        "state_in_0": state[0],
        "state_in_1": state[1],
    }

    def walk(network, row):
        now, values = [state[0][row : row + 1], state[1][row : row + 1]], []
        for t in range(length + 1):
            q_value, now = network.step({"x": x[row, t : t + 1], "action_mask": mask[row, t : t + 1]}, now)
            values.append(q_value[0].tolist())
        return values

    h = lambda v: math.copysign(math.sqrt(abs(v) + 1) - 1, v) + v  # noqa: E731
    h_inverse = lambda v: math.copysign(((math.sqrt(1 + 4 * (abs(v) + 2)) - 1) / 2) ** 2 - 1, v)  # noqa: E731
    losses = []
    for row in range(n):
        online, judged, errors = walk(policy.model, row), walk(policy.target_model, row), []
        for t in range(1, length):
            future = 0.0
            if not terminated[row, t]:
                future = GAMMA * h_inverse(judged[t + 1][best_allowed(online[t + 1], mask[row, t + 1].tolist())])
            errors.append(h(batch["reward"][row, t].item() + future) - online[t][batch["action"][row, t].item() - START])
        losses.append(sum(e * e / 2 for e in errors) / len(errors))

    loss, _ = policy.loss(policy.postprocess(tree(batch)))
    np.testing.assert_allclose(loss.item(), np.mean(losses), rtol=1e-9)


class TestActing:
    @pytest.mark.parametrize("kind", [DQNPolicy, C51Policy, QRDQNPolicy, IQNPolicy])
    def test_random_actions_are_uniform_over_the_allowed_ones(self, kind):
        policy, masks, repeats = made(kind), masks_for(5).numpy(), 400
        obs = {"x": np.zeros((5 * repeats, 5), np.float32), "action_mask": np.repeat(masks, repeats, 0)}
        actions = np.stack([policy.collect_mode.forward(obs, eps=1.0)[0] for _ in range(20)]) - START
        for mask, drawn in zip(masks, np.split(actions, 5, 1)):
            draws = drawn.size
            share = np.bincount(drawn.ravel(), minlength=A) / draws
            expected = mask / mask.sum()
            assert (abs(share - expected) <= 4.5 * np.sqrt(expected * (1 - expected) / draws)).all()

    def test_eps_is_the_probability_of_a_random_action(self):
        policy, draws, eps = made(DQNPolicy), 6000, 0.3
        obs = {"x": np.ones((300, 5), np.float32), "action_mask": np.array([[1, 0, 1, 1]] * 300, np.int8)}
        greedy = policy.eval_mode.forward(obs)[0][0]
        actions = np.concatenate([policy.collect_mode.forward(obs, eps=eps)[0] for _ in range(draws // 300)])
        expected = 1 - eps + eps / 3
        assert abs((actions == greedy).mean() - expected) < 4.5 * math.sqrt(expected * (1 - expected) / draws)

    def test_a_policy_without_masks_draws_as_before(self):
        policy, draws = made(DQNPolicy, observation_space=OBS["x"]), np.random.default_rng
        rng = draws()
        rng.bit_generator.state = policy.collect_mode.actor.rng.bit_generator.state
        actions = [policy.collect_mode.forward(np.zeros((3, 5), np.float32), eps=1.0)[0] for _ in range(16)]
        assert (np.stack(actions) == (rng.random((16, 3)) * A).astype(int) + START).all()

    def test_numbers_drawn_in_advance_are_saved(self):
        policy, other = made(DQNPolicy), made(DQNPolicy)
        obs = {"x": np.zeros((3, 5), np.float32), "action_mask": masks_for(3).numpy()}
        for _ in range(5):
            policy.collect_mode.forward(obs, eps=0.7)
        other.collect_mode.load_state_dict(policy.collect_mode.state_dict())
        for _ in range(30):
            one, two = (it.collect_mode.forward(obs, eps=0.7)[0] for it in (policy, other))
            assert one.tolist() == two.tolist()

    @pytest.mark.parametrize("kind", [DQNPolicy, RainbowPolicy, R2D2Policy, PPOPolicy, A2CPolicy])
    def test_the_greedy_action_is_the_best_of_the_allowed_ones(self, kind):
        policy, rows = made(kind), 50
        obs = {"x": np.random.default_rng(0).normal(size=(rows, 5)).astype(np.float32), "action_mask": masks_for(rows).numpy()}
        free = {**obs, "action_mask": np.ones_like(obs["action_mask"])}
        state = policy.eval_mode.get_initial_state(rows)
        actions = policy.eval_mode.forward(obs, state)[0] - START
        tensors = {name: torch.from_numpy(part) for name, part in free.items()}
        with torch.no_grad():
            if kind is R2D2Policy:
                values = policy.model.step(tensors, state)[0]
            else:
                values = policy.q_values(tensors) if hasattr(policy, "q_values") else policy.model.logits(tensors)
        assert actions.tolist() == [best_allowed(v, m) for v, m in zip(values.tolist(), obs["action_mask"].tolist())]

    def test_predict_takes_one_observation_or_a_batch(self):
        policy = made(PPOPolicy)
        for allowed in range(A):
            mask = np.eye(A, dtype=np.int8)[allowed]
            assert policy.predict({"x": np.zeros(5), "action_mask": mask})[0] == allowed + START
        batch = {"x": np.zeros((A, 5)), "action_mask": np.eye(A, dtype=np.int8)}
        assert policy.predict(batch, deterministic=False)[0].tolist() == [START + i for i in range(A)]

    def test_a_policy_loaded_from_a_checkpoint_takes_masks_too(self, tmp_path):
        policy = made(DQNPolicy)
        save_checkpoint(policy.state_dict(), tmp_path / "policy.pt")
        loaded = load_policy(tmp_path / "policy.pt")
        batch = {"x": np.random.default_rng(0).normal(size=(9, 5)), "action_mask": masks_for(9).numpy()}
        assert loaded.predict(batch)[0].tolist() == policy.predict(batch)[0].tolist()

    def test_predicting_where_nothing_is_allowed_is_an_error(self):
        batch = {"x": np.zeros((2, 5)), "action_mask": np.array([[1, 0, 0, 0], [0, 0, 0, 0]], np.int8)}
        with pytest.raises(ActionMaskError, match=r"row 1 of predict\(\) .* allows no action"):
            made(DQNPolicy).predict(batch)

    def test_a_policy_that_ignores_the_mask_is_an_error(self):
        class First(Policy):
            def compute_actions(self, obs, state=(), **kwargs):
                return torch.full((len(obs["x"]),), START), state, {}

        obs = {"x": np.zeros((2, 5), np.float32), "action_mask": np.array([[1, 0, 0, 0], [0, 1, 1, 0]], np.int8)}
        with pytest.raises(ActionMaskError, match=r"First takes the action 3 in row 1, .* use masked\(logit, obs\)"):
            made(First).collect_mode.forward(obs)


SHAPES = {"discrete": (ACTIONS, A), "multi": (spaces.MultiDiscrete([2, 3], start=[1, 4]), 5)}


class TestActorCritics:
    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("lstm", [None, 4])
    def test_the_ratio_is_1_in_the_first_step_of_learning(self, lstm, shape):
        actions, width = SHAPES[shape]
        space = spaces.Dict(x=OBS["x"], action_mask=spaces.MultiBinary(width))
        policy = made(PPOPolicy, observation_space=space, action_space=actions, model__lstm_size=lstm)
        steps, envs = 3, 8
        mask = masks_for(steps, envs, num_actions=width)
        mask[..., [0, 2]] = 1
        x, state, rows = torch.randn(steps, envs, 5), policy.collect_mode.get_initial_state(envs), []
        for t in range(steps):
            obs = {"x": x[t].numpy(), "action_mask": mask[t].numpy()}
            before = {f"state_in_{k}": element for k, element in enumerate(state)}
            action, state, outputs = policy.collect_mode.forward(obs, state)
            rows.append({"action": torch.from_numpy(action), "log_prob": torch.from_numpy(outputs["log_prob"]), **before})
        batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        zeros, no = torch.zeros(steps, envs), torch.zeros(steps, envs, dtype=torch.bool)
        batch |= {"obs": {"x": x, "action_mask": mask}, "value": zeros, "return_": zeros, "advantage": torch.randn(steps, envs)}
        policy.dry_run()
        rows = policy.loss_batch(tree({**batch, "terminated": no, "truncated": no, "reward": zeros}))
        loss, stats = policy.loss(rows)
        loss.backward()

        assert abs(stats["kl"].item()) < 1e-6
        assert stats["clip_frac"] == 0
        assert all(param.grad.isfinite().all() for param in policy.params if param.grad is not None)

    @pytest.mark.parametrize("kind", [PPOPolicy, A2CPolicy, IMPALAPolicy, REINFORCEPolicy])
    def test_log_prob_is_that_of_a_distribution_over_the_allowed_actions(self, kind):
        policy, mask = made(kind), masks_for(30)
        obs = {"x": torch.randn(30, 5), "action_mask": mask}
        action, _, outputs = policy.collect_mode.forward({name: part.numpy() for name, part in obs.items()})
        with torch.no_grad():
            logit = policy.model.logits({**obs, "action_mask": torch.ones_like(mask)}).double().numpy()
        for row in range(30):
            weights = np.exp(logit[row]) * mask[row].numpy()
            expected = math.log(weights[action[row] - START] / weights.sum())
            assert outputs["log_prob"][row] == pytest.approx(expected, abs=1e-6)

    def test_a_built_policy_learns_with_the_masked_distribution(self):
        seen = {}

        def loss_fn(policy, model, dist_class, batch):
            logit, _ = model.from_batch(batch)
            dist = dist_class(logit, model)
            seen.update(log_prob=dist.logp(batch.action), entropy=dist.entropy())
            return -(dist.logp(batch.action) * batch.reward).mean() - 0.01 * dist.entropy().mean()

        policy = made(build_policy("Built", loss_fn=loss_fn))
        mask = masks_for(20)
        obs = {"x": np.random.default_rng(0).normal(size=(20, 5)).astype(np.float32), "action_mask": mask.numpy()}
        action, _, outputs = policy.collect_mode.forward(obs)
        batch = {"obs": {name: torch.from_numpy(part) for name, part in obs.items()}, "action": torch.from_numpy(action)}
        ends = {"terminated": torch.ones(20, dtype=torch.bool), "truncated": torch.zeros(20, dtype=torch.bool)}
        policy.learn_mode.forward(tree({**batch, **ends, "reward": torch.ones(20)}))

        np.testing.assert_allclose(seen["log_prob"].detach(), outputs["log_prob"], atol=1e-6)
        assert (seen["entropy"] <= mask.sum(-1).log() + 1e-6).all()


OFFLINE = {BCPolicy: {}, DiscreteCQLPolicy: {}, DiscreteIQLPolicy: {}, DecisionTransformerPolicy: {"context_length": 3}}


def masked_data(nvec=None, masks=None):
    """Two recorded episodes of 6 steps, and the masks, which allow each action."""
    sizes, g = nvec or [A], np.random.default_rng(0)
    parts = [np.asarray(masks_for(13, seed=seed, num_actions=size)) for seed, size in enumerate(sizes)]
    action = np.stack([(part[:12] * g.random((12, part.shape[1]))).argmax(-1) for part in parts], -1)
    mask = np.concatenate(parts, -1) if masks is None else masks
    ends = np.arange(12) % 6 == 5
    obs = {"x": g.random((13, 5), np.float32), "action_mask": mask}
    rows = {"obs": {name: part[:-1] for name, part in obs.items()}, "next_obs": {name: part[1:] for name, part in obs.items()}}
    rows.update(action=action if nvec else action[:, 0] + START, reward=np.ones(12), terminated=ends, truncated=ends & False)
    space = spaces.MultiDiscrete(nvec) if nvec else ACTIONS
    return open_dataset(rows, spaces.Dict(x=OBS["x"], action_mask=spaces.MultiBinary(sum(sizes))), space), mask


class TestOffline:
    @pytest.mark.parametrize(
        ("kind", "nvec"), [*((kind, None) for kind in OFFLINE), (BCPolicy, [2, 3]), (DecisionTransformerPolicy, [2, 3])]
    )
    def test_only_allowed_actions_are_taken_and_the_probability_is_over_these(self, kind, nvec):
        data, _ = masked_data(nvec)
        policy = kind({"seed": 0, **OFFLINE[kind]}, data.observation_space, data.action_space)
        only = np.zeros(sum(nvec or [A]), np.int8)
        only[[0, 3] if nvec else [2]] = 1
        wanted = [0, 1] if nvec else START + 2
        for seed in range(5):
            obs = {"x": np.random.default_rng(seed).random(5, np.float32), "action_mask": only}
            for options in ({}, {"deterministic": False, **({"eps": 1.0} if kind is DiscreteCQLPolicy else {})}):
                assert np.array_equal(policy.predict(obs, **options)[0], wanted)

    @pytest.mark.parametrize("nvec", [None, [2, 3]])
    def test_the_decision_transformer_learns_the_masked_distribution(self, nvec):
        data, mask = masked_data(nvec)
        policy = DecisionTransformerPolicy({"seed": 0, "context_length": 3}, data.observation_space, data.action_space)
        batch = data.windows([7, 0, 11], 3)
        logit = policy.model(batch.obs, batch.action, batch.return_to_go / policy.cfg.return_scale, batch.timestep, batch.valid)
        losses, rows = [], [[None, 6, 7], [None, None, 0], [9, 10, 11]]
        for number, window in enumerate(rows):
            for place, row in enumerate(window):
                if row is None:
                    continue
                begin = 0
                for choice, size in enumerate(nvec or [A]):
                    allowed = [i for i in range(size) if mask[row][begin + i]]
                    numbers = [logit[number, place, begin + i].item() for i in allowed]
                    taken = int(np.ravel(data.rows()["action"][row])[choice]) - (0 if nvec else START)
                    chosen = numbers[allowed.index(taken)]
                    losses.append(math.log(sum(math.exp(one) for one in numbers)) - chosen)
                    begin += size
        loss, stats = policy.loss(batch)

        np.testing.assert_allclose(loss.item(), np.sum(losses) / 6, rtol=1e-5)
        assert 0 <= stats["entropy"].item() <= math.log(6)

    def test_a_recorded_action_that_its_own_mask_does_not_allow_is_named_before_the_run(self):
        data, mask = masked_data()
        wrong = mask.copy()
        wrong[8] = 1
        wrong[8, data.rows()["action"][8] - START] = 0
        bad, _ = masked_data(masks=wrong)
        for kind, options in OFFLINE.items():
            cfg = getattr(ding_lite.config, kind.__name__.replace("Policy", "Config"))()
            cfg.override({f"policy.{name}": value for name, value in options.items()})
            policy = kind(cfg.policy, data.observation_space, data.action_space)
            if kind is DecisionTransformerPolicy:
                cfg.override({"policy.target_return": 6.0})
            offline_data_fetcher(cfg, data, policy.learn_mode)
            words = (
                r"has the action \d in row 8, which is step 2 of episode 1, and the 'action_mask' .* not allow it; 1 of 12 rows"
            )
            with pytest.raises(DatasetError, match=words):
                offline_data_fetcher(cfg, bad, policy.learn_mode)
        with pytest.warns(UserWarning, match="in row 8"):
            offline_data_fetcher(ding_lite.config.BCConfig(), bad)
        offline_data_fetcher(ding_lite.config.BCConfig(), bad.select([0]))

    def test_a_state_whose_mask_allows_nothing_is_no_forbidden_action(self):
        _, mask = masked_data()
        mask[3] = 0
        data, _ = masked_data(masks=mask)

        assert data.problem_with_masks(data.observation_space, data.action_space) is None

    def test_recorded_masks_and_actions_of_several_choices_are_compared_choice_by_choice(self, monkeypatch):
        monkeypatch.setattr(offline_datasets, "_PIECE_BYTES", 16)
        data, mask = masked_data([2, 3])
        assert data.problem_with_masks(data.observation_space, data.action_space) is None
        wrong = mask.copy()
        wrong[11] = 1
        wrong[11, 2 + data.rows()["action"][11][1]] = 0
        bad, _ = masked_data([2, 3], wrong)

        assert "in row 11" in bad.problem_with_masks(data.observation_space, data.action_space)


class TestSpaces:
    def test_a_mask_that_does_not_fit_the_actions_is_refused(self):
        with pytest.raises(SpaceError, match=r"the mask has the shape \(4,\), and the actions want \(5,\)"):
            made(DQNPolicy, action_space=spaces.Discrete(5))
        with pytest.raises(SpaceError, match="only Discrete and MultiDiscrete actions have masks.*another key"):
            made(SACPolicy, action_space=spaces.Box(-1, 1, (4,)))

    def test_masked_values_need_no_policy(self):
        values = masked(torch.arange(4.0), {"action_mask": torch.tensor([1, 1, 0, 0])})
        assert values.argmax() == 1
