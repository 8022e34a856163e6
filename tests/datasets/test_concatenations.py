"""Several datasets as one: rows, windows, fetching, resuming, and datasets that do not fit."""

import json

import numpy as np
import pytest
from gymnasium import spaces
from recordings import SPACES, Recording, fingerprint
from states import same

from ding_lite.config import DecisionTransformerConfig, DiscreteCQLConfig, GAILConfig, SQILConfig, from_command_line
from ding_lite.contexts import OfflineRLContext
from ding_lite.data import flatten, nested
from ding_lite.datasets import DatasetError, DatasetWriter, EpochSampler, OfflineDataset, open_dataset
from ding_lite.engine import Task
from ding_lite.middleware import CkptSaver, metric_evaluator, offline_data_fetcher, trainer
from ding_lite.policy import DecisionTransformerPolicy

ACTIONS = spaces.Discrete(5)


def recorded(folder, seed=0, kind="box", without=(), steps=20):
    recording = Recording(kind, seed=seed)
    writer = DatasetWriter(folder)
    writer.begin(SPACES[kind], ACTIONS, {"seed": seed})
    rollout = recording.rollout(steps)
    for name in without:
        rollout.columns.pop(name)
    writer.add(rollout)
    writer.flush()
    writer.close()
    return OfflineDataset(folder)


def in_memory(dataset, **changes):
    """The finished episodes of a dataset as one in memory, with other columns, and without its spaces."""
    rows = dataset.select(dataset.finished).rows()
    return open_dataset({**rows, **{name: change(rows[name]) for name, change in changes.items()}})


@pytest.mark.few
@pytest.mark.parametrize("kind", SPACES)
def test_it_has_the_episodes_of_all_in_their_order(kind, tmp_path):
    one, two = recorded(tmp_path / "a", 1, kind), recorded(tmp_path / "b", 2, kind)
    memory = in_memory(recorded(tmp_path / "c", 3, kind))
    parts = [one, two.select(np.arange(two.num_episodes)[::-2]), memory, one.best(0.5)]
    joined = open_dataset([tmp_path / "a", *parts[1:]])
    assert list(map(fingerprint, joined)) == [fingerprint(episode) for part in parts for episode in part]
    assert len(joined) == sum(map(len, parts))
    assert np.array_equal(joined.returns, np.concatenate([part.returns for part in parts]))
    assert np.array_equal(joined.finished, np.concatenate([part.finished for part in parts]))
    assert (joined.observation_space, joined.action_space) == (one.observation_space, one.action_space)
    assert [source["seed"] for source in joined.sources if "seed" in source] == [1, 2, 1]
    assert joined.columns == one.columns
    chosen = joined.select(np.random.default_rng(0).permutation(joined.num_episodes))
    assert sorted(map(fingerprint, chosen)) == sorted(map(fingerprint, joined))


def test_windows_and_random_rows_are_those_of_the_parts(tmp_path):
    parts = [recorded(tmp_path / name, seed) for seed, name in enumerate("abc")]
    joined = open_dataset(parts)
    for take in (lambda data, rows: data.take(rows), lambda data, rows: data.windows(rows, 4)):
        rows = np.random.default_rng(0).permutation(len(joined))
        found = dict(flatten(nested(take(joined, rows))))
        wanted = [dict(flatten(nested(take(part, np.arange(len(part)))))) for part in parts]
        for path, leaf in found.items():
            np.testing.assert_array_equal(leaf.numpy(), np.concatenate([part[path].numpy() for part in wanted])[rows])


def test_a_list_of_one_and_of_none(tmp_path):
    one = recorded(tmp_path / "a")
    assert open_dataset([one]) is one
    with pytest.raises(TypeError, match=r"a dataset is wanted, got \[\] of type list"):
        open_dataset([])
    DatasetWriter(tmp_path / "empty").flush()
    assert list(map(fingerprint, open_dataset([tmp_path / "empty", one]))) == list(map(fingerprint, one))
    assert len(open_dataset([tmp_path / "empty", tmp_path / "empty"])) == 0


def test_columns_that_only_one_has_are_left_out_and_numbers_get_the_wider_dtype(tmp_path):
    one, two = recorded(tmp_path / "a", 1), recorded(tmp_path / "b", 2, without=["log_prob"])
    assert set(one.columns) - set(open_dataset([one, two]).columns) == {"log_prob"}
    assert "log_prob" not in open_dataset([two, one]).rows()
    wide = in_memory(one, reward=lambda reward: reward.astype(np.float64) / 3)
    joined = open_dataset([two, wide])
    assert joined.rows()["reward"].dtype == np.float64
    assert np.array_equal(joined.returns, np.concatenate([two.returns, wide.returns]))


def test_what_differs_is_named(tmp_path):
    one, other = recorded(tmp_path / "a"), recorded(tmp_path / "b", kind="image")
    words = r"the datasets .*a and .*b cannot be used as one: the observation space is Box.*\(3,\).* in the first, and Box"
    with pytest.raises(DatasetError, match=words):
        open_dataset([one, other])
    numbers = in_memory(one, action=lambda action: action.astype(np.float32))
    with pytest.raises(DatasetError, match=r"the column action is int64 \(\) in the first, and float32 \(\) in the second"):
        open_dataset([one, numbers])
    rows = one.select(one.finished).rows()
    parts = [{**rows, "info": dict.fromkeys(names, rows["reward"])} for names in ("a", "ab")]
    for order in (parts, parts[::-1]):
        with pytest.raises(DatasetError, match=r"the column info/b is (missing|float32 \(\)) in the first"):
            open_dataset(order)


def test_the_fingerprint_is_that_of_the_parts_in_their_order(tmp_path):
    one, two = recorded(tmp_path / "a", 1), recorded(tmp_path / "b", 1, steps=21)
    three = in_memory(recorded(tmp_path / "c", 1))
    known = open_dataset([one, two, three]).fingerprint
    assert known == open_dataset([tmp_path / "a", tmp_path / "b", three]).fingerprint
    others = [[two, one, three], [one, two], [one, two, in_memory(three, reward=lambda reward: reward + 1)]]
    assert known not in [open_dataset(parts).fingerprint for parts in others]
    with pytest.raises(ValueError, match="learned from other data than this dataset has"):
        EpochSampler(10, 3, 0, known).load_state_dict(
            EpochSampler(10, 3, 0, open_dataset([two, one, three]).fingerprint).state_dict()
        )


@pytest.mark.slow
@pytest.mark.parametrize("mode", [{}, {"async_mode": True}], ids=["plain", "threads"])
def test_a_decision_transformer_learns_from_several_and_is_resumed(mode, tmp_path):
    sources = [tmp_path / name for name in "ab"]
    one, two = (recorded(source, seed) for seed, source in enumerate(sources))
    results = []
    for parts in ([8], [3, 8]):
        folder, resume = tmp_path / f"run{len(parts)}", None
        for until in parts:
            cfg = DecisionTransformerConfig(exp_name=str(folder), dataset=list(map(str, sources)))
            cfg.override({"policy.learn.batch_size": 32, "policy.model.size": 8, "policy.target_return": 1.0})
            policy, task = DecisionTransformerPolicy(cfg.policy, one.observation_space, one.action_space), Task()
            with task.start(ctx=OfflineRLContext(), resume=resume, **mode):
                task.use(metric_evaluator(cfg, policy.eval_mode, cfg.dataset, lambda policy, data: len(data)))
                task.use(offline_data_fetcher(cfg, cfg.dataset, policy.learn_mode)).use(trainer(cfg, policy.learn_mode))
                task.use(CkptSaver(policy, folder, train_freq=1)).run(until)
            resume = folder
        assert task.ctx.last_eval_value == len(one) + len(two) == 120
        results.append((policy.state_dict(), task.ctx.train_epoch))
    assert results[0][1] == 2
    assert same(*results)


@pytest.mark.few
@pytest.mark.parametrize("config", [DiscreteCQLConfig, GAILConfig, SQILConfig])
def test_several_on_the_command_line(config):
    name = "dataset" if config is DiscreteCQLConfig else "expert_data"
    option = f"--{name.replace('_', '-')}"
    for words, wanted in ((["a"], "a"), (["a", "b"], ["a", "b"])):
        cfg = from_command_line(config, [option, *words, "--seed", "3"])
        assert (getattr(cfg, name), cfg.seed) == (wanted, 3)
        assert getattr(config.from_dict(json.loads(json.dumps(cfg.to_dict()))), name) == wanted
