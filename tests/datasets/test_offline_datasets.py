"""Reading datasets: rows, episodes, choices of episodes, memory, and damage of every kind."""

import contextlib
import hashlib
import json
import re
import shutil
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch
from recordings import SPACES, Recording, fingerprint, stacked

from ding_lite.data import ReplayBuffer, flatten, nested
from ding_lite.data.trees import map_leaves
from ding_lite.datasets import (
    DatasetError,
    DatasetWriter,
    EpochSampler,
    OfflineDataset,
    open_dataset,
    stored_columns,
    write_dataset,
)
from ding_lite.datasets import chunks as chunks_module
from ding_lite.datasets import offline_datasets as offline_datasets_module
from ding_lite.datasets import writers as writers_module
from ding_lite.datasets.indexes import _digest
from ding_lite.envs.spaces import space_spec


def recorded(folder, kind="box", seed=0, **options):
    recording = Recording(kind, seed=seed, **options)
    writer = DatasetWriter(folder)
    writer.begin(SPACES[kind], SPACES["discrete"], {"seed": seed})
    for _ in range(6):
        writer.add(recording.rollout(5))
    writer.flush()
    writer.close()
    return recording


@pytest.fixture
def small_files(monkeypatch):
    monkeypatch.setattr(writers_module, "_CHUNK_BYTES", 700)


@pytest.mark.few
@pytest.mark.parametrize("is_mapped", [False, True])
@pytest.mark.parametrize("kind", SPACES)
def test_rows_are_the_steps_of_the_episodes(kind, is_mapped, tmp_path, small_files, monkeypatch):
    if is_mapped:
        monkeypatch.setattr(stored_columns, "_IN_MEMORY", 1)
    recorded(tmp_path, kind, seed=7)
    dataset = OfflineDataset(tmp_path)
    steps = [map_leaves(lambda leaf, t=t: leaf[t], episode) for episode in dataset for t in range(len(episode.reward))]
    rows = np.random.default_rng(0).integers(0, len(dataset), 50)
    batch = dataset.take(rows)
    wanted = [nested(steps[row]) for row in rows]
    for path, leaf in flatten(batch):
        expected = torch.stack([dict(flatten(one))[path] for one in wanted])
        assert torch.equal(leaf, expected), path
        assert leaf.dtype == expected.dtype
    specs = dict(flatten(space_spec(SPACES[kind])))
    for path, leaf in flatten(batch.obs if kind in ("dict", "slash", "tuple") else {"obs": batch.obs}):
        assert leaf.numpy().dtype == specs[path if kind in ("dict", "slash", "tuple") else ()].dtype


def test_returns_lengths_and_ends(tmp_path):
    recording = recorded(tmp_path, seed=3)
    dataset = OfflineDataset(tmp_path)
    true = {fingerprint(episode): episode for episode in recording.true_episodes()}
    for number in range(dataset.num_episodes):
        episode = true[fingerprint(dataset.episodes([number]).rows())]
        assert dataset.lengths[number] == len(episode["reward"])
        np.testing.assert_allclose(dataset.returns[number], episode["reward"].astype(np.float64).sum(), rtol=1e-12)
        assert dataset.finished[number] == (episode["terminated"][-1] or episode["truncated"][-1])


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 1.0])
def test_the_best_episodes(share, tmp_path):
    recorded(tmp_path, seed=3)
    dataset = OfflineDataset(tmp_path)
    best, returns = dataset.best(share), dataset.returns[dataset.finished]
    assert len(returns) < dataset.num_episodes
    assert best.finished.all()
    count = max(1, round(share * len(returns)))
    assert sorted(best.returns, reverse=True) == sorted(returns, reverse=True)[:count]
    number = int(best.returns.argmax())
    rows = np.arange(best.lengths[:number].sum(), best.lengths[: number + 1].sum())
    same = dataset.episodes([int(np.flatnonzero(dataset.returns == returns.max())[0])]).rows()
    assert np.array_equal(best.take(rows).next_obs.numpy(), same["next_obs"])
    with pytest.raises(ValueError, match=r"best\(share=0\): expected a share"):
        dataset.best(0)
    with pytest.raises(ValueError, match="none of the 1 episodes in .* is finished"):
        dataset.select(~dataset.finished).best(0.5)


def episodes_of_two_steps(starts, returns, finished=True):
    """A dataset in memory: first observations [E, ...], perhaps in a dict, and a return for each."""
    count = len(returns)
    obs = tree_map(lambda leaf: np.repeat(leaf, 2, axis=0), starts)
    reward = np.stack([np.zeros(count), returns], 1).reshape(-1)
    ends = np.tile([False, True], count) & np.repeat(np.broadcast_to(finished, count), 2)
    rows = {"obs": obs, "next_obs": tree_map(np.copy, obs), "action": np.zeros((2 * count, 1), np.float32), "reward": reward}
    return open_dataset({**rows, "terminated": ends, "truncated": ends & False})


def tree_map(function, leaves):
    return {key: function(leaf) for key, leaf in leaves.items()} if isinstance(leaves, dict) else function(leaves)


@pytest.mark.parametrize("count", [1, 2, 5, 11, 12, 300])
def test_returns_are_compared_with_those_of_the_ten_nearest_starts(count):
    rng = np.random.default_rng(count)
    starts = {
        "position": rng.normal(size=(count, 2)) * (1, 1000),
        "camera": rng.integers(0, 256, (count, 2, 2)).astype(np.uint8),
    }
    starts["position"][:, 1] += 5000  # scales and offsets do not matter
    returns = rng.normal(size=count)
    dataset = episodes_of_two_steps(starts, returns)

    numbers = np.concatenate([starts["camera"].reshape(count, -1), starts["position"]], axis=1)
    advantages = np.zeros(count)
    for one in range(count):
        distances = {}
        for other in range(count):
            if other != one:
                parts = [(numbers[one, i] - numbers[other, i]) / np.std(numbers[:, i]) for i in range(numbers.shape[1])]
                distances[other] = sum(part**2 for part in parts)
        near = sorted(distances, key=distances.get)[:10]
        advantages[one] = returns[one] - np.mean([returns[it] for it in near] or returns[one])
    for share in (0.1, 0.5, 0.9):
        chosen = np.sort(np.argsort(-advantages)[: max(1, round(share * count))])
        np.testing.assert_allclose(dataset.best(share, relative_to_start=True).returns, returns[chosen])


def test_lucky_starts_are_not_the_best_ones_if_returns_are_relative_to_the_start():
    rng = np.random.default_rng(0)
    starts = rng.uniform(-1, 1, 200)
    skill = np.arange(200) >= 180  # the last tenth acts better, from whatever start
    dataset = episodes_of_two_steps(starts[:, None], 1000 * starts + 100 * skill)
    assert dataset.best(0.1).returns.min() > 800  # lucky ones
    found = dataset.best(0.1, relative_to_start=True)
    skilled = np.isin(found.rows(("obs",))["obs"][::2, 0], starts[skill])
    assert skilled.mean() > 0.8


def test_equal_starts_do_not_change_the_order_of_returns():
    dataset = episodes_of_two_steps(np.full((40, 3), 7.0), np.random.default_rng(1).permutation(40).astype(float))
    assert sorted(dataset.best(0.25, relative_to_start=True).returns) == sorted(dataset.best(0.25).returns)


def test_starts_on_a_grid_that_are_equally_far_count_all():
    starts, returns = np.repeat(np.arange(7), 10), np.random.default_rng(2).normal(size=70)
    advantages = np.zeros(70)
    for one in range(70):
        distances = np.abs(np.delete(starts, one) - starts[one])  # integers, without rounding
        advantages[one] = returns[one] - np.delete(returns, one)[distances <= np.sort(distances)[9]].mean()
    found = episodes_of_two_steps(starts[:, None], returns).best(0.3, relative_to_start=True).returns
    np.testing.assert_allclose(found, returns[np.sort(np.argsort(-advantages)[:21])])


def test_huge_returns_are_compared_too_and_endless_ones_are_named():
    rng = np.random.default_rng(3)
    starts, returns = rng.normal(size=(40, 2)), rng.normal(size=40)
    expected = episodes_of_two_steps(starts, returns).best(0.2, True).returns
    np.testing.assert_allclose(episodes_of_two_steps(starts, 5e307 * returns).best(0.2, True).returns / 5e307, expected)
    rows = {"obs": np.zeros((4, 1)), "next_obs": np.zeros((4, 1)), "action": np.zeros((4, 1)), "reward": np.full(4, 1e308)}
    ends = np.arange(4) % 2 == 1
    with pytest.raises(DatasetError, match="return of episode 0 .* is inf, the sum of finite rewards: scale them"):
        open_dataset({**rows, "terminated": ends, "truncated": ends & False}).best(0.5)


def test_unfinished_episodes_are_no_neighbours_either():
    finished = np.arange(20) % 2 == 0
    starts = np.repeat(np.arange(10.0), 2)[:, None]  # each finished episode beside an unfinished one of the same start
    returns = np.where(finished, np.arange(20.0), 1e6)
    with pytest.warns(UserWarning, match="the first parts count as unfinished"):
        dataset = episodes_of_two_steps(starts, returns, finished)
    alone = episodes_of_two_steps(starts[finished], returns[finished])
    assert (dataset.best(0.3, True).returns == alone.best(0.3, True).returns).all()


def test_starts_that_cannot_be_compared_are_named():
    starts = np.zeros((12, 2))
    starts[7, 1] = np.nan
    with pytest.raises(DatasetError, match="column obs .* value nan in row 14, which is step 0 of episode 7; 1 of 12"):
        episodes_of_two_steps(starts, np.arange(12.0)).best(0.1, relative_to_start=True)
    with pytest.raises(ValueError, match="takes all of them: pass a share below 1"):
        episodes_of_two_steps(starts, np.arange(12.0)).best(1.0, relative_to_start=True)


@pytest.mark.parametrize("column", ["obs", "next_obs", "action"])
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_observations_and_actions_that_are_not_finite_are_named(value, column, monkeypatch):
    monkeypatch.setattr(offline_datasets_module, "_PIECE_BYTES", 64)
    obs, ends = np.zeros((41, 3), np.float32), np.arange(40) % 10 == 9
    rows = {"obs": obs[:-1].copy(), "next_obs": obs[1:].copy(), "action": np.zeros((40, 2)), "reward": np.ones(40)}
    rows.update(terminated=ends & False, truncated=ends)
    assert open_dataset(rows).problem_with_numbers(("obs", "next_obs", "action", "reward")) is None
    row = 39 if column == "next_obs" else 23
    rows[column][row, 1] = value
    if column == "obs":
        rows["next_obs"][22, 1] = value
    dataset = open_dataset(rows)
    assert dataset.problem_with_numbers(("reward",)) is None
    assert dataset.problem_with_numbers(("reward", "obs", "next_obs", "action")) == (
        f"the column {column} of the dataset of these arrays has the value {value} in row {row}, which is step {row % 10} of "
        f"episode {row // 10}; 1 of 4 episodes have such numbers. Leave them out: dataset.select(dataset.finite)."
    )
    rest = dataset.select(dataset.finite)
    assert np.flatnonzero(~dataset.finite).tolist() == [row // 10]
    assert rest.num_episodes == 3
    assert rest.problem_with_numbers(("reward", "obs", "next_obs", "action")) is None
    chosen = dataset.select([row // 10, 0])
    assert f"in row {row % 10}, which is step {row % 10} of episode 0" in chosen.problem_with_numbers((column,))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("column", ["obs", "action", "reward"])
def test_numbers_that_are_infinite_in_batches_are_named(column):
    obs, ends = np.zeros((41, 3)), np.arange(40) % 10 == 9
    rows = {"obs": obs[:-1].copy(), "next_obs": obs[1:].copy(), "action": np.zeros((40, 2)), "reward": np.ones(40)}
    rows.update(terminated=ends & False, truncated=ends)
    rows[column].reshape(40, -1)[20, 0] = -1e39
    rows["reward"][0] = np.finfo(np.float32).max
    dataset = open_dataset(rows)

    assert dataset.take([20])[column].isinf().any()
    words = dataset.problem_with_numbers(("reward", "obs", "next_obs", "action"))
    assert f"the column {column} of" in words
    assert (
        "has the value -1e+39, infinite in batches, which are float32, in row 20, which is step 0 of episode 2; 1 of 4" in words
    )
    assert dataset.finite.tolist() == [True, True, False, True]
    rest = dataset.select(dataset.finite)
    assert rest.problem_with_numbers(("reward", "obs", "next_obs", "action")) is None
    assert all(rest.take(np.arange(30))[name].isfinite().all() for name in rows)


def test_nothing_is_wrong_with_an_observation_after_a_terminated_episode_that_is_not_finite():
    obs, ends = np.zeros((21, 3), np.float32), np.arange(20) % 10 == 9
    rows = {"obs": obs[:-1].copy(), "next_obs": obs[1:].copy(), "action": np.zeros((20, 2)), "reward": np.ones(20)}
    rows.update(terminated=ends, truncated=ends & False)
    rows["next_obs"][ends] = np.nan
    dataset = open_dataset(rows)

    assert dataset.problem_with_numbers(("obs", "next_obs")) is None
    assert dataset.finite.all()


def test_the_folder_of_a_run_is_no_dataset(tmp_path):
    (tmp_path / "ckpt").mkdir()
    with pytest.raises(DatasetError, match=r"is the folder of a run, and not of a dataset: .*`ding-lite collect .* --out"):
        OfflineDataset(tmp_path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_rewards_that_are_not_finite_are_refused_by_name(value, tmp_path):
    recording = Recording(seed=3)
    recording.rollout(30)
    rows = map_leaves(lambda *leaves: np.concatenate(leaves), *recording.true_episodes(unfinished=False))
    good = open_dataset(rows)
    returns = good.returns
    begins = np.cumsum(good.lengths) - good.lengths
    number = int(np.flatnonzero(good.lengths[1:] > 2)[0]) + 1
    rows["reward"][begins[number] + 2] = rows["reward"][begins[number + 1]] = value
    dataset = open_dataset(rows)
    row = begins[number] + 2
    words = (
        rf"the column reward of the dataset of these arrays has the value {value} in row {row}, which is step 2 of episode "
        rf"{number}; 2 of {good.num_episodes} episodes have such rewards. Leave them out: dataset\.select\(dataset\.finite\)"
    )
    for reads in (lambda: dataset.returns, lambda: dataset.best(0.5), lambda: dataset.windows([0], 2)):
        with pytest.raises(DatasetError, match=words):
            reads()
    assert np.flatnonzero(~dataset.finite).tolist() == [number, number + 1]
    rest = dataset.select(dataset.finite)
    assert np.array_equal(rest.returns, returns[dataset.finite])
    assert rest.finite.all()
    assert dataset.select([]).finite.shape == (0,)


@pytest.mark.parametrize("share", [0.01, 0.5, 0.9, 0.999])
def test_a_split_has_each_episode_once_and_depends_on_the_seed_alone(share, tmp_path):
    recorded(tmp_path, seed=3)
    dataset = OfflineDataset(tmp_path)
    count = dataset.num_episodes
    np.random.seed(5)  # noqa: NPY002
    parts = dataset.split(share, seed=1)
    np.random.seed(6)  # noqa: NPY002
    again = OfflineDataset(tmp_path).split(share, seed=1)
    assert [part.num_episodes for part in parts] == [wanted := min(max(1, round(share * count)), count - 1), count - wanted]
    order = list(map(fingerprint, dataset))
    numbers = [[order.index(fingerprint(episode)) for episode in part] for part in parts]
    assert sorted(numbers[0] + numbers[1]) == list(range(count))
    assert all(part == sorted(part) for part in numbers)
    assert [part.fingerprint for part in parts] == [part.fingerprint for part in again]
    assert len({dataset.split(share, seed=seed)[0].fingerprint for seed in range(20)}) > 5
    assert parts[0].observation_space == dataset.observation_space


def test_a_split_into_two_parts_is_possible(tmp_path):
    recorded(tmp_path)
    dataset = OfflineDataset(tmp_path)
    for share in (0, 1, 90):
        with pytest.raises(ValueError, match=rf"split\(share={share}\): expected a share of the episodes above 0 and below 1"):
            dataset.split(share)
    with pytest.raises(ValueError, match="two parts need two episodes, and .* has 1"):
        dataset.select([0]).split(0.5)
    with pytest.raises(ValueError, match=r"split\(share=0.5, seed=-1\)"):
        dataset.split(0.5, seed=-1)


def test_a_choice_of_a_choice(tmp_path):
    recorded(tmp_path, seed=3)
    dataset = OfflineDataset(tmp_path)
    chosen = dataset.select([5, 2, 9]).select(np.array([False, True, True]))
    assert [fingerprint(episode) for episode in chosen] == [fingerprint(list(dataset)[number]) for number in (2, 9)]
    assert len(dataset.select([])) == 0


def test_episodes_are_chosen_as_in_lists(tmp_path):
    recorded(tmp_path, seed=3)
    dataset = OfflineDataset(tmp_path)
    all_of_them, count = list(map(fingerprint, dataset)), dataset.num_episodes
    for numbers in ([-1], [-2, 0, -count], range(3), np.arange(count, dtype=np.uint8)[::-1]):
        wanted = [all_of_them[number] for number in numbers]
        assert [fingerprint(episode) for episode in dataset.select(numbers)] == wanted
        assert [fingerprint(episode) for episode in dataset.episodes(numbers)] == wanted
    for wrong in ([count], [0, -count - 1], [True] * (count + 1), [0.5], [[0, 1]]):
        for choose in (dataset.select, dataset.episodes):
            with pytest.raises(
                IndexError, match=rf"{choose.__name__}\(.*has {count} episodes: pass numbers from -{count} to {count - 1}"
            ):
                choose(wrong)


def test_only_the_columns_in_use_are_taken_and_read(tmp_path):
    recorded(tmp_path)
    dataset = OfflineDataset(tmp_path)
    assert set(nested(dataset.take([1, 2], ("next_obs", "reward")))) == {"next_obs", "reward"}
    assert set(dataset._columns._read) == {"obs", "reward"}
    with pytest.raises(TypeError, match="wants several names"):
        dataset.take([1], "obs")
    with pytest.raises(IndexError, match=r"rows -1 to 3: the dataset .* has 90 rows"):
        dataset.take([-1, 3])
    with pytest.raises(IndexError, match=r"take\(1\) of the dataset .*: rows are several, pass take\(\[1\]\)"):
        dataset.take(1)
    with pytest.raises(IndexError, match=r"windows\(\[1\]\)"):
        dataset.windows(np.int64(1), 2)
    for choose in (dataset.select, dataset.episodes):
        with pytest.raises(
            IndexError, match=rf"{choose.__name__}\(1\) of .*: episodes are several, pass {choose.__name__}\(\[1\]"
        ):
            choose(1)
    words = r"the dataset .* has no column 'acts', but obs, .*, next_obs: did you mean 'action'\?"
    for reads in (dataset.rows, lambda columns: dataset.take([1], columns), lambda columns: dataset.windows([1], 2, columns)):
        with pytest.raises(DatasetError, match=words):
            reads(["obs", "acts"])


def test_a_mapped_column_takes_no_memory_and_leaves_no_file(tmp_path, monkeypatch):
    recorded(tmp_path)
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(stored_columns, "_IN_MEMORY", 1)
    dataset = OfflineDataset(tmp_path)
    dataset.take([1])
    assert isinstance(dataset._columns["obs"].base, np.memmap)
    assert sorted(tmp_path.iterdir()) == before


def test_a_read_only_folder_is_read(tmp_path, monkeypatch):
    recorded(tmp_path)
    monkeypatch.setattr(stored_columns, "_IN_MEMORY", 1)
    real = stored_columns.tempfile.TemporaryFile

    def refusing(dir=None):
        if dir is not None:
            raise PermissionError(13, "Permission denied", str(dir))
        return real()

    monkeypatch.setattr(stored_columns.tempfile, "TemporaryFile", refusing)
    assert len(OfflineDataset(tmp_path).take([1, 2]).obs) == 2


def test_it_can_be_pushed_into_a_buffer(tmp_path):
    recorded(tmp_path)
    dataset, buffer = OfflineDataset(tmp_path), ReplayBuffer(1000)
    buffer.push(dataset.rows())
    assert len(buffer) == len(dataset)


@pytest.mark.few
@pytest.mark.parametrize("length", [1, 2, 5, 30])
@pytest.mark.parametrize("kind", ["box", "dict"])
def test_windows_are_the_steps_before_within_the_episode(kind, length, tmp_path):
    recorded(tmp_path, kind, seed=4)
    dataset = OfflineDataset(tmp_path)
    chosen = dataset.select(np.arange(dataset.num_episodes)[::-2])
    batch = chosen.windows(np.arange(len(chosen)), length)
    row = 0
    for episode in chosen:
        reward = episode.reward.numpy().astype(np.float64)
        for step in range(len(reward)):
            steps = [max(0, earlier) for earlier in range(step - length + 1, step + 1)]
            assert batch.valid[row].tolist() == [earlier >= 0 for earlier in range(step - length + 1, step + 1)]
            assert batch.timestep[row].tolist() == steps
            np.testing.assert_allclose(batch.return_to_go[row], [reward[at:].sum() for at in steps], rtol=1e-5, atol=1e-5)
            for path, leaf in flatten(episode):
                assert torch.equal(dict(flatten(batch))[path][row], leaf[steps]), path
            row += 1
    assert row == len(batch.valid)
    with pytest.raises(IndexError, match="rows 0 to 9999"):
        chosen.windows([0, 9999], 3)


def arrays(rewards, seed=0, **changes):
    """Transitions of terminated episodes with these rewards."""
    lengths = [len(episode) for episode in rewards]
    count, rng = sum(lengths), np.random.default_rng(seed)
    ends = np.isin(np.arange(count), np.cumsum(lengths) - 1)
    obs = rng.normal(size=(count + len(lengths), 3)).astype(np.float32)
    at = np.arange(count) + np.repeat(np.arange(len(lengths)), lengths)
    rows = {"obs": obs[at], "next_obs": obs[at + 1], "action": np.arange(count) % 2, "reward": np.concatenate(rewards)}
    return {**rows, "terminated": ends, "truncated": ends & False, **changes}


@pytest.mark.parametrize("size", [1.0, 1e8, 1e17, 1e30])
def test_a_large_return_of_one_episode_does_not_change_those_of_others(size):
    rng = np.random.default_rng(1)
    rewards = [rng.normal(size=int(length)) for length in rng.integers(1, 40, 30)]
    rewards[3] = rewards[3] * size
    wanted = []
    for episode in rewards:
        returns, later = [], 0.0
        for reward in episode[::-1].tolist():
            later = reward + later
            returns.append(later)
        wanted += returns[::-1]
    found = open_dataset(arrays(rewards)).returns_to_go
    assert found.dtype == np.float32
    assert np.array_equal(found, np.array(wanted, np.float32))


def test_rows_are_chosen_by_masks_too_and_never_cut_from_floats():
    dataset = open_dataset(arrays([np.ones(3), np.ones(4)]))
    mask = np.arange(7) % 3 == 0
    for read in (dataset.take, lambda rows: dataset.windows(rows, 2)):
        for chosen in (mask, mask.tolist()):
            same_leaves = zip(flatten(read(chosen)), flatten(read([0, 3, 6])))
            assert all(torch.equal(one, other) for (_, one), (_, other) in same_leaves)
        assert len(read([]).reward) == len(read(~mask & mask).reward) == 0
        for wrong in (mask[:-1], [0.0, 1.5], np.array([1.0]), ["a"]):
            with pytest.raises(IndexError, match="has 7 rows: pass integers from 0 to 6, or one bool for each row"):
                read(wrong)


@pytest.mark.parametrize("length", [0, -1, True, 2.0, None])
def test_windows_have_a_length(length):
    with pytest.raises(ValueError, match=r"windows\(length=.*: expected the steps of a window, an integer of at least 1"):
        open_dataset(arrays([np.ones(3)])).windows([0], length)


@pytest.mark.parametrize("share", ["0.1", None, True, float("nan"), 2])
def test_a_share_is_a_number(share):
    dataset = open_dataset(arrays([np.ones(3), np.ones(2)]))
    for read, name in ((dataset.best, "best"), (dataset.split, "split")):
        with pytest.raises(ValueError, match=rf"{name}\(share=.*: expected a share of the episodes above 0.* as a number"):
            read(share)


HUGE = {"kind": "Box", "shape": [10**9, 10**9], "dtype": "float32", "low": 0.0, "high": 1.0}


def changed_index(folder, change):
    """Change the record of the index, and its checksum with it."""
    record = json.loads((folder / "dataset.json").read_text())
    record.pop("sha256")
    change(record)
    (folder / "dataset.json").write_text(json.dumps({**record, "sha256": _digest(record)}))


@pytest.mark.parametrize("kind", ["recorded", "chosen"])
def test_a_dataset_without_episodes_has_empty_results(kind, tmp_path):
    if kind == "recorded":
        DatasetWriter(tmp_path).flush()
        dataset = OfflineDataset(tmp_path)
    else:
        recorded(tmp_path)
        dataset = OfflineDataset(tmp_path).select([])
    for found, dtype in (
        (dataset.finished, np.bool_),
        (dataset.finite, np.bool_),
        (dataset.returns, np.float64),
        (dataset.returns_to_go, np.float32),
        (dataset.lengths, np.int64),
    ):
        assert (found.shape, found.dtype) == ((0,), dtype)
    assert (list(dataset), len(dataset.episodes()), dataset.select([]).num_episodes) == ([], 0, 0)
    assert all(len(column) == 0 for _, column in flatten(dataset.rows()))
    assert dataset.windows([], 3).valid.shape == (0, 3)
    assert dataset.problem_with_numbers(("reward", "obs")) is None
    assert dataset.problem_with_weights() is None
    with pytest.raises(DatasetError, match=r"best\(share=0.1\): the dataset .* has no episodes"):
        dataset.best(0.1)
    with pytest.raises(ValueError, match="two parts need two episodes, and .* has 0"):
        dataset.split(0.5)


class TestDamage:
    def folder(self, tmp_path):
        recorded(tmp_path / "good", "dict")
        return tmp_path / "good"

    def read_all(self, folder):
        dataset = OfflineDataset(folder)
        dataset.rows()
        return dataset

    def test_each_bit_of_the_index_and_of_a_file(self, tmp_path):
        good = self.folder(tmp_path)
        true = sorted(map(fingerprint, self.read_all(good)))
        rng = np.random.default_rng(0)
        for file in (good / "dataset.json", next(good.glob("chunk_*"))):
            content = file.read_bytes()
            for place in [*rng.integers(0, len(content), 60), 0, len(content) - 1]:
                damaged = bytearray(content)
                damaged[place] ^= 1 << int(rng.integers(8))
                file.write_bytes(damaged)
                found = None
                with contextlib.suppress(DatasetError):
                    found = sorted(map(fingerprint, self.read_all(good)))
                assert found in (None, true)  # what is no part of the content may change
            file.write_bytes(content)

    @pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
    def test_cut_files(self, share, tmp_path):
        good = self.folder(tmp_path)
        for file in (good / "dataset.json", next(good.glob("chunk_*"))):
            content = file.read_bytes()
            file.write_bytes(content[: int(share * len(content))])
            with pytest.raises(DatasetError):
                self.read_all(good)
            file.write_bytes(content)

    def test_what_is_no_dataset(self, tmp_path):
        with pytest.raises(DatasetError, match="there is no dataset .*missing"):
            OfflineDataset(tmp_path / "missing")
        with pytest.raises(DatasetError, match="is no dataset: dataset.json cannot be read"):
            OfflineDataset(tmp_path)
        for content, words in (
            ("[]", "has the format"),
            ("{", "is damaged: it is no JSON"),
            ('{"format": 5}', "has the format 5"),
        ):
            (tmp_path / "dataset.json").write_text(content)
            with pytest.raises(DatasetError, match=words):
                OfflineDataset(tmp_path)

    def test_what_was_refused_once_is_refused_again(self, tmp_path, small_files):
        """Two files with their names swapped."""
        good = self.folder(tmp_path)
        one, other = [chunk.file for chunk in OfflineDataset(good)._index.chunks[:2]]
        contents = [(good / file).read_bytes() for file in (one, other)]
        (good / one).write_bytes(contents[1])
        (good / other).write_bytes(contents[0])
        with pytest.raises(DatasetError, match="is damaged"):
            OfflineDataset(good)
        for file, content in zip((one, other), contents):
            (good / file).write_bytes(content)
        dataset = OfflineDataset(good)
        (good / other).write_bytes(contents[0])
        for _ in range(2):
            for name in ("reward", "action", "obs", "next_obs"):
                with pytest.raises(DatasetError, match=f"{other} is damaged: .* does not match the checksum"):
                    dataset.rows((name,))
        (good / other).write_bytes(contents[1])
        assert len(dataset.rows()["reward"]) == 90

    @pytest.mark.parametrize("has_checksums", [True, False])
    def test_other_lengths_are_refused_when_the_dataset_is_opened(self, has_checksums, tmp_path):
        """Files of the same steps and episodes, cut in another way."""
        ends, cut = [np.isin(np.arange(9), at) for at in ([4, 8], [2, 8])]
        for name, at in (("good", ends), ("other", cut)):
            write_dataset(open_dataset(arrays([np.ones(9)], terminated=at)), tmp_path / name)
        if not has_checksums:  # as in datasets of earlier versions
            changed_index(tmp_path / "good", lambda index: index["chunks"][0].pop("lengths_sha256"))
        assert OfflineDataset(tmp_path / "good").lengths.tolist() == [5, 4]
        shutil.copy(next((tmp_path / "other").glob("chunk_*")), next((tmp_path / "good").glob("chunk_*")))
        with pytest.raises(DatasetError, match="is damaged: .* not match"):
            OfflineDataset(tmp_path / "good")

    @pytest.mark.parametrize("has_checksums", [True, False])
    def test_only_lengths_are_read_when_a_dataset_is_opened(self, has_checksums, tmp_path, monkeypatch):
        good = self.folder(tmp_path)
        if not has_checksums:
            changed_index(good, lambda index: index["chunks"][0].pop("lengths_sha256"))
        verified, real = [], chunks_module._verify
        monkeypatch.setattr(chunks_module, "_verify", lambda *args: verified.append(args) or real(*args))
        dataset = OfflineDataset(good)
        assert len(verified) == (0 if has_checksums else 1)
        dataset.rows()
        assert len(verified) == 1

    @pytest.mark.slow
    def test_bits_of_the_archive(self, tmp_path):
        """With the right checksums, so that the archive itself is read: a flag says that it is encrypted, and others."""
        good = self.folder(tmp_path)
        file = next(good.glob("chunk_*"))
        content = file.read_bytes()
        places = [place.start() for place in re.finditer(b"PK\x01\x02|PK\x03\x04|PK\x05\x06", content)]
        for place in (at + more for at in places for more in range(4, 46)):
            for bit in (0, 3):
                damaged = bytearray(content)
                damaged[min(place, len(content) - 1)] ^= 1 << bit
                file.write_bytes(damaged)
                digest = hashlib.sha256(damaged).hexdigest()
                changed_index(good, lambda index, digest=digest: index["chunks"][0].update(sha256=digest))
                with contextlib.suppress(DatasetError):
                    self.read_all(good)

    @pytest.mark.few
    @pytest.mark.parametrize(
        "change",
        [
            lambda index: index["chunks"][0].update(file=3),
            lambda index: index["chunks"][0].update(file=".."),
            lambda index: index["chunks"][0].update(file=""),
            lambda index: index["chunks"][0].update(file="a\0b"),
            lambda index: index["chunks"][0].update(steps="90"),
            lambda index: index["chunks"][0].update(episodes=2.5),
            lambda index: index["chunks"][0].update(episodes=10**12),
            lambda index: index["chunks"][0].update(steps=10**30),
            lambda index: index["chunks"][0].update(size=None),
            lambda index: index["chunks"][0].update(sha256=3),
            lambda index: index["chunks"][0].update(lengths_sha256=3),
            lambda index: index["chunks"][0].update(lengths_sha256="0"),
            lambda index: index["chunks"][0].update(more=3),
            lambda index: index["chunks"].append(index["chunks"][0]),
            lambda index: index.update(chunks=[]),
            lambda index: index.update(chunks=None),
            lambda index: index.update(steps=5),
            lambda index: index.update(sources=[3]),
            lambda index: index.update(columns=[]),
            lambda index: index.update(columns={}),
            lambda index: index["columns"].pop("reward"),
            lambda index: [index["columns"].pop(name) for name in list(index["columns"]) if name.startswith("obs")],
            lambda index: index["columns"].update(more={"dtype": "<f4", "shape": []}),
            lambda index: index["columns"].update(lengths={"dtype": "<i8", "shape": []}),
            lambda index: index["columns"].update(obs={"dtype": "<i8", "shape": []}),
            lambda index: index["columns"]["action"].update(shape=[-1]),
            lambda index: index["columns"]["action"].update(shape="ab"),
            lambda index: index["columns"]["action"].update(shape=[2.5]),
            lambda index: index["columns"]["action"].update(shape=[2**40, 2**40]),
            lambda index: index["columns"]["action"].update(shape=[2**40]),
            lambda index: index["columns"]["reward"].update(shape=[1]),
            lambda index: index["columns"]["reward"].update(dtype="|O"),
            lambda index: index["columns"]["reward"].update(dtype="<f8"),
            lambda index: index["columns"]["reward"].update(dtype="no dtype"),
            lambda index: index["columns"]["terminated"].update(dtype="<f4"),
            lambda index: index.update(observation_space=HUGE),
            lambda index: index.update(observation_space={**HUGE, "shape": [2, 2], "dtype": "|O"}),
            lambda index: index.update(observation_space={**HUGE, "shape": [-2]}),
            lambda index: index.update(observation_space={"kind": "Tuple", "parts": {"0": 3}}),
            lambda index: index.update(action_space={"kind": "Discrete", "n": -1, "start": 0}),
            lambda index: index.update(action_space={"kind": "MultiDiscrete", "nvec": [-1], "start": [0]}),
        ],
    )
    def test_an_index_with_the_right_checksum_that_cannot_be(self, change, tmp_path):
        good = self.folder(tmp_path)
        changed_index(good, change)
        with pytest.raises(DatasetError):
            self.read_all(good)

    def test_an_index_that_names_the_other_byte_order(self, tmp_path):
        """As earlier versions wrote it, for files in that of this machine."""
        good = self.folder(tmp_path)
        true = self.read_all(good).rows()["reward"]
        changed_index(good, lambda index: index["columns"]["reward"].update(dtype=">f4"))
        assert np.array_equal(self.read_all(good).rows()["reward"], true)

    def test_numbers_that_no_tensor_holds_in_files_of_earlier_versions(self):
        dataset = open_dataset(arrays([np.ones(9)], extra=np.arange(9, dtype=np.uint64)))
        dataset._columns["extra"][3] = 2**63
        assert dataset.take([2]).extra.tolist() == [2]
        for taken in (lambda: dataset.take([3]), lambda: dataset.windows([4], 2)):
            with pytest.raises(DatasetError, match="'extra' has the number 9223372036854775808"):
                taken()

    def test_a_missing_file(self, tmp_path):
        good = self.folder(tmp_path)
        next(good.glob("chunk_*")).unlink()
        with pytest.raises(DatasetError, match=r"is not whole: chunk_.* is missing"):
            OfflineDataset(good)

    def test_files_of_another_dataset(self, tmp_path):
        good = self.folder(tmp_path)
        recorded(tmp_path / "other", "dict", seed=5)
        shutil.copy(next((tmp_path / "other").glob("chunk_*")), next(good.glob("chunk_*")))
        with pytest.raises(DatasetError, match="is damaged"):
            self.read_all(good)

    def replace_chunk(self, folder, name):
        """Name this file in the index, in place of the first one."""
        content, index = (folder / name).read_bytes(), json.loads((folder / "dataset.json").read_text())
        index.pop("sha256")
        index["chunks"][0].update(file=name, size=len(content), sha256=hashlib.sha256(content).hexdigest())
        (folder / "dataset.json").write_text(json.dumps({**index, "sha256": _digest(index)}))

    @pytest.mark.parametrize("more", [-1, 1, 64 << 20])
    def test_an_array_of_another_length_than_it_says_is_not_read_to_its_end(self, more, tmp_path):
        good = self.folder(tmp_path)
        file = next(good.glob("chunk_*"))
        with zipfile.ZipFile(file) as archive, zipfile.ZipFile(good / "long.npz", "w", zipfile.ZIP_DEFLATED) as longer:
            for name in archive.namelist():
                content = archive.read(name)
                if name == "reward.npy":
                    content = content + bytes(more) if more > 0 else content[:more]
                longer.writestr(name, content)
        self.replace_chunk(good, "long.npz")
        dataset = OfflineDataset(good)
        tracemalloc.start()
        try:
            with pytest.raises(
                DatasetError, match=rf"damaged: .*reward has {'more' if more > 0 else 'less'} than the \d+ bytes"
            ):
                dataset.returns  # noqa: B018
            assert tracemalloc.get_traced_memory()[1] < 16 << 20
        finally:
            tracemalloc.stop()

    def test_pickles_are_not_loaded(self, tmp_path):
        good, marker = self.folder(tmp_path), tmp_path / "executed"
        from states import Armed

        arrays = dict(np.load(next(good.glob("chunk_*"))))
        arrays["reward"] = np.array([Armed(marker)] * len(arrays["reward"]), object)
        np.savez(good / "armed.npz", **arrays)
        self.replace_chunk(good, "armed.npz")
        with pytest.raises(DatasetError, match="cannot be read as an npz file"):
            self.read_all(good)
        index = json.loads((good / "dataset.json").read_text())
        index.pop("sha256")
        index["chunks"][0]["file"] = "../good/armed.npz"
        (good / "dataset.json").write_text(json.dumps({**index, "sha256": _digest(index)}))
        with pytest.raises(DatasetError, match="it names the file"):
            self.read_all(good)
        assert not marker.exists()


class TestOpening:
    def test_arrays_are_cut_where_an_episode_ends(self):
        recording = Recording(seed=2)
        recording.rollout(20)
        true = recording.true_episodes(unfinished=False)
        rows = map_leaves(lambda *leaves: np.concatenate(leaves), *true)
        dataset = open_dataset(rows)
        assert dataset.lengths.tolist() == [len(episode["reward"]) for episode in true]
        assert open_dataset(dataset) is dataset
        assert open_dataset(recording.as_episodes()).num_episodes == len(true)
        with pytest.raises(DatasetError, match="does not say its observation_space"):
            dataset.observation_space  # noqa: B018

    def test_an_unfinished_last_episode(self):
        rows = stacked([Recording(longest=99, num_envs=1, seed=s)._step(0)[0] for s in (1,)])
        assert open_dataset(rows).finished.tolist() == [False]

    def test_errors(self, tmp_path):
        with pytest.raises(TypeError, match="a dataset is wanted, got 3 of type int"):
            open_dataset(3)
        with pytest.raises(DatasetError, match="lack the column 'obs'"):
            open_dataset({"reward": np.zeros(3)})
        with pytest.raises(DatasetError, match="there is no dataset"):
            open_dataset(tmp_path / "missing")


class TestEpochs:
    @pytest.mark.parametrize(("rows", "size"), [(10, 3), (10, 10), (10, 100), (1, 1), (7, 1), (1000, 256)])
    def test_each_row_once_in_a_pass_in_equal_parts(self, rows, size):
        epochs = EpochSampler(rows, size, seed=1)
        orders = []
        for number in range(3):
            parts = [epochs.next() for _ in range(epochs.batches)]
            assert epochs.epoch == number + 1
            assert sorted(np.concatenate(parts)) == list(range(rows))
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
            orders.append(np.concatenate(parts).tolist())
        assert rows < 5 or orders[0] != orders[1]

    @pytest.mark.parametrize(("rows", "size", "ranks"), [(10, 2, 2), (23, 3, 2), (7, 1, 3), (3, 1, 2), (2, 9, 2), (100, 8, 3)])
    def test_processes_have_the_parts_of_the_batches_of_one(self, rows, size, ranks):
        whole = EpochSampler(rows, size * ranks, seed=1)
        parts = [EpochSampler(rows, size, seed=1, rank=rank, ranks=ranks) for rank in range(ranks)]
        if whole.batches > rows // ranks:  # a process would have no row
            whole.batches = rows // ranks
        for _ in range(3 * whole.batches):
            batches = [part.next() for part in parts]
            assert np.array_equal(np.concatenate(batches), whole.next())
            assert min(map(len, batches)) >= 1
            assert max(map(len, batches)) - min(map(len, batches)) <= 1
            assert {part.epoch for part in parts} == {whole.epoch}
        assert whole.epoch == 3
        whole.load_state_dict(parts[1].state_dict())
        with pytest.raises(ValueError, match=f"{rows + 1} processes learn together, and the dataset has only {rows} rows"):
            EpochSampler(rows, 1, ranks=rows + 1)

    @pytest.mark.parametrize("done", range(9))
    def test_a_restored_one_goes_on_in_the_middle(self, done):
        one, other = EpochSampler(10, 3, seed=1), EpochSampler(10, 3, seed=2)
        for _ in range(done):
            one.next()
        other.load_state_dict(one.state_dict())
        assert all(np.array_equal(one.next(), other.next()) and one.epoch == other.epoch for _ in range(8))

    def test_a_state_of_other_data_is_refused(self, tmp_path):
        recorded(tmp_path)
        one = OfflineDataset(tmp_path)
        other = one.select(np.arange(one.num_episodes)[::-1])
        assert one.fingerprint == OfflineDataset(tmp_path).fingerprint != other.fingerprint
        with pytest.raises(ValueError, match="learned from other data than this dataset has"):
            EpochSampler(10, 3, 0, one.fingerprint).load_state_dict(EpochSampler(10, 3, 0, other.fingerprint).state_dict())

    @pytest.mark.parametrize("name", ["obs", "next_obs", "action", "reward", "terminated", "extra"])
    def test_a_fingerprint_of_arrays_is_one_of_all_columns(self, name):
        rows = arrays([np.ones(3), np.ones(2)], extra=np.arange(5))
        other = {key: column.copy() for key, column in rows.items()}
        if name == "next_obs":
            other["next_obs"][-1] += 1
        elif name == "obs":
            other["obs"][1:3] += 1
            other["next_obs"][0:2] += 1
        elif name == "terminated":
            other["terminated"][-1], other["truncated"][-1] = False, True
        else:
            other[name][2] += 1
        dataset = open_dataset(rows)
        assert dataset.fingerprint == open_dataset(rows).fingerprint != open_dataset(other).fingerprint
        for part in (lambda one: one.select([1, 0]), lambda one: open_dataset([one, rows])):
            assert part(dataset).fingerprint == part(open_dataset(rows)).fingerprint != part(open_dataset(other)).fingerprint

    def test_a_state_of_another_dataset_is_refused(self):
        with pytest.raises(ValueError, match="learned from a dataset of 10 rows, and this one has 11"):
            EpochSampler(11, 3).load_state_dict(EpochSampler(10, 3).state_dict())
