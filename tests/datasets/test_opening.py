"""Opening arrays: by our names and by those of D4RL, with spaces, and written to a folder."""

import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from gymnasium import spaces
from recordings import SPACES, Recording

from ding_lite.data import Episodes, Trajectories
from ding_lite.datasets import DatasetError, DatasetWriter, OfflineDataset, open_dataset, write_dataset
from ding_lite.datasets import writers as writers_module
from ding_lite.envs import SpaceError

OBS, BOX, DISCRETE = spaces.Box(-np.inf, np.inf, (2,), np.float32), spaces.Box(-2, 2, (1,), np.float32), spaces.Discrete(5)


def transitions(lengths=(3, 4, 2), seed=0):
    """Transitions of episodes: the first one terminates, the others are truncated."""
    rng, count = np.random.default_rng(seed), sum(lengths)
    whole = [rng.normal(size=(length + 1, 2)).astype(np.float32) for length in lengths]
    ends = np.isin(np.arange(count), np.cumsum(lengths) - 1)
    return {
        "obs": np.concatenate([obs[:-1] for obs in whole]),
        "action": rng.uniform(-2, 2, (count, 1)).astype(np.float32),
        "reward": rng.normal(size=count),
        "next_obs": np.concatenate([obs[1:] for obs in whole]),
        "terminated": ends & (np.arange(count) < lengths[0]),
        "truncated": ends & (np.arange(count) >= lengths[0]),
    }


def as_d4rl(rows, **names):
    known = {"obs": "observations", "action": "actions", "reward": "rewards", "next_obs": "next_observations"}
    known |= {"terminated": "terminals", "truncated": "timeouts", **names}
    return {known[name]: column for name, column in rows.items()}


def same(one, other):
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)


class TestNamesOfD4RL:
    @pytest.mark.parametrize(
        ("terminated", "truncated"),
        [("terminals", "timeouts"), ("terminated", "truncated"), ("terminations", "truncations")],
    )
    def test_they_are_the_same_transitions(self, terminated, truncated):
        dataset = open_dataset(
            {**as_d4rl(transitions(), terminated=terminated, truncated=truncated), "infos/qpos": np.zeros(3)}
        )
        same(dataset.rows(), open_dataset(transitions()).rows())
        assert dataset.lengths.tolist() == [3, 4, 2]

    def test_columns_of_one_number_are_squeezed(self):
        rows = transitions()
        flat = {name: rows[name][:, None] for name in ("reward", "terminated", "truncated")}
        for changed in ({**rows, **flat}, as_d4rl({**rows, **flat})):
            same(open_dataset(changed).rows(), rows)

    def test_weights_of_one_number_are_squeezed_and_others_refused(self):
        rows = {**transitions(), "weight": np.linspace(0, 1, 9)}
        same(open_dataset({**rows, "weight": rows["weight"][:, None]}).rows(), rows)
        with pytest.raises(DatasetError, match=r"the column 'weight' has the shape \(9, 2\), expected \(9,\)"):
            open_dataset({**rows, "weight": np.ones((9, 2))})
        with pytest.raises(DatasetError, match=r"the column 'weight' has the shape \(9, 1\), expected \(9,\)"):
            open_dataset(Episodes({**rows, "weight": np.ones((9, 1))}, [3, 4, 2]))

    def test_without_next_observations_the_rules_are_those_of_files(self):
        rows = transitions()
        del rows["next_obs"]
        dataset = open_dataset(as_d4rl(rows))
        assert dataset.lengths.tolist() == [3, 3, 1]
        assert dataset.finished.tolist() == [True, True, True]

    @pytest.mark.parametrize("limit", [2.5, True, float("nan"), "10", 10**30, 0, -1])
    def test_a_limit_is_a_number_of_steps(self, limit):
        with pytest.raises(ValueError, match=r"max_episode_steps = .*: expected the steps of the longest episode, at least 1"):
            open_dataset(as_d4rl(transitions()), max_episode_steps=limit)
        assert open_dataset(as_d4rl(transitions()), max_episode_steps=np.int64(9)).num_episodes == 3

    def test_names_that_are_mixed_or_missing_are_errors(self):
        rows = transitions()
        with pytest.raises(DatasetError, match=r"they have 'action' too: rename them, observations to obs, actions to action"):
            open_dataset({**as_d4rl(rows), "action": rows["action"]})
        with pytest.raises(DatasetError, match="observations with parts need the other ones: rename them"):
            open_dataset({**as_d4rl(rows), "observations": {"at": rows["obs"]}})
        with pytest.raises(DatasetError, match="has both 'terminals' and 'terminated', which are the same in D4RL"):
            open_dataset({**as_d4rl(rows), "terminated": rows["terminated"]})
        with pytest.raises(
            DatasetError, match="these arrays is not in the layout of D4RL: it has no 'actions', but observations"
        ):
            open_dataset({"observations": rows["obs"]})
        with pytest.raises(DatasetError, match="lack the column 'action', they have obs: give obs, .* D4RL observations, "):
            open_dataset({"obs": rows["obs"]})

    def test_nothing_that_says_where_episodes_end_is_a_warning(self):
        rows = as_d4rl(transitions((4, 4, 4)))
        del rows["timeouts"], rows["next_observations"]
        with pytest.warns(UserWarning, match=r"neither 'timeouts' nor 'next_observations', .* the longest one has 7 steps"):
            assert open_dataset(rows).lengths.tolist() == [4, 7]


@pytest.mark.filterwarnings("error")
class TestTimeLimits:
    @pytest.mark.parametrize("has_next", [False, True])
    def test_a_limit_cuts_as_timeouts_do(self, has_next):
        rows = as_d4rl(transitions((4, 4, 4)))
        if not has_next:
            del rows["next_observations"]
        wanted = open_dataset(rows)
        del rows["timeouts"]
        found = open_dataset(rows, max_episode_steps=4)
        same(found.rows(), wanted.rows())
        assert found.lengths.tolist() == wanted.lengths.tolist() == ([4, 4, 4] if has_next else [4, 3, 3])
        assert found.finished.all()

    def test_steps_count_from_the_last_end(self):
        rows = as_d4rl(transitions((3, 4, 4, 1)))
        del rows["timeouts"], rows["next_observations"]
        assert open_dataset(rows, max_episode_steps=4).lengths.tolist() == [3, 3, 3]
        assert open_dataset(rows, max_episode_steps=100).lengths.tolist() == [3, 8]

    @pytest.mark.parametrize("ending", ["cut", "timeout", "terminal"])
    @pytest.mark.parametrize("limit", [None, 4])
    @pytest.mark.parametrize("has_next", [False, True])
    def test_an_episode_that_the_data_cuts_is_unfinished(self, ending, limit, has_next):
        rows = as_d4rl(transitions((4, 4, 3)))
        rows["timeouts"][-1] = ending == "timeout"
        rows["terminals"][-1] = ending == "terminal"
        if not has_next:
            del rows["next_observations"]
        dataset = open_dataset(rows, max_episode_steps=limit)
        assert dataset.finished.tolist() == [True, True, ending != "cut"]
        assert dataset.lengths.tolist() == ([4, 4, 3] if has_next else [4, 3, 3 if ending == "terminal" else 2])
        assert dataset.best(1.0).num_episodes == (2 if ending == "cut" else 3)

    def test_wrong_limits(self):
        with pytest.raises(ValueError, match="max_episode_steps = 0: expected the steps of the longest episode, at least 1"):
            open_dataset(as_d4rl(transitions()), max_episode_steps=0)
        with pytest.raises(ValueError, match="max_episode_steps = 4 is for files and arrays with the names of D4RL"):
            open_dataset(transitions(), max_episode_steps=4)


class TestSpaces:
    def test_arrays_with_spaces(self):
        dataset = open_dataset(transitions(), OBS, BOX)
        assert (dataset.observation_space, dataset.action_space) == (OBS, BOX)
        assert open_dataset([transitions(), transitions(seed=1)], OBS, BOX).action_space == BOX
        assert not open_dataset(transitions(), observation_space=OBS).knows("action_space")

    @pytest.mark.parametrize(
        ("changes", "given", "words"),
        [
            ({}, (spaces.Box(-1, 1, (3,)), BOX), r"of these arrays does not fit the given spaces: the column obs .* \(3,\)"),
            ({"action": np.arange(9)}, (OBS, BOX), r"the column action has elements int64 \(\)"),
            ({"action": np.arange(9)}, (OBS, DISCRETE), r"the column action has the number 5, .* outside of Discrete\(5\)"),
            ({"action": np.arange(9) - 1}, (OBS, spaces.Discrete(9)), r"the number -1, which is outside"),
            (
                {"action": {"a": np.full((9, 2), 2), "b": np.zeros((9, 1))}},
                (OBS, spaces.Dict({"a": spaces.MultiDiscrete([3, 2]), "b": BOX})),
                r"the column action/a has the number 2",
            ),
        ],
    )
    def test_rows_that_do_not_fit_are_refused(self, changes, given, words):
        rows = {**transitions(), **changes}
        with pytest.raises(DatasetError, match=words):
            open_dataset(rows, *given)
        with pytest.raises(DatasetError, match="does not fit the given spaces"):
            OfflineDataset.from_episodes(Episodes(rows, [3, 4, 2]), *given)

    def test_other_spaces_than_the_known_ones_are_refused(self):
        dataset = open_dataset(transitions(), OBS, BOX)
        assert open_dataset(dataset, OBS).action_space == BOX
        with pytest.raises(DatasetError, match=r"has the action space Box.*, and was given Box\(-1.*: leave it out"):
            dataset.with_spaces(action_space=spaces.Box(-1, 1, (1,), np.float32))


class TestWriting:
    def test_arrays_become_a_folder(self, tmp_path):
        written = write_dataset(open_dataset(as_d4rl(transitions()), OBS, BOX), tmp_path / "own")
        dataset = OfflineDataset(tmp_path / "own")
        assert (dataset.observation_space, dataset.action_space) == (OBS, BOX)
        same(dataset.rows(), transitions())
        assert dataset.lengths.tolist() == written.lengths.tolist() == [3, 4, 2]
        with pytest.raises(DatasetError, match=r"there is a dataset of 9 transitions in .*append=True"):
            write_dataset(dataset, tmp_path / "own")
        assert len(write_dataset(open_dataset(transitions(), OBS, BOX), tmp_path / "own", append=True)) == 18

    @pytest.mark.parametrize("kind", ["box", "dict"])
    def test_files_are_small_and_nothing_is_lost(self, kind, tmp_path, monkeypatch):
        monkeypatch.setattr(writers_module, "_CHUNK_BYTES", 700)
        recording = Recording(kind, seed=3)
        recording.rollout(30)
        episodes = [Episodes(rows, [len(rows["reward"])]) for rows in recording.true_episodes()]
        spaces_ = SPACES[kind], SPACES["discrete"]
        parts = [OfflineDataset.from_episodes(one, *spaces_, {"number": number}) for number, one in enumerate(episodes)]
        whole = OfflineDataset.concatenate(parts)
        found = write_dataset(whole, tmp_path)
        assert len(list(tmp_path.glob("chunk_*.npz"))) > 2
        assert np.array_equal(found.lengths, whole.lengths)
        assert np.array_equal(found.finished, whole.finished)
        assert [source["number"] for source in found.sources] == list(range(len(parts)))
        same(found.rows(("action", "reward", "log_prob")), whole.rows(("action", "reward", "log_prob")))
        assert str(found.rows()) == str(whole.rows())

    @pytest.mark.parametrize("append", [False, True])
    def test_a_copy_that_is_interrupted_leaves_nothing_of_it(self, append, tmp_path, monkeypatch):
        monkeypatch.setattr(writers_module, "_CHUNK_BYTES", 100)
        source, earlier = (open_dataset(transitions((3, 4, 2, 5), seed), OBS, BOX) for seed in range(2))
        if append:
            write_dataset(earlier, tmp_path)
        add, calls = DatasetWriter.add, []

        def interrupted(self, found):
            calls.append(found)
            if len(calls) == 3:
                assert len([*tmp_path.glob("*.npz")]) > (1 if append else 0)  # some of it was written
                raise KeyboardInterrupt
            add(self, found)

        monkeypatch.setattr(DatasetWriter, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_dataset(source, tmp_path, append)
        found = [*tmp_path.glob("*.npz")]
        assert (
            {chunk.file for chunk in OfflineDataset(tmp_path)._index.chunks} == {it.name for it in found}
            if append
            else not found
        )
        monkeypatch.setattr(DatasetWriter, "add", add)
        written = write_dataset(source, tmp_path, append)
        expected = OfflineDataset.concatenate([earlier, source]) if append else source
        assert str(written.rows()) == str(expected.rows())

    def test_a_copy_that_is_refused_lets_others_write(self, tmp_path):
        dataset = write_dataset(open_dataset(transitions(), OBS, BOX), tmp_path)
        with pytest.raises(DatasetError, match="there is a dataset") as held:
            write_dataset(dataset, tmp_path)
        code = f"from ding_lite.datasets import DatasetWriter; DatasetWriter({str(tmp_path)!r}, True).begin(None, None, {{}})"
        subprocess.run([sys.executable, "-c", code], check=True)
        assert held.value.__traceback__ is not None  # as a notebook keeps it

    def test_an_empty_dataset(self, tmp_path):
        empty = open_dataset({name: column[:0] for name, column in transitions().items()})
        assert len(write_dataset(empty, tmp_path)) == 0


class TestForms:
    """What users have given, and the fix that the message names."""

    @pytest.mark.parametrize("names", [lambda rows: rows, as_d4rl])
    def test_a_dict_for_each_step(self, names):
        whole = names(transitions())
        rows = [{name: column[at] for name, column in whole.items()} for at in range(9)]
        with pytest.raises(
            DatasetError,
            match=r"(is one number|has the shape \(\)), .*np\.stack\(\[row\[name\] for row in rows\]\) for name in rows\[0\]",
        ):
            open_dataset(rows)
        same(open_dataset({name: np.stack([row[name] for row in rows]) for name in rows[0]}).rows(), transitions())

    def test_a_tuple_of_arrays(self):
        rows = transitions()
        parts = {name: (rows[name], rows[name][:, :1]) for name in ("obs", "next_obs")}
        with pytest.raises(DatasetError, match=r'obs is a tuple of 2 arrays: name them as .* \{"0": ..., "1": ...\}'):
            open_dataset({**rows, **parts})
        named = {name: dict(zip("01", both)) for name, both in parts.items()}
        assert open_dataset({**rows, **named}).rows()["obs"]["1"].shape == (9, 1)
        same(open_dataset({name: tuple(column) for name, column in rows.items()}).rows(), rows)  # tuples of rows

    @pytest.mark.parametrize("dtype", [None, object])
    @pytest.mark.parametrize("names", [lambda rows: rows, as_d4rl])
    def test_actions_as_text(self, names, dtype):
        with pytest.raises(DatasetError, match=r"actions?\b.* Encode text as integers: np.unique\(column, return_inverse=True"):
            open_dataset(names({**transitions(), "action": np.array(["left", "right", "up"] * 3, dtype)}))

    @pytest.mark.parametrize("names", [lambda rows: rows, as_d4rl])
    def test_steps_of_several_environments(self, names):
        whole = names({name: np.stack([column, column], 1) for name, column in transitions((4, 5)).items()})
        with pytest.raises(
            DatasetError, match=r"has the shape \(9, 2\), expected \(9,\). If .* several environments"
        ) as caught:
            open_dataset(whole)
        assert "np.swapaxes(column, 0, 1).reshape(-1, *column.shape[2:])" in str(caught.value)
        flat = {name: np.swapaxes(column, 0, 1).reshape(-1, *column.shape[2:]) for name, column in whole.items()}
        assert open_dataset(flat).lengths.tolist() == [4, 5, 4, 5]

    @pytest.mark.filterwarnings("error")
    def test_transitions_without_an_order(self):
        rng, rows = np.random.default_rng(0), transitions((20, 20))
        rows = {**rows, "next_obs": rng.normal(size=rows["obs"].shape).astype(np.float32)}
        with pytest.raises(
            DatasetError, match="each row is a transition by itself, mark every one as an end, terminated or trunc"
        ):
            open_dataset(rows)
        same(open_dataset({**rows, "truncated": ~rows["terminated"]}).rows(("next_obs",)), {"next_obs": rows["next_obs"]})

    @pytest.mark.parametrize("names", [lambda rows: rows, as_d4rl])
    @pytest.mark.parametrize("column", ["obs", "reward", "terminated"])
    def test_masked_numbers(self, column, names):
        rows = transitions()
        shown = next(iter(names({column: 0})))
        hidden = {**rows, column: np.ma.masked_array(rows[column], mask=np.arange(rows[column].size) == 3)}
        with pytest.raises(DatasetError, match=rf"the column '{shown}' is a masked array with 1 masked numbers, .*filled"):
            open_dataset(names(hidden))
        same(open_dataset(names({**rows, column: np.ma.masked_array(rows[column])})).rows(), rows)
        if names is not as_d4rl and column != "terminated":
            with pytest.raises(DatasetError, match=rf"the column '{column}' is a masked array"):
                open_dataset(Episodes(hidden, [3, 4, 2]))

    def test_a_time_limit_of_other_names(self):
        with pytest.raises(
            ValueError, match="arrays by the names obs, action, .*truncated: say in truncated where the limit"
        ) as it:
            open_dataset(transitions(), max_episode_steps=4)
        assert "array(" not in str(it.value)

    def test_what_only_the_names_of_d4rl_may_lack(self):
        for name in ("next_obs", "truncated"):
            rows = transitions()
            del rows[name]
            with pytest.raises(
                DatasetError, match=f"column '{name}', .* of which next_observations and timeouts may be missing"
            ):
                open_dataset(rows)

    @pytest.mark.filterwarnings("error")
    @pytest.mark.parametrize("has_next", [True, False])
    def test_ends_of_episodes_by_the_name_of_d3rlpy(self, has_next):
        rows = transitions()
        ends = rows["terminated"] | rows["truncated"]  # theirs include terminals
        wanted = as_d4rl(rows)
        found = as_d4rl({**rows, "truncated": ends}, truncated="episode_terminals")
        if not has_next:
            del wanted["next_observations"], found["next_observations"]
        same(open_dataset(found).rows(), open_dataset(wanted).rows())

    def test_files_of_other_formats(self, tmp_path):
        np.savez(tmp_path / "a.npz", **transitions())
        with pytest.raises(
            DatasetError, match=r"a.npz is no folder .* read its arrays, .* open_dataset\(dict\(np.load\(path\)\)\)"
        ):
            open_dataset(tmp_path / "a.npz")
        same(open_dataset(dict(np.load(tmp_path / "a.npz"))).rows(), transitions())
        (tmp_path / "a.csv").write_text("obs,action")
        with pytest.raises(DatasetError, match=r"a.csv is no folder of a dataset, .* pass them by name"):
            open_dataset(tmp_path / "a.csv")

    def test_ids_of_d4rl(self):
        pytest.importorskip("minari")
        with pytest.raises(DatasetError, match=r"as the id of D4RL, pass D4RL's file .hdf5, .* 'mujoco/hopper/medium-v0'"):
            open_dataset("hopper-medium-replay-v2")
        with pytest.raises(DatasetError, match=r"minari.download_dataset\('mujoco/hopper/medium-v0'\)"):
            open_dataset("mujoco/hopper/medium-v0")


def test_the_name_of_many_datasets_is_short():
    dataset = open_dataset([transitions(seed=seed) for seed in range(20)])
    assert dataset.name == "of the arrays 0 + of the arrays 1 + 18 more"
    words = "the datasets of the arrays 0 and of the arrays 1 cannot be used as one: the column action"
    with pytest.raises(DatasetError, match=re.escape(words)):
        open_dataset([transitions(), {**transitions(), "action": np.zeros((9, 2))}])
    with pytest.raises(DatasetError, match=re.escape(words)):  # datasets that were opened one by one
        open_dataset([open_dataset(transitions()), open_dataset({**transitions(), "action": np.zeros((9, 2))})])
    assert open_dataset([open_dataset(transitions()), transitions()]).name == "of the arrays 0 + of the arrays 1"
    with pytest.raises(DatasetError, match="the two datasets twice cannot be used as one: the column action"):
        OfflineDataset.concatenate(
            [named("twice", transitions()), named("twice", {**transitions(), "action": np.zeros((9, 2))})]
        )


def named(name, rows):
    dataset = open_dataset(rows)
    dataset.name = name
    return dataset


class TestNumbersOfSpaces:
    def test_only_chosen_episodes_must_fit(self):
        rows = {**transitions(), "action": np.array([7, 0, 0, 1, 1, 0, 1, 0, 1])}
        dataset = open_dataset(rows)
        with pytest.raises(DatasetError, match=r"the column action has the number 7, which is outside of Discrete\(2\)"):
            dataset.with_spaces(OBS, spaces.Discrete(2))
        assert dataset.select([1, 2]).with_spaces(OBS, spaces.Discrete(2)).action_space == spaces.Discrete(2)

    def test_final_observations_must_fit_too(self):
        obs = np.zeros((9, 2), np.int64)
        final = {"obs": obs, "next_obs": obs.copy()}
        final["next_obs"][6] = 4  # of the second episode
        dataset = open_dataset({**transitions(), **final})
        for given in (dataset, dataset.select([1])):
            with pytest.raises(DatasetError, match="the column obs has the number 4"):
                given.with_spaces(spaces.MultiDiscrete([3, 4]))
        assert dataset.select([2, 0]).with_spaces(spaces.MultiDiscrete([3, 4])).num_episodes == 2

    @pytest.mark.parametrize("first", [0, 1])
    def test_arrays_that_are_joined_must_fit_the_spaces_of_the_others(self, first):
        rows = {**transitions(), "action": np.arange(9) % 2}
        typed = open_dataset(rows, OBS, spaces.Discrete(2))
        parts = [typed, {**rows, "action": np.full(9, 7)}]
        words = (
            r"the dataset of the arrays . does not fit the spaces of those that it is joined with: the column action has the "
        )
        with pytest.raises(DatasetError, match=f"{words}number 7, which is outside of Discrete"):
            open_dataset([parts[first], parts[1 - first]])
        assert open_dataset([typed, rows]).action_space == spaces.Discrete(2)


class TestNextObservations:
    @pytest.mark.parametrize("wide", ["obs", "next_obs"])
    def test_they_may_have_another_precision(self, wide):
        rows, count = transitions((40, 3)), 43
        exact = {name: rows[name].astype(np.float64) + 1e-12 for name in ("obs", "next_obs")}
        dataset = open_dataset({**rows, wide: exact[wide]})
        assert dataset.lengths.tolist() == [40, 3]
        assert len(dataset) == count

    def test_other_parts_are_named(self):
        rows = transitions()
        parts = {"obs": {"at": rows["obs"]}, "next_obs": {"at": rows["next_obs"]}}
        for changed, words in [
            ({"next_obs": {"to": rows["next_obs"]}}, "lack the column 'next_obs/at': obs has obs/at, and next_obs next_obs/to"),
            ({"next_obs": rows["next_obs"]}, "lack the column 'next_obs/at': obs has obs/at, and next_obs next_obs"),
            ({"obs": rows["obs"]}, "lack the column 'next_obs': obs has obs, and next_obs next_obs/at"),
            (
                {"next_obs": {**parts["next_obs"], "more": rows["next_obs"]}},
                "have the column 'next_obs/more': obs has obs/at, and next_obs next_obs/at, next_obs/more",
            ),
        ]:
            with pytest.raises(DatasetError, match=f"{words}. Give both the same parts"):
                open_dataset({**rows, **parts, **changed})

    def test_ends_inside_of_an_episode_cut_it(self, tmp_path):
        rows = transitions((3, 4))
        rows["next_obs"][2] = rows["obs"][3]  # as if the second episode began there
        with pytest.warns(UserWarning, match="1 steps inside of episodes are terminated or truncated"):
            dataset = OfflineDataset.from_episodes(Episodes(rows, [7]), OBS, BOX)
        assert dataset.lengths.tolist() == [3, 4]
        same(dataset.rows(), open_dataset(rows, OBS, BOX).rows())
        writer = DatasetWriter(tmp_path)
        writer.add(Episodes(rows, [7]))
        with pytest.warns(UserWarning, match="their episodes are cut after them"):
            writer.flush()
        assert OfflineDataset(tmp_path).lengths.tolist() == [3, 4]

    def test_arrays_in_another_order_are_named(self):
        rows = transitions((40,))
        rows["obs"] = rows["obs"][::-1]
        with pytest.raises(DatasetError, match="never the observation of the following step.* arrays in the order of time"):
            open_dataset(rows)

    @pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64])
    def test_batches_have_integers_with_which_torch_computes(self, dtype):
        rows = {**transitions(), "action": (np.arange(9) % 5).astype(dtype)}
        dataset = open_dataset(rows, OBS, DISCRETE)
        assert dataset.rows()["action"].dtype == dtype
        assert (dataset.take(np.arange(9)).action + 1).tolist() == [1 + row % 5 for row in range(9)]

    @pytest.mark.parametrize(
        ("dtype", "to", "last", "found"),
        [
            (np.int64, np.float64, [20.5, 21.5], "20.5"),
            (np.int64, np.float64, [np.nan, 21], "nan"),
            (np.int64, np.float64, [2.0**63, 21], "9.2233"),
            (np.uint8, np.int64, [300, -1], "300"),
            (np.uint64, np.int64, [7, -1], "-1"),
            (np.uint8, np.int16, [7, -1], "-1"),
            (np.bool_, np.int64, [1, 2], "2"),
            (np.float32, np.float64, [7.0, 1e300], "1e[+]300"),
            (np.float32, np.int64, [7, 2**24 + 1], "16777217"),
            (np.float64, np.int64, [7, 2**53 + 1], "9007199254740993"),
        ],
    )
    def test_a_final_one_that_the_dtype_of_obs_cannot_hold_is_named(self, dtype, to, last, found):
        obs = np.zeros((4, 2), dtype)
        rows = {"obs": obs, "next_obs": np.append(obs[1:].astype(to), np.array([last], to), 0), "action": np.arange(4)}
        rows |= {"reward": np.ones(4), "terminated": np.arange(4) == 3, "truncated": np.zeros(4, bool)}
        own = re.escape(f"the column 'next_obs' is {np.dtype(to)}, and is stored as {np.dtype(dtype)}, the dtype of obs")
        with pytest.raises(DatasetError, match=f"{own}, which cannot hold {found}.* in row 3: give obs and next_obs one dtype"):
            open_dataset(rows)
        nested = {**rows, "obs": {"at": obs}, "next_obs": {"at": rows["next_obs"]}}
        with pytest.raises(DatasetError, match="the column 'next_obs/at' is"):
            OfflineDataset.from_episodes(Episodes(nested, [4]))

    @pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32, np.float64])
    @pytest.mark.parametrize("to", [np.uint8, np.int16, np.uint64, np.float16, np.float64])
    def test_equal_numbers_in_another_dtype_are_stored(self, dtype, to):
        obs = (np.arange(10).reshape(5, 2) % 7).astype(dtype)
        rows = {"obs": obs[:-1], "next_obs": obs[1:].astype(to), "action": np.arange(4), "reward": np.ones(4)}
        rows |= {"terminated": np.arange(4) == 3, "truncated": np.zeros(4, bool)}
        dataset = open_dataset(rows)
        assert dataset.lengths.tolist() == [4]
        assert np.array_equal(dataset.rows()["next_obs"], obs[1:])


class TestNames:
    @pytest.mark.parametrize("name", ["lengths", "valid", "timestep", "return_to_go"])
    def test_those_that_datasets_use_are_refused_wherever_data_comes_in(self, name, tmp_path):
        rows = {**transitions(), name: np.arange(9)}
        words = f"no column can have the name '{name}', because datasets use the names lengths, valid, .*: choose another one"
        writer = DatasetWriter(tmp_path)
        for door in (
            lambda: open_dataset(rows),
            lambda: open_dataset({**rows, name: {"part": rows[name]}}),
            lambda: open_dataset(transitions()).with_columns(**{name: rows[name]}),
        ):
            with pytest.raises(DatasetError, match=words):
                door()
        if name == "valid":  # no episodes or rollouts have it
            return
        episodes = Episodes(rows, [3, 4, 2])
        for door in (
            lambda: open_dataset(episodes),
            lambda: OfflineDataset.from_episodes(episodes),
            lambda: writer.add(episodes),
            lambda: writer.add(Trajectories({key: column[:, None] for key, column in rows.items()})),
        ):
            with pytest.raises(DatasetError, match=words):
                door()

    def test_a_part_may_have_any_of_them(self, tmp_path):
        rows = {**transitions(), "infos": {"lengths": np.arange(9), "valid": np.arange(9)}}
        assert write_dataset(open_dataset(rows), tmp_path).take([4]).infos.lengths.tolist() == [4]

    def test_those_that_are_no_strings_are_named(self, tmp_path):
        rows = transitions()
        parts = {name: {1: rows[name], 2: rows[name]} for name in ("obs", "next_obs")}
        words = r"the column 'obs/1' has a part with the name 1 of type int, expected strings: give \{str\(name\): part"
        with pytest.raises(DatasetError, match=words):
            open_dataset({**rows, **parts})
        with pytest.raises(DatasetError, match=words):
            DatasetWriter(tmp_path).add(Episodes({**rows, **parts}, [3, 4, 2]))
        with pytest.raises(DatasetError, match=r"the column 'obs/.ud800' has half of a character in its name"):
            open_dataset({**rows, **{name: {"\ud800": rows[name]} for name in parts}})
        text = {name: {str(key): column for key, column in leaf.items()} for name, leaf in parts.items()}
        space = spaces.Dict({1: OBS, 2: OBS})
        with pytest.raises(SpaceError, match="a Dict space has a part with the name 1 of type int"):
            open_dataset({**rows, **text}, space, BOX)


class TestNumbers:
    def test_the_other_byte_order_is_read_and_written(self, tmp_path):
        rows = transitions()
        swapped = {name: column.astype(column.dtype.newbyteorder()) for name, column in rows.items()}
        rollout = Trajectories({name: column[:, None] for name, column in swapped.items()})
        writer = DatasetWriter(tmp_path / "rollout")
        writer.add(rollout)
        writer.add(Trajectories({name: column[:, None] for name, column in rows.items()}))
        writer.flush()
        for dataset in (
            open_dataset(swapped),
            open_dataset(as_d4rl(swapped)),
            OfflineDataset.from_episodes(Episodes(swapped, [3, 4, 2])),
            write_dataset(open_dataset(swapped), tmp_path / "written"),
            OfflineDataset(tmp_path / "rollout").select([0, 1, 2]),
        ):
            same(dataset.rows(), rows)
            assert all(column.dtype.isnative for column in dataset.rows().values())
            assert dataset.take([4]).obs.tolist() == [rows["obs"][4].tolist()]

    def test_a_file_in_the_other_byte_order(self, tmp_path):
        h5py = pytest.importorskip("h5py")
        rows = as_d4rl(transitions())
        with h5py.File(tmp_path / "big.hdf5", "w") as file:
            for name, column in rows.items():
                file[name] = column.astype(column.dtype.newbyteorder())
        dataset = open_dataset(tmp_path / "big.hdf5")
        same(write_dataset(dataset, tmp_path / "own").rows(), transitions())
        assert dataset.take([4]).reward.dtype == torch.float32

    @pytest.mark.parametrize("by_names_of_d4rl", [False, True])
    def test_tensors_are_detached_and_those_that_numpy_does_not_have_are_named(self, by_names_of_d4rl):
        rows = as_d4rl(transitions()) if by_names_of_d4rl else transitions()
        reward = "rewards" if by_names_of_d4rl else "reward"
        number = torch.as_tensor(rows[reward]).requires_grad_()
        assert np.array_equal(open_dataset({**rows, reward: number}).rows()["reward"], rows[reward])
        assert np.array_equal(open_dataset({**rows, reward: number[:, None]}).rows()["reward"], rows[reward])
        with pytest.raises(
            DatasetError, match=rf"the column '{reward}' is bfloat16, which datasets do not store: use \.float\(\)"
        ):
            open_dataset({**rows, reward: number.bfloat16()})

    @pytest.mark.parametrize("column", ["obs", "extra"])
    def test_integers_that_no_tensor_holds_are_refused_wherever_data_comes_in(self, column, tmp_path):
        numbers = np.arange(20, dtype=np.uint64).reshape(10, 2) + np.uint64(2**63 - 20)
        rows = {**transitions((9,)), "obs": np.zeros((9, 2)), "next_obs": np.zeros((9, 2))}

        def with_numbers(numbers):
            return {**rows, **({"obs": numbers[:-1], "next_obs": numbers[1:]} if column == "obs" else {"extra": numbers[:-1]})}

        held = write_dataset(open_dataset(with_numbers(numbers)), tmp_path / "held")
        assert held.take([8])[column].tolist() == [numbers[8].tolist()]
        largest = numbers + np.uint64(11)
        writer = DatasetWriter(tmp_path / "writer")
        writer.add(Episodes(with_numbers(numbers), [9]))
        for door in (
            lambda: open_dataset(with_numbers(largest)),
            lambda: writer.add(Episodes(with_numbers(largest), [9])),
            lambda: writer.add(Trajectories({name: array[:, None] for name, array in with_numbers(largest).items()})),
        ):
            with pytest.raises(
                DatasetError, match=f"'{column}' has the number 92233720368547758.. of uint64, .* end at 2..63 - 1"
            ):
                door()
        writer.flush()
        same(OfflineDataset(tmp_path / "writer").rows(), with_numbers(numbers))

    def test_floats_that_no_tensor_holds_are_refused(self, tmp_path):
        long = np.arange(9).astype(np.longdouble)
        if long.dtype.itemsize == 8:
            pytest.skip("a long double has 64 bits here")
        rows = {**transitions(), "reward": long}
        for door in (
            lambda: open_dataset(rows),
            lambda: open_dataset(as_d4rl(rows)),
            lambda: DatasetWriter(tmp_path).add(Episodes(rows, [3, 4, 2])),
        ):
            with pytest.raises(
                DatasetError, match=r"column 'rewards?' has the dtype float128, .*: give column.astype\(np.float64\)"
            ):
                door()


@pytest.mark.parametrize("names", ["own", "D4RL"])
def test_a_step_that_is_both_terminated_and_truncated_is_only_terminated_by_the_names_of_d4rl(names, tmp_path):
    rows = transitions((3,))
    rows["truncated"] = rows["terminated"].copy()
    dataset = write_dataset(open_dataset(rows if names == "own" else as_d4rl(rows)), tmp_path)
    assert dataset.rows()["terminated"].tolist() == [False, False, True]
    assert dataset.rows()["truncated"].tolist() == [False, False, names == "own"]
    assert dataset.finished.tolist() == [True]
