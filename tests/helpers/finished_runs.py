"""Runs of the examples to their end, to compare all that they come to."""

import json
from typing import NamedTuple

import torch
from example_runs import small, spied

from ding_lite import task


def run(name, folder, **settings):
    """Everything that a run comes to: checkpoints, counters, what was evaluated, and what is left of what it worked with."""
    module, cfg = small(name, folder, **settings)
    made = spied(module)
    module.main(cfg)
    ctx = task.ctx
    counters = [getattr(ctx, it, 0) for it in ("total_step", "env_step", "env_episode", "train_iter", "last_eval_iter")]
    files = [torch.load(path, weights_only=True) for path in sorted((folder / "ckpt").glob("*.pt"))]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    evaluated = [[value for key, value in sorted(row.items()) if key.startswith("evaluate/")] for row in rows]
    left = [thing.state_dict() for thing in made]
    return Result([*counters, ctx.last_eval_value], files, [row for row in evaluated if row], left)


class Result(NamedTuple):
    """What a run comes to."""

    counters: list
    files: list
    evaluated: list
    left: list
    """States of environments, policies with their acting modes, and buffers."""
