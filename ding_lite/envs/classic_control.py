"""Classic control: the steps of gymnasium's environments, computed for B of them at once, with the same results bit for bit.

Each task computes what the `step` of its class computes: the same operations in the same order, on numbers of the same types.
Where numpy rounds an array differently from a single number, such as for powers, the numbers are computed one by one.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np
from gymnasium.envs.classic_control import (
    AcrobotEnv,
    CartPoleEnv,
    Continuous_MountainCarEnv,
    MountainCarEnv,
    PendulumEnv,
    acrobot,
    pendulum,
)
from gymnasium.spaces import Box, Discrete

Array = np.ndarray[Any, Any]

_EXACT = 2**53
"""Integers up to this number are the same as floats."""


class UnusualEnvError(ValueError):
    """An environment that only its own `step` can step; the message says why."""


class BatchStep(NamedTuple):
    """One step of B environments."""

    obs: Array
    """[B, ...] float32."""

    reward: Array
    """[B] float32."""

    terminated: Array
    """[B] bool."""


class BatchTask(abc.ABC):
    """B environments of one class. Their states are the columns of `state`, and their attributes are arrays [B].

    Args:
        envs: the environments, without wrappers.

    Raises:
        UnusualEnvError: an attribute has a value that this class does not expect.
    """

    env_class: ClassVar[type[gymnasium.Env[Any, Any]]]
    functions: ClassVar[tuple[tuple[Any, str], ...]]
    """The functions of gymnasium that `step` replaces, or the environment's `reset` calls: the class or module of each, and its
    name."""
    num_actions: ClassVar[int] = 0
    """Number of discrete actions; 0 for one continuous action."""
    pays_from: ClassVar[int]
    """Number of environments from which it is faster than one by one."""
    size: ClassVar[int]
    """Size of the state of an environment."""
    obs_size: ClassVar[int]
    """Size of an observation."""
    dtypes: ClassVar[tuple[Any, ...]] = (np.float64,)
    """Dtypes of the state of an environment."""

    def __init__(self, envs: Sequence[Any]) -> None:
        self.envs = envs
        self.no = np.zeros(len(envs), np.bool_)
        for env in envs:
            self._require_usual(env)
        try:
            self._read_attributes()
        except ArithmeticError as error:
            raise UnusualEnvError(f"the attributes raise {error!r}") from error
        self.state = np.empty((self.size, len(envs)))

    def _require_usual(self, env: Any) -> None:
        if env.render_mode is not None:
            raise UnusualEnvError(f"render_mode is {env.render_mode!r}")
        space = env.action_space
        is_usual = (
            type(space) is Discrete and (space.n, space.start) == (self.num_actions, 0) and space.dtype == np.int64
            if self.num_actions
            else type(space) is Box and space.shape == (1,) and space.dtype == np.float32
        )
        if not is_usual:
            raise UnusualEnvError(f"action_space is {space}")
        space = env.observation_space
        if not (type(space) is Box and space.shape == (self.obs_size,) and space.dtype == np.float32):
            raise UnusualEnvError(f"observation_space is {space}")

    @abc.abstractmethod
    def _read_attributes(self) -> None:
        """Read the attributes of the environments that `step` needs."""

    @classmethod
    def accepts(cls, action: Any, count: int) -> bool:
        """Whether these are valid actions of `count` environments. Others are left to the environments, for their errors."""
        if type(action) is not np.ndarray:
            return False
        if cls.num_actions:
            # As unsigned numbers, negative ones are large.
            fits = action.dtype == np.int64 and action.shape == (count,)
            return fits and bool((action.view(np.uint64) < cls.num_actions).all())
        return action.dtype == np.float32 and action.shape == (count, 1) and bool(np.isfinite(action).all())

    def read(self, rows: Sequence[int]) -> None:
        """Read the states of these environments, after their resets."""
        self.state[:, rows] = np.array([self.envs[row].state for row in rows]).T

    def read_all(self) -> None:
        """Read the states of all environments, at any time.

        Raises:
            UnusualEnvError: a state has an unexpected value.
        """
        for env in self.envs:
            state = getattr(env, "state", None)
            if not self._is_usual_state(state):
                raise UnusualEnvError(f"state is {state!r:.80}")
        self.read(range(len(self.envs)))

    def _is_usual_state(self, state: Any) -> bool:
        usual = type(state) is np.ndarray and state.shape == (self.size,) and state.dtype in self.dtypes
        return usual and bool(np.isfinite(state).all())

    @abc.abstractmethod
    def step(self, action: Array) -> BatchStep:
        """Step all environments with actions that it accepts. If an error is raised, nothing has changed.

        Raises:
            ArithmeticError, ValueError: a number is too large.
        """

    def write(self, row: int) -> None:
        """Write the state of an environment that was stepped."""
        self.envs[row].state = self.state[:, row].copy()

    def _column(self, name: str, dtype: Any = np.float64, may_be_zero: bool = False) -> Array:
        """An attribute of the environments.

        Raises:
            UnusualEnvError: as for `_derived`; or it is 0, unless it may be, because 0 and -0 do not matter where it is used.
        """
        column = self._derived(lambda env: getattr(env, name), name, dtype)
        if not (may_be_zero or column.all()):  # of 0 and -0, numpy clips an array to another one than a single number
            raise UnusualEnvError(f"{name} is 0")
        return column

    def _derived(self, value_of: Callable[[Any], Any], name: str, dtype: Any = np.float64) -> Array:
        """A number of each environment.

        Raises:
            UnusualEnvError: it is not a float or an integer of Python, or the dtype cannot hold it.
        """
        values = [value_of(env) for env in self.envs]
        for value in values:
            # Arithmetic with other types may round differently.
            if not (type(value) is float or (type(value) is int and abs(value) <= _EXACT)):
                raise UnusualEnvError(f"{name} is {value!r:.40} of type {type(value).__name__}")
        with np.errstate(over="ignore"):
            column = np.array(values, np.float64).astype(dtype)
        if not np.isfinite(column).all():
            raise UnusualEnvError(f"{name} is too large for {np.dtype(dtype)}")
        return column

    def _common(self, name: str) -> Any:
        """An attribute that is the same in all environments.

        Raises:
            UnusualEnvError: it differs.
        """
        values = [getattr(env, name) for env in self.envs]
        if set(map(type, values)) not in ({str}, {bool}) or len(set(values)) > 1:
            raise UnusualEnvError(f"{name} is unknown, or differs from that of another one")
        return values[0]


class CartPole(BatchTask):
    """CartPole-v0 and CartPole-v1."""

    env_class, functions = CartPoleEnv, ((CartPoleEnv, "step"),)
    num_actions, size = 2, 4
    obs_size, pays_from = 4, 5

    def _require_usual(self, env: Any) -> None:
        super()._require_usual(env)
        if env.steps_beyond_terminated is not None:
            raise UnusualEnvError("an episode has ended")

    def _read_attributes(self) -> None:
        self._fell = self.no
        self._is_euler = self._common("kinematics_integrator") == "euler"
        self._is_sutton_barto = self._common("_sutton_barto_reward")
        self._force, self._gravity = self._column("force_mag"), self._column("gravity")
        self._total_mass, self._masspole = self._column("total_mass"), self._column("masspole")
        self._polemass_length, self._length = self._column("polemass_length"), self._column("length")
        self._tau = self._column("tau")
        self._thresholds = np.stack([self._column("x_threshold"), self._column("theta_threshold_radians")])

    def step(self, action: Array) -> BatchStep:
        """Step all environments."""
        _, x_dot, theta, theta_dot = self.state
        force = np.where(action == 1, self._force, -self._force)
        costheta, sintheta = np.cos(theta), np.sin(theta)
        temp = (force + self._polemass_length * np.square(theta_dot) * sintheta) / self._total_mass
        thetaacc = (self._gravity * sintheta - costheta * temp) / (
            self._length * (4.0 / 3.0 - self._masspole * np.square(costheta) / self._total_mass)
        )
        xacc = temp - self._polemass_length * thetaacc * costheta / self._total_mass
        if self._is_euler:
            state = self.state + self._tau * np.array((x_dot, xacc, theta_dot, thetaacc))
        else:
            state = np.empty_like(self.state)
            state[1::2] = self.state[1::2] + self._tau * np.array((xacc, thetaacc))
            state[::2] = self.state[::2] + self._tau * state[1::2]
        beyond = np.abs(state[::2]) > self._thresholds
        terminated = beyond[0] | beyond[1]
        if self._is_sutton_barto:
            reward = np.where(terminated, np.float32(-1), np.float32(0))
        else:
            reward = np.ones(len(terminated), np.float32)
        obs = state.T.astype(np.float32, order="C")
        self.state, self._fell = state, terminated.copy()
        return BatchStep(obs, reward, terminated)

    def write(self, row: int) -> None:
        """Write the state of an environment that was stepped."""
        super().write(row)
        if self._fell[row]:
            self.envs[row].steps_beyond_terminated = 0


class MountainCar(BatchTask):
    """MountainCar-v0."""

    env_class, functions = MountainCarEnv, ((MountainCarEnv, "step"),)
    num_actions, size = 3, 2
    obs_size, pays_from = 2, 4

    def _read_attributes(self) -> None:
        self._stopped = self.no
        self._force, self._gravity = self._column("force"), self._column("gravity")
        self._min_position, self._max_position = self._column("min_position"), self._column("max_position")
        self._max_speed = self._column("max_speed")
        self._goal_position = self._column("goal_position", may_be_zero=True)
        self._goal_velocity = self._column("goal_velocity", may_be_zero=True)

    def _is_usual_state(self, state: Any) -> bool:
        if type(state) is tuple and len(state) == 2:  # of a step; a reset makes an array
            return all(
                (type(one) in (float, np.float64) and np.isfinite(one)) or (type(one) is int and one == 0) for one in state
            )
        return super()._is_usual_state(state)

    def step(self, action: Array) -> BatchStep:
        """Step all environments."""
        position, velocity = self.state
        velocity = velocity + ((action - 1) * self._force + _cosines(3 * position) * (-self._gravity))
        velocity = np.clip(velocity, -self._max_speed, self._max_speed)
        position = np.clip(position + velocity, self._min_position, self._max_position)
        stopped = (position == self._min_position) & (velocity < 0)
        velocity = np.where(stopped, 0.0, velocity)
        terminated = (position >= self._goal_position) & (velocity >= self._goal_velocity)
        state = np.array((position, velocity))
        obs = state.T.astype(np.float32, order="C")
        self.state, self._stopped = state, stopped
        return BatchStep(obs, np.full(len(terminated), -1, np.float32), terminated)

    def write(self, row: int) -> None:
        """Write the state of an environment that was stepped."""
        position, velocity = self.state[:, row]
        self.envs[row].state = (position, 0 if self._stopped[row] else velocity)


class MountainCarContinuous(BatchTask):
    """MountainCarContinuous-v0. A reset makes a state of float64, and a step one of float32."""

    env_class, functions = Continuous_MountainCarEnv, ((Continuous_MountainCarEnv, "step"),)
    size, dtypes = 2, (np.float32, np.float64)
    obs_size, pays_from = 2, 16

    def _read_attributes(self) -> None:
        self._is_float64 = np.ones_like(self.no)
        self._power = self._column("power", np.float32, may_be_zero=True)
        self._low, self._high = self._column("min_action", np.float32), self._column("max_action", np.float32)
        self._slowest = self._derived(lambda env: env.min_action * env.power, "power")
        self._fastest = self._derived(lambda env: env.max_action * env.power, "power")
        self._columns: dict[Any, list[Array]] = {
            dtype: [
                *(self._column(name, dtype) for name in ("min_position", "max_position", "max_speed")),
                *(self._column(name, dtype, may_be_zero=True) for name in ("goal_position", "goal_velocity")),
            ]
            for dtype in (np.float64, np.float32)
        }
        lowest, highest, speed, goal, goal_speed = self._columns[np.float64]
        # The environment compares some of its attributes as Python numbers, and its state as float32.
        for less, more in ((self._low, self._high), (lowest, highest), (-speed, speed)):
            if not (less.astype(np.float32) < more.astype(np.float32)).all():
                raise UnusualEnvError("limits of a state are equal, or in the wrong order")
        for one, other in ((lowest, goal), (highest, goal), (speed, goal_speed), (-speed, goal_speed), (0 * speed, goal_speed)):
            if ((one >= other) != (one.astype(np.float32) >= other.astype(np.float32))).any():
                raise UnusualEnvError("limits of a state differ by less than float32 can hold")

    def read(self, rows: Sequence[int]) -> None:
        """Read the states of these environments, after their resets."""
        super().read(rows)
        self._is_float64[rows] = [self.envs[row].state.dtype == np.float64 for row in rows]

    def step(self, action: Array) -> BatchStep:
        """Step all environments."""
        force = action[:, 0]
        if self._is_float64.all():
            state, terminated = self._moved(force, np.float64)
        else:
            state, terminated = self._moved(force, np.float32)
            if self._is_float64.any():
                first_state, first_terminated = self._moved(force, np.float64)
                state = np.where(self._is_float64, first_state, state)
                terminated = np.where(self._is_float64, first_terminated, terminated)
        reward = (np.where(terminated, 100.0, 0) - _squares(force.astype(np.float64)) * 0.1).astype(np.float32)
        obs = np.ascontiguousarray(state.T)
        self.state, self._is_float64 = state.astype(np.float64), np.zeros_like(self.no)
        return BatchStep(obs, reward, terminated)

    def _moved(self, force: Array, dtype: Any) -> tuple[Array, Array]:
        """The next states as float32, and whether they are terminal, of environments whose states have this dtype."""
        lowest, highest, speed, goal, goal_speed = self._columns[dtype]
        position, velocity = self.state.astype(dtype)
        slope = 0.0025 * _cosines(3 * position)
        push = (force * self._power - slope.astype(np.float32)).astype(np.float64)
        # A force beyond its limits becomes a limit, which is a Python number.
        push = np.where(force < self._low, self._slowest - slope, push)
        push = np.where(force > self._high, self._fastest - slope, push)
        velocity = np.clip(velocity + push.astype(dtype), -speed, speed)
        position = np.clip(position + velocity, lowest, highest)
        velocity = np.where((position == lowest) & (velocity < 0), dtype(0), velocity)
        terminated = (position >= goal) & (velocity >= goal_speed)
        return np.array((position, velocity), np.float32), terminated

    def write(self, row: int) -> None:
        """Write the state of an environment that was stepped."""
        self.envs[row].state = self.state[:, row].astype(np.float32)


class Pendulum(BatchTask):
    """Pendulum-v1."""

    env_class = PendulumEnv
    functions = ((PendulumEnv, "step"), (PendulumEnv, "_get_obs"), (pendulum, "angle_normalize"))
    size = 2
    obs_size, pays_from = 3, 4

    def _read_attributes(self) -> None:
        self._torque = np.zeros(len(self.envs), np.float32)
        self._max_torque, self._max_speed = self._column("max_torque", np.float32), self._column("max_speed")
        self._dt = self._column("dt")
        for name in ("g", "m", "l"):
            self._column(name)
        self._pull = self._derived(lambda env: 3 * env.g / (2 * env.l), "g")
        self._push = self._derived(lambda env: 3.0 / (env.m * env.l**2), "m", np.float32)

    def step(self, action: Array) -> BatchStep:
        """Step all environments."""
        theta, theta_dot = self.state
        torque = np.clip(action[:, 0], -self._max_torque, self._max_torque)
        angle = ((theta + np.pi) % (2 * np.pi)) - np.pi
        costs = _squares(angle) + 0.1 * _squares(theta_dot) + np.float32(0.001) * _squares(torque)
        theta_dot = theta_dot + (self._pull * np.sin(theta) + self._push * torque) * self._dt
        theta_dot = np.clip(theta_dot, -self._max_speed, self._max_speed)
        theta = theta + theta_dot * self._dt
        obs = np.array((np.cos(theta), np.sin(theta), theta_dot)).T.astype(np.float32, order="C")
        reward = (-costs).astype(np.float32)
        self.state, self._torque = np.array((theta, theta_dot)), torque
        return BatchStep(obs, reward, self.no.copy())

    def write(self, row: int) -> None:
        """Write the state of an environment that was stepped."""
        super().write(row)
        self.envs[row].last_u = self._torque[row]


class Acrobot(BatchTask):
    """Acrobot-v1."""

    env_class = AcrobotEnv
    functions = (
        *((AcrobotEnv, name) for name in ("step", "_dsdt", "_get_ob", "_terminal")),
        *((acrobot, name) for name in ("rk4", "wrap", "bound")),
    )
    num_actions, size, dtypes = 3, 4, (np.float32, np.float64)
    obs_size, pays_from = 6, 5

    def _require_usual(self, env: Any) -> None:
        super()._require_usual(env)
        if type(env.AVAIL_TORQUE) is not list or len(env.AVAIL_TORQUE) != 3:
            raise UnusualEnvError(f"AVAIL_TORQUE is {env.AVAIL_TORQUE!r:.80}")

    def _read_attributes(self) -> None:
        if (self._column("torque_noise_max", may_be_zero=True) > 0).any():
            raise UnusualEnvError("the torque has noise")
        self._is_nips = self._common("book_or_nips") == "nips"
        self._torques = np.stack([self._derived(lambda env, at=at: env.AVAIL_TORQUE[at], "AVAIL_TORQUE") for at in range(3)])  # type: ignore[misc]
        self._dt = self._column("dt")
        self._max_speeds = np.stack([self._column("MAX_VEL_1"), self._column("MAX_VEL_2")])
        self._m2, self._inertia = self._column("LINK_MASS_2"), self._column("LINK_MOI")
        for name in ("LINK_MASS_1", "LINK_LENGTH_1", "LINK_COM_POS_1", "LINK_COM_POS_2"):
            self._column(name)
        # Products of attributes alone are computed with Python numbers, as in the environment.
        self._products = [self._derived(product, "mass") for product in _PRODUCTS]

    def step(self, action: Array) -> BatchStep:
        """Step all environments."""
        torque = self._torques[action, np.arange(len(action))]
        begin, dt = np.concatenate((self.state, torque[None])), self._dt
        half = dt / 2.0
        k1 = self._derivative(begin)
        k2 = self._derivative(begin + half * k1)
        k3 = self._derivative(begin + half * k2)
        k4 = self._derivative(begin + dt * k3)
        state = (begin + dt / 6.0 * (k1 + 2 * k2 + 2 * k3 + k4))[:4]
        state[:2] = _wrapped(state[:2])
        state[2:] = np.clip(state[2:], -self._max_speeds, self._max_speeds)
        cos, sin = np.cos(state[:2]), np.sin(state[:2])
        terminated = -cos[0] - np.cos(state[1] + state[0]) > 1.0
        reward = np.where(terminated, np.float32(0), np.float32(-1))
        obs = np.array((cos[0], sin[0], cos[1], sin[1], state[2], state[3])).T.astype(np.float32, order="C")
        self.state = state
        return BatchStep(obs, reward, terminated)

    def _derivative(self, augmented: Array) -> Array:
        """The derivatives of states with their torques, [5, B]."""
        theta1, theta2, dtheta1, dtheta2, torque = augmented
        m1_lc1, l1_lc2, l1_lc2_2, lc2, l1_lc2_1, m2_lc2_g, minus, twice, gravity, once, m2_lc2_moi = self._products
        m2, inertia = self._m2, self._inertia
        cos2, sin2 = np.cos(theta2), np.sin(theta2)
        d1 = m1_lc1 + m2 * (l1_lc2 + l1_lc2_2 * cos2) + inertia + inertia
        d2 = m2 * (lc2 + l1_lc2_1 * cos2) + inertia
        phi2 = m2_lc2_g * np.cos(theta1 + theta2 - np.pi / 2.0)
        phi1 = minus * _squares(dtheta2) * sin2 - twice * dtheta2 * dtheta1 * sin2 + gravity * np.cos(theta1 - np.pi / 2) + phi2
        if self._is_nips:
            above = torque + d2 / d1 * phi1 - phi2
        else:
            above = torque + d2 / d1 * phi1 - once * _squares(dtheta1) * sin2 - phi2
        ddtheta2 = above / (m2_lc2_moi - _squares(d2) / d1)
        ddtheta1 = -(d2 * ddtheta2 + phi1) / d1
        return np.array((dtheta1, dtheta2, ddtheta1, ddtheta2, np.zeros_like(torque)))


_PRODUCTS: tuple[Callable[[Any], Any], ...] = (
    lambda env: env.LINK_MASS_1 * env.LINK_COM_POS_1**2,
    lambda env: env.LINK_LENGTH_1**2 + env.LINK_COM_POS_2**2,
    lambda env: 2 * env.LINK_LENGTH_1 * env.LINK_COM_POS_2,
    lambda env: env.LINK_COM_POS_2**2,
    lambda env: env.LINK_LENGTH_1 * env.LINK_COM_POS_2,
    lambda env: env.LINK_MASS_2 * env.LINK_COM_POS_2 * 9.8,
    lambda env: -env.LINK_MASS_2 * env.LINK_LENGTH_1 * env.LINK_COM_POS_2,
    lambda env: 2 * env.LINK_MASS_2 * env.LINK_LENGTH_1 * env.LINK_COM_POS_2,
    lambda env: (env.LINK_MASS_1 * env.LINK_COM_POS_1 + env.LINK_MASS_2 * env.LINK_LENGTH_1) * 9.8,
    lambda env: env.LINK_MASS_2 * env.LINK_LENGTH_1 * env.LINK_COM_POS_2,
    lambda env: env.LINK_MASS_2 * env.LINK_COM_POS_2**2 + env.LINK_MOI,
)
"""Products of the attributes of an Acrobot, in the order in which `_derivative` uses them."""

TASKS: tuple[type[BatchTask], ...] = (CartPole, MountainCar, MountainCarContinuous, Pendulum, Acrobot)


def _squares(numbers: Array) -> Array:
    """Each number ** 2. Of an array, numpy computes x * x, which for a few numbers differs in the last bit."""
    single: Iterable[Any] = numbers.tolist() if numbers.dtype == np.float64 else numbers
    return np.array([one**2 for one in single], numbers.dtype)


def _cosines(numbers: Array) -> Array:
    """`math.cos` of each number, as float64."""
    return np.array([math.cos(one) for one in numbers.tolist()])


def _wrapped(angles: Array) -> Array:
    """Angles in [-pi, pi], by as many turns as needed."""
    turn = np.pi - -np.pi
    while (over := angles > np.pi).any():
        angles = np.where(over, angles - turn, angles)
    while (under := angles < -np.pi).any():
        angles = np.where(under, angles + turn, angles)
    return angles
