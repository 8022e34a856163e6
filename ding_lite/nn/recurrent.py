"""Recurrent features: an encoder and an LSTM, for single steps (acting) and for sequences (learning)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.data import nested
from ding_lite.data.trees import map_leaves
from ding_lite.functional import is_traced
from ding_lite.nn.initialization import fill_orthogonal

_SHUT = 1e4  # added to a gate's input, so that its sigmoid is exactly 1 or (negative) exactly 0, in half precision too
_FEW = 64  # largest batch for which numpy computes a step faster than torch
_LONGEST = 128  # steps of a sequence in a compiled program, where each step is some ten operations


class RecurrentFeatures(nn.Module):
    """An encoder followed by an LSTM: features that depend on all observations since the start of the episode.

    The recurrent state is [h, c], the output and the cell of the LSTM. In a rollout, episodes start at different steps in each
    environment, and the state must be reset there. `unroll` does this in a single call of the LSTM by inserting steps between
    the observations. At each episode start, a reset step closes the input, forget and output gates, which sets the state to
    zero. Environments with fewer reset steps get additional steps at the end that keep the cell. (One call between every two
    starts would be many calls; cutting the rollout into padded sequences would make the batch much larger.)

    Args:
        encoder: maps observations [B, *obs_shape], nested like the space, to [B, width].
        width: width of the encoder's output.
        size: width of the LSTM and of the features.

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
        """h and c [size] at the start of an episode: zeros."""
        return [torch.zeros(self.size), torch.zeros(self.size)]

    def state_of(self, batch_size: int) -> list[Tensor]:
        """h and c [B, size] at the start of B episodes: zeros with the device and dtype of the weights."""
        weight = self.lstm.weight_hh_l0
        return [weight.new_zeros(batch_size, self.size) for _ in range(2)]

    def step(self, obs: Any, state: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Compute one step of B environments.

        Args:
            obs: [B, *obs_shape], nested like the space.
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
        """Compute T steps of B environments.

        Args:
            obs: [T, B, *obs_shape], nested like the space.
            state: h and c [B, size] before the first step.
            restart: whether a step is the first of an episode, so that it starts with the initial state. [T, B] bool.

        Returns:
            Features [T, B, size], and the state after the last step.
        """
        if is_traced():
            hidden, cell = self._stepwise(self._encoded(obs), state, restart)
            return hidden, [hidden[-1], cell[-1]]
        if not restart.any():
            return self._straight(obs, state)
        plan = _planned(restart, torch.zeros_like(restart))
        out, cell = self._run(self._encoded(obs), plan, state)
        features = out[plan.steps]
        return features, [features[-1], cell]

    def unroll_ahead(self, obs: Any, next_obs: Any, state: Sequence[Tensor], restart: Tensor) -> tuple[Tensor, Tensor]:
        """Compute T steps of B environments, and the features of each next observation.

        Within an episode, the next observation is the obs of the next row. At the end of an episode, and in the last row, an
        additional step with next_obs is inserted.

        Args:
            obs, next_obs: [T, B, *obs_shape], nested like the space; next_obs is the observation before any reset.
            state, restart: see `unroll`.

        Returns:
            Features of obs, and of next_obs with the state after the step, each [T, B, size].
        """
        if is_traced():
            hidden, cell = self._stepwise(self._encoded(obs), state, restart)
            ended = torch.cat([restart[1:], torch.ones_like(restart[:1])]).unsqueeze(-1)
            beyond, _ = self._cell(self._gates(self._encoded(next_obs), restart.shape), hidden, cell)
            return hidden, torch.where(ended, beyond, torch.cat([hidden[1:], hidden[:1]]))
        if not restart.any():
            all_obs = map_leaves(lambda leaf, after: torch.cat([leaf, after[-1:]]), nested(obs), nested(next_obs))
            features = self._straight(all_obs, state)[0]
            return features[:-1], features[1:]
        beyond = torch.ones_like(restart)
        beyond[:-1] = restart[1:]
        plan = _planned(restart, beyond)
        last = self.encoder(map_leaves(lambda leaf: leaf[beyond], nested(next_obs)))
        out, _ = self._run(torch.cat([self._encoded(obs), last]), plan, state)
        # Each step is followed by the step of the next row, or by the inserted step with next_obs.
        return out[plan.steps], out[plan.steps + restart.shape[1]]

    def _straight(self, obs: Any, state: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Compute T steps without episode starts. Returns features [T, B, size], and the last state."""
        x = self._encoded(obs)
        rows, initial = x.view(-1, len(state[0]), x.shape[1]), (state[0].unsqueeze(0), state[1].unsqueeze(0))
        if x.is_cuda:
            weights = _in_one_piece(self._weights())
            out, h, c = torch.lstm(rows, initial, weights, True, 1, 0.0, self.training, False, False)
        else:
            out, (h, c) = self.lstm(rows, initial)
        return out, [h[0], c[0]]

    def _stepwise(self, x: Tensor, state: Sequence[Tensor], restart: Tensor) -> tuple[Tensor, Tensor]:
        """Compute T steps of rows x [T * B, width] one after another. Returns h and c after each step, [T, B, size].

        This is for compiled programs, whose shapes cannot depend on where episodes start.

        Raises:
            NotImplementedError: there are more than 128 steps.
        """
        if len(restart) > _LONGEST:
            raise NotImplementedError(
                f"an LSTM unrolls {len(restart)} steps, and a compiled program has at most {_LONGEST}: learn from shorter "
                "sequences or rollouts (PPO: learn.unroll_len)."
            )
        h, c = state
        hidden, cells = [], []
        for gates, starts in zip(self._gates(x, restart.shape).unbind(), restart.unsqueeze(-1).unbind()):
            h, c = self._cell(gates, h.masked_fill(starts, 0), c.masked_fill(starts, 0))
            hidden.append(h)
            cells.append(c)
        return torch.stack(hidden), torch.stack(cells)

    def _gates(self, x: Tensor, lead: Sequence[int]) -> Tensor:
        """What rows x [N, width] add to the inputs of the gates, [*lead, 4 * size]."""
        weight, _, bias_ih, bias_hh = self._weights()
        return nn.functional.linear(x, weight, bias_ih + bias_hh).view(*lead, 4 * self.size)

    def _cell(self, gates: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """h and c after a step, [..., size]."""
        enters, keeps, candidate, leaves = (gates + h @ self._weights()[1].T).chunk(4, -1)
        c = keeps.sigmoid() * c + enters.sigmoid() * candidate.tanh()
        return leaves.sigmoid() * c.tanh(), c

    def _encoded(self, obs: Any) -> Tensor:
        flat: Tensor = self.encoder(map_leaves(lambda leaf: leaf.flatten(0, 1), nested(obs)))
        return flat

    def _weights(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        lstm = self.lstm
        return lstm.weight_ih_l0, lstm.weight_hh_l0, lstm.bias_ih_l0, lstm.bias_hh_l0

    def _run(self, x: Tensor, plan: _Plan, state: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Run the LSTM on rows x [N, width] in the order of the plan. Returns the output [M * B, size], and the last cell."""
        rows = torch.cat([x, x.new_zeros(1, x.shape[1])])[plan.source].view(-1, len(state[0]), x.shape[1])
        weight_ih, weight_hh, bias_ih, bias_hh = self._weights()
        weights = [torch.cat([weight_ih, self.marks], 1), weight_hh, bias_ih, bias_hh]
        if x.is_cuda:
            weights = _in_one_piece(weights)
        initial = (state[0].unsqueeze(0), state[1].unsqueeze(0))
        rows = torch.cat([rows, plan.marked.to(x.dtype)], -1)
        out, _, cell = torch.lstm(rows, initial, weights, True, 1, 0.0, self.training, False, False)
        return out.flatten(0, 1), cell[0]


class _Plan(NamedTuple):
    """The order of the steps of B environments and of the inserted steps, in M rows of B places."""

    steps: Tensor
    """The place of each step, [T, B] int64, less than M * B."""

    source: Tensor
    """The input row of each place, [M * B] int64: first the steps, then the next observations, and a last row of zeros."""

    marked: Tensor
    """Whether a place resets the state, and whether it keeps the state, [M, B, 2] bool."""


def _planned(restart: Tensor, beyond: Tensor) -> _Plan:
    """Plan T steps.

    Args:
        restart: whether a step is the first of an episode, [T, B] bool.
        beyond: whether a step is followed by an inserted step with its next observation, [T, B] bool.
    """
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


def _in_one_piece(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors in one memory, where cuDNN looks for the weights of an LSTM; otherwise it copies them and warns."""
    parts = torch.split(torch.cat([it.flatten() for it in tensors]), [it.numel() for it in tensors])
    return [part.view(it.shape) for part, it in zip(parts, tensors)]


def _step(x: Any, h: Any, c: Any, weight_ih: Any, weight_hh: Any, bias_ih: Any, bias_hh: Any) -> tuple[Any, Any]:
    """h and c after one step, in numpy, which has less overhead than torch. sigmoid(x) = (tanh(x / 2) + 1) / 2."""
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
