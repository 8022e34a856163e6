"""Data-parallel runs: the configuration of each of the processes that learn together."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterator
from typing import TypeVar

from ding_lite.basics.blocks import block
from ding_lite.ranks import joined, seed_of_rank
from ding_lite.run_configs import RunConfig

RunConfigType = TypeVar("RunConfigType", bound=RunConfig)


@block
def data_parallel(cfg: RunConfigType, timeout_s: float = 1800.0) -> Iterator[RunConfigType]:
    """Learn together with the other processes that torchrun has started. Without torchrun, this does nothing.

    In the block, policies average their gradients over the processes. Put `ddp_termination_checker()` into the pipeline.

    The settings of the configuration, such as policy.collect.n_sample and policy.learn.batch_size, are those of each process.
    Rank 0 has the given configuration. The others have another seed for their environments and for acting, the same one for
    the weights, the folder `exp_name/rank_N`, and no console. On "cuda", each process has the device of its LOCAL_RANK.

    Args:
        cfg: the configuration of the run; it is not changed.
        timeout_s: seconds that a process waits for the others, for example while rank 0 evaluates.

    Returns:
        The configuration of this process.

    Raises:
        RankError: another process has failed, or is not at the same point of the program.
        ValueError: the run is asynchronous or has a lag.
    """
    with joined(timeout_s, cfg.policy.device) as ranks:
        if ranks is None:
            yield cfg
            return
        if cfg.async_mode or cfg.max_lag:
            raise ValueError(
                "a data-parallel run is synchronous and has no lag, because all processes exchange numbers in the same "
                "order: set async_mode to False and max_lag to None."
            )
        own = copy.deepcopy(cfg)
        if own.policy.device == "cuda":
            own.policy.device = f"cuda:{os.environ.get('LOCAL_RANK', ranks.rank)}"
        if ranks.rank:
            policy_seed = own.policy.seed
            own.seed = seed_of_rank(cfg.seed, ranks.rank)
            own.policy.seed = policy_seed
            folder = f"rank_{ranks.rank}"
            own.exp_name = os.path.join(cfg.exp_name, folder)
            own.resume = None if cfg.resume is None else os.path.join(cfg.resume, folder)
            own.log.show_every_s, own.log.video_every = math.inf, 0
            own.log.tensorboard, own.log.wandb = False, "disabled"
        yield own
