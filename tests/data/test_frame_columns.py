"""Replay buffers that share frames: batches and states are those of a plain buffer with the same pushes."""

import tempfile

import numpy as np
import pytest
import torch
from states import same, through_a_file

from ding_lite.basics import RunFiles, row_files
from ding_lite.data import LeafSpec, PrioritizedReplayBuffer, ReplayBuffer, Trajectories, frame_columns, nested, replay

SHAPE = (16, 16)
STACKS = 4


class Stream:
    """Rollouts [T, B] of games whose observations are the last 4 frames; episodes end at random, and some frames repeat."""

    def __init__(self, seed, num_envs=3, nstep=1, extra=()):
        self.rng, self.nstep, self.extra = np.random.default_rng(seed), nstep, extra
        self.stacks = [self.begin() for _ in range(num_envs)]

    def frame(self):
        return np.full(SHAPE, 7, np.uint8) if self.rng.random() < 0.3 else self.rng.integers(0, 256, SHAPE).astype(np.uint8)

    def begin(self):
        return np.stack([self.frame()] * STACKS)

    def rollout(self, num_steps):
        columns = {"obs": [], "next_obs": [], "action": [], "terminated": []}
        for _ in range(num_steps):
            nexts = [np.concatenate([stack[1:], self.frame()[None]]) for stack in self.stacks]
            ended = self.rng.random(len(nexts)) < 0.2
            columns["obs"].append(np.stack(self.stacks))
            columns["next_obs"].append(np.stack(nexts))
            columns["action"].append(self.rng.integers(0, 6, len(nexts)))
            columns["terminated"].append(ended)
            self.stacks = [self.begin() if end else stack for end, stack in zip(ended, nexts)]
        return {name: np.stack(column) for name, column in columns.items()}


def dict_rows(columns):
    """The same rollout with two cameras and a small vector in each observation."""
    return {
        name: {"left": column, "deep": {"right": column[..., ::2, :].astype(np.float32)}, "vector": column[..., 0, 0, :3]}
        if name in ("obs", "next_obs")
        else column
        for name, column in columns.items()
    }


def pair(kind, capacity, **settings):
    return kind(capacity, 1, **settings), kind(capacity, 1, share_frames=True, **settings)


@pytest.mark.few
@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
@pytest.mark.parametrize(("capacity", "window", "is_nested"), [(7, 5, False), (40, 4096, True), (97, 20, False)])
def test_any_pushes_give_the_batches_of_a_plain_buffer(kind, capacity, window, is_nested, monkeypatch):
    monkeypatch.setattr(frame_columns, "_WINDOW", window)
    monkeypatch.setattr(frame_columns, "_SLACK", 4)  # so that pools grow
    monkeypatch.setattr(replay, "_PART", 5)
    rng, stream = np.random.default_rng(capacity), Stream(2)
    plain, shared = pair(kind, capacity)
    for turn in range(30):
        columns = stream.rollout(int(rng.integers(1, 25 if turn % 7 == 0 else 6)))
        columns = dict_rows(columns) if is_nested else columns
        for buffer in (plain, shared):
            buffer.push(Trajectories(columns) if turn % 2 else Trajectories(columns).rows())
        assert len(plain) == len(shared)
        batches = [nested(buffer.sample(9)) for buffer in (plain, shared)]
        assert same(*batches)
        if kind is PrioritizedReplayBuffer:
            priority = rng.random(9)
            for buffer, batch in zip((plain, shared), batches):
                buffer.update_priority(batch["index"], priority)
        if turn == 20:
            for buffer in (plain, shared):
                buffer.clear()


def test_each_frame_is_stored_once_and_freed_with_its_last_transition():
    buffer, stream = ReplayBuffer(50, share_frames=True), Stream(0, num_envs=2)
    stream.frame = lambda: stream.rng.integers(0, 256, SHAPE).astype(np.uint8)  # none repeats
    for _ in range(40):
        columns = stream.rollout(5)
        buffer.push(Trajectories(columns))
    (pool,) = buffer._frames.pools
    held = buffer.take(buffer.draw(0)._replace(rows=np.arange(50)))
    frames = {frame.tobytes() for leaf in (held.obs, held.next_obs) for frame in leaf.numpy().reshape(-1, *SHAPE)}

    stored = pool.frames[np.arange(pool.first, pool.stop) % pool.room]
    assert {frame.tobytes() for frame in stored} >= frames
    assert len({frame.tobytes() for frame in stored}) == len(stored) <= len(frames) + 10  # freed in order of their age


def test_n_step_transitions_and_those_in_another_order_share_frames_too():
    columns = Stream(0, num_envs=1).rollout(60)
    steps = {name: column[:, 0] for name, column in columns.items()}
    rows = {**{name: column[:-2] for name, column in steps.items()}, "next_obs": steps["next_obs"][2:]}
    shuffled = np.random.default_rng(0).permutation(58)
    plain, shared = pair(ReplayBuffer, 58)
    for buffer in (plain, shared):
        buffer.push({name: column[shuffled] for name, column in rows.items()})
    (pool,) = shared._frames.pools

    assert same(nested(plain.sample(30)), nested(shared.sample(30)))
    distinct = {frame.tobytes() for name in ("obs", "next_obs") for frame in rows[name].reshape(-1, *SHAPE)}
    assert pool.stop == len(distinct)


def test_frames_with_the_same_hash_are_not_confused(monkeypatch):
    monkeypatch.setattr(frame_columns.FramePool, "_hashes", lambda self, words: np.zeros(len(words), np.uint64))
    plain, shared = pair(ReplayBuffer, 20)
    stream = Stream(4)
    for _ in range(15):
        columns = stream.rollout(4)
        for buffer in (plain, shared):
            buffer.push(Trajectories(columns))
        assert same(nested(plain.sample(20)), nested(shared.sample(20)))


@pytest.mark.parametrize("shape", [(3, 17, 19), (2, 9, 9, 3), (12, 30), (5, 4, 16, 16)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.bool_])
def test_frames_of_any_shape_and_dtype_are_kept_bit_for_bit(shape, dtype):
    rows = np.random.default_rng(0).integers(0, 256, (30, *shape)).astype(dtype)
    if dtype is np.float32:
        rows[3].flat[0], rows[4].flat[:2] = np.nan, (-0.0, 0.0)
    shared = ReplayBuffer(30, share_frames=True, spec={"obs": LeafSpec(shape, np.dtype(dtype))})
    shared.push({"obs": rows})
    found = shared.take(shared.draw(0)._replace(rows=np.arange(30))).obs.numpy()

    assert found.tobytes() == rows.tobytes()


@pytest.mark.few
@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
@pytest.mark.parametrize("is_nested", [False, True])
def test_a_restored_buffer_goes_on_like_the_one_that_was_saved(kind, is_nested, monkeypatch):
    """Also from the files of a run, which hold each row and each frame once."""
    monkeypatch.setattr(row_files, "_SMALLEST", 2000)
    monkeypatch.setattr(row_files, "_LARGEST", 9000)
    monkeypatch.setattr(frame_columns, "_WINDOW", 30)
    stream, buffer = Stream(3), kind(60, 2, share_frames=True)
    with tempfile.TemporaryDirectory() as folder:
        files = RunFiles(folder)
        for turn in range(24):
            columns = dict_rows(stream.rollout(4)) if is_nested else stream.rollout(4)
            buffer.push(Trajectories(columns))
            if turn == 12:
                buffer.clear()
            if turn not in (3, 4, 11, 17, 20, 21):
                continue
            whole = through_a_file({"parts": {"buffer": buffer.state_dict()}})
            files.save({"parts": {"buffer": buffer.state_in_pieces()}}, turn)
            loaded = files.load()[0]
            assert same(loaded, whole)
            if turn != 21:
                restored = kind(60, 5, share_frames=True)
                if turn == 11:
                    restored.push(Trajectories(columns))
                restored.load_state_dict(loaded["parts"]["buffer"])
                assert same(restored.state_dict(), buffer.state_dict())
                assert same(nested(restored.sample(5)), nested(buffer.sample(5)))
                buffer = restored
        names = [path.name for path in files.folder.glob("rows_*")]
    assert len(names) > 3


def test_a_state_after_clear_has_no_frames_and_can_be_restored():
    _, shared = pair(ReplayBuffer, 20)
    shared.push(Trajectories(Stream(0).rollout(3)))
    shared.clear()
    state = through_a_file(shared.state_dict())
    assert state["frames_0"].shape == (0, *SHAPE)
    _, other = pair(ReplayBuffer, 20)
    other.push(Trajectories(Stream(1).rollout(3)))
    other.load_state_dict(state)
    for buffer in (shared, other):
        buffer.push(Trajectories(Stream(2).rollout(3)))
    assert same(shared.state_dict(), other.state_dict())


def test_states_with_and_without_shared_frames_are_told_apart():
    plain, shared = pair(ReplayBuffer, 20)
    for buffer in (plain, shared):
        buffer.push(Trajectories(Stream(0).rollout(3)))
    with pytest.raises(ValueError, match="share_frames=True does not fit one with share_frames=False"):
        plain.load_state_dict(shared.state_dict())
    with pytest.raises(ValueError, match="make the buffer with share_frames=False"):
        shared.load_state_dict(plain.state_dict())


BROKEN = {
    "framed": [[["obs"], 4]],
    "pools": [[0, 3]],
    "frames_0": torch.zeros(3, 16, 16, dtype=torch.uint8),
    "columns": None,
    "small": None,
}


@pytest.mark.parametrize("key", BROKEN)
def test_a_damaged_state_is_refused_and_changes_nothing(key):
    _, shared = pair(ReplayBuffer, 20)
    shared.push(Trajectories(Stream(0).rollout(3)))
    state, before = shared.state_dict(), shared.state_dict()
    if BROKEN[key] is not None:
        state[key] = BROKEN[key]
    if key == "small":
        state = {**before, "frames_0": before["frames_0"][:, :2, :2]}
    if key == "columns":
        state[key] = {**before["columns"], "obs": before["columns"]["obs"] + 1000}
    with pytest.raises(ValueError, match="Nothing was loaded"):
        shared.load_state_dict(state)
    assert same(shared.state_dict(), before)


ATARI = {name: LeafSpec((4, 84, 84), np.dtype(np.uint8)) for name in ("obs", "next_obs")}
MEMORY = {**ATARI, "action": LeafSpec((), np.dtype(np.int64)), "reward": LeafSpec((), np.dtype(np.float32))}


def test_a_million_atari_transitions_need_less_than_8_gb():
    assert ReplayBuffer(1_000_000, share_frames=True).bytes_for(MEMORY) < 8e9


def test_the_error_of_a_buffer_that_is_too_large_names_shared_frames(monkeypatch):
    monkeypatch.setattr(replay, "available_bytes", lambda: 16 * 10**9)
    with pytest.raises(MemoryError, match=r"needs 56\.5 GB.*ReplayBuffer\(\.\.\., share_frames=True\) needs 7\.6 GB"):
        ReplayBuffer(1_000_000, spec=MEMORY)
    with pytest.raises(MemoryError, match=r"with shared frames needs 7[0-9]\.[0-9] GB, but only 16\.0 GB"):
        ReplayBuffer(10_000_000, spec=MEMORY, share_frames=True)


def test_a_pool_that_outgrows_memory_is_an_error_with_its_reason(monkeypatch):
    monkeypatch.setattr(frame_columns, "_SLACK", 0)
    buffer, rng = ReplayBuffer(40, share_frames=True), np.random.default_rng(0)
    rows = {name: rng.integers(0, 256, (40, STACKS, *SHAPE)).astype(np.uint8) for name in ("obs", "next_obs")}
    before = buffer.bytes_for({name: LeafSpec((STACKS, *SHAPE), np.dtype(np.uint8)) for name in rows})
    buffer.push({name: column[:4] for name, column in rows.items()})
    assert buffer.nbytes == before
    buffer.push(rows)
    assert buffer.nbytes > 3 * before
    monkeypatch.setattr(frame_columns, "available_bytes", lambda: 1000)
    other = ReplayBuffer(40, share_frames=True)
    with pytest.raises(MemoryError, match="different frames of 256 bytes"):
        other.push(rows)
    other = ReplayBuffer(40, share_frames=True)
    with pytest.raises(MemoryError, match="different frames of 256 bytes"):
        other.load_state_dict(buffer.state_dict())
    assert len(other) == 0


@pytest.mark.parametrize("where", [slice(0, 2), np.arange(2)])
def test_frames_that_replace_others_stay_in_use(where):
    column = frame_columns.FrameColumn(frame_columns.FramePool(SHAPE, np.dtype(np.uint8), 64), 4, ())
    for number in (1, 2):
        column[where] = np.full((2, *SHAPE), number, np.uint8)
        column.pool.add(np.full((1, *SHAPE), 9, np.uint8))

    assert (column.take(np.arange(2)) == 2).all()
    assert column.pool._uses[:3].tolist() == [0, 2, 2]
