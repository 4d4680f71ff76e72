"""
Many carts at once on arrays: `simulator` for a whole batch, operation by operation, so that rounding is the same.

Arrays of a hundred carts are short: the number of NumPy calls decides the speed, and a call on whole, contiguous memory takes
a fourth of one that has to repeat or skip rows. Quantities that are treated alike are therefore neighbouring rows of one
array, constants are as large as what they multiply, and results go into memory that exists already, passed by position since
``out=`` takes longer (`minimum` and `maximum` insist on it).
"""

from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from nopg_envs.cartpole.dynamics import CART_STICTION_SPEED, POLE_STICTION_SPEED, FloatArray
from nopg_envs.cartpole.options import CartPoleOptions
from nopg_envs.cartpole.parameters import CartPoleParameters
from nopg_envs.cartpole.simulator import delay_schedule, filter_weights
from nopg_envs.cartpole.starts import State

add, subtract, multiply, divide = np.add, np.subtract, np.multiply, np.divide
minimum, maximum = np.minimum, np.maximum


class CartPoleBatch:
    """
    :param options: rates and sensors
    :param n_carts: number of carts, each of which must be placed before it moves
    :param longest_delay_s: largest input delay of any cart
    """

    def __init__(self, options: CartPoleOptions, n_carts: int, longest_delay_s: float):
        self._options, self._step_s, self._n_steps = options, options.step_s, options.n_physics_steps
        # x and θ before the control period and after each of its physics steps.
        self._path = np.zeros((self._n_steps + 1, 2, n_carts))
        self._start, self._stage = _Stage(n_carts), _Stage(n_carts)
        self.positions, self.velocities = self._path[0], self._start.speeds
        self.measured = np.zeros((4, n_carts))
        self._measured_positions, self._measured_velocities = self.measured[:2], self.measured[2:]

        self._parameters: list[CartPoleParameters | None] = [None] * n_carts
        self._input_gain, self._voltage_offset = np.zeros((2, n_carts))
        self._factors, self._couplings = np.zeros((6, n_carts)), np.zeros((2, n_carts))
        self._stiction = np.repeat([[CART_STICTION_SPEED], [POLE_STICTION_SPEED]], n_carts, axis=1)
        self._negative_stiction = -self._stiction
        self._counts = np.ones((2, n_carts))
        self._keep, self._weights = np.zeros(n_carts), np.zeros((self._n_steps, 1, n_carts))

        _, oldest, _ = delay_schedule(longest_delay_s, self._step_s, self._n_steps)
        self._commands = np.zeros((max(oldest) + 1, n_carts))
        self._newer, self._older = np.zeros((2, self._n_steps, n_carts), dtype=np.intp)
        self._older_share = np.zeros(n_carts)

        self._work, slopes = _Workspace(n_carts), [_Slopes(n_carts) for _ in range(4)]
        signs = np.array([[-1.0], [1.0], [1.0], [1.0]])
        # How far each stage's slope is followed to the next stage. Cosines fall where the slope's row has θ̇ sin θ.
        half, whole = (np.repeat(signs * length_s, n_carts, axis=1) for length_s in (self._step_s / 2.0, self._step_s))
        self._early_stages, self._last_slopes = list(zip(slopes, (half, half, whole), strict=False)), slopes[-1]
        self._accelerations = [stage_slopes.accelerations for stage_slopes in slopes]
        self._whole_step, self._sixth, self._sixth_of_square = (
            np.full((2, n_carts), factor) for factor in (self._step_s, self._step_s / 6.0, self._step_s / 6.0 * self._step_s)
        )
        self._seen = np.zeros((self._n_steps, 2, n_carts))
        self._velocity_terms = np.zeros((self._n_steps + 1, 2, n_carts))

    def __reduce__(self) -> NoReturn:
        # Names for parts of one array would become arrays of their own, and the copy would silently stand still.
        raise TypeError("A batch of carts cannot be copied or pickled; make another environment with the same options")

    def states(self) -> FloatArray:
        """A copy of x, θ, ẋ, θ̇, (n_carts, 4)."""
        return np.concatenate([self.positions, self.velocities]).T.copy()

    def observations(self) -> np.ndarray:
        """What the rigs' computers see: x, sin θ, cos θ, ẋ, θ̇ in float32, (n_carts, 5)."""
        x, theta, x_dot, theta_dot = self.measured
        observations = np.empty((len(x), 5), dtype=np.float32)
        for column, row in enumerate((x, np.sin(theta), np.cos(theta), x_dot, theta_dot)):
            observations[:, column] = row
        return observations

    def peaks(self) -> FloatArray:
        """Largest |x| and |θ| after any physics step of the last control period, (2, n_carts)."""
        return np.abs(self._path[1:]).max(axis=0)

    def place(
        self, carts: Sequence[int], parameters: Sequence[CartPoleParameters], states: Sequence[State], noise: FloatArray
    ) -> None:
        """
        Start over with some of the carts.

        :param carts: their indices in the batch
        :param parameters: of each
        :param states: x, θ, ẋ, θ̇ at the start of each
        :param noise: on x and θ at the start of each, m and rad, (len(carts), 2)
        """
        for cart, own in zip(carts, parameters, strict=True):
            # Most carts start over as they were.
            if own is not self._parameters[cart]:
                self._equip(cart, own)
                self._parameters[cart] = own
        at_start = np.array(states).T
        self._commands[:, carts] = 0.0
        self.positions[:, carts], self.velocities[:, carts] = at_start[:2], at_start[2:]
        seen = at_start[:2] + noise.T
        if self._options.encoder_counts:
            counts = self._counts[:, carts]
            seen = np.rint(seen / counts) * counts
        self._measured_positions[:, carts], self._measured_velocities[:, carts] = seen, at_start[2:]

    def _equip(self, cart: int, parameters: CartPoleParameters) -> None:
        p = parameters
        self._input_gain[cart], self._voltage_offset[cart] = p.input_gain, p.voltage_offset
        self._factors[:, cart] = (
            p.inverse_pole_length,
            p.inverse_pole_length * p.gravity,
            p.cart_damping,
            p.pole_damping,
            p.cart_coulomb / CART_STICTION_SPEED,
            p.pole_coulomb / POLE_STICTION_SPEED,
        )
        self._couplings[:, cart] = -p.pole_coupling, p.pole_coupling
        self._counts[:, cart] = p.cart_count_m, p.pole_count_rad
        self._keep[cart], self._weights[:, 0, cart] = filter_weights(p.velocity_cutoff_rad_s, self._step_s, self._n_steps)
        newer, older, self._older_share[cart] = delay_schedule(p.input_delay_s, self._step_s, self._n_steps)
        # Places in the flat memory of the commands.
        n_carts = len(self._input_gain)
        self._newer[:, cart], self._older[:, cart] = np.array([newer, older]) * n_carts + cart

    def hold(self, voltages: FloatArray, noise: FloatArray | None = None) -> None:
        """
        One control period of all carts.

        :param voltages: asked of the motors, V, (n_carts,)
        :param noise: on x and θ at each physics step, m and rad, (n_physics_steps, 2, n_carts)
        """
        path, share = self._path, self._older_share
        self._commands[1:] = self._commands[:-1]
        self._commands[0] = voltages
        at_motor = self._commands.take(self._newer)
        if share.any():
            at_motor = (1.0 - share) * at_motor + share * self._commands.take(self._older)
        drives = self._input_gain * (at_motor + self._voltage_offset)
        for drive, before, after in zip(drives, path[:-1], path[1:], strict=True):
            self._integrate(drive, before, after)
        self._sense(noise)
        path[0] = path[-1]

    def _integrate(self, drive: FloatArray, before: FloatArray, after: FloatArray) -> None:
        """
        One physics step.

        :param drive: acceleration by the motor, (n_carts,)
        :param before: x and θ, (2, n_carts)
        :param after: filled with x and θ after the step, (2, n_carts)
        """
        start, increment = self._start, self._work.increment
        np.cos(before[1], start.cosine)
        np.sin(before[1], start.sine)
        at = start
        for slopes, ahead in self._early_stages:
            self._accelerate(at, drive, slopes)
            multiply(at.theta_dot, at.sine, slopes.cosine_loss)
            multiply(at.theta_dot, at.cosine, slopes.sine_gain)
            multiply(ahead, slopes.rows, increment)
            at = self._stage
            add(start.rows, increment, at.rows)
        self._accelerate(at, drive, self._last_slopes)

        # Positions follow the stages' velocities, which are sums of the accelerations before them.
        first, second, third, fourth = self._accelerations
        middle, total, part = self._work.middle, self._work.total, self._work.part
        add(second, third, middle)
        add(first, middle, total)
        multiply(self._whole_step, self.velocities, part)
        add(before, part, after)
        multiply(self._sixth_of_square, total, part)
        add(after, part, after)
        add(total, middle, total)
        add(total, fourth, total)
        multiply(self._sixth, total, total)
        add(self.velocities, total, self.velocities)

    def _accelerate(self, at: "_Stage", drive: FloatArray, slopes: "_Slopes") -> None:
        """Fill in the accelerations of a stage."""
        work = self._work
        slow, pulls = at.slow_speeds, work.pulls
        minimum(at.speeds, self._stiction, out=slow)
        maximum(slow, self._negative_stiction, out=slow)
        multiply(self._factors, at.rows_and_slow_speeds, work.products)
        add(work.viscous, work.dry, work.friction)
        subtract(drive, work.cart_friction, work.force)
        subtract(work.gravity, work.pole_friction, work.torque)
        multiply(at.theta_dot, at.theta_dot, work.theta_dot_squared)
        # Of ẍ = (force + m (cos θ torque − sin θ θ̇²)) / (1 − m cos θ lever) what m multiplies, both together.
        multiply(at.cosine_and_sine, work.torque_and_square, work.turned)
        subtract(work.turned_torque, work.turned_square, work.pull_of_pole)
        multiply(at.cosine, work.lever, work.pull_of_inertia)
        multiply(self._couplings, pulls, pulls)
        add(work.one_and_force, pulls, pulls)
        divide(work.pull_of_pole, work.pull_of_inertia, slopes.x_acceleration)
        multiply(work.lever, slopes.x_acceleration, work.lever)
        add(work.torque, work.lever, slopes.theta_acceleration)

    def _sense(self, noise: FloatArray | None) -> None:
        """The rigs' encoders and velocity filters at each physics step of a control period."""
        seen = self._path[1:] if noise is None else self._path[1:] + noise
        if self._options.encoder_counts:
            seen = divide(seen, self._counts, self._seen)
            np.rint(seen, seen)
            multiply(seen, self._counts, seen)
        if self._options.filtered_velocities:
            terms = self._velocity_terms
            multiply(self._keep, self._measured_velocities, terms[0])
            subtract(seen[0], self._measured_positions, terms[1])
            subtract(seen[1:], seen[:-1], terms[2:])
            multiply(self._weights, terms[1:], terms[1:])
            add.reduce(terms, axis=0, out=self._measured_velocities)
        else:
            self._measured_velocities[:] = self.velocities
        self._measured_positions[:] = seen[-1]


class _Stage:
    """
    Where a Runge-Kutta stage is: cos θ, sin θ, ẋ, θ̇, and as much of the speeds as dry friction grows with.

    :param n_carts: length of a row
    """

    def __init__(self, n_carts: int):
        self.rows_and_slow_speeds = np.zeros((6, n_carts))
        self.rows, self.slow_speeds = self.rows_and_slow_speeds[:4], self.rows_and_slow_speeds[4:]
        self.cosine, self.sine, _, self.theta_dot = self.rows
        self.cosine_and_sine, self.speeds = self.rows[:2], self.rows[2:]


class _Slopes:
    """
    What changes where a stage is, in the order of its rows: −d cos θ/dt, d sin θ/dt, ẍ, θ̈.

    :param n_carts: length of a row
    """

    def __init__(self, n_carts: int):
        self.rows = np.zeros((4, n_carts))
        self.cosine_loss, self.sine_gain, self.x_acceleration, self.theta_acceleration = self.rows
        self.accelerations = self.rows[2:]


class _Workspace:
    """
    Memory for what is computed on the way to the accelerations. Rows that neighbour each other do so to be used together.

    :param n_carts: length of a row
    """

    def __init__(self, n_carts: int):
        self.increment = np.zeros((4, n_carts))
        self.middle, self.total, self.part, self.friction, self.turned, self.pulls = np.zeros((6, 2, n_carts))
        self.cart_friction, self.pole_friction = self.friction
        self.turned_torque, self.turned_square = self.turned
        self.pull_of_inertia, self.pull_of_pole = self.pulls

        # Factors times a stage's rows: cos θ / l, gravity on the pole, viscous and dry friction of cart and pole.
        self.products = np.zeros((6, n_carts))
        self.lever, self.gravity = self.products[:2]
        self.viscous, self.dry = self.products[2:4], self.products[4:]

        # One, force on the cart without the pole's share, torque on the pole were the cart held still, and θ̇².
        loads = np.ones((4, n_carts))
        _, self.force, self.torque, self.theta_dot_squared = loads
        self.one_and_force, self.torque_and_square = loads[:2], loads[2:]
