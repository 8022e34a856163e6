"""Minibatches: the rows of a rollout, shuffled and split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from ding_lite.data.trees import Tree, first_leaf, has_leaf, map_leaves, merge_leading_dims, nested, tree


def rollout_rows(batch: Tree, names: Sequence[str]) -> dict[str, Any]:
    """These leaves of a [T, B, ...] batch as [N, ...], without steps that `valid` [T, B] excludes, if it exists."""
    if not has_leaf(batch, "valid") or (batch.valid.is_cpu and batch.valid.all()):  # on a GPU, this would wait for it
        return {name: map_leaves(merge_leading_dims, nested(batch[name])) for name in names}
    real = batch.valid.flatten()
    return {name: map_leaves(lambda leaf: _at(merge_leading_dims(leaf), real), nested(batch[name])) for name in names}


def minibatches(rows: Mapping[str, Any], batch_size: float, generator: Generator) -> Iterator[Tree]:
    """One epoch: every row once, in random order, in equal parts of about `batch_size`.

    Equal parts, because a shorter last part would give its rows more weight.

    Args:
        rows: tensors, or arrays of objects, [N, ...] by leaf name, nested like the spaces.
        batch_size: approximate number of rows per minibatch.
        generator: a generator on the tensors' device.

    Example:
        >>> parts = minibatches({"x": torch.arange(10)}, 4, torch.Generator().manual_seed(0))
        >>> sorted(len(part.x) for part in parts)
        [5, 5]
    """
    order = torch.randperm(len(first_leaf(rows)), generator=generator, device=generator.device)
    shuffled = _indexed(rows, order)
    parts = max(1, round(len(order) / batch_size))
    for start, stop in pairwise(len(order) * part // parts for part in range(parts + 1)):
        yield tree(_indexed(shuffled, slice(start, stop)))


def _indexed(rows: Mapping[str, Any], index: Tensor | slice) -> dict[str, Any]:
    return {
        name: column[index] if isinstance(column, Tensor) else map_leaves(lambda leaf: _at(leaf, index), column)
        for name, column in rows.items()
    }


def _at(leaf: Any, index: Tensor | slice) -> Any:
    is_array = isinstance(leaf, np.ndarray) and isinstance(index, Tensor)
    return leaf[index.cpu().numpy() if is_array else index]  # type: ignore[union-attr]
