"""Names of other libraries' data and replay buffers, with what to write instead."""

from ding_lite.basics import foreign_names

_REPLAY = "it is `ReplayBuffer(cfg.policy.other.replay_buffer_size, seed=cfg.seed)`, which stores a column for each leaf."
_PRIORITIZED = (
    "it is a buffer of its own, used in place of ReplayBuffer: `PrioritizedReplayBuffer(20_000, seed=cfg.seed, alpha=0.6, "
    "beta=0.4)`. The policy needs no setting for it."
)
_SEQUENCES = "`sequence_pusher(cfg, buffer_)` stores sequences of equal length, each of one environment."
_COPIES = "leave it out: `ReplayBuffer(20_000)` stores copies, and its batches are copies."
_USES = (
    "transitions are not limited in their uses or their age, the oldest are overwritten: make the buffer smaller, "
    "`ReplayBuffer(5_000)`, or lower `cfg.policy.learn.update_per_collect`."
)
_SHARED = (
    'leave it out: the worker processes of `make_envs(cfg.env.id, 8, workers=4, backend="process")` return rollouts through '
    "shared memory, and get the newest weights by themselves."
)
_DATASET = (
    "a dataset is `OfflineDataset(path)` of ding_lite.datasets, which `offline_data_saver(cfg, path)` has written, and "
    "`offline_data_fetcher(cfg, path)` fetches its batches."
)

_DI_ENGINE = {
    **dict.fromkeys(("AdvancedReplayBuffer", "Buffer", "DequeBuffer", "DequeBufferWrapper", "IBuffer"), _REPLAY),
    **dict.fromkeys(("NaiveReplayBuffer", "create_buffer", "get_buffer_cls"), _REPLAY),
    "PriorityExperienceReplay": _PRIORITIZED,
    "BufferedData": "`buffer_.sample(64)` gives the batch itself, a tree of tensors [64, ...].",
    "apply_middleware": "a subclass of `ReplayBuffer` overrides `ReplayBuffer.push` or `ReplayBuffer.draw`.",
    "clone_object": _COPIES,
    **dict.fromkeys(("staleness_check", "use_time_check"), _USES),
    **dict.fromkeys(("SequenceReplayBuffer", "group_sample", "padding"), _SEQUENCES),
    "sample_range_view": "a buffer samples from all of its transitions: to sample from the newest, make a smaller "
    "`ReplayBuffer(5_000)`.",
    **dict.fromkeys(("FileModelLoader", "FileStorageLoader", "ModelLoader", "StorageLoader"), _SHARED),
    **dict.fromkeys(("ShmBuffer", "ShmBufferContainer"), _SHARED),
    **dict.fromkeys(("create_dataset", "offline_data_save_type"), _DATASET),
}
_BATCH = 'a batch is a tree, `tree({"obs": obs, "action": action})`.'
_OTHERS = {
    "Stable-Baselines3": {
        "DictReplayBuffer": "`ReplayBuffer(20_000)` stores observations of any space.",
        "HerReplayBuffer": "it is `EpisodeReplayBuffer(cfg.policy.other.replay_buffer_size, seed=cfg.seed)`; "
        "HERLearner of ding_lite.middleware replaces goals when it samples.",
    },
    "Tianshou": {
        "Batch": _BATCH,
        "Collector": "it is `StepCollector(cfg, policy.collect_mode, env)` of ding_lite.middleware.",
        "VectorReplayBuffer": _REPLAY,
        "PrioritizedVectorReplayBuffer": _PRIORITIZED,
        "to_torch": "a batch is a tree of tensors already, and `to_device(batch, policy.device)` moves it.",
    },
    "RLlib": {
        "SampleBatch": 'a batch is a tree, `tree({"obs": obs, "action": action})`; its columns have names in '
        "`from ding_lite.policy import SampleBatch`.",
        "MultiAgentReplayBuffer": "each policy has a buffer of its own: `for_policy(name, data_pusher(cfg, buffer_))`.",
        **dict.fromkeys(("JsonReader", "JsonWriter"), _DATASET),
    },
}

NAMES = {"DI-engine": _DI_ENGINE, **_OTHERS}
"""For each library, its names with what to write instead, as code in backticks."""

_CAPACITY = "the number of transitions is `ReplayBuffer(capacity=20_000)`."
_LAYOUT = "leave it out: the first push fixes the layout, or `ReplayBuffer(20_000, spec=settings)`."
_FRAMES = "`ReplayBuffer(20_000, share_frames=True)` stores each frame once; stacks of frames are made by the environment."
_ENVS = "leave it out: transitions of any number of environments are pushed together."

ARGUMENTS = {
    **dict.fromkeys(("size", "buffer_size", "total_size"), _CAPACITY),
    "sliced": "leave it out: batches are copies.",
    **dict.fromkeys(("observation_space", "action_space"), _LAYOUT),
    "device": "leave it out: batches are in the memory of the CPU, and `policy.learn_mode.forward(batch)` moves them.",
    **dict.fromkeys(("n_envs", "buffer_num"), _ENVS),
    **dict.fromkeys(("optimize_memory_usage", "stack_num", "ignore_obs_next", "save_only_last_obs"), _FRAMES),
    "handle_timeout_termination": "leave it out: a transition has terminated and truncated, and only terminated cuts the "
    "bootstrap of values.",
    **dict.fromkeys(
        ("n_sampled_goal", "goal_selection_strategy"),
        "HERLearner of ding_lite.middleware replaces goals, as her.ratio and her.strategy of HERConfig say.",
    ),
}
"""Arguments of other libraries' buffers, with what to write instead."""

PUSH_ARGUMENTS = {
    "meta": "a transition may have more leaves, `buffer_.push(batch)`, and for `PrioritizedReplayBuffer` a leaf priority.",
    "data": "write `buffer_.push(batch)`.",
}
"""Arguments of the method `push` of DI-engine's buffers."""

_ALL = "leave it out: `buffer_.sample(64)` samples from all transitions, each by itself."
SAMPLE_ARGUMENTS = {
    "batch_size": "write `buffer_.sample(64)`.",
    "replace": "leave it out: transitions are drawn with replacement.",
    **dict.fromkeys(("indices", "sample_range"), _ALL),
    **dict.fromkeys(("groupby", "unroll_len"), _SEQUENCES),
    "ignore_insufficient": "leave it out: with replacement, a batch may be larger than the buffer, `buffer_.sample(64)`.",
}
"""Arguments of the method `sample`."""

_PUSHED = "`buffer_.push(batch)` adds transitions, in batches [N, ...]."

ATTRIBUTES = {
    **dict.fromkeys(("add", "extend"), _PUSHED),
    "use": "there is no middleware of buffers: prioritised replay is `PrioritizedReplayBuffer(20_000, seed=cfg.seed)`.",
    "update": "`PrioritizedReplayBuffer.update_priority` sets priorities; transitions themselves are not changed.",
    "delete": "the oldest transitions are overwritten, and `buffer_.clear()` removes all.",
    "get": "`buffer_.sample(1)` draws a transition; there is no access by index.",
    "save_data": "`save_checkpoint(buffer_.state_dict(), path)` of ding_lite.engine saves the buffer.",
    "load_data": "`buffer_.load_state_dict(load_checkpoint(path))` restores it, with load_checkpoint of ding_lite.engine.",
    "size": "the number of transitions that fit is `buffer_.capacity`, the number that it holds `len(buffer_)`.",
}
"""Attributes of other libraries' buffers, with what to write instead."""

__getattr__ = foreign_names("ding_lite.data", NAMES)
