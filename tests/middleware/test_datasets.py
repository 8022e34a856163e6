"""Recording datasets and learning from them: one more line in a pipeline, in every mode, resumed, and refused by name."""

import dataclasses
import json
import re
import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from recordings import SPACES, Recording, fingerprint
from states import same

from ding_lite import task
from ding_lite.config import BCConfig, DecisionTransformerConfig, DQNConfig, PPOConfig, TD3BCConfig
from ding_lite.contexts import OfflineRLContext, OnlineRLContext
from ding_lite.data import Episodes, ReplayBuffer
from ding_lite.data.trees import has_leaf, with_leaves
from ding_lite.datasets import DatasetError, DatasetWriter, OfflineDataset, open_dataset
from ding_lite.datasets import writers as writers_module
from ding_lite.engine import PipelineError, Task, contract
from ding_lite.envs import SpaceError, make_envs
from ding_lite.middleware import (
    CkptSaver,
    EpisodeCollector,
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    eps_greedy_handler,
    gae_estimator,
    metric_evaluator,
    multistep_trainer,
    nstep_reward_enhancer,
    offline_data_fetcher,
    offline_data_saver,
    offline_logger,
    reward_estimator,
    reward_normalizer,
    trainer,
)
from ding_lite.policy import BCPolicy, DQNPolicy, PPOPolicy, TD3BCPolicy

MODES = pytest.mark.parametrize(
    "mode",
    [{}, {"max_lag": 1}, {"async_mode": True}, {"async_mode": True, "max_lag": 3}],
    ids=["plain", "lag", "threads", "lag 3"],
)
SMALL = {
    "policy.model.encoder_hidden_size_list": [16],
    "policy.learn.batch_size": 16,
    "policy.learn.update_per_collect": 1,
    "policy.learn.learning_starts": 1,
    "policy.collect.n_sample": 12,
    "policy.eval.evaluator.eval_freq": 3,
}


def small(folder, **settings):
    return DQNConfig(exp_name=str(folder)).override({**SMALL, **settings})


def policy_for(cfg, seed=0):
    cfg.seed = seed
    envs = make_envs("CartPole-v1", 1)
    return DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)


def online(folder, mode, steps, resume=None, collector=StepCollector, save=None, workers=1):
    """A short run of DQN that records; returns all that was pushed into its buffer."""
    cfg = small(folder)
    envs = make_envs("CartPole-v1", 4, seed=0, workers=workers, backend="process" if workers > 1 else "local")
    policy = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
    buffer, task = ReplayBuffer(5000), Task()
    try:
        with task.start(ctx=OnlineRLContext(), resume=resume, **mode):
            task.use(eps_greedy_handler(cfg)).use(collector(cfg, policy.collect_mode, envs))
            task.use(offline_data_saver(cfg, folder / "data"))
            task.use(data_pusher(cfg, buffer)).use(OffPolicyLearner(cfg, policy.learn_mode, buffer))
            if save is not None:
                task.use(CkptSaver(policy, folder, train_freq=save))
            task.run(max_step=steps)
    finally:
        envs.close()
    return buffer


def sorted_rows(rows):
    leaves = [np.asarray(rows[name], np.float64) for name in ("obs", "action", "reward", "next_obs", "terminated", "truncated")]
    table = np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)
    return table[np.lexsort(table.T)]


class TestSaving:
    @pytest.mark.few
    @MODES
    @pytest.mark.parametrize("collector", [StepCollector, EpisodeCollector])
    def test_every_transition_is_recorded(self, mode, collector, tmp_path):
        buffer = online(tmp_path, mode, 12, collector=collector)
        dataset = OfflineDataset(tmp_path / "data")
        assert len(dataset) == len(buffer) > 100
        assert np.array_equal(sorted_rows(dataset.rows()), sorted_rows(buffer.state_dict()["columns"]))
        assert dataset.finished.all() == (collector is EpisodeCollector)

    def test_from_worker_processes(self, tmp_path):
        buffer = online(tmp_path, {}, 6, workers=2)
        dataset = OfflineDataset(tmp_path / "data")
        assert np.array_equal(sorted_rows(dataset.rows()), sorted_rows(buffer.state_dict()["columns"]))

    def test_it_says_where_it_is_from(self, tmp_path):
        online(tmp_path, {}, 2)
        dataset = OfflineDataset(tmp_path / "data")
        (source,) = dataset.sources
        assert (source["run"], source["seed"], source["environments"][0]["name"]) == (str(tmp_path), 0, "CartPole-v1")
        assert source["policies"][0]["algorithm"] == "DQNPolicy"
        assert {"ding_lite", "torch", "numpy", "gymnasium", "python"} <= set(source["versions"])
        envs = make_envs("CartPole-v1", 1)
        assert (dataset.observation_space, dataset.action_space) == (envs.single_observation_space, envs.single_action_space)

    def test_further_columns_of_the_policy(self, tmp_path):
        cfg = PPOConfig(exp_name=str(tmp_path)).override({"policy.collect.n_sample": 16, "policy.learn.epoch_per_collect": 1})
        envs, task = make_envs("CartPole-v1", 4), Task()
        policy = PPOPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space)
        with task.start(ctx=OnlineRLContext()):
            task.use(StepCollector(cfg, policy.collect_mode, envs)).use(offline_data_saver(cfg, tmp_path / "data"))
            task.use(gae_estimator(cfg, policy.collect_mode)).use(multistep_trainer(cfg, policy.learn_mode)).run(2)
        rows = OfflineDataset(tmp_path / "data").rows()
        assert "advantage" not in rows
        log_prob, _ = rows["log_prob"], rows["policy_version"]
        assert log_prob.shape == (32,)
        assert (log_prob < 0).all()

    def test_slices_of_a_run_are_the_whole_run(self, tmp_path):
        online(tmp_path / "whole", {}, 9)
        cfg, task = small(tmp_path / "parts"), Task()
        envs = make_envs("CartPole-v1", 4, seed=0)
        policy, buffer = DQNPolicy(cfg.policy, envs.single_observation_space, envs.single_action_space), ReplayBuffer(5000)
        with task.start(ctx=OnlineRLContext()):
            task.use(eps_greedy_handler(cfg)).use(StepCollector(cfg, policy.collect_mode, envs))
            task.use(offline_data_saver(cfg, tmp_path / "parts" / "data"))
            task.use(data_pusher(cfg, buffer)).use(OffPolicyLearner(cfg, policy.learn_mode, buffer))
            task.run(4)
            assert len(OfflineDataset(tmp_path / "parts" / "data")) == 48
            task.run(5)
        one, other = (OfflineDataset(tmp_path / run / "data") for run in ("whole", "parts"))
        assert list(map(fingerprint, one)) == list(map(fingerprint, other))

    @pytest.mark.few
    @MODES
    def test_a_resumed_run_has_the_dataset_of_an_unbroken_one(self, mode, tmp_path, monkeypatch):
        monkeypatch.setattr(writers_module, "_CHUNK_BYTES", 3000)
        online(tmp_path / "whole", mode, 12, save=4)
        online(tmp_path / "broken", mode, 6, save=4)
        online(tmp_path / "broken", mode, 12, resume=tmp_path / "broken", save=4)
        one, other = (OfflineDataset(tmp_path / run / "data") for run in ("whole", "broken"))
        assert len(one) == len(other) == 144
        assert list(map(fingerprint, one)) == list(map(fingerprint, other))

    def test_what_is_held_is_written_after_an_error(self, tmp_path):
        cfg, task, envs = small(tmp_path), Task(), make_envs("CartPole-v1", 4)
        policy = policy_for(cfg)

        @contract(stage="record")
        def fails(ctx):
            if ctx.total_step == 3:
                raise RuntimeError("broken")

        with task.start(ctx=OnlineRLContext()):
            task.use(StepCollector(cfg, policy.collect_mode, envs, collect_kwargs={"eps": 0.5}))
            task.use(offline_data_saver(cfg, tmp_path / "data")).use(fails)
            with pytest.raises(RuntimeError, match="broken"):
                task.run(10)
        assert len(OfflineDataset(tmp_path / "data")) == 48

    @pytest.mark.parametrize(
        ("name", "change", "words"),
        [
            ("reward", lambda column: column.astype(np.float64), r"reward is float64 \(\), and float32 \(\) in the dataset"),
            (
                "action",
                lambda column: column.astype(np.uint64) + np.uint64(2**63),
                "'action' has the number 922337203685477580",
            ),
        ],
    )
    def test_rows_before_those_that_cannot_be_stored_are_kept(self, name, change, words, tmp_path):
        cfg, task, envs = small(tmp_path), Task(), make_envs("CartPole-v1", 4)
        policy = policy_for(cfg)

        @contract(reads=("trajectories",), writes=("trajectories",), stage="process")
        def changes(ctx):
            if ctx.total_step == 3:
                columns = ctx.trajectories.columns
                ctx.trajectories = ctx.trajectories.with_columns(**{name: change(columns[name])})

        with task.start(ctx=OnlineRLContext()):
            task.use(StepCollector(cfg, policy.collect_mode, envs, collect_kwargs={"eps": 0.5})).use(changes)
            task.use(offline_data_saver(cfg, tmp_path / "data"))
            with pytest.raises(DatasetError, match=words):
                task.run(10)
        assert len(OfflineDataset(tmp_path / "data")) == 36
        DatasetWriter(tmp_path / "data", append=True).begin(None, None)  # it is free for others

    def test_a_dataset_that_exists_is_as_before_after_the_error(self, tmp_path):
        online(tmp_path, {}, 3)
        before = (tmp_path / "data" / "dataset.json").read_bytes()
        with pytest.raises(DatasetError, match="there is a dataset of 36 transitions"):
            online(tmp_path, {}, 3)
        assert (tmp_path / "data" / "dataset.json").read_bytes() == before

    def test_a_step_that_is_both_terminated_and_truncated_is_only_terminated(self, tmp_path):
        class Ends(gymnasium.Env):
            observation_space, action_space = SPACES["box"], spaces.Discrete(2)

            def reset(self, *, seed=None, options=None):
                self.count = 0
                return np.zeros(3, np.float32), {}

            def step(self, action):
                self.count += 1
                return np.full(3, self.count, np.float32), 1.0, self.count == 2, self.count == 2, {}

        cfg, task, envs = small(tmp_path, **{"policy.collect.n_sample": 4}), Task(), make_envs(Ends, 1)
        policy = DQNPolicy(cfg.policy, SPACES["box"], spaces.Discrete(2))
        with task.start(ctx=OnlineRLContext()):
            task.use(StepCollector(cfg, policy.collect_mode, envs, collect_kwargs={"eps": 0.5}))
            task.use(offline_data_saver(cfg, tmp_path / "data")).run(1)
        rows = OfflineDataset(tmp_path / "data").rows()
        assert rows["terminated"].tolist() == [False, True, False, True]
        assert not rows["truncated"].any()

    @pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
    def test_a_new_run_of_the_process_may_add_after_one_that_broke(self, error, tmp_path):
        cfg, envs = small(tmp_path), make_envs("CartPole-v1", 4)
        policy = policy_for(cfg)

        @contract(stage="record")
        def fails(ctx):
            if ctx.total_step == 3 and error is not None:
                raise error

        def run():
            envs.reset()
            with task.start(ctx=OnlineRLContext()):
                task.use(StepCollector(cfg, policy.collect_mode, envs, collect_kwargs={"eps": 0.5}))
                task.use(offline_data_saver(cfg, tmp_path / "data", append=True)).use(fails).run(5)

        with pytest.raises(error):
            run()
        before = len(OfflineDataset(tmp_path / "data")) if error is RuntimeError else 0
        error = None
        run()
        assert len(OfflineDataset(tmp_path / "data")) == before + 60

    @pytest.mark.few
    @MODES
    @pytest.mark.parametrize("kind", ["local", "process", "gymnasium", "same step"])
    def test_only_whole_episodes_of_environments_that_were_used_before(self, kind, mode, tmp_path):
        cfg, finished = small(tmp_path), []
        if kind in ("local", "process"):
            envs = make_envs("CartPole-v1", 4, workers=2 if kind == "process" else 1, backend=kind)
        else:
            reset = (
                gymnasium.vector.AutoresetMode.SAME_STEP if kind == "same step" else gymnasium.vector.AutoresetMode.NEXT_STEP
            )
            envs = gymnasium.make_vec("CartPole-v1", 4, vectorization_mode="sync", vector_kwargs={"autoreset_mode": reset})
        policy = policy_for(cfg)

        def run(*others, steps):
            task = Task()
            with task.start(ctx=OnlineRLContext(), **mode):
                task.use(StepCollector(cfg, policy.collect_mode, envs, collect_kwargs={"eps": 1.0}))
                [task.use(one) for one in others]
                task.run(steps)

        run(contract(reads=("trajectories",), stage="record")(lambda ctx: None), steps=3)
        seen = contract(reads=("finished_episodes",), stage="record")(lambda ctx: finished.extend(ctx.finished_episodes))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run(offline_data_saver(cfg, tmp_path / "data"), seen, steps=40)
        envs.close()
        assert len([one for one in caught if "are in the middle of an episode" in str(one.message)]) == 1
        first = {env: min(one.number for one in finished if one.env == env) for env in range(4)}
        whole = [one.length for one in finished if one.number > first[one.env]]
        dataset = OfflineDataset(tmp_path / "data")
        assert sorted(dataset.lengths[dataset.finished]) == sorted(whole)
        assert len(whole) > 8
        assert all(abs(episode.obs[0]).max() <= 0.05 for episode in dataset)  # as after a reset

    def test_environments_that_were_reset_are_recorded_from_their_first_step(self, tmp_path):
        cfg, envs = small(tmp_path), make_envs("CartPole-v1", 4)
        policy = policy_for(cfg)
        for name in ("one", "other"):
            envs.reset()
            with task.start(ctx=OnlineRLContext()), warnings.catch_warnings():
                warnings.simplefilter("error")
                task.use(StepCollector(cfg, policy.collect_mode, envs, collect_kwargs={"eps": 0.5}))
                task.use(offline_data_saver(cfg, tmp_path / name)).run(2)
            assert len(OfflineDataset(tmp_path / name)) == 24

    def test_an_existing_dataset_is_refused_before_the_run(self, tmp_path):
        online(tmp_path, {}, 2)
        with pytest.raises(
            DatasetError, match=r"there is a dataset of 24 transitions in .*data: choose another folder"
        ) as raised:
            online(tmp_path, {}, 2)
        assert "in begin_run of offline_data_saver, before the first iteration" in raised.value.__notes__[0]

    def again(self, folder, seed, resume=None, steps=3, trained=None):
        """A run that adds to a dataset; returns the warnings about copies."""
        cfg = small(folder / f"run_{seed}")
        cfg.seed = seed
        envs, task = make_envs("CartPole-v1", 4, seed=seed), Task()
        policy = trained or policy_for(cfg, seed)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with task.start(ctx=OnlineRLContext(), resume=resume):
                task.use(StepCollector(cfg, policy.collect_mode, envs, collect_kwargs={"eps": 0.5}))
                task.use(offline_data_saver(cfg, folder / "data", append=True))
                task.use(CkptSaver(policy, cfg.exp_name, train_freq=1))
                task.run(steps)
                task.run(steps + 1)  # a second slice
        return [str(one.message) for one in caught if "is a copy of it" in str(one.message)]

    def test_the_same_recording_twice_is_a_warning(self, tmp_path):
        assert not self.again(tmp_path, seed=0)
        assert not self.again(tmp_path, seed=1)
        (words,) = self.again(tmp_path, seed=1)
        assert "data has a recording with seed 1, the same environments and the same policy already" in words
        assert "use another seed, for the configuration and for make_envs" in words
        dataset = OfflineDataset(tmp_path / "data")
        assert dataset.sources[1]["weights"] == dataset.sources[2]["weights"] != dataset.sources[0]["weights"]

    def test_a_resumed_run_and_another_policy_are_no_copies(self, tmp_path):
        assert not self.again(tmp_path, seed=0)
        assert not self.again(tmp_path, seed=0, resume=tmp_path / "run_0", steps=6)
        other = policy_for(small(tmp_path), 0)
        other.set_weights({name: tensor + 0.1 for name, tensor in other.get_weights().items()})
        assert not self.again(tmp_path, seed=0, trained=other)

    @pytest.mark.parametrize(
        ("changes", "collector"),
        [
            ("normalizer", StepCollector),  # it is for rollouts
            *(
                (model, one)
                for model in ("model with raw_reward", "model without")
                for one in (StepCollector, EpisodeCollector)
            ),
        ],
    )
    def test_rewards_are_those_of_the_environment_behind_middleware_that_changes_them(self, changes, collector, tmp_path):
        keeps = {"raw_reward": True} if changes == "model with raw_reward" else {}

        class Model:
            def estimate(self, batch):
                return with_leaves(batch, reward=batch.reward * 7, **dict.fromkeys(keeps, batch.reward))

        cfg, envs, task = small(tmp_path), make_envs("CartPole-v1", 4), Task()
        policy = policy_for(cfg)
        with task.start(ctx=OnlineRLContext()):
            task.use(collector(cfg, policy.collect_mode, envs, collect_kwargs={"eps": 0.5}))
            if changes == "normalizer":
                task.use(reward_normalizer(cfg, policy.learn_mode))
            else:
                task.use(reward_estimator(cfg, Model(), of="trajectories"))
            task.use(offline_data_saver(cfg, tmp_path / "data")).run(3)
        dataset = OfflineDataset(tmp_path / "data")
        assert set(dataset.rows()["reward"].tolist()) == {1.0}
        assert "raw_reward" not in dataset.columns

    @pytest.mark.parametrize("order", ["normalizer, model", "model, normalizer", "model, model", "model in place"])
    def test_rewards_are_those_of_the_environment_behind_several_changes(self, order, tmp_path):
        class Model:
            def estimate(self, batch):
                return with_leaves(batch, reward=batch.reward * 7, raw_reward=batch.reward)

        class InPlace:
            def estimate(self, batch):
                batch.reward += 10
                return batch

        cfg, envs, task = small(tmp_path), make_envs("CartPole-v1", 4), Task()
        policy = policy_for(cfg)
        with task.start(ctx=OnlineRLContext()):
            task.use(StepCollector(cfg, policy.collect_mode, envs, collect_kwargs={"eps": 0.5}))
            for change in order.split(", "):
                if change == "normalizer":
                    task.use(reward_normalizer(cfg, policy.learn_mode))
                else:
                    task.use(reward_estimator(cfg, Model() if change == "model" else InPlace(), of="trajectories"))
            task.use(offline_data_saver(cfg, tmp_path / "data")).run(3)
        assert set(OfflineDataset(tmp_path / "data").rows()["reward"].tolist()) == {1.0}
        assert (task.ctx.trajectories.columns["reward"] != 1).all()

    def test_it_belongs_before_changes_of_rewards(self, tmp_path):
        cfg, task, envs = small(tmp_path, **{"policy.nstep": 3}), Task(), make_envs("CartPole-v1", 4)
        policy = policy_for(cfg)
        with task.start(ctx=OnlineRLContext()):
            task.use(StepCollector(cfg, policy.collect_mode, envs, collect_kwargs={"eps": 0.5}))
            task.use(nstep_reward_enhancer(cfg)).use(offline_data_saver(cfg, tmp_path / "data"))
            with pytest.raises(DatasetError, match="Put offline_data_saver before it"):
                task.run(10)

    def test_wrong_arguments(self, tmp_path):
        with pytest.raises(TypeError, match="wants the folder of the dataset, got 3 of type int"):
            offline_data_saver(small(tmp_path), 3)
        with pytest.raises(TypeError, match=r"data_path.*offline_data_saver\(cfg, path\)"):
            offline_data_saver(data_path="x")


@pytest.fixture
def recorded(tmp_path):
    recording = Recording(num_envs=4, seed=1)
    writer = DatasetWriter(tmp_path / "recorded")
    writer.begin(SPACES["box"], SPACES["discrete"], {})
    writer.add(recording.rollout(30))
    writer.flush()
    return tmp_path / "recorded"


BOX = spaces.Box(-2, 2, (1,), np.float32)


def arrays():
    """Nine transitions of one episode, without spaces."""
    obs, ends = np.arange(30, dtype=np.float32).reshape(10, 3), np.arange(9) == 8
    action = np.linspace(-2, 2, 9, dtype=np.float32)[:, None]
    rows = {"obs": obs[:-1], "action": action, "reward": np.ones(9), "next_obs": obs[1:]}
    return {**rows, "terminated": ends, "truncated": np.zeros(9, bool)}


@dataclasses.dataclass
class Seen(OfflineRLContext):
    pass


class TestFetching:
    @MODES
    def test_each_transition_once_in_a_pass(self, mode, recorded, tmp_path):
        cfg, task, seen = small(tmp_path), Task(), []

        @contract(reads=("train_data", "train_epoch"), stage="learn")
        def looks(ctx):
            seen.append((ctx.train_epoch, ctx.train_data.obs.clone()))

        with task.start(ctx=OfflineRLContext(), **mode):
            task.use(offline_data_fetcher(cfg, recorded)).use(looks).run(16)
        dataset = OfflineDataset(recorded)
        assert [epoch for epoch, _ in seen] == [0] * 7 + [1] * 8 + [2]
        for first in (0, 8):
            rows = torch.cat([obs for _, obs in seen[first : first + 8]]).tolist()
            assert sorted(rows) == sorted(dataset.rows()["obs"].tolist())

    def test_only_the_columns_that_the_policy_reads(self, tmp_path):
        online(tmp_path, {}, 8)
        cfg = small(tmp_path)
        policy, task = policy_for(cfg), Task()
        with task.start(ctx=OfflineRLContext()):
            task.use(offline_data_fetcher(cfg, tmp_path / "data", policy.learn_mode)).use(trainer(cfg, policy.learn_mode)).run(
                1
            )
            assert has_leaf(task.ctx.train_data, "reward")
            assert not has_leaf(task.ctx.train_data, "policy_version")

    @pytest.mark.few
    @pytest.mark.parametrize(
        ("mode", "stop"),
        [
            ({}, 1),
            ({}, 5),
            ({"max_lag": 1}, 3),
            ({"async_mode": True}, 7),
            ({"async_mode": True, "max_lag": 3}, 1),
            ({"async_mode": True, "max_lag": 3}, 5),
        ],
    )
    def test_resumed_in_the_middle_of_a_pass(self, mode, stop, tmp_path):
        online(tmp_path, {}, 6)  # a pass is four batches and a half
        results = []
        for parts in ([9], [stop, 9]):
            folder, resume = tmp_path / f"run{len(parts)}", None
            for until in parts:
                cfg = small(folder)
                policy, task = policy_for(cfg), Task()
                with task.start(ctx=OfflineRLContext(), resume=resume, **mode):
                    task.use(offline_data_fetcher(cfg, tmp_path / "data")).use(trainer(cfg, policy.learn_mode))
                    task.use(CkptSaver(policy, folder, train_freq=1)).run(until)
                resume = folder
            results.append((policy.state_dict(), task.ctx.train_epoch, task.ctx.train_iter))
        assert same(*results)

    @pytest.mark.few
    @MODES
    def test_a_finished_run_that_is_resumed_logs_its_passes(self, mode, recorded, tmp_path):
        last_rows = []
        for resume in (None, tmp_path / "run"):
            cfg, task = small(tmp_path / "run"), Task()
            with task.start(ctx=OfflineRLContext(), resume=resume, **mode):
                task.use(offline_data_fetcher(cfg, recorded))
                task.use(metric_evaluator(cfg, policy_for(cfg).eval_mode, recorded, lambda policy, dataset: 1))
                task.use(CkptSaver(policy_for(cfg), cfg.exp_name, train_freq=1)).use(offline_logger(cfg)).run(20)
            last_rows.append(json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1]))
            assert task.ctx.train_epoch == 2
        assert [row["train_epoch"] for row in last_rows] == [2, 2]

    def test_threads_give_the_result_of_one_thread(self, tmp_path):
        online(tmp_path, {}, 10)
        found = []
        for mode in ({}, {"async_mode": True}, {"max_lag": 2}):
            cfg = small(tmp_path)
            policy, task = policy_for(cfg), Task()
            with task.start(ctx=OfflineRLContext(), **mode):
                task.use(offline_data_fetcher(cfg, tmp_path / "data")).use(trainer(cfg, policy.learn_mode)).run(20)
            found.append(policy.state_dict()["model"])
        assert same(found[0], found[1])
        assert same(found[0], found[2])

    def test_box_actions_are_clipped_as_they_were_for_the_environment(self, tmp_path):
        space, rng = spaces.Box(np.float32([-1, 0]), np.float32([1, np.inf])), np.random.default_rng(0)
        rows = {name: column[:, 0] for name, column in Recording(num_envs=1).rollout(20).columns.items()}
        rows["action"] = (3 * rng.normal(size=(20, 2))).astype(np.float32)
        writer = DatasetWriter(tmp_path / "data")
        writer.begin(SPACES["box"], space, {})
        writer.add(Episodes(rows, [20]))
        writer.flush()
        task = Task()
        with task.start(ctx=OfflineRLContext()):
            task.use(offline_data_fetcher(small(tmp_path, **{"policy.learn.batch_size": 20}), tmp_path / "data")).run(1)
            found = task.ctx.train_data.action
        clipped = np.clip(rows["action"], space.low, space.high)
        assert sorted(found.tolist()) == sorted(clipped.tolist()) != sorted(rows["action"].tolist())

    def test_an_empty_dataset_and_other_spaces_are_refused(self, recorded, tmp_path):
        cfg = small(tmp_path)
        DatasetWriter(tmp_path / "empty").flush()
        with pytest.raises(ValueError, match="which has no transitions: collect some first"):
            offline_data_fetcher(cfg, tmp_path / "empty")
        with pytest.raises(TypeError, match=r"the dataset .*recorded was recorded with the observation space Box.*\(3,\)"):
            offline_data_fetcher(cfg, recorded, policy_for(cfg).learn_mode)
        with pytest.raises(DatasetError, match="there is no dataset"):
            offline_data_fetcher(cfg, tmp_path / "missing")

    @pytest.mark.parametrize(
        ("changes", "space", "words"),
        [
            ({}, spaces.Box(-1, 1, (2,)), r"the column action has elements float32 \(1,\), and .* wants float32 \(2,\)"),
            ({"action": np.arange(9) % 2}, BOX, "if these are actions of a Discrete space"),
            ({"action": (np.arange(9) % 2)[:, None]}, spaces.Discrete(2), r"give action\.reshape\(-1\)\."),
            ({"obs": np.zeros((9, 4)), "next_obs": np.zeros((9, 4))}, BOX, r"the column obs has elements float64 \(4,\)"),
            (
                {"obs": {"a": np.zeros((9, 3))}, "next_obs": {"a": np.zeros((9, 3))}},
                BOX,
                r"the column obs has the parts \['a'\]",
            ),
        ],
    )
    def test_arrays_without_spaces_are_compared_with_the_policy(self, changes, space, words):
        dataset, cfg = open_dataset({**arrays(), **changes}), BCConfig()
        policy = BCPolicy(cfg.policy, SPACES["box"], space)
        with pytest.raises(SpaceError, match=f"the dataset of these arrays does not fit the policy: .*{words}"):
            offline_data_fetcher(cfg, dataset, policy.learn_mode)

    def test_flat_actions_of_one_number_are_refused_with_the_fix(self):
        policy = BCPolicy(BCConfig().policy, SPACES["box"], BOX)
        with pytest.raises(SpaceError, match=r"give action\.reshape\(-1, 1\)\."):
            offline_data_fetcher(BCConfig(), {**arrays(), "action": arrays()["action"][:, 0]}, policy.learn_mode)

    def test_one_known_space_does_not_hide_the_other(self):
        dataset = open_dataset(arrays(), action_space=BOX)
        policy = BCPolicy(BCConfig().policy, SPACES["box"], spaces.Box(-1, 1, (1,), np.float32))
        with pytest.raises(SpaceError, match="was recorded with the action space"):
            offline_data_fetcher(BCConfig(), dataset, policy.learn_mode)

    def test_returns_of_several_steps_are_refused(self, recorded, tmp_path):
        with pytest.raises(ValueError, match=r"policy\.nstep = 3, and the dataset .* single steps.* Set policy\.nstep = 1"):
            offline_data_fetcher(small(tmp_path, **{"policy.nstep": 3}), recorded)

    @pytest.mark.filterwarnings("error")
    def test_actions_beyond_the_bounds_are_a_warning(self):
        rows, mode = arrays(), BCPolicy(BCConfig().policy, SPACES["box"], BOX).learn_mode
        offline_data_fetcher(BCConfig(), {**rows, "action": rows["action"] * np.float32(1.0001)}, mode)
        words = r"33\.3% of the actions of the dataset of these arrays are beyond .* up to -6: they are clipped to them"
        rows["action"][:3] = -6
        with pytest.warns(UserWarning, match=words):
            offline_data_fetcher(BCConfig(), rows, mode)
        nested_space = spaces.Dict({"a": BOX, "b": spaces.Discrete(3)})
        action = {"a": rows["action"], "b": np.zeros(9, np.int64)}
        with pytest.warns(UserWarning, match=f"{words} for learning.* rescale the column action/a"):
            offline_data_fetcher(BCConfig(), open_dataset({**rows, "action": action}, action_space=nested_space))
        made_by = {"policies": [{"algorithm": "PPOPolicy"}]}  # it samples beyond the bounds
        recorded = OfflineDataset.from_episodes(open_dataset(rows).episodes(), SPACES["box"], BOX, made_by)
        offline_data_fetcher(BCConfig(), recorded, mode)
        for parts in ([recorded, rows], [rows, recorded]):
            with pytest.warns(UserWarning, match=r"33\.3% of the actions of the dataset .* are beyond"):
                offline_data_fetcher(BCConfig(), parts, mode)

    def test_numbers_without_spaces_are_compared_with_the_policy(self):
        places = np.zeros((9, 2), np.int64)
        places[4] = 2, 1
        rows = {**arrays(), "obs": places, "next_obs": np.roll(places, -1, 0)}
        policy = BCPolicy(BCConfig().policy, spaces.MultiDiscrete([2, 3]), BOX)
        with pytest.raises(SpaceError, match="does not fit the policy: the column obs has the number 2, which is outside of"):
            offline_data_fetcher(BCConfig(), rows, policy.learn_mode)
        rows = {**arrays(), "action": np.full((9, 3), 2, np.int8)}
        policy = BCPolicy(BCConfig().policy, SPACES["box"], spaces.MultiBinary(3))
        with pytest.raises(SpaceError, match="does not fit the policy: the column action has the number 2"):
            offline_data_fetcher(BCConfig(), rows, policy.learn_mode)

    def test_a_return_that_no_episode_has_had_is_a_warning(self, recorded, tmp_path):
        cfg = DecisionTransformerConfig().override({"policy.target_return": 1e4})
        with pytest.warns(UserWarning, match="policy.target_return = 10000 is far above the highest return in the dataset"):
            offline_data_fetcher(cfg, recorded)

    @pytest.mark.filterwarnings("error")
    @pytest.mark.parametrize("column", ["obs", "action", "next_obs"])
    def test_numbers_that_are_not_finite_are_refused_before_the_run(self, column):
        rows, mode = arrays(), BCPolicy(BCConfig().policy, SPACES["box"], BOX).learn_mode
        rows = {name: value.copy() for name, value in rows.items()}
        rows[column][8, 0] = np.nan
        if column == "obs":
            rows["next_obs"][7, 0] = np.nan
        rows["terminated"], rows["truncated"] = rows["terminated"] & False, rows["terminated"] | rows["truncated"]
        words = rf"the column {column} of the dataset .* has the value nan in row 8, .* dataset\.select\(dataset\.finite\)"
        for policy in (mode, None):
            if policy is mode and column == "next_obs":  # which behaviour cloning does not read
                offline_data_fetcher(BCConfig(), rows, policy)
                continue
            with pytest.raises(DatasetError, match=words):
                offline_data_fetcher(BCConfig(), rows, policy)

    @pytest.mark.filterwarnings("error")
    def test_rewards_that_are_not_finite_are_refused_where_the_policy_reads_them(self):
        rows, mode = arrays(), BCPolicy(BCConfig().policy, SPACES["box"], BOX).learn_mode
        rows["reward"][4] = np.nan
        offline_data_fetcher(BCConfig(), rows, mode)  # it does not read them
        words = "the column reward of the dataset of these arrays has the value nan in row 4"
        with pytest.warns(UserWarning, match=words):
            offline_data_fetcher(BCConfig(), rows)
        critic = TD3BCPolicy(TD3BCConfig().policy, SPACES["box"], BOX).learn_mode
        with pytest.raises(DatasetError, match=words):
            offline_data_fetcher(TD3BCConfig(), rows, critic)

    @pytest.mark.filterwarnings("error")
    @pytest.mark.parametrize("wrong", [-0.5, np.nan, np.inf, 1e300])
    def test_weights_that_are_no_weights_of_a_loss_are_refused(self, wrong):
        rows, mode = arrays(), BCPolicy(BCConfig().policy, SPACES["box"], BOX).learn_mode
        rows["weight"] = np.linspace(0, 1, len(rows["reward"]))
        offline_data_fetcher(BCConfig(), rows, mode)
        rows["weight"][[4, 6]] = wrong
        value = re.escape(str(wrong))
        words = f"the column weight of the dataset .* has the value {value} in row 4; 2 of 9 weights are such.*of at least 0"
        with pytest.raises(DatasetError, match=words):
            offline_data_fetcher(BCConfig(), rows, mode)
        with pytest.warns(UserWarning, match=words):
            offline_data_fetcher(BCConfig(), rows)

    @pytest.mark.filterwarnings("error")
    def test_observations_beyond_the_bounds_are_a_warning(self):
        rows, cfg = arrays(), BCConfig()
        near, far = (spaces.Box(0, high, (3,), np.float32) for high in (29, 14))
        half = spaces.Box(np.float32([0, 0, -np.inf]), np.float32([np.inf, np.inf, 14]))
        offline_data_fetcher(cfg, open_dataset(rows, near, BOX))
        offline_data_fetcher(cfg, open_dataset(rows, spaces.Box(-np.inf, np.inf, (3,), np.float32), BOX))
        for space, words in ((far, r"44\.4% .* up to 26 in the column obs\."), (half, r"44\.4% .* up to 26 in")):
            with pytest.warns(UserWarning, match=f"{words}.*If they have another scale") as found:
                offline_data_fetcher(cfg, open_dataset(rows, space, BOX))
            assert len(found) == 1
        with pytest.warns(UserWarning, match="of the observations of the dataset of these arrays are beyond the bounds of Box"):
            offline_data_fetcher(cfg, rows, BCPolicy(cfg.policy, far, BOX).learn_mode)
        nested_rows = {**rows, "obs": {"a": rows["obs"]}, "next_obs": {"a": rows["next_obs"]}}
        with pytest.warns(UserWarning, match="in the column obs/a"):
            offline_data_fetcher(cfg, open_dataset(nested_rows, spaces.Dict({"a": far}), BOX))

    def test_windows_have_no_steps_of_unfinished_episodes(self, recorded, tmp_path):
        cfg, data = DecisionTransformerConfig(exp_name=str(tmp_path)), OfflineDataset(recorded)
        cfg = cfg.override({"policy.learn.batch_size": 10_000})
        data = data.select([*np.flatnonzero(~data.finished), *np.flatnonzero(data.finished)[:5]])
        count, steps = (~data.finished).sum(), data.lengths[~data.finished].sum()
        words = f"{count} of {data.num_episodes} episodes of the dataset .* and are left out with their {steps} steps"
        task = Task()
        with task.start(ctx=OfflineRLContext()):
            with pytest.warns(UserWarning, match=words):
                task.use(offline_data_fetcher(cfg, data))
            task.run(1)
            found = task.ctx.train_data
        assert sorted(found.return_to_go[:, -1].tolist()) == sorted(data.select(data.finished).returns_to_go.tolist())
        with pytest.raises(ValueError, match=rf"none of its {count} episodes is recorded up to its end"):
            offline_data_fetcher(cfg, data.select(~data.finished))

    def test_few_unfinished_episodes_are_left_out_silently(self, recorded, recwarn):
        data = OfflineDataset(recorded)
        whole = np.flatnonzero(data.finished)
        offline_data_fetcher(DecisionTransformerConfig(), data.select([*np.tile(whole, 100), *np.flatnonzero(~data.finished)]))
        assert not [one for one in recwarn.list if "are left out" in str(one.message)]


class TestMetrics:
    def run(self, folder, metric, mode=None, steps=9, **options):
        cfg = small(folder)
        policy, task = policy_for(cfg), Task()
        with task.start(ctx=OfflineRLContext(), **(mode or {})):
            task.use(metric_evaluator(cfg, policy.eval_mode, folder / "data", metric, **options))
            task.use(offline_data_fetcher(cfg, folder / "data")).use(trainer(cfg, policy.learn_mode))
            task.use(CkptSaver(policy, folder / "run")).use(offline_logger(cfg))
            task.run(steps)
        return task

    @pytest.mark.few
    @MODES
    def test_it_measures_the_policy_at_intervals_and_at_the_end(self, mode, tmp_path):
        online(tmp_path, {}, 10)
        found = []

        def agreement(policy, dataset):
            rows = dataset.rows()
            action, _, _ = policy.forward(rows["obs"])
            found.append(float((action == rows["action"]).mean()))
            return {"value": found[-1], "rows": len(rows["obs"])}

        task = self.run(tmp_path, agreement, mode)
        assert 0 < found[-1] < 1
        assert (task.ctx.last_eval_value, task.ctx.last_eval_iter) == (found[-1], 9)
        lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
        assert [line["evaluate/score"] for line in lines if "evaluate/score" in line][-1] == found[-1]
        assert lines[-1]["evaluate/rows"] == 120
        best = torch.load(tmp_path / "run" / "ckpt" / "best.pt", weights_only=True)
        assert best["eval_value"] == max(found)

    def test_it_ends_the_run_at_its_stop_value(self, tmp_path):
        online(tmp_path, {}, 10)
        task = self.run(tmp_path, lambda policy, dataset: policy.current().train_iter, stop_value=3, steps=100)
        assert task.ctx.train_iter == 4  # the iteration of the evaluation is completed
        assert "metric_evaluator found 3 on the dataset" in str(task.end_reason)

    @pytest.mark.few
    @pytest.mark.parametrize(
        ("result", "words"),
        [
            ("high", "returned value = 'high', expected a number"),
            (float("nan"), "returned NaN"),
            ({"score": 1.0}, 'returned score: return a number, or numbers by name with "value" among them'),
        ],
    )
    def test_a_metric_that_is_none(self, result, words, tmp_path):
        online(tmp_path, {}, 10)
        with pytest.raises((TypeError, ValueError), match=words):
            self.run(tmp_path, lambda policy, dataset: result)
        with pytest.raises(TypeError, match=r"wants a function metric\(policy, dataset\)"):
            metric_evaluator(small(tmp_path), policy_for(small(tmp_path)).eval_mode, tmp_path / "data", 0.5)


def test_recording_needs_a_collector(tmp_path):
    task = Task()
    with task.start(ctx=OnlineRLContext()):
        task.use(offline_data_saver(small(tmp_path), tmp_path / "data"))
        with pytest.raises(PipelineError, match=r"offline_data_saver reads ctx\.trajectories"):
            task.run(1)
    assert not (tmp_path / "data" / "dataset.json").exists()


def texts_of(cfg, recorded, *more):
    """The warnings of settings without effect in a run of two iterations."""
    with warnings.catch_warnings(record=True) as shown, task.start(ctx=OfflineRLContext()):
        warnings.simplefilter("always")
        task.use(offline_data_fetcher(cfg, recorded))
        for one in more:
            task.use(one)
        task.run(2)
    return [str(one.message) for one in shown if "no effect" in str(one.message)]


def test_settings_of_collection_without_effect_are_named(tmp_path, recorded):
    settings = {"policy.learn.update_per_collect": 3, "policy.other.replay_buffer_size": 7, "policy.other.eps.end": 0.5}
    (text,) = texts_of(DQNConfig(exp_name=str(tmp_path / "run")).override(settings), recorded)

    assert text.startswith(", ".join(f"{name} = {value!r}" for name, value in settings.items()) + " have no effect, because")
    assert not texts_of(DQNConfig(exp_name=str(tmp_path / "run")), recorded)


def test_not_in_a_run_that_collects_too(tmp_path, recorded):
    @contract(uses=(Recording(num_envs=1),), stage="collect")
    def collects(ctx):
        pass

    cfg = DQNConfig(exp_name=str(tmp_path / "run")).override({"policy.other.eps.end": 0.5})
    assert texts_of(cfg, recorded)
    assert not texts_of(cfg, recorded, collects)
