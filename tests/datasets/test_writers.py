"""Writing datasets: whole episodes out of rollouts that cut them, crashes, resumed runs, and errors by name."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from gymnasium import spaces
from recordings import SPACES, Recording, fingerprint
from states import same, through_a_file

from ding_lite.basics.files import temporary_beside
from ding_lite.data import Episodes, Trajectories
from ding_lite.datasets import DatasetError, DatasetWriter, OfflineDataset, open_dataset, stored_columns, write_dataset
from ding_lite.datasets import writers as writers_module


def written(path, recording, rollouts=6, steps=5, pauses=0.0, **options):
    writer = DatasetWriter(path, **options)
    writer.begin(SPACES[recording.kind], SPACES["discrete"], {"seed": 0})
    for _ in range(rollouts):
        writer.add(recording.rollout(steps, pauses))
    writer.flush()
    return writer


def stored(dataset):
    return [dataset.episodes([number]).rows() for number in range(dataset.num_episodes)]


def require_equal(dataset, recording, unfinished=True):
    assert sorted(map(fingerprint, stored(dataset))) == sorted(map(fingerprint, recording.true_episodes(unfinished)))


@pytest.fixture
def small_files(monkeypatch):
    """Files of a few hundred bytes, so that there are many."""
    monkeypatch.setattr(writers_module, "_CHUNK_BYTES", 700)


@pytest.mark.few
@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("pauses", [0.0, 0.3])
def test_every_episode_is_stored_exactly_once(kind, pauses, tmp_path, small_files):
    recording = Recording(kind, seed=3)
    written(tmp_path, recording, pauses=pauses)
    dataset = OfflineDataset(tmp_path)
    require_equal(dataset, recording)
    assert len(dataset) == sum(len(episode) for env in recording.episodes for episode in env)
    assert dataset.observation_space == SPACES[kind]


@pytest.mark.parametrize("steps", [1, 2, 7, 40])
@pytest.mark.parametrize("num_envs", [1, 4])
def test_the_steps_of_a_rollout_and_the_number_of_environments_do_not_matter(steps, num_envs, tmp_path, small_files):
    recording = Recording(num_envs=num_envs, seed=steps)
    written(tmp_path, recording, rollouts=-(-40 // steps), steps=steps)
    require_equal(OfflineDataset(tmp_path), recording)


@pytest.mark.parametrize(
    ("column", "array", "words"),
    [
        ("reward", np.ones((4, 2)), "'reward' has the shape (4, 2), expected (4,)"),
        ("reward", np.ones(4, complex), "'reward' has the dtype complex128, expected real numbers"),
        ("terminated", np.zeros((4, 2), bool), "'terminated' has the shape (4, 2), expected (4,)"),
        ("truncated", np.array([0, np.nan, 0, 1]), "'truncated' has the value nan in row 1, expected 0 or 1"),
        ("next_obs", np.ones((4, 2)), "'next_obs' has the shape (4, 2), expected (4, 3), that of obs"),
        ("action", np.ones(4, complex), "'action' has the dtype complex128, expected real numbers"),
    ],
)
def test_columns_of_another_shape_or_dtype_are_named(column, array, words, tmp_path):
    obs = np.arange(15.0).reshape(5, 3)
    rows = {"obs": obs[:-1], "next_obs": obs[1:], "action": np.zeros(4), "reward": np.ones(4)}
    rows |= {"terminated": np.zeros(4, bool), "truncated": np.arange(4) == 3, column: array}
    writer = DatasetWriter(tmp_path)
    writer.begin(None, None, {})

    if column not in ("terminated", "truncated"):  # Episodes refuse these themselves
        with pytest.raises(DatasetError, match=re.escape(f"transitions for a dataset: the column {words}")):
            writer.add(Episodes(rows, [4]))
    with pytest.raises(DatasetError, match=re.escape(f"transitions for a dataset: the column {words}")):
        open_dataset(rows)


def test_whole_episodes_are_stored_too(tmp_path):
    recording = Recording(seed=1)
    recording.rollout(30)
    writer = DatasetWriter(tmp_path)
    writer.add(recording.as_episodes())
    writer.flush()
    require_equal(OfflineDataset(tmp_path), recording, unfinished=False)


def test_further_steps_replace_unfinished_episodes_by_whole_ones(tmp_path, small_files):
    recording = Recording(seed=5, longest=30)
    writer = DatasetWriter(tmp_path)
    for _ in range(8):
        writer.add(recording.rollout(4))
        writer.flush()
        require_equal(OfflineDataset(tmp_path), recording)
    writer.close()
    assert len(list(tmp_path.glob("chunk_*.npz"))) == len(json.loads((tmp_path / "dataset.json").read_text())["chunks"])


class Joining(DatasetWriter):
    """A writer that counts the steps that it joins."""

    joined, files = 0, ()

    def _cut(self):
        self.joined += sum(rollout.num_steps for rollout in self._rollouts)
        self.files = (*self.files, self._bytes)
        return super()._cut()


@pytest.mark.parametrize("num_envs", [1, 3])
def test_an_episode_that_never_ends_takes_a_time_that_grows_with_its_length(num_envs, tmp_path, small_files):
    recording, steps = Recording(num_envs=num_envs, seed=0, longest=10**6), 640
    whole, cut = Joining(tmp_path / "whole"), Joining(tmp_path / "cut")
    for step in range(steps):
        rollout = recording.rollout(1)
        for writer in (whole, cut):
            writer.add(rollout)
        if step % 50 == 7:  # a resumed run writes its files at the same steps
            joined, files = cut.joined, cut.files
            state, cut = through_a_file(cut.state_dict()), Joining(tmp_path / "cut")
            cut.load_state_dict(state)
            cut.joined, cut.files = joined, files

    assert 4 < len(whole.files) < 16
    assert whole.joined <= 3 * steps
    assert (cut.joined, cut.files) == (whole.joined, whole.files)
    whole.flush()
    require_equal(OfflineDataset(tmp_path / "whole"), recording)


def test_an_episode_that_never_ends_does_not_hold_up_the_files_of_the_others(tmp_path, small_files):
    recording = Recording(num_envs=16, seed=0)
    recording.lengths[0] = 10**6
    writer = DatasetWriter(tmp_path)
    for _ in range(80):
        writer.add(recording.rollout(5))
    finished = sum(len(episode) for episodes in recording.episodes[1:] for episode in episodes[:-1])

    assert len(OfflineDataset(tmp_path)) > 0.85 * finished


def test_what_is_held_does_not_change_with_the_rollout(tmp_path):
    recording = Recording(seed=2)
    writer = DatasetWriter(tmp_path)
    rollout = recording.rollout(6)
    writer.add(rollout)
    rollout.columns["reward"][:] = 77.0
    writer.flush()
    require_equal(OfflineDataset(tmp_path), recording)


def test_a_resumed_writer_goes_on_and_drops_what_was_written_later(tmp_path, small_files):
    whole, part = Recording(seed=8), Recording(seed=8)
    unbroken = DatasetWriter(tmp_path / "unbroken")
    writer = DatasetWriter(tmp_path / "resumed")
    for _ in range(5):
        unbroken.add(whole.rollout(5))
        writer.add(part.rollout(5))
    state = through_a_file(writer.state_dict())
    assert same(state, through_a_file(unbroken.state_dict()) | {"sources": state["sources"]})
    for _ in range(4):  # lost by the crash
        writer.add(Recording(seed=99).rollout(5))
    writer.flush()
    writer.close()
    resumed = DatasetWriter(tmp_path / "resumed")
    resumed.load_state_dict(state)
    assert same(through_a_file(resumed.state_dict()), state)  # also before it is open
    for _ in range(5):
        unbroken.add(whole.rollout(5))
        resumed.add(part.rollout(5))
    for writer in (unbroken, resumed):
        writer.flush()
        writer.close()
    require_equal(OfflineDataset(tmp_path / "resumed"), whole)
    names = [sorted(file.name for file in (tmp_path / run).glob("chunk_*")) for run in ("unbroken", "resumed")]
    assert names[0] == names[1]


def test_a_dataset_is_whole_after_a_crash_at_every_write(tmp_path, small_files, monkeypatch):
    calls = {"count": 0}
    real = writers_module.write_chunk, writers_module.write_index
    for fail_at in range(9):
        folder = tmp_path / str(fail_at)
        calls["count"] = 0

        def counting(write, fail_at=fail_at):
            def call(*args):
                if calls["count"] == fail_at:
                    raise KeyboardInterrupt
                calls["count"] += 1
                return write(*args)

            return call

        monkeypatch.setattr(writers_module, "write_chunk", counting(real[0]))
        monkeypatch.setattr(writers_module, "write_index", counting(real[1]))
        recording = Recording(seed=4)
        try:
            written(folder, recording, rollouts=8)
        except KeyboardInterrupt:
            if not (folder / "dataset.json").exists():
                assert fail_at < 2
                continue
        true = set(map(fingerprint, recording.true_episodes()))
        assert set(map(fingerprint, stored(OfflineDataset(folder)))) <= true


class TestAppending:
    def test_is_by_asking_only(self, tmp_path):
        first = Recording(seed=1)
        written(tmp_path, first).close()
        with pytest.raises(DatasetError, match=r"there is a dataset of 90 transitions .*append=True"):
            written(tmp_path, Recording(seed=2))
        second = Recording(seed=2)
        written(tmp_path, second, append=True)
        dataset = OfflineDataset(tmp_path)
        both = [*first.true_episodes(), *second.true_episodes()]
        assert sorted(map(fingerprint, stored(dataset))) == sorted(map(fingerprint, both))
        assert [source["first_chunk"] for source in dataset.sources] == [0, 1]

    def test_needs_the_same_spaces_and_columns(self, tmp_path):
        written(tmp_path, Recording("box")).close()
        with pytest.raises(DatasetError, match="has the observation space Box.*, and the environments have Discrete"):
            written(tmp_path, Recording("discrete"), append=True)
        writer = DatasetWriter(tmp_path, append=True)
        rollout = Recording("box").rollout(3)
        writer.add(rollout.with_columns(extra=np.zeros((3, 3), np.float32)))
        with pytest.raises(DatasetError, match=r"the column extra is float32 \(\), and missing in the dataset"):
            writer.flush()

    @pytest.mark.parametrize("first", [0, 1])
    def test_by_another_run_that_began_after_one_that_had_written_nothing(self, first, tmp_path):
        """The saved run was killed before its first file."""
        if first:
            written(tmp_path, Recording(seed=1)).close()
        killed = DatasetWriter(tmp_path, append=True)
        killed.begin(None, None, {"run": "killed"})
        killed.add(Recording().rollout(2))
        state = killed.state_dict()
        killed.close()
        other = DatasetWriter(tmp_path, append=True)
        other.begin(None, None, {"run": "other"})
        other.add(Recording(seed=5).rollout(9))
        other.flush()
        other.close()
        resumed = DatasetWriter(tmp_path)
        resumed.load_state_dict(state)
        with pytest.raises(DatasetError, match="another run has added"):
            resumed.begin(None, None, {})
        assert len(OfflineDataset(tmp_path)) == 90 * first + 27

    def test_by_another_run_since_the_state_was_saved_is_named(self, tmp_path):
        writer = written(tmp_path, Recording())
        state = writer.state_dict()
        writer.close()
        written(tmp_path, Recording(seed=2), append=True).close()
        resumed = DatasetWriter(tmp_path)
        resumed.load_state_dict(state)
        with pytest.raises(DatasetError, match="another run has added"):
            resumed.begin(None, None, {})


class TestReadersBeside:
    """A reader has the episodes of the time when it opened the dataset."""

    def test_it_reads_on_until_the_writer_is_closed(self, tmp_path, small_files):
        recording, writer = Recording(seed=5, longest=30), DatasetWriter(tmp_path)
        readers = []
        for _ in range(8):
            writer.add(recording.rollout(4))
            writer.flush()
            readers.append((OfflineDataset(tmp_path), set(map(fingerprint, recording.true_episodes()))))
        for reader, true in readers:
            assert set(map(fingerprint, stored(reader))) == true
        late = OfflineDataset(tmp_path)
        writer.close()
        assert {file.name for file in tmp_path.iterdir()} == {"dataset.json", *(chunk.file for chunk in late._index.chunks)}
        assert len(stored(late)) == late.num_episodes

    def test_what_it_cannot_read_any_more_is_named_with_the_fix(self, tmp_path):
        recording = Recording(seed=5)
        writer = written(tmp_path, recording)
        reader = OfflineDataset(tmp_path)
        lengths = reader.lengths.tolist()
        writer.add(recording.rollout(4))
        writer.flush()
        writer.close()
        for _ in range(2):
            with pytest.raises(DatasetError, match="a writer has changed the dataset .* since it was opened.* open it again"):
                reader.rows()
        assert reader.lengths.tolist() == lengths
        require_equal(OfflineDataset(tmp_path), recording)

    def test_the_files_that_stay_are_few(self, tmp_path):
        recording, writer = Recording(seed=5, longest=200), DatasetWriter(tmp_path)
        for _ in range(20):
            writer.add(recording.rollout(2))
            writer.flush()
        assert len(list(tmp_path.glob("chunk_*.npz"))) == 1 + 8

    def test_a_file_that_is_replaced_while_a_dataset_is_opened(self, tmp_path, monkeypatch):
        recording = Recording(seed=5)
        writer, real, calls = written(tmp_path, recording), stored_columns.read_index, []

        def read_and_write(folder):
            index = real(folder)
            calls.append(index)
            if len(calls) == 1:
                writer.add(recording.rollout(4))
                writer.flush()
                writer.close()
            return index

        monkeypatch.setattr(stored_columns, "read_index", read_and_write)
        require_equal(OfflineDataset(tmp_path), recording)

    def test_a_writer_that_others_have_written_after_removes_nothing_of_theirs(self, tmp_path):
        one, other = DatasetWriter(tmp_path), DatasetWriter(tmp_path, append=True)
        for _ in range(2):
            one.add(Recording().rollout(4))
            one.flush()
        other.add(Recording(seed=2).rollout(4))
        other.flush()
        one.close()
        assert len(OfflineDataset(tmp_path).rows()["reward"]) == 36


class TestLeftovers:
    def test_those_of_killed_writers_are_removed(self, tmp_path):
        process = subprocess.Popen([sys.executable, "-c", ""])
        process.wait()
        written(tmp_path, Recording()).close()
        own = temporary_beside(tmp_path / "dataset.json")
        killed, running, elsewhere = (
            own.with_name(own.name.replace(f".{os.getpid()}.", other))
            for other in (f".{process.pid}.", f".{os.getppid()}.", f"x.{process.pid}.")
        )
        lost = tmp_path / "chunk_000099_00000000.npz"
        for file in (killed, running, elsewhere, lost):
            file.write_bytes(b"part")
        written(tmp_path, Recording(seed=2), append=True).close()
        assert [file.exists() for file in (killed, running, elsewhere, lost)] == [False, True, True, False]


class TestRefusedBatches:
    """What was added before is kept, and can be written."""

    ROLLOUT = Recording(seed=1).rollout(4)

    @pytest.mark.few
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"log_prob": np.zeros((4, 3))}, r"the column log_prob is float64 \(\), and float32 \(\) in the dataset"),
            ({"extra": np.zeros((4, 3))}, r"the column extra is float64 \(\), and missing in the dataset"),
            ({"action": np.zeros((4, 3, 2), np.int64)}, r"the column action is int64 \(2,\), and int64 \(\) in the dataset"),
            ({"reward": np.zeros((4, 3, 1))}, r"the column 'reward' has the shape \(12, 1\), expected \(12,\)"),
            ({"next_obs": np.full((4, 3, 3), 1e300)}, r"the column 'next_obs' is float64, .* cannot hold 1e\+300 in row 0"),
            ({"lengths": np.ones((4, 3))}, "no column can have the name 'lengths'"),
        ],
    )
    @pytest.mark.parametrize("is_resumed", [False, True])
    def test_of_rollouts(self, changes, words, is_resumed, tmp_path):
        recording, writer = Recording(seed=4), DatasetWriter(tmp_path)
        writer.begin(None, None, {})
        for _ in range(3):
            writer.add(recording.rollout(5))
        if is_resumed:
            state = through_a_file(writer.state_dict())
            writer.close()
            writer = DatasetWriter(tmp_path)
            writer.load_state_dict(state)
        with pytest.raises(DatasetError, match=words):
            writer.add(Trajectories({**self.ROLLOUT.columns, **changes}))
        writer.flush()
        require_equal(OfflineDataset(tmp_path), recording)
        writer.add(recording.rollout(5))
        writer.flush()
        require_equal(OfflineDataset(tmp_path), recording)

    @pytest.mark.parametrize("has_file", [False, True])
    def test_of_episodes(self, has_file, tmp_path, monkeypatch):
        recording, writer = Recording(seed=4), DatasetWriter(tmp_path)
        recording.rollout(20)
        rows = recording.as_episodes()
        if has_file:
            monkeypatch.setattr(writers_module, "_CHUNK_BYTES", 1)
        writer.add(rows)
        other = Episodes({**rows.rows(), "reward": rows.rows()["reward"].astype(np.float64)}, rows.lengths)
        with pytest.raises(DatasetError, match=r"the column reward is float64 \(\), and float32 \(\) in the dataset"):
            writer.add(other)
        writer.flush()
        require_equal(OfflineDataset(tmp_path), recording, unfinished=False)

    def test_of_steps_that_are_only_a_reset_nothing_is_asked(self, tmp_path):
        recording, writer = Recording(seed=4), DatasetWriter(tmp_path)
        rollout = recording.rollout(9, pauses=0.4)
        rollout.columns["next_obs"] = rollout.columns["next_obs"].astype(np.float64)
        rollout.columns["next_obs"][~rollout.valid] = 1e300
        writer.add(rollout)
        writer.flush()
        require_equal(OfflineDataset(tmp_path), recording)


def test_the_working_folder_may_change(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recording = Recording(seed=1)
    writer = written("data", recording)
    reader = OfflineDataset("data")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert len(reader.rows()["reward"]) == 90
    writer.add(recording.rollout(4))
    writer.flush()
    writer.close()
    require_equal(OfflineDataset(tmp_path / "data"), recording)
    assert not list((tmp_path / "elsewhere").iterdir())
    assert reader.name == "data"


class TestErrors:
    def test_two_writers_at_a_time(self, tmp_path):
        one, other = DatasetWriter(tmp_path), DatasetWriter(tmp_path, append=True)
        one.add(Recording().rollout(4))
        one.flush()
        other.add(Recording(seed=2).rollout(4))
        other.flush()
        with pytest.raises(DatasetError, match="another offline_data_saver has written to the dataset .* give each a folder"):
            one.flush()
        one.close()
        with pytest.raises(DatasetError, match="another offline_data_saver has written to the dataset .* give each a folder"):
            one.begin(None, None, {})
        assert len(OfflineDataset(tmp_path)) == 24

    def test_a_closed_writer_goes_on(self, tmp_path):
        recording, writer = Recording(seed=3), DatasetWriter(tmp_path)
        for _ in range(3):
            writer.add(recording.rollout(4))
            writer.flush()
            writer.close()
        require_equal(OfflineDataset(tmp_path), recording)

    def test_a_lost_file_of_a_resumed_run(self, tmp_path, small_files):
        state = written(tmp_path / "one", Recording()).state_dict()
        resumed = DatasetWriter(tmp_path / "two")
        resumed.load_state_dict(state)
        with pytest.raises(DatasetError, match=r"lacks chunk_000000_.*npz, which the saved run had written"):
            resumed.begin(None, None, {})

    @pytest.mark.parametrize("name", ["obs", "action", "reward", "next_obs", "terminated", "truncated"])
    def test_a_missing_column(self, name, tmp_path):
        rows = Recording().rollout(4).columns
        rows = {key: column[:, 0] for key, column in rows.items() if key != name}
        writer = DatasetWriter(tmp_path)
        with pytest.raises(DatasetError, match=f"lack the column '{name}'"):
            writer.add(Episodes(rows, [4]))

    def test_nstep_rewards(self, tmp_path):
        writer = DatasetWriter(tmp_path)
        with pytest.raises(DatasetError, match="nstep_reward_enhancer has summed their rewards. Put offline_data_saver before"):
            writer.add(Recording().rollout(4).with_columns(discount=np.ones((4, 3), np.float32)))

    def test_objects(self, tmp_path):
        writer = DatasetWriter(tmp_path)
        with pytest.raises(DatasetError, match="the column note of objects"):
            writer.add(Recording().rollout(4).with_columns(note=np.full((4, 3), "a", object)))

    def test_observations_that_never_follow_each_other(self, tmp_path):
        rollout = Recording(longest=9, seed=1).rollout(40)
        rollout.columns["obs"] += 1
        writer = DatasetWriter(tmp_path)
        writer.add(rollout)
        with pytest.raises(DatasetError, match="next_obs of a step is never the observation of the following step"):
            writer.flush()

    def test_two_collectors(self, tmp_path):
        writer = DatasetWriter(tmp_path)
        writer.add(Recording(num_envs=3).rollout(2))
        with pytest.raises(DatasetError, match="a rollout of 2 environments follows one of 3"):
            writer.add(Recording(num_envs=2).rollout(2))

    @pytest.mark.slow
    def test_another_process_writes_there(self, tmp_path):
        import multiprocessing

        from ding_lite.basics import FolderInUseError

        writer = written(tmp_path, Recording())
        assert writer is not None
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.apply(_begins, (str(tmp_path),)) == FolderInUseError.__name__

    @pytest.mark.parametrize("change", [{"chunks": 3}, {"columns": "x"}, {"valid": None, "columns": [["a"]]}, {"lengths": [5]}])
    def test_a_damaged_state(self, change, tmp_path):
        writer = written(tmp_path, Recording())
        with pytest.raises((TypeError, ValueError), match="this state of a DatasetWriter"):
            DatasetWriter(tmp_path / "new").load_state_dict({**writer.state_dict(), **change})


def _begins(folder):
    try:
        DatasetWriter(folder, append=True).begin(None, None, {})
    except OSError as error:
        return type(error).__name__
    return None


def test_an_episode_that_was_left_is_unfinished(tmp_path):
    left, after = Recording(longest=50, seed=1, num_envs=1), Recording(seed=2, num_envs=1)
    writer = DatasetWriter(tmp_path)
    writer.add(left.rollout(3))
    writer.add(after.rollout(9))
    with pytest.warns(UserWarning, match=r"next_obs of 1 of \d+ steps is not the observation of the following step"):
        writer.flush()
    both = [*left.true_episodes(), *after.true_episodes()]
    assert sorted(map(fingerprint, stored(OfflineDataset(tmp_path)))) == sorted(map(fingerprint, both))


@pytest.mark.few
@pytest.mark.parametrize("stop", range(1, 12))
def test_where_a_run_was_cut_does_not_change_the_files(stop, tmp_path, monkeypatch):
    monkeypatch.setattr(writers_module, "_CHUNK_BYTES", 900)
    names = []
    for stops in ((), (stop,)):
        recording, writer = Recording(seed=8, longest=40), DatasetWriter(tmp_path / str(len(stops)))
        for number in range(12):
            if number in stops:
                writer.flush()
                state = through_a_file(writer.state_dict())
                writer.close()
                writer = DatasetWriter(writer.path)
                writer.load_state_dict(state)
            writer.add(recording.rollout(5))
        writer.flush()
        names.append([chunk.file for chunk in writer._index.chunks])
    assert names[0] == names[1]
    assert len(names[0]) > 3


@pytest.mark.few
@pytest.mark.filterwarnings("ignore:. of 3 environments are in the middle")
@pytest.mark.parametrize("stop", [None, 1, 3])
@pytest.mark.parametrize("earlier", [1, 4, 23])
@pytest.mark.parametrize("pauses", [0.0, 0.3])
def test_the_rest_of_an_episode_that_began_before_is_left_out(pauses, earlier, stop, tmp_path, small_files):
    recording, writer = Recording(seed=earlier, longest=40), DatasetWriter(tmp_path)
    recording.rollout(earlier)
    are_running, before = [step > 0 for _, step in recording.at], [len(each) for each in recording.episodes]
    with pytest.warns(UserWarning, match=r"of 3 environments are in the middle of an episode .* reset the environments"):
        writer.add(recording.rollout(5, pauses))
    for number in range(10):
        if number == stop:
            writer.flush()
            state = through_a_file(writer.state_dict())
            writer.close()
            writer = DatasetWriter(writer.path)
            writer.load_state_dict(state)
        writer.add(recording.rollout(5, pauses))
    writer.flush()
    recording.episodes = [
        each[count - 1 + was_running :] for each, count, was_running in zip(recording.episodes, before, are_running)
    ]
    require_equal(OfflineDataset(tmp_path), recording)


def test_an_empty_recording_is_an_empty_dataset(tmp_path):
    writer = DatasetWriter(tmp_path)
    writer.begin(SPACES["box"], SPACES["discrete"], {})
    writer.flush()
    dataset = OfflineDataset(tmp_path)
    assert (len(dataset), dataset.num_episodes, dataset.returns.shape) == (0, 0, (0,))


def test_one_step_in_one_environment(tmp_path):
    recording = Recording(num_envs=1, longest=1)
    written(tmp_path, recording, rollouts=1, steps=1)
    require_equal(OfflineDataset(tmp_path), recording)
    assert isinstance(recording.rollout(1), Trajectories)


def test_sources_are_plain_data_and_what_is_none_is_named_where_it_is_given(tmp_path):
    recording = Recording()
    recording.rollout(9)
    episodes = recording.as_episodes()
    dataset = OfflineDataset.from_episodes(episodes, source={"seed": np.int64(3), "path": tmp_path, "best": np.float32(0.5)})
    plain = {"seed": 3, "path": str(tmp_path), "best": 0.5}
    assert dataset.sources == [plain]
    assert write_dataset(dataset, tmp_path / "data").sources == [{**plain, "first_chunk": 0}]
    with pytest.raises(DatasetError, match=r"source\['tags'\] is \{'a'\} of type set, and JSON has only"):
        OfflineDataset.from_episodes(episodes, source={"tags": {"a"}})
    writer = DatasetWriter(tmp_path / "other")
    with pytest.raises(DatasetError, match=r"source\['tags'\]"):
        writer.begin(None, None, {"tags": {"a"}})
    writer.close()


class TestSpacesOfAppendedRows:
    def rows(self, actions):
        obs, ends = np.zeros((len(actions) + 1, 1), np.float32), np.arange(len(actions)) == len(actions) - 1
        columns = {"obs": obs[:-1], "next_obs": obs[1:], "action": np.array(actions), "reward": np.zeros(len(actions))}
        return {**columns, "terminated": ends, "truncated": ends & False}

    @pytest.mark.parametrize(
        ("space", "fits", "wrong"),
        [
            (spaces.Discrete(2), [0, 1], [7, 0]),
            (spaces.MultiDiscrete([2, 2]), [[0, 1], [1, 1]], [[-1, 1], [0, 0]]),
            (spaces.MultiBinary(2), np.array([[0, 1]], np.int8), np.array([[5, 1]], np.int8)),
        ],
    )
    def test_rows_that_do_not_fit_the_spaces_of_the_others_are_refused_in_both_orders(self, space, fits, wrong, tmp_path):
        spaces_of = spaces.Box(-1, 1, (1,)), space
        write_dataset(open_dataset(self.rows(fits), *spaces_of), tmp_path / "known")
        write_dataset(open_dataset(self.rows(wrong)), tmp_path / "unknown")
        words = r"dataset of these arrays does not fit the spaces of the dataset .*known: the column action has the number"
        with pytest.raises(DatasetError, match=words):
            write_dataset(open_dataset(self.rows(wrong)), tmp_path / "known", append=True)
        with pytest.raises(DatasetError, match=r"unknown does not fit the given spaces: the column action has the number"):
            write_dataset(open_dataset(self.rows(fits), *spaces_of), tmp_path / "unknown", append=True)
        writer = DatasetWriter(tmp_path / "unknown", append=True)
        with pytest.raises(DatasetError, match=r"unknown does not fit the given spaces"):
            writer.begin(*spaces_of, {})
        writer.close()

        assert not OfflineDataset(tmp_path / "unknown").knows("action_space")
        assert OfflineDataset(tmp_path / "known").num_episodes == 1
        both = write_dataset(open_dataset(self.rows(fits)), tmp_path / "known", append=True)
        assert (both.num_episodes, both.action_space) == (2, space)

    def test_spaces_are_given_to_stored_rows_that_fit_them(self, tmp_path):
        write_dataset(open_dataset(self.rows([1, 0])), tmp_path)
        both = write_dataset(open_dataset(self.rows([0]), spaces.Box(-1, 1, (1,)), spaces.Discrete(2)), tmp_path, append=True)
        assert both.action_space == spaces.Discrete(2)
        assert both.rows()["action"].tolist() == [1, 0, 0]
