"""Scores relative to references, by hand and by Minari's own function."""

import gymnasium
import numpy as np
import pytest
from recordings import SPACES, Recording

from ding_lite.datasets import REFERENCE_RETURNS, DatasetError, normalized_score, open_dataset, write_minari
from ding_lite.datasets.offline_datasets import OfflineDataset


def test_the_random_policy_has_0_and_the_expert_100():
    for task, (random, expert) in REFERENCE_RETURNS.items():
        for name in (f"{task}-medium-replay-v2", f"{task}-random-v0"):
            assert normalized_score(np.array([random, expert, (random + expert) / 2]), name).tolist() == [0, 100, 50]
    assert normalized_score(5800.0, "HalfCheetah-v4") == pytest.approx(100 * (5800 + 280.178953) / (12135 + 280.178953))
    assert normalized_score(-1, [-3, 1]) == 50.0
    assert {name: gymnasium.spec(f"{name}-v5").name.lower() for name in ("HalfCheetah", "Hopper", "Walker2d", "Ant")} == dict(
        zip(("HalfCheetah", "Hopper", "Walker2d", "Ant"), REFERENCE_RETURNS)
    )


@pytest.mark.parametrize("name", ["antmaze-umaze-v0", "bullet-hopper-random-v0", "CartPole-v1", "Hopper", "hopper/medium-v0"])
def test_a_task_without_references_is_an_error(name):
    with pytest.raises(ValueError, match=rf"has no references for '{name}', only for halfcheetah, hopper, walker2d, ant"):
        normalized_score(1.0, name)


@pytest.mark.parametrize("references", [(1.0, 1.0), (2.0, 1.0), (0.0, float("nan")), (float("-inf"), 1.0)])
def test_references_without_a_scale_are_an_error(references):
    with pytest.raises(ValueError, match=r"expected the returns \(random, expert\), the second one above the first"):
        normalized_score(1.0, references)


@pytest.mark.parametrize("references", [None, 3.0, (1.0,), (1, 2, 3), ("a", "b")])
def test_what_is_not_a_pair_is_an_error(references):
    with pytest.raises(ValueError, match="expected the returns .*, the id of a task, or a dataset that has them"):
        normalized_score(1.0, references)


@pytest.mark.filterwarnings("ignore:.* is set to None", "ignore:env_spec is None")
def test_references_of_minari(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    recording = Recording(seed=2)
    recording.rollout(20)
    own = OfflineDataset.from_episodes(recording.as_episodes(), SPACES["box"], SPACES["discrete"])
    scores = {"ref_min_score": -2.5, "ref_max_score": 7.5}
    written = write_minari(own, "tests/references-v0", eval_env="CartPole-v1", **scores)
    dataset = open_dataset("tests/references-v0")
    expected = 100 * minari.utils.get_normalized_score(written, dataset.returns)
    np.testing.assert_allclose(normalized_score(dataset.returns, dataset), expected, rtol=1e-12)
    assert normalized_score(2.5, open_dataset([dataset, dataset.best(0.5)])) == 50
    with pytest.raises(DatasetError, match="has no reference returns: pass the returns"):
        normalized_score(2.5, own)
    write_minari(own, "tests/others-v0", eval_env="CartPole-v1", ref_min_score=0.0, ref_max_score=7.5)
    both = open_dataset([dataset, "tests/others-v0"])
    with pytest.raises(DatasetError, match="was made of parts with different reference returns"):
        normalized_score(2.5, both)
