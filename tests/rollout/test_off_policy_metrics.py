"""Metrics of off-policy evaluation: against the exact values of a small process, on recorded runs, and in pipelines."""

import functools
import json

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ding_lite import Task
from ding_lite.config import DQNConfig, PPOConfig
from ding_lite.contexts import OfflineRLContext, OnlineRLContext
from ding_lite.data import Episodes, nested, tree
from ding_lite.datasets import OfflineDataset
from ding_lite.envs import SpaceError, make_envs
from ding_lite.functional import doubly_robust as doubly_robust_terms
from ding_lite.middleware import (
    StepCollector,
    metric_evaluator,
    offline_data_fetcher,
    offline_data_saver,
    offline_logger,
    trainer,
)
from ding_lite.policy import (
    A2CPolicy,
    BCPolicy,
    C51Policy,
    DecisionTransformerPolicy,
    DiscreteIQLPolicy,
    DQNPolicy,
    PPOPolicy,
    SACPolicy,
    TD3Policy,
)
from ding_lite.rollout import (
    FittedQ,
    FittedQConfig,
    action_agreement,
    action_log_prob,
    doubly_robust_metric,
    fitted_q_evaluation_metric,
    importance_sampling_metric,
    log_prob_of,
    negative_action_error,
)

STATES, ACTIONS = spaces.Discrete(3), spaces.Discrete(2, start=5)
GAMMA = 0.9
QUICK = FittedQConfig(hidden_size_list=[16], num_steps=200, learning_rate=0.02, target_update_theta=0.1)
ONE_STEP = FittedQConfig(hidden_size_list=[8], num_steps=1)


METRICS = [
    importance_sampling_metric(GAMMA),
    doubly_robust_metric(GAMMA, cfg=ONE_STEP),
    fitted_q_evaluation_metric(GAMMA, cfg=ONE_STEP),
]


def policy_of(kind, observation_space=STATES, action_space=ACTIONS, sharpen=1.0, **settings):
    """A small policy with random weights, multiplied by `sharpen`."""
    small = {"model.encoder_hidden_size_list": [8], **settings}
    policy = kind(kind.config_type().override(small), observation_space, action_space)
    policy.set_weights({name: sharpen * tensor for name, tensor in policy.get_weights().items()})
    return policy


def dataset_of(rows, lengths, observation_space=STATES, action_space=ACTIONS):
    return OfflineDataset.from_episodes(Episodes(rows, lengths), observation_space, action_space)


class Tabular:
    """A random process of 3 states and 2 actions that ends with probability 0.4 after each step; reward depends on both."""

    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)
        self.step = self.rng.dirichlet(np.ones(3), (3, 2)) * 0.6
        self.reward = self.rng.normal(size=(3, 2))

    def exact(self, policy):
        """The value of a policy [3, 2] in each state, by the linear system V = r_pi + gamma * P_pi V."""
        by_policy = np.einsum("sa,san->sn", policy, self.step)
        return np.linalg.solve(np.eye(3) - GAMMA * by_policy, (policy * self.reward).sum(1))

    def collect(self, count, longest=1000):
        """Episodes with random actions, from states in turn, cut after some steps without an end."""
        columns = {name: [] for name in ("obs", "action", "reward", "next_obs", "terminated", "truncated", "log_prob")}
        lengths = []
        for episode in range(count):
            state, length, terminated = episode % 3, 0, False
            while not terminated and length < longest:
                action, length = int(self.rng.integers(2)), length + 1
                later = int((self.rng.random() > self.step[state, action].cumsum()).sum())
                terminated, next_state = later == 3, min(later, 2)
                row = (state, action + 5, self.reward[state, action], next_state, terminated, False, np.log(0.5))
                for column, number in zip(columns.values(), row):
                    column.append(number)
                state = next_state
            lengths.append(length)
        return dataset_of({name: np.array(column) for name, column in columns.items()}, lengths)


@pytest.fixture(scope="module")
def process():
    return Tabular()


@pytest.fixture(scope="module")
def recorded(process):
    return process.collect(2000)


def probabilities(policy, eps):
    """The probabilities [3, 2] of a policy's actions, without the code under test."""
    with torch.no_grad():
        if eps is None:
            return policy.model.logits(torch.arange(3)).double().softmax(-1).numpy()
        best = policy.q_values(torch.arange(3)).argmax(-1).numpy()
    return (1 - eps) * np.eye(2)[best] + eps / 2


POLICIES = pytest.mark.parametrize(
    ("kind", "eps"), [(PPOPolicy, None), (BCPolicy, None), (DiscreteIQLPolicy, None), (DQNPolicy, 0.5), (C51Policy, 1.0)]
)


class TestTabular:
    @POLICIES
    def test_log_prob_of(self, kind, eps):
        policy = policy_of(kind, sharpen=3)
        batch = tree({"obs": torch.arange(3).repeat_interleave(2), "action": torch.tensor([5, 6]).repeat(3)})
        found = log_prob_of(policy.eval_mode, batch, eps=eps)
        np.testing.assert_allclose(found.exp(), probabilities(policy, eps).ravel(), rtol=1e-5)

    def test_log_prob_of_takes_arrays_as_datasets_give_them(self):
        policy = policy_of(PPOPolicy, sharpen=3)
        batch = {"obs": torch.arange(3), "action": torch.tensor([5, 6, 5])}
        arrays = {name: column.numpy() for name, column in batch.items()}
        arrays["log_prob"] = np.zeros(3)

        assert torch.equal(log_prob_of(policy.eval_mode, arrays), log_prob_of(policy.eval_mode, tree(batch)))

    @pytest.mark.parametrize(
        ("batch", "words"),
        [
            ([1, 2], r"wants a batch with obs and action, got \[1, 2\] of type list"),
            ({"obs": np.arange(3)}, "got a batch without 'action': it has obs"),
        ],
    )
    def test_log_prob_of_names_another_batch(self, batch, words):
        with pytest.raises(TypeError, match=f"log_prob_of {words}"):
            log_prob_of(policy_of(PPOPolicy, sharpen=3).eval_mode, batch)

    def test_log_prob_of_names_another_mode(self):
        policy = policy_of(PPOPolicy, sharpen=3)
        batch = {"obs": torch.arange(3), "action": torch.tensor([5, 6, 5])}
        for other in (policy.collect_mode, policy.learn_mode, policy):
            with pytest.raises(
                TypeError, match=rf"log_prob_of wants policy.eval_mode, got .*{type(other).__name__}: pass that mode"
            ):
                log_prob_of(other, batch)

    def test_log_prob_of_names_what_does_not_fit_the_policy(self):
        box = spaces.Box(-1, 1, (2,), np.float32)
        policy = policy_of(SACPolicy, spaces.Box(-1, 1, (3,), np.float32), box)
        for obs, action, words in (
            ((4, 5), (4, 2), r"batch.obs is float32 \[4, 5\], expected float32 \[4, 3\]"),
            ((4, 3), (4, 1), r"batch.action is float32 \[4, 1\], expected float32 \[4, 2\]"),
        ):
            batch = {"obs": np.zeros(obs, np.float32), "action": np.zeros(action, np.float32)}
            with pytest.raises(ValueError, match=f"do not fit the spaces of SACPolicy: {words}"):
                log_prob_of(policy.eval_mode, batch)

    @pytest.mark.few
    @POLICIES
    @pytest.mark.parametrize("weighted", [False, True])
    @pytest.mark.parametrize("per_decision", [False, True])
    def test_importance_sampling_finds_the_exact_value(self, per_decision, weighted, kind, eps, process, recorded):
        policy = policy_of(kind, sharpen=3)
        metric = importance_sampling_metric(GAMMA, weighted, per_decision, eps)
        found = metric(policy.eval_mode, recorded)
        assert abs(found["value"] - process.exact(probabilities(policy, eps)).mean()) < 4 * found["std_error"] < 0.6
        assert abs(found["behaviour_value"] - process.exact(np.full((3, 2), 0.5)).mean()) < 0.15
        assert (found["episodes"], found["effective_sample_size"] < 2000.1) == (2000, True)

    @pytest.mark.slow
    @pytest.mark.parametrize(("kind", "eps"), [(PPOPolicy, None), (DQNPolicy, 0.5)])
    def test_doubly_robust_and_fitted_q_evaluation_find_it_too(self, kind, eps, process, recorded):
        policy = policy_of(kind, sharpen=3)
        exact = process.exact(probabilities(policy, eps)).mean()
        fitted = fitted_q_evaluation_metric(GAMMA, eps, QUICK)(policy.eval_mode, recorded)
        assert fitted["value"] == pytest.approx(exact, abs=0.15)
        plain = importance_sampling_metric(GAMMA, eps=eps)(policy.eval_mode, recorded)
        robust = doubly_robust_metric(GAMMA, eps=eps, cfg=QUICK)(policy.eval_mode, recorded)
        assert abs(robust["value"] - exact) < 4 * robust["std_error"]
        assert robust["std_error"] <= plain["std_error"]
        weighted = doubly_robust_metric(GAMMA, weighted=True, eps=eps, cfg=QUICK)(policy.eval_mode, recorded)
        assert abs(weighted["value"] - exact) < 4 * weighted["std_error"]
        assert weighted["std_error"] == pytest.approx(robust["std_error"], rel=0.2)
        assert (robust["fitted_value"], robust["td_error"]) == (fitted["value"], fitted["td_error"])

    @pytest.mark.slow
    def test_a_cut_episode_goes_on_with_its_value(self, process):
        """Episodes of at most two steps, without an end: importance sampling leaves them out, the others continue them."""
        policy, cut = policy_of(PPOPolicy, sharpen=3), process.collect(2000, longest=2)
        exact = process.exact(probabilities(policy, None)).mean()
        found = importance_sampling_metric(GAMMA)(policy.eval_mode, cut)
        assert found["episodes"] == cut.finished.sum() < 2000
        for weighted in (False, True):
            robust = doubly_robust_metric(GAMMA, weighted, cfg=QUICK)(policy.eval_mode, cut)
            assert robust["episodes"] == 2000
            assert robust["value"] == pytest.approx(exact, abs=0.15)
        assert fitted_q_evaluation_metric(GAMMA, cfg=QUICK)(policy.eval_mode, cut)["value"] == pytest.approx(exact, abs=0.15)

    def test_behaviour_stands_for_the_column_log_prob(self, recorded):
        policy, rows = policy_of(PPOPolicy, sharpen=3), recorded.rows()
        del rows["log_prob"]
        bare = dataset_of(rows, recorded.lengths)
        for metric in (importance_sampling_metric, functools.partial(doubly_robust_metric, cfg=ONE_STEP)):
            with pytest.raises(ValueError, match=r"found no log_prob in the dataset .*Otherwise pass behaviour=lambda batch"):
                metric(GAMMA)(policy.eval_mode, bare)
            found = metric(GAMMA, behaviour=lambda batch: torch.full((len(batch.action),), -np.log(2.0)))
            assert found(policy.eval_mode, bare)["value"] == pytest.approx(metric(GAMMA)(policy.eval_mode, recorded)["value"])


def by_hand(policy, dataset):
    """Importance sampling per decision by a loop over the episodes of a dataset."""
    rows = []
    for episode in dataset:
        ratio = (log_prob_of(policy.eval_mode, episode) - episode.log_prob).exp().tolist()
        rows.append(sum(GAMMA**t * np.prod(ratio[: t + 1]) * reward for t, reward in enumerate(episode.reward.tolist())))
    return np.mean(rows)


class TestEpisodes:
    """What counts as an episode."""

    def test_rows_belong_to_their_episodes(self, process):
        dataset, policy = process.collect(20), policy_of(PPOPolicy, sharpen=3)
        found = importance_sampling_metric(GAMMA)(policy.eval_mode, dataset)
        assert found["value"] == pytest.approx(by_hand(policy, dataset), rel=1e-5)
        chosen = dataset.select([3, 17, 4])
        assert importance_sampling_metric(GAMMA)(policy.eval_mode, chosen)["value"] == pytest.approx(
            by_hand(policy, chosen), rel=1e-5
        )

    def ends(self, process, terminated, truncated):
        """Episodes of 1, 2 and 3 steps with these ends."""
        rows = process.collect(6).rows()
        rows = {name: column[:6] for name, column in rows.items()}
        rows["next_obs"][[1, 3, 4]] = rows["obs"][[2, 4, 5]]
        rows["next_obs"][[0, 2, 5]] = (rows["obs"][[0, 2, 5]] + 1) % 3
        rows["terminated"], rows["truncated"] = np.zeros((2, 6), bool)
        rows["terminated"][[0, 2, 5]], rows["truncated"][[0, 2, 5]] = terminated, truncated
        return dataset_of(rows, [1, 2, 3])

    def test_truncated_ones_count_and_unfinished_ones_do_not(self, process):
        policy = policy_of(PPOPolicy, sharpen=3)
        dataset = self.ends(process, [True, False, False], [False, True, False])
        found = importance_sampling_metric(GAMMA)(policy.eval_mode, dataset)
        assert found["episodes"] == 2
        assert found["value"] == pytest.approx(by_hand(policy, dataset.select([0, 1])), rel=1e-5)
        unfinished = self.ends(process, False, False)
        with pytest.raises(
            ValueError, match="in which no episode is recorded up to its end: record longer, or use doubly_robust_metric"
        ):
            importance_sampling_metric(GAMMA)(policy.eval_mode, unfinished)

    def test_doubly_robust_takes_all_and_continues_those_that_did_not_terminate(self, process):
        policy = policy_of(PPOPolicy, sharpen=3)
        dataset = self.ends(process, [True, False, False], [False, True, False])
        found = doubly_robust_metric(GAMMA, weighted=True, cfg=ONE_STEP)(policy.eval_mode, dataset)
        fitted = FittedQ(policy.eval_mode, dataset, GAMMA, cfg=ONE_STEP).fit()
        log_ratio, reward, q_value, value = torch.zeros(4, 3, 3, dtype=torch.float64)
        for i, rows in enumerate(([0], [1, 2], [3, 4, 5])):
            batch, t = dataset.take(rows), len(rows)
            log_ratio[:t, i] = log_prob_of(policy.eval_mode, batch) - batch.log_prob
            reward[:t, i], q_value[:t, i], value[:t, i] = batch.reward, fitted.q_values(rows), fitted.values(rows)
        last_value = fitted.values([0, 2, 5], later=True) * torch.tensor([0.0, 1.0, 1.0])
        valid = torch.ones(3, 3, dtype=torch.bool).triu()
        terms = doubly_robust_terms(log_ratio, reward, q_value, value, last_value, valid, gamma=GAMMA, weighted=True)
        assert found["value"] == pytest.approx(terms.mean().item(), rel=1e-5)
        assert (found["episodes"], found["fitted_value"]) == (3, pytest.approx(value[0].mean().item()))

    def test_one_step_of_one_episode(self, process):
        policy, dataset = policy_of(PPOPolicy, sharpen=3), self.ends(process, True, False).select([0])
        found = importance_sampling_metric(GAMMA)(policy.eval_mode, dataset)
        assert found["value"] == pytest.approx(by_hand(policy, dataset), rel=1e-5)
        assert "std_error" not in found

    def test_rewards_that_are_not_finite_are_named(self, process):
        policy = policy_of(PPOPolicy, sharpen=3)
        batch = nested(self.ends(process, True, False).take(range(3)))
        batch["reward"] = np.array([1, np.nan, 1], np.float32)
        broken = dataset_of({name: np.array(column) for name, column in batch.items()}, [3])
        for metric in METRICS:
            with pytest.raises(ValueError, match=r"found reward = nan in row 1 of the dataset .*dataset.select"):
                metric(policy.eval_mode, broken)

    def test_a_network_that_diverges_is_no_estimate(self, recorded):
        with pytest.raises(ValueError, match=r"the network of FittedQ has the error nan: .* lower FittedQConfig.learning_rate"):
            fitted_q_evaluation_metric(GAMMA, cfg=FittedQConfig(hidden_size_list=[8], num_steps=40, learning_rate=1e30))(
                policy_of(PPOPolicy).eval_mode, recorded
            )

    def test_what_is_no_eval_mode_is_named_by_every_metric(self, process):
        policy, dataset = policy_of(PPOPolicy), self.ends(process, True, False)
        for metric in (*METRICS, action_agreement, negative_action_error, action_log_prob):
            for other in (policy, policy.collect_mode, policy.learn_mode):
                words = rf"wants policy.eval_mode, got .*{type(other).__name__}: pass that mode"
                with pytest.raises(TypeError, match=words):
                    metric(other, dataset)
            with pytest.raises(TypeError, match="of type function: for a policy of another library, see 'A policy"):
                metric(lambda obs: 0, dataset)
            with pytest.raises(TypeError, match=r"wants a dataset, got .* of type dict: open it, open_dataset"):
                metric(policy.eval_mode, {"obs": 3})

    def test_behaviour_is_a_function_of_log_probabilities(self, process):
        policy, dataset = policy_of(PPOPolicy), self.ends(process, True, False)
        with pytest.raises(TypeError, match="a function of a batch as behaviour, got a EvalMode: pass behaviour=lambda batch"):
            importance_sampling_metric(GAMMA, behaviour=policy.eval_mode)(policy.eval_mode, dataset)
        rows = len(dataset)
        with pytest.raises(ValueError, match=rf"log-probabilities \[{rows}\] of a batch from behaviour, got \[{rows}, 1\]"):
            importance_sampling_metric(GAMMA, behaviour=lambda batch: torch.zeros(rows, 1))(policy.eval_mode, dataset)
        found = importance_sampling_metric(GAMMA, behaviour=lambda batch: np.full(rows, np.log(0.5)))(policy.eval_mode, dataset)
        assert found["value"] == pytest.approx(importance_sampling_metric(GAMMA)(policy.eval_mode, dataset)["value"])

    def test_none(self):
        policy = policy_of(PPOPolicy)
        empty = Tabular().collect(3).select([])
        metrics = importance_sampling_metric(GAMMA), doubly_robust_metric(GAMMA), fitted_q_evaluation_metric(GAMMA)
        for metric in (*metrics, action_agreement, action_log_prob):
            with pytest.raises(ValueError, match="which has no transitions"):
                metric(policy.eval_mode, empty)


class TestRefused:
    @pytest.fixture(params=[importance_sampling_metric, doubly_robust_metric, fitted_q_evaluation_metric])
    def make(self, request):
        return request.param

    def test_gamma(self, make):
        with pytest.raises(ValueError, match=rf"{make.__name__} wants gamma in \[0, 1[\])], got 1.5"):
            make(1.5)

    def test_the_arguments_of_the_metric_in_place_of_those_that_make_it(self, make, process):
        policy, data = policy_of(PPOPolicy), process.collect(3)
        words = rf"{make.__name__} makes a metric, .* got one of type EvalMode: write {make.__name__}\(0.99\)\(policy.eval_mode"
        with pytest.raises(TypeError, match=words):
            make(policy.eval_mode, data)

    def test_what_makes_a_metric_in_place_of_the_metric(self, make, process, tmp_path):
        cfg, policy, data = DQNConfig(exp_name=tmp_path), policy_of(PPOPolicy), process.collect(3)
        with pytest.raises(
            TypeError, match=rf"metric_evaluator got {make.__name__}, which makes a metric: call it, .*\(0.99\)"
        ):
            metric_evaluator(cfg, policy.eval_mode, data, make)

        def factory(*arguments):
            return make(GAMMA)

        task = Task()
        with task.start(ctx=OfflineRLContext()):
            task.use(metric_evaluator(cfg, policy.eval_mode, data, factory))
            with pytest.raises(TypeError, match=r"the metric factory returned the function .* pass the result of factory\("):
                task.run(1)

    def test_endless_values(self, process):
        policy, cut = policy_of(PPOPolicy), process.collect(300, longest=2)
        for make in (doubly_robust_metric, fitted_q_evaluation_metric):
            words = (
                rf"{make.__name__} got gamma=1, and .* of 300 episodes .* with 1, the values of endless episodes are infinite"
            )
            with pytest.raises(ValueError, match=words):
                make(1.0, cfg=ONE_STEP)(policy.eval_mode, cut)
        with pytest.raises(ValueError, match="FittedQ got gamma=1, and"):
            FittedQ(policy.eval_mode, cut, 1.0)

    @pytest.mark.slow
    def test_values_without_discount_where_all_episodes_terminate(self, process, recorded):
        policy = policy_of(PPOPolicy, sharpen=3)
        chances = probabilities(policy, None)
        kept = np.einsum("sa,san->sn", chances, process.step)
        exact = np.linalg.solve(np.eye(3) - kept, (chances * process.reward).sum(1)).mean()
        for make in (doubly_robust_metric, fitted_q_evaluation_metric):
            assert make(1.0, cfg=QUICK)(policy.eval_mode, recorded)["value"] == pytest.approx(exact, abs=0.2)

    @pytest.mark.parametrize("eps", [None, -0.1, 1.5])
    def test_a_greedy_policy_without_eps(self, eps, recorded):
        with pytest.raises(
            ValueError, match=r"importance_sampling_metric got eps=.*, and DQNPolicy chooses .* such as eps=0.05"
        ):
            importance_sampling_metric(GAMMA, eps=eps)(policy_of(DQNPolicy).eval_mode, recorded)

    def test_eps_of_others(self, recorded):
        with pytest.raises(ValueError, match="got eps=0.1, which has no effect on PPOPolicy"):
            fitted_q_evaluation_metric(GAMMA, eps=0.1)(policy_of(PPOPolicy).eval_mode, recorded)

    def test_a_recurrent_policy(self, recorded):
        policy = policy_of(PPOPolicy, **{"model.lstm_size": 8})
        with pytest.raises(ValueError, match="depend on the observation alone, and PPOPolicy is recurrent"):
            importance_sampling_metric(GAMMA)(policy.eval_mode, recorded)
        with pytest.raises(ValueError, match="action_agreement wants .* and PPOPolicy is recurrent"):
            action_agreement(policy.eval_mode, recorded)
        transformer = DecisionTransformerPolicy(None, BOX_OBS, BOX)
        with pytest.raises(ValueError, match="negative_action_error wants .* and DecisionTransformerPolicy is recurrent"):
            negative_action_error(transformer.eval_mode, box_dataset())

    def test_noise_that_depends_on_earlier_steps_is_named(self):
        batch = {"obs": np.zeros((2, 3), np.float32), "action": np.ones((2, 2), np.float32)}
        policy = policy_of(SACPolicy, BOX_OBS, BOX, **{"collect.noise_correlation": 0.9})
        with pytest.warns(UserWarning, match="noise_correlation = 0.9: for the actions that it collected"):
            log_prob_of(policy.eval_mode, batch)

    def test_an_action_that_was_recorded_with_the_probability_0(self, recorded):
        policy, batch = policy_of(PPOPolicy), recorded.rows()
        batch["log_prob"][3] = -np.inf
        with pytest.raises(ValueError, match="takes a recorded action with probability 0"):
            importance_sampling_metric(GAMMA)(policy.eval_mode, dataset_of(batch, recorded.lengths))

    @pytest.mark.parametrize("metric", METRICS[:2])
    def test_probabilities_instead_of_their_logarithms(self, metric, recorded):
        policy, batch = policy_of(PPOPolicy), recorded.rows()
        batch["log_prob"][5:] = 0.5
        words = r"found log_prob = 0.5 in row 5 of the dataset .*at most 0: if these are probabilities, give np.log\(p\)"
        with pytest.raises(ValueError, match=words):
            metric(policy.eval_mode, dataset_of(batch, recorded.lengths))

    def test_probabilities_of_behaviour(self, recorded):
        policy = policy_of(PPOPolicy)
        metric = importance_sampling_metric(GAMMA, behaviour=lambda batch: torch.full((len(batch.action),), 0.5))
        with pytest.raises(ValueError, match=r"got 0.5 from behaviour for row 0 of the dataset .*give np.log\(p\)"):
            metric(policy.eval_mode, recorded)

    def test_rounding_above_the_probability_1_is_accepted(self, recorded):
        policy, batch = policy_of(PPOPolicy), recorded.rows()
        batch["log_prob"][3] = 1e-6
        importance_sampling_metric(GAMMA)(policy.eval_mode, dataset_of(batch, recorded.lengths))

    @pytest.mark.parametrize(("number", "words"), [(np.nan, "nan .*is no number"), (np.inf, "inf .*at most 0")])
    def test_a_log_prob_that_is_not_finite_is_named_with_its_row(self, number, words, recorded):
        policy, batch = policy_of(PPOPolicy), recorded.rows()
        batch["log_prob"][7] = number
        with pytest.raises(ValueError, match=f"found log_prob = {words}") as error:
            importance_sampling_metric(GAMMA)(policy.eval_mode, dataset_of(batch, recorded.lengths))
        assert "in row 7 of the dataset" in str(error.value)
        assert "probability 0" not in str(error.value)

    def test_ratios_of_a_policy_with_one_action(self):
        policy = policy_of(TD3Policy, BOX_OBS, BOX, **{"model.encoder_hidden_size_list": [8]})
        with pytest.raises(ValueError, match="TD3Policy has no probabilities of actions.*use fitted_q_evaluation_metric"):
            importance_sampling_metric(GAMMA)(policy.eval_mode, box_dataset())


class TestMeanRatio:
    """The mean ratio of the probabilities of a recorded action, which is expected to be 1."""

    @pytest.mark.parametrize("sharpen", [1.0, 3.0, 30.0])
    def test_it_is_about_1_for_any_policy(self, sharpen, recorded, recwarn):
        policy = policy_of(PPOPolicy, sharpen=sharpen)
        assert importance_sampling_metric(GAMMA)(policy.eval_mode, recorded)["mean_ratio"] == pytest.approx(1, abs=0.1)
        assert not recwarn.list

    @pytest.mark.parametrize("seed", range(3))
    def test_densities_of_distant_policies_do_not_warn(self, seed, recwarn):
        """Where both hardly overlap, the mean is mostly of ratios near 0, and the rare large ones are missing."""
        for distance in (0.0, 0.5, 1.0, 2.0, 4.0):
            action = np.random.default_rng(seed).normal(distance, 1.0, size=(2000, 2))
            recorded_log_prob = -0.5 * ((action - distance) ** 2).sum(-1) - np.log(2 * np.pi)
            policy, dataset = normal_policy(), normal_dataset(action, recorded_log_prob)
            importance_sampling_metric(GAMMA)(policy.eval_mode, dataset)
        assert not recwarn.list

    def test_densities_instead_of_their_logarithms_warn(self):
        action = np.random.default_rng(0).normal(size=(2000, 2))
        density = np.exp(-0.5 * (action**2).sum(-1)) / (2 * np.pi)
        with pytest.warns(UserWarning, match=r"importance_sampling_metric found .* over 2,000 steps, and 1 is expected"):
            importance_sampling_metric(GAMMA)(normal_policy().eval_mode, normal_dataset(action, density))

    def test_log_probs_that_are_too_small_warn(self, recorded):
        policy, batch = policy_of(PPOPolicy), recorded.rows()
        batch["log_prob"] = batch["log_prob"] - 0.7
        with pytest.warns(UserWarning, match=r"is 2.* on average .* do not trust the estimate.* dataset.split"):
            found = importance_sampling_metric(GAMMA)(policy.eval_mode, dataset_of(batch, recorded.lengths))
        assert found["mean_ratio"] == pytest.approx(2, abs=0.1)


def normal_policy():
    """A policy whose actions have the standard normal distribution of two numbers."""
    policy = policy_of(PPOPolicy, BOX_OBS, WIDE, sharpen=0.0)
    log_prob = log_prob_of(policy.eval_mode, {"obs": np.zeros((1, 3), np.float32), "action": np.zeros((1, 2), np.float32)})
    assert log_prob.item() == pytest.approx(-np.log(2 * np.pi))
    return policy


def normal_dataset(action, log_prob):
    """Episodes of one step with these actions."""
    rows = {
        "obs": np.zeros((len(action), 3), np.float32),
        "next_obs": np.zeros((len(action), 3), np.float32),
        "action": action.astype(np.float32),
        "reward": np.ones(len(action)),
        "terminated": np.ones(len(action), bool),
        "truncated": np.zeros(len(action), bool),
        "log_prob": log_prob,
    }
    return dataset_of(rows, np.ones(len(action), int), BOX_OBS, WIDE)


BOX_OBS = spaces.Box(-1, 1, (3,), np.float32)
WIDE = spaces.Box(-99, 99, (2,), np.float32)
BOX = spaces.Box(np.array([-2.0, 1.0], np.float32), np.array([4.0, 2.0], np.float32))


def box_dataset(action_space=BOX, n=24):
    """Episodes of 4 random steps with actions of a space."""
    rng = np.random.default_rng(0)
    action_space.seed(0)
    obs = rng.normal(size=(n // 4, 5, 3)).astype(np.float32)
    rows = {
        "obs": obs[:, :4].reshape(n, 3),
        "next_obs": obs[:, 1:].reshape(n, 3),
        "action": np.stack([action_space.sample() for _ in range(n)]),
        "reward": rng.normal(size=n),
        "terminated": np.arange(n) % 4 == 3,
        "truncated": np.zeros(n, bool),
        "log_prob": np.full(n, -1.5),
    }
    return dataset_of(rows, [4] * (n // 4), BOX_OBS, action_space)


class TestOtherActions:
    @pytest.mark.parametrize("kind", [SACPolicy, A2CPolicy])
    def test_densities_are_those_of_the_actions_of_the_environment(self, kind):
        """Their integral over a Box is 1; an element with equal bounds has no part in it."""
        space = spaces.Box(np.array([-2.0, 1.0], np.float32), np.array([4.0, 1.0], np.float32))
        policy = policy_of(kind, BOX_OBS, space if kind is SACPolicy else spaces.Box(-2, 4, (1,), np.float32))
        grid = torch.linspace(-2, 4, 4001) if kind is SACPolicy else torch.linspace(-9, 9, 4001)
        action = torch.stack((grid, torch.ones_like(grid)), -1) if kind is SACPolicy else grid.unsqueeze(-1)
        log_prob = log_prob_of(policy.eval_mode, tree({"obs": torch.ones(1, 3).expand(4001, 3), "action": action}))
        assert torch.trapezoid(log_prob.double().exp(), grid.double()).item() == pytest.approx(1, abs=2e-3)

    @pytest.mark.parametrize("kind", [SACPolicy, TD3Policy, PPOPolicy, BCPolicy])
    def test_all_kinds_have_values(self, kind):
        policy, dataset = policy_of(kind, BOX_OBS, BOX), box_dataset()
        found = fitted_q_evaluation_metric(GAMMA, cfg=ONE_STEP)(policy.eval_mode, dataset)
        assert found == fitted_q_evaluation_metric(GAMMA, cfg=ONE_STEP)(policy.eval_mode, dataset)
        assert all(np.isfinite(number) for number in found.values())
        assert -4 <= negative_action_error(policy.eval_mode, dataset) < 0
        with pytest.raises(ValueError, match="these have a Box: use negative_action_error"):
            action_agreement(policy.eval_mode, dataset)

    @pytest.mark.parametrize("space", [spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(3)])
    def test_actions_of_several_parts(self, space):
        policy, dataset = policy_of(BCPolicy, BOX_OBS, space), box_dataset(space)
        assert np.isfinite(doubly_robust_metric(GAMMA, cfg=ONE_STEP)(policy.eval_mode, dataset)["value"])
        assert action_log_prob(policy.eval_mode, dataset) < 0
        with pytest.raises(ValueError, match="wants actions in a Box with finite bounds, got Multi"):
            negative_action_error(policy.eval_mode, dataset)
        chosen = policy.eval_mode.forward(nested(dataset.take(range(24)).obs))[0]
        expected = (np.stack(chosen) == dataset.rows()["action"]).all(-1).mean()
        assert action_agreement(policy.eval_mode, dataset) == pytest.approx(expected)

    def test_fitted_values_of_one_action_are_those_of_the_linear_system(self):
        """Rewards of 1, and a quarter of the steps terminated: V is 1 / (1 - gamma * 0.75), although all returns are equal."""
        policy, rows = policy_of(TD3Policy, BOX_OBS, BOX), box_dataset(n=400).rows()
        rows["reward"], rows["terminated"] = np.ones(400), np.arange(400) % 4 == 3
        found = fitted_q_evaluation_metric(0.5, cfg=QUICK)(policy.eval_mode, dataset_of(rows, [1] * 400, BOX_OBS, BOX))
        assert found["value"] == pytest.approx(1 / (1 - 0.5 * 0.75), abs=0.25)

    def test_masked_actions_are_never_taken(self):
        space = spaces.Dict({"obs": BOX_OBS, "action_mask": spaces.MultiBinary(3)})
        mask = torch.tensor([[1, 0, 1], [0, 0, 1], [1, 1, 1], [0, 1, 1]], dtype=torch.int8).repeat(8, 1)
        obs = {"obs": torch.randn(32, 3, generator=torch.Generator().manual_seed(0)), "action_mask": mask}
        for kind, eps in ((DQNPolicy, 0.3), (PPOPolicy, None)):
            policy = policy_of(kind, space, spaces.Discrete(3))
            batches = [tree({"obs": obs, "action": torch.full((32,), action)}) for action in range(3)]
            prob = torch.stack([log_prob_of(policy.eval_mode, batch, eps) for batch in batches], -1).exp()
            assert prob.sum(-1).tolist() == pytest.approx([1.0] * 32)
            assert ((prob == 0) == (mask == 0)).all()
            if eps is not None:
                assert prob.max(-1).values.tolist() == pytest.approx((1 - eps + eps / mask.sum(-1)).tolist())


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_the_policy_that_collected_has_the_mean_return_of_its_episodes(env, tmp_path):
    cfg = PPOConfig(exp_name=str(tmp_path)).override({"policy.collect.n_sample": 240})
    envs, task = make_envs(env, 4, seed=0, max_episode_steps=30), Task()
    policy = PPOPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    with task.start(ctx=OnlineRLContext()):
        task.use(StepCollector(cfg, policy.collect_mode, envs)).use(offline_data_saver(cfg, tmp_path / "data")).run(1)
    dataset = OfflineDataset(tmp_path / "data")
    finished = dataset.select(dataset.finished)
    expected = np.mean([(0.99 ** np.arange(len(episode.reward)) * episode.reward.numpy()).sum() for episode in finished])
    for weighted in (False, True):
        found = importance_sampling_metric(0.99, weighted)(policy.eval_mode, dataset)
        assert found["value"] == pytest.approx(expected, rel=1e-4)
        assert found["behaviour_value"] == pytest.approx(expected, rel=1e-6)
        assert found["effective_sample_size"] == pytest.approx(found["episodes"], rel=1e-4)
    assert action_log_prob(policy.eval_mode, dataset) == pytest.approx(dataset.rows()["log_prob"].mean(), rel=1e-4)


def small_run(folder):
    return DQNConfig(exp_name=str(folder)).override({"policy.learn.batch_size": 8, "policy.eval.evaluator.eval_freq": 2})


class TestPipelines:
    METRICS = {
        "importance_sampling_metric": importance_sampling_metric(GAMMA, weighted=True, eps=0.2),
        "doubly_robust_metric": doubly_robust_metric(GAMMA, eps=0.2, cfg=ONE_STEP),
        "fitted_q_evaluation_metric": fitted_q_evaluation_metric(GAMMA, eps=0.2, cfg=ONE_STEP),
        "action_agreement": action_agreement,
    }

    def run(self, folder, metric, dataset, **mode):
        """The rows that a run of DQN on a dataset logs about evaluations."""
        policy, task = policy_of(DQNPolicy), Task()
        cfg = small_run(folder)
        with task.start(ctx=OfflineRLContext(), **mode):
            task.use(metric_evaluator(cfg, policy.eval_mode, dataset, metric))
            task.use(offline_data_fetcher(cfg, dataset)).use(trainer(cfg, policy.learn_mode))
            task.use(offline_logger(cfg)).run(6)
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return [
            {name: number for name, number in line.items() if name.startswith("evaluate/") and "seconds" not in name}
            for line in lines
            if "evaluate/score" in line
        ], task.ctx.last_eval_value

    @pytest.mark.few
    @pytest.mark.parametrize("name", METRICS)
    def test_a_metric_in_a_pipeline_where_async_equals_lag(self, name, process, tmp_path):
        dataset, metric = process.collect(30), self.METRICS[name]
        assert getattr(metric, "__name__", None) == name
        lag, value = self.run(tmp_path / "lag", metric, dataset, max_lag=1)
        threads, _ = self.run(tmp_path / "threads", metric, dataset, async_mode=True, max_lag=1)
        assert lag == threads
        assert len(lag) >= 3
        assert lag[-1]["evaluate/score"] == pytest.approx(value)
        assert name == "action_agreement" or lag[-1]["evaluate/episodes"] == 30


@pytest.mark.parametrize(
    "metric",
    [
        negative_action_error,
        action_log_prob,
        fitted_q_evaluation_metric(GAMMA, cfg=ONE_STEP),
        importance_sampling_metric(GAMMA),
        doubly_robust_metric(GAMMA),
    ],
)
def test_a_dataset_that_does_not_fit_the_policy_is_refused(metric):
    box = spaces.Box(-1, 1, (1,), np.float32)
    obs, ends = np.zeros((5, 1), np.float32), np.arange(4) == 3
    rows = {"obs": obs[:-1], "action": np.zeros(4, np.float32), "reward": np.ones(4), "next_obs": obs[1:]}
    dataset = OfflineDataset.from_episodes(Episodes({**rows, "terminated": ends, "truncated": ends & False}, [4]))
    policy = policy_of(BCPolicy, box, box)
    with pytest.raises(SpaceError, match=r"does not fit the policy: the column action .* give action\.reshape\(-1, 1\)\."):
        metric(policy.eval_mode, dataset)
