"""Recurrent features: an encoder and an LSTM, one step at a time for acting, many at a time for learning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.data import map_leaves, nested
from ding_lite.nn.initialization import fill_orthogonal

_SHUT = 1e4  # added to what a sigmoid takes: it is exactly 1 or, negative, exactly 0, in half precision too
_FEW = 64  # rows up to which numpy takes a step faster than torch


class RecurrentFeatures(nn.Module):
    """An encoder whose output goes through an LSTM: features that depend on all observations since the episode began.

    The state is [h, c], the LSTM's output and its cell. Episodes begin in the middle of a rollout, at other times in each
    environment, and a recurrent network has to begin anew there. Calls from one beginning to the next would be many, and
    sequences cut apart and padded much longer together, so `unroll` slips in steps between the observations: one that wipes
    the state out, by shutting input, forget and output gate, wherever an episode begins; and in environments with fewer of
    these, steps at the end that hold the cell. All of it is then a single call.

    Args:
        encoder: from observations [B, *obs_shape], nested as the space is, to [B, width].
        width: what the encoder gives.
        size: of the LSTM, and of the features.

    Reference:
        Hochreiter and Schmidhuber (1997), "Long Short-Term Memory", with the forget gate of Gers et al. (2000).

    Example:
        >>> network = RecurrentFeatures(nn.Identity(), 3, 8)
        >>> features, state = network.unroll(torch.zeros(5, 2, 3), network.state_of(2), torch.zeros(5, 2, dtype=torch.bool))
        >>> features.shape, [element.shape for element in state]
        (torch.Size([5, 2, 8]), [torch.Size([2, 8]), torch.Size([2, 8])])
    """

    marks: Tensor

    def __init__(self, encoder: nn.Module, width: int, size: int) -> None:
        super().__init__()
        self.lstm: Any = nn.LSTM(width, size)
        self.encoder, self.size = encoder, size
        for name, param in self.lstm.named_parameters():
            if name.startswith("weight"):
                fill_orthogonal(param)
            else:
                nn.init.zeros_(param)
        shut, open_, as_is = -_SHUT * torch.ones(size), _SHUT * torch.ones(size), torch.zeros(size)
        wipes, holds = (
            torch.cat([shut, shut, as_is, shut]),
            torch.cat([shut, open_, as_is, as_is]),
        )  # input, forget, cell, output
        self.register_buffer("marks", torch.stack([wipes, holds], 1), persistent=False)

    def initial_state(self) -> list[Tensor]:
        """h and c [size] where an episode begins: zeros."""
        return [torch.zeros(self.size), torch.zeros(self.size)]

    def state_of(self, batch_size: int) -> list[Tensor]:
        """The state of B episodes that begin, on the device and in the dtype of the weights, each [B, size]."""
        weight = self.lstm.weight_hh_l0
        return [weight.new_zeros(batch_size, self.size) for _ in range(2)]

    def step(self, obs: Any, state: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """One step of B environments.

        Args:
            obs: [B, *obs_shape], nested as the space is.
            state: h and c [B, size].

        Returns:
            Features [B, size], and the next state.
        """
        x, (h, c) = self.encoder(obs), state
        weights = self._weights()
        if torch.is_inference_mode_enabled() and len(x) <= _FEW and x.device.type == "cpu" and x.dtype is torch.float32:
            h, c = map(
                torch.from_numpy, _step(*(tensor.numpy() for tensor in (x, h, c)), *(w.detach().numpy() for w in weights))
            )
        else:
            h, c = torch.lstm_cell(x, [h, c], *weights)
        return h, [h, c]

    def unroll(self, obs: Any, state: Sequence[Tensor], restart: Tensor) -> tuple[Tensor, list[Tensor]]:
        """T steps of B environments.

        Args:
            obs: [T, B, *obs_shape], nested as the space is.
            state: h and c [B, size] before the first step.
            restart: where a step begins an episode, with an initial state. [T, B] bool.

        Returns:
            Features [T, B, size], and the state after the last step.
        """
        if not restart.any():
            return self._straight(obs, state)
        plan = _planned(restart, torch.zeros_like(restart))
        out, cell = self._run(self._encoded(obs), plan, state)
        features = out[plan.steps]
        return features, [features[-1], cell]

    def unroll_ahead(self, obs: Any, next_obs: Any, state: Sequence[Tensor], restart: Tensor) -> tuple[Tensor, Tensor]:
        """T steps of B environments, and one look beyond each.

        Where an episode goes on, the next observation is the next row's; where it ends, or the rows do, one step more is taken.

        Args:
            obs, next_obs: [T, B, *obs_shape], nested as the space is; next_obs is what the step returned, before any reset.
            state, restart: see `unroll`.

        Returns:
            Features of obs, and of next_obs with the state after the step, each [T, B, size].
        """
        if not restart.any():
            all_obs = map_leaves(lambda leaf, after: torch.cat([leaf, after[-1:]]), nested(obs), nested(next_obs))
            features = self._straight(all_obs, state)[0]
            return features[:-1], features[1:]
        beyond = torch.ones_like(restart)
        beyond[:-1] = restart[1:]
        plan = _planned(restart, beyond)
        last = self.encoder(map_leaves(lambda leaf: leaf[beyond], nested(next_obs)))
        out, _ = self._run(torch.cat([self._encoded(obs), last]), plan, state)
        # Behind each row comes the row after it, or the look beyond that was slipped in.
        return out[plan.steps], out[plan.steps + restart.shape[1]]

    def _straight(self, obs: Any, state: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """T steps within one episode each: features [T, B, size], and the last state."""
        x = self._encoded(obs)
        out, (h, c) = self.lstm(x.view(-1, len(state[0]), x.shape[1]), (state[0].unsqueeze(0), state[1].unsqueeze(0)))
        return out, [h[0], c[0]]

    def _encoded(self, obs: Any) -> Tensor:
        flat: Tensor = self.encoder(map_leaves(lambda leaf: leaf.flatten(0, 1), nested(obs)))
        return flat

    def _weights(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        lstm = self.lstm
        return lstm.weight_ih_l0, lstm.weight_hh_l0, lstm.bias_ih_l0, lstm.bias_hh_l0

    def _run(self, x: Tensor, plan: _Plan, state: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """What comes of the rows x [N, width] in the places that the plan gives them, [M * B, size], and the last cell."""
        rows = torch.cat([x, x.new_zeros(1, x.shape[1])])[plan.source].view(-1, len(state[0]), x.shape[1])
        weight_ih, weight_hh, bias_ih, bias_hh = self._weights()
        weights = [torch.cat([weight_ih, self.marks], 1), weight_hh, bias_ih, bias_hh]
        initial = (state[0].unsqueeze(0), state[1].unsqueeze(0))
        rows = torch.cat([rows, plan.marked.to(x.dtype)], -1)
        out, _, cell = torch.lstm(rows, initial, weights, True, 1, 0.0, self.training, False, False)
        return out.flatten(0, 1), cell[0]


class _Plan(NamedTuple):
    """Where the steps of B environments stand among those that are slipped in between, in M rows of B places."""

    steps: Tensor
    """The place of each step. [T, B] int64, below M * B."""

    source: Tensor
    """Which row of the input each place takes: steps first, looks beyond after them, and the last for none. [M * B] int64."""

    marked: Tensor
    """Whether a place wipes the state out, and whether it holds it. [M, B, 2] bool."""


def _planned(restart: Tensor, beyond: Tensor) -> _Plan:
    """The plan of T steps of which some begin an episode, and some are followed by a look at the observation after them."""
    num_steps, num_envs = restart.shape
    device = restart.device
    shift = restart.cumsum(0) + beyond.cumsum(0) - beyond.long()
    row = torch.arange(num_steps, device=device).unsqueeze(1) + shift
    last = row[-1] + beyond[-1]
    num_rows = int(last.max()) + 1
    steps = row * num_envs + torch.arange(num_envs, device=device)
    looks = (steps + num_envs)[beyond]
    nothing = restart.numel() + len(looks)
    source = torch.full((num_rows * num_envs,), nothing, device=device)
    source[steps.flatten()] = torch.arange(restart.numel(), device=device)
    source[looks] = torch.arange(restart.numel(), nothing, device=device)
    wiped = torch.zeros(num_rows * num_envs, dtype=torch.bool, device=device)
    wiped[(steps - num_envs)[restart]] = True
    held = torch.arange(num_rows, device=device).unsqueeze(1) > last
    return _Plan(steps, source, torch.stack([wiped.view(num_rows, num_envs), held], -1))


def _step(x: Any, h: Any, c: Any, weight_ih: Any, weight_hh: Any, bias_ih: Any, bias_hh: Any) -> tuple[Any, Any]:
    """h and c after one step, in numpy, whose calls cost a fraction of torch's; a sigmoid is a tanh of half the size."""
    size = h.shape[1]
    gates = x @ weight_ih.T
    gates += h @ weight_hh.T
    gates += bias_ih
    gates += bias_hh
    cell = np.tanh(gates[:, 2 * size : 3 * size])
    gates *= 0.5
    np.tanh(gates, gates)
    gates *= 0.5
    gates += 0.5
    c = gates[:, size : 2 * size] * c
    cell *= gates[:, :size]
    c += cell
    h = np.tanh(c)
    h *= gates[:, 3 * size :]
    return h, c
