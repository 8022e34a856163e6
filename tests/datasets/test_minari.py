"""Minari and D4RL: exact round trips, formats that cut episodes, damaged files."""

import re
import warnings
from types import SimpleNamespace

import gymnasium
import h5py
import minari
import numpy as np
import pytest
from gymnasium import spaces
from minari.data_collector.episode_buffer import EpisodeBuffer
from recordings import SPACES, Recording, fingerprint

from ding_lite.data import Episodes
from ding_lite.datasets import (
    DatasetError,
    DatasetWriter,
    OfflineDataset,
    minari_files,
    open_dataset,
    read_d4rl,
    read_minari,
    write_minari,
)

pytestmark = pytest.mark.filterwarnings("ignore:.* is set to None", "ignore:env_spec is None")
STANDARD = ("obs", "action", "reward", "next_obs", "terminated", "truncated")


@pytest.fixture(autouse=True)
def minari_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def recorded(folder, kind, **options):
    recording = Recording(kind, **options)
    writer = DatasetWriter(folder)
    writer.begin(SPACES[kind], SPACES["discrete"], {})
    for _ in range(4):
        writer.add(recording.rollout(7))
    writer.flush()
    return OfflineDataset(folder)


def with_lengths(lengths, file_format):
    """A dataset of Minari with episodes of these lengths."""
    episodes = []
    for number, count in enumerate(lengths):
        ends = np.arange(count) == count - 1
        columns = {"observations": np.zeros((count + 1, 2), np.float32), "actions": np.zeros(count, np.int64)}
        columns |= {"rewards": np.zeros(count), "terminations": ends, "truncations": ends & False, "infos": {}}
        episodes.append(EpisodeBuffer(id=number, **columns))
    options = {"observation_space": spaces.Box(-1, 1, (2,)), "action_space": spaces.Discrete(2), "data_format": file_format}
    return minari.create_dataset_from_buffers("tests/lengths-v0", episodes, algorithm_name="none", **options)


def standard(dataset):
    """Fingerprints of the episodes, with the columns that Minari keeps."""
    found = []
    for number in range(dataset.num_episodes):
        rows = dataset.episodes([number]).rows()
        found.append(fingerprint({name: rows[name] for name in STANDARD}))
    return found


class TestMinari:
    @pytest.mark.few
    @pytest.mark.parametrize("kind", [kind for kind in SPACES if kind != "slash"])
    def test_a_round_trip_is_exact(self, kind, tmp_path):
        dataset = recorded(tmp_path / "own", kind, seed=6)
        assert not dataset.finished.all()
        written = write_minari(dataset, f"tests/{kind}-v0", algorithm_name="none")
        for source in (written, f"tests/{kind}-v0", tmp_path / "minari" / "tests" / f"{kind}-v0"):
            back = open_dataset(source)
            assert standard(back) == standard(dataset)
            assert (back.observation_space, back.action_space) == (dataset.observation_space, dataset.action_space)
            assert np.array_equal(back.finished, dataset.finished)

    def test_further_columns_are_infos(self, tmp_path):
        dataset = recorded(tmp_path / "own", "box")
        score = np.arange(2.0 * len(dataset)).reshape(-1, 2)
        written = write_minari(dataset.with_columns(score=score), "tests/infos-v0")
        rows = dataset.rows()
        for name, column in (("log_prob", rows["log_prob"]), ("score", score)):
            found = np.concatenate([episode.infos[name] for episode in written.iterate_episodes()])
            assert found.dtype == column.dtype
            assert np.array_equal(found, column)
        assert standard(read_minari(written)) == standard(dataset)

    def test_columns_that_cannot_be_stored_are_named(self, tmp_path):
        wrong = {name: np.ones(84) for name in ("a/b", "", ".", "d\0")}
        dataset = recorded(tmp_path / "own", "box").with_columns(**wrong, c=np.ones(84))
        with pytest.warns(
            UserWarning, match=r"leaves out the columns 'a/b', '', '\.', 'd\\x00' of the dataset .* has no '/' and no"
        ):
            written = write_minari(dataset, "tests/folders-v0")
        assert set(next(iter(written.iterate_episodes())).infos) == {"log_prob", "c"}

    def test_the_sources_say_the_algorithm_and_the_environment(self, tmp_path):
        def written(name, observation_space):
            obs, ends = np.zeros((5, 4), np.float32), np.arange(4) == 3
            rows = {"obs": obs[:-1], "next_obs": obs[1:], "action": np.zeros(4, np.int64), "reward": np.ones(4)}
            rows.update(terminated=ends, truncated=ends & False)
            source = {"policies": [{"algorithm": "DQNPolicy"}], "environments": [{"name": "CartPole-v1"}]}
            own = OfflineDataset.from_episodes(Episodes(rows, [4]), observation_space, spaces.Discrete(2), source)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                found = write_minari(own, f"tests/{name}-v0", author="me")
            return found, "".join(str(one.message) for one in caught)

        found, words = written("source", gymnasium.make("CartPole-v1").observation_space)
        assert (found.storage.metadata["algorithm_name"], found.spec.env_spec.id) == ("DQNPolicy", "CartPole-v1")
        assert not [name for name in ("algorithm_name", "author`", "env_spec is None", "description") if name in words]
        assert open_dataset(found).sources[0]["environments"] == [{"stage": "collect", "name": "CartPole-v1"}]
        other, words = written("other", spaces.Box(-1, 1, (4,), np.float32))
        assert other.spec.env_spec is None
        assert "env_spec is None" in words

    def test_numbers_of_minari_keep_their_dtype_and_batches_have_that_of_networks(self, tmp_path):
        minari = pytest.importorskip("minari")
        from minari.data_collector.episode_buffer import EpisodeBuffer

        reward = np.array([1 / 3, 2 / 3])
        buffer = EpisodeBuffer(
            id=0,
            observations=np.arange(9.0).reshape(3, 3),
            actions=np.array([1, 2]),
            rewards=reward,
            terminations=[False, False],
            truncations=[False, True],
        )
        minari.create_dataset_from_buffers(
            "tests/wide-v0", [buffer], observation_space=SPACES["box"], action_space=SPACES["discrete"], data_format="hdf5"
        )
        dataset = read_minari("tests/wide-v0")
        assert dataset.rows()["reward"].tolist() == reward.tolist()
        assert dataset.rows()["obs"].dtype == np.float64
        batch = dataset.take([0, 1])
        assert {str(batch.reward.dtype), str(batch.obs.dtype)} == {"torch.float32"}

    @pytest.mark.parametrize(
        ("field", "array", "words"),
        [
            ("terminations", np.zeros((2, 1), bool), "'terminations' has the shape (2, 1), expected (2,)"),
            ("truncations", np.array([0.5, 1.0]), "'truncations' has the value 0.5 in row 0, expected 0 or 1"),
            ("rewards", np.ones((2, 1)), "'reward' has the shape (2, 1), expected (2,)"),
            ("rewards", np.ones(2, complex), "'reward' has the dtype complex128, expected real numbers"),
        ],
    )
    def test_columns_of_another_layout_are_named(self, field, array, words, tmp_path, monkeypatch):
        found = write_minari(recorded(tmp_path / "own", "box"), "tests/other-v0")
        columns = {"rewards": np.ones(2), "terminations": np.zeros(2, bool), "truncations": np.array([False, True])}
        episode = SimpleNamespace(observations=np.zeros((3, 3)), actions=np.array([1, 2]), **{**columns, field: array})
        monkeypatch.setattr(type(found), "iterate_episodes", lambda self: iter([episode]))
        with pytest.raises(DatasetError, match=re.escape(f"the dataset tests/other-v0: the column {words}")):
            read_minari(found)

    def test_the_cut_of_other_formats_is_known_by_its_length(self, tmp_path, monkeypatch):
        dataset = recorded(tmp_path / "own", "box")
        found = write_minari(dataset, "tests/cut-v0")
        monkeypatch.setattr(type(found.storage), "FORMAT", "arrow")
        monkeypatch.setattr(minari_files, "_CUT", int(dataset.lengths.max()))
        with pytest.raises(DatasetError, match=r"in Minari's format 'arrow', which cuts episodes after 9 steps"):
            read_minari(found)
        monkeypatch.setattr(minari_files, "_CUT", int(dataset.lengths.max()) + 1)
        assert standard(read_minari(found)) == standard(dataset)

    def test_what_is_not_there(self, tmp_path):
        with pytest.raises(DatasetError, match=r"Minari has no dataset tests/none-v0 on this machine: download it"):
            open_dataset("tests/none-v0")

    @pytest.mark.few
    @pytest.mark.parametrize("file", ["main_data.hdf5", "metadata.json"])
    @pytest.mark.parametrize("damage", ["cut", "noise", "empty"])
    def test_damaged_files(self, file, damage, tmp_path, minari_folder):
        dataset = recorded(tmp_path / "own", "dict")
        write_minari(dataset, "tests/damaged-v0")
        path = minari_folder / "tests" / "damaged-v0" / "data" / file
        content = path.read_bytes()
        noise = np.random.default_rng(0).bytes(64)
        place = len(content) // 2
        path.write_bytes(
            {"cut": content[:place], "empty": b"", "noise": noise + content[64:place] + noise + content[place + 64 :]}[damage]
        )
        with pytest.raises(DatasetError, match="damaged"):
            open_dataset("tests/damaged-v0")

    @pytest.mark.parametrize("file_format", ["arrow", "parquet"])
    @pytest.mark.parametrize("is_chosen", [False, True])
    def test_episodes_whose_files_are_missing_are_not_left_out(self, file_format, is_chosen, minari_folder):
        written = with_lengths((3, 1, 2), file_format)
        chosen = written.filter_episodes(lambda episode: len(episode.rewards) > 1)
        assert read_minari(chosen).lengths.tolist() == [3, 2]
        (minari_folder / "tests" / "lengths-v0" / "data" / "2" / f"part-0.{file_format}").unlink()
        words = (
            r"damaged: .* 5 steps in 2 episodes, .* 3 steps in 1 " if is_chosen else r" 6 steps in 3 .* 4 steps in 2 episodes"
        )
        with pytest.raises(DatasetError, match=words):
            open_dataset(chosen if is_chosen else "tests/lengths-v0")

    def test_steps_that_are_missing_in_a_file_are_named(self, minari_folder):
        with_lengths((3, 1, 2), "hdf5")
        with h5py.File(minari_folder / "tests" / "lengths-v0" / "data" / "main_data.hdf5", "r+") as file:
            for name, count in (("observations", 2), ("actions", 1), ("rewards", 1), ("terminations", 1), ("truncations", 1)):
                rows = file["episode_0"][name][:count]
                del file["episode_0"][name]
                file["episode_0"][name] = rows
        with pytest.raises(DatasetError, match="damaged: by its metadata, it has 6 steps in 3 episodes, and its files have 4 "):
            open_dataset("tests/lengths-v0")

    @pytest.mark.parametrize("value", ["abc", [1], float("nan")])
    def test_a_reference_return_that_is_no_number_is_named(self, value):
        written = with_lengths((2,), "hdf5")
        written.storage.update_metadata({"ref_min_score": value, "ref_max_score": 2})
        with pytest.raises(DatasetError, match=r"the dataset tests/lengths-v0 has the reference return .*, expected a number"):
            open_dataset("tests/lengths-v0")

    @pytest.mark.parametrize("name", ["a/b", "", ".", "a\0b"])
    def test_names_that_hdf5_cannot_store_are_refused(self, name, minari_folder):
        obs, ends = {name: np.zeros((3, 1), np.float32)}, np.arange(2) == 1
        columns = {"obs": {name: obs[name][:-1]}, "next_obs": {name: obs[name][1:]}, "action": np.zeros(2, np.int64)}
        columns |= {"reward": np.zeros(2), "terminated": ends, "truncated": ends & False}
        dataset = open_dataset(columns, spaces.Dict({name: spaces.Box(-1, 1, (1,))}), spaces.Discrete(2))
        with pytest.raises(
            DatasetError, match=rf"cannot store the part {re.escape(repr(name))} of observations: a name in HDF5"
        ):
            write_minari(dataset, "tests/names-v0")
        assert not (minari_folder / "tests").exists()

    @pytest.mark.parametrize(
        "name", ["noversion", "tests/noversion", "e/e-v0", "/e-v0", "tests/-v", "te sts/e-v0", "tests/é.1-v0"]
    )
    def test_an_id_that_minari_refuses_is_refused(self, name, tmp_path):
        with pytest.raises(ValueError, match=r"an id ends with a version, such as 'cartpole/medium-v0'.*at least two of them"):
            write_minari(recorded(tmp_path / "own", "box"), name)

    @pytest.mark.few
    @pytest.mark.parametrize("name", ["e-v0", "te/e-v0", "tests/a_b/e-1-v10", "tests/é-v0"])
    def test_an_id_that_minari_accepts_is_accepted(self, name, tmp_path):
        dataset = recorded(tmp_path / "own", "box")
        assert len(open_dataset(write_minari(dataset, name, algorithm_name="none"))) == len(dataset)

    def test_a_dataset_without_episodes_cannot_be_written(self, tmp_path):
        dataset = recorded(tmp_path / "own", "box").select([])
        with pytest.raises(DatasetError, match="has no episodes"):
            write_minari(dataset, "tests/none-v0")

    def test_a_dataset_without_spaces_cannot_be_written(self, tmp_path):
        recording = Recording()
        recording.rollout(9)
        with pytest.raises(DatasetError, match="does not say its observation_space"):
            write_minari(open_dataset(recording.as_episodes()), "tests/none-v0")

    def test_without_the_library_the_extra_is_named(self, tmp_path, monkeypatch):
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(ImportError, match=r"reading a dataset of Minari needs minari.*ding_lite\[offline\]"):
            open_dataset("tests/none-v0")
        with pytest.raises(ImportError, match=r"D4RL needs h5py.*ding_lite\[offline\]"):
            read_d4rl(tmp_path / "x.hdf5")


def d4rl_file(path, episodes, with_next):
    """Write these episodes, each (obs with the final one, rewards, terminated at its end), as D4RL does."""
    columns = {name: [] for name in ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")}
    for obs, rewards, terminated in episodes:
        steps = len(rewards)
        ends = np.arange(steps) == steps - 1
        columns["observations"] += list(obs[:-1])
        columns["next_observations"] += list(obs[1:])
        columns["actions"] += list(np.arange(steps, dtype=np.float32)[:, None])
        columns["rewards"] += list(rewards)
        columns["terminals"] += list(ends & terminated)
        columns["timeouts"] += list(ends & (not terminated))
    if not with_next:
        del columns["next_observations"]
    with h5py.File(path, "w") as file:
        for name, column in columns.items():
            file[name] = np.array(column)
        file["infos/qpos"] = np.zeros(3)


def random_episodes(seed):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 7, 8)
    return [
        (rng.normal(size=(length + 1, 3)).astype(np.float32), rng.normal(size=length).astype(np.float32), rng.random() < 0.5)
        for length in lengths
    ]


def small_d4rl_file(path, **changes):
    """A file of six steps in the layout of D4RL, but for these columns."""
    columns = {"observations": np.arange(12.0).reshape(6, 2), "actions": np.zeros((6, 1)), "rewards": np.ones(6)}
    columns |= {"terminals": np.arange(6) == 5, "timeouts": np.zeros(6, bool), **changes}
    with h5py.File(path, "w") as file:
        for name, column in columns.items():
            file[name] = column


OTHER_LAYOUTS = [
    ("terminals", np.zeros((6, 2), bool), "the shape (6, 2), expected (6,)"),
    ("timeouts", np.zeros((6, 2), bool), "the shape (6, 2), expected (6,)"),
    ("rewards", np.ones((6, 2)), "the shape (6, 2), expected (6,)"),
    ("rewards", np.float64(1.0), "the shape (), expected (6, ...)"),
    ("actions", np.ones((5, 1)), "the shape (5, 1), expected (6, ...)"),
    ("next_observations", np.ones((6, 3)), "the shape (6, 3), expected (6, 2), that of observations"),
    ("terminals", np.array([0, 0, np.nan, 0, 0, 1]), "the value nan in row 2, expected 0 or 1"),
    ("timeouts", np.array([0, 0.5, 0, 0, 0, 1]), "the value 0.5 in row 1, expected 0 or 1"),
    ("terminals", np.full(6, 2, np.int8), "the value 2 in row 0, expected 0 or 1"),
    ("rewards", np.ones(6, complex), "the dtype complex128, expected real numbers"),
    ("observations", np.ones((6, 2), complex), "the dtype complex128, expected real numbers"),
    ("actions", np.full(6, b"left"), "the dtype |S4, expected real numbers"),
    ("observations", np.ones((0, 2)), "the shape (0, 2), expected at least one row"),
]


class TestD4RL:
    @pytest.mark.parametrize(("column", "array", "words"), OTHER_LAYOUTS)
    def test_another_layout_is_named_with_file_and_column(self, column, array, words, tmp_path):
        path = tmp_path / "other.hdf5"
        small_d4rl_file(path, **{column: array})
        with pytest.raises(DatasetError, match=re.escape(f"{path}: the column {column!r} has {words}")):
            read_d4rl(path)

    def test_flags_may_be_numbers(self, tmp_path):
        small_d4rl_file(tmp_path / "x.hdf5", terminals=np.array([0.0, 0, 1, 0, 0, 1]), timeouts=np.zeros(6, np.uint8))
        assert read_d4rl(tmp_path / "x.hdf5").lengths.tolist() == [3, 3]

    def test_a_file_without_known_next_observations_is_refused(self, tmp_path):
        small_d4rl_file(tmp_path / "x.hdf5", terminals=np.zeros(6, bool), timeouts=np.ones(6, bool))
        with pytest.raises(DatasetError, match=r"x\.hdf5: no step has a known next observation"):
            read_d4rl(tmp_path / "x.hdf5")

    @pytest.mark.parametrize("seed", range(5))
    def test_with_next_observations_every_step_is_read(self, seed, tmp_path):
        episodes = random_episodes(seed)
        d4rl_file(tmp_path / "x.hdf5", episodes, with_next=True)
        dataset = open_dataset(tmp_path / "x.hdf5")
        assert dataset.lengths.tolist() == [len(rewards) for _, rewards, _ in episodes]
        for number, (obs, rewards, terminated) in enumerate(episodes):
            rows = dataset.episodes([number]).rows()
            assert np.array_equal(rows["obs"], obs[:-1])
            assert np.array_equal(rows["next_obs"], obs[1:])
            assert np.array_equal(rows["reward"], rewards)
            assert (rows["terminated"][-1], rows["truncated"][-1]) == (terminated, not terminated)

    @pytest.mark.parametrize("seed", range(5))
    def test_without_them_steps_whose_next_observation_is_unknown_are_left_out(self, seed, tmp_path):
        episodes = random_episodes(seed)
        d4rl_file(tmp_path / "x.hdf5", episodes, with_next=False)
        dataset = read_d4rl(tmp_path / "x.hdf5")
        wanted = [(obs, rewards, ended) for obs, rewards, ended in episodes if ended or len(rewards) > 1]
        assert dataset.lengths.tolist() == [len(rewards) - (not ended) for _, rewards, ended in wanted]
        for number, (obs, rewards, ended) in enumerate(wanted):
            rows, steps = dataset.episodes([number]).rows(), len(rewards) - (not ended)
            assert np.array_equal(rows["obs"], obs[:steps])
            assert np.array_equal(rows["next_obs"][: steps - ended], obs[1 : steps + (not ended)][: steps - ended])
            assert (rows["terminated"][-1], rows["truncated"][-1]) == (ended, not ended)

    @pytest.mark.parametrize("rows", [10**13, 2**62])
    def test_a_column_that_does_not_fit_into_memory_is_named_with_its_size(self, rows, tmp_path):
        path = tmp_path / "x.hdf5"
        small_d4rl_file(path)
        with h5py.File(path, "a") as file:
            del file["observations"]
            file.create_dataset("observations", (rows, 4), "f4")
        words = (
            rf"x\.hdf5: the column 'observations' of float32 \({rows}, 4\) cannot be read .* {rows / 2**26:,.1f} GiB, .* 0\.0:"
        )
        with pytest.raises(DatasetError, match=words):
            read_d4rl(path)

    def test_errors(self, tmp_path):
        with pytest.raises(DatasetError, match="there is no file"):
            read_d4rl(tmp_path / "x.hdf5")
        (tmp_path / "x.hdf5").write_bytes(b"nothing of the kind")
        with pytest.raises(DatasetError, match="cannot be read as HDF5"):
            read_d4rl(tmp_path / "x.hdf5")
        with h5py.File(tmp_path / "y.hdf5", "w") as file:
            file["observations"] = np.zeros((3, 2))
        with pytest.raises(DatasetError, match="not in the layout of D4RL: it has no 'actions', but observations"):
            read_d4rl(tmp_path / "y.hdf5")
        d4rl_file(tmp_path / "z.hdf5", random_episodes(0), with_next=True)
        with h5py.File(tmp_path / "z.hdf5", "a") as file:
            del file["actions"]
            file["actions"] = np.zeros((2, 1))
        with pytest.raises(
            DatasetError, match=r"z.hdf5: the column 'actions' has the shape \(2, 1\), expected \(\d+, \.\.\.\)"
        ):
            read_d4rl(tmp_path / "z.hdf5")
