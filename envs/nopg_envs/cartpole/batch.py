"""
Many carts at once on arrays: `simulator` for a whole batch, operation by operation, so that rounding is the same.

Arrays of a hundred carts are short: the number of NumPy calls decides the speed. Quantities of cart and pole are therefore
rows of one array wherever both are treated alike, and every result goes into memory that exists already.
"""

from typing import NoReturn

import numpy as np

from nopg_envs.cartpole.dynamics import CART_STICTION_SPEED, POLE_STICTION_SPEED, FloatArray
from nopg_envs.cartpole.options import CartPoleOptions
from nopg_envs.cartpole.parameters import CartPoleParameters
from nopg_envs.cartpole.simulator import delay_schedule, filter_coefficients, runge_kutta_stages
from nopg_envs.cartpole.starts import State

add, subtract, multiply, divide = np.add, np.subtract, np.multiply, np.divide


class CartPoleBatch:
    """
    :param options: rates and sensors
    :param n_carts: number of carts, each of which must be placed before it moves
    :param longest_delay_s: largest input delay of any cart
    """

    def __init__(self, options: CartPoleOptions, n_carts: int, longest_delay_s: float):
        self._options, self._step_s, self._n_steps = options, options.step_s, options.n_physics_steps
        self.state = np.zeros((4, n_carts))
        self.measured = np.zeros((4, n_carts))
        self.peaks = np.zeros((2, n_carts))
        self._positions = self.state[:2]
        self._measured_positions, self._measured_velocities = self.measured[:2], self.measured[2:]

        self._parameters: list[CartPoleParameters | None] = [None] * n_carts
        self._input_gain, self._voltage_offset = np.zeros((2, n_carts))
        self._damping, self._coulomb, self._negative_coulomb, self._slope = np.zeros((4, 2, n_carts))
        self._coupling, self._inverse_length, self._fall, self._inertia_loss = np.zeros((4, n_carts))
        self._counts = np.ones((2, n_carts))
        self._keep, self._filter_gain = np.zeros((2, n_carts))

        _, oldest, _ = delay_schedule(longest_delay_s, self._step_s, self._n_steps)
        self._commands = np.zeros((max(oldest) + 1, n_carts))
        self._newer, self._older = np.zeros((2, self._n_steps, n_carts), dtype=np.intp)
        self._older_share = np.zeros(n_carts)
        self._carts = np.arange(n_carts)

        self._stage, self._work = _Stage(np.zeros((6, n_carts))), _Workspace(n_carts)
        # Arrays, since NumPy would make one of a float each time.
        self._stages = [(np.array(share), np.array(ahead)) for share, ahead in runge_kutta_stages(self._step_s)]

    def __reduce__(self) -> NoReturn:
        # Names for parts of one array would become arrays of their own, and the copy would silently stand still.
        raise TypeError("A batch of carts cannot be copied or pickled; make another environment with the same options")

    def place(self, cart: int, parameters: CartPoleParameters, state: State, noise: tuple[float, float]) -> None:
        """
        Begin anew with one cart.

        :param cart: index in the batch
        :param parameters: of this cart
        :param state: x, θ, ẋ, θ̇ at the start
        :param noise: on x and θ at the start, m and rad
        """
        # Most carts begin anew as they were.
        if parameters is not self._parameters[cart]:
            self._equip(cart, parameters)
            self._parameters[cart] = parameters
        self._commands[:, cart] = 0.0
        self.state[:, cart] = state
        self.measured[:, cart] = state
        self.measured[:2, cart] += noise
        if self._options.encoder_counts:
            counts = self._counts[:, cart]
            self.measured[:2, cart] = np.rint(self.measured[:2, cart] / counts) * counts

    def _equip(self, cart: int, parameters: CartPoleParameters) -> None:
        p = parameters
        self._input_gain[cart], self._voltage_offset[cart] = p.input_gain, p.voltage_offset
        self._damping[:, cart] = p.cart_damping, p.pole_damping
        self._coulomb[:, cart] = p.cart_coulomb, p.pole_coulomb
        self._negative_coulomb[:, cart] = -p.cart_coulomb, -p.pole_coulomb
        self._slope[:, cart] = p.cart_coulomb / CART_STICTION_SPEED, p.pole_coulomb / POLE_STICTION_SPEED
        self._coupling[cart], self._inverse_length[cart] = p.pole_coupling, p.inverse_pole_length
        self._fall[cart] = p.inverse_pole_length * p.gravity
        self._inertia_loss[cart] = p.pole_coupling * p.inverse_pole_length
        self._counts[:, cart] = p.cart_count_m, p.pole_count_rad
        self._keep[cart], self._filter_gain[cart] = filter_coefficients(p.velocity_cutoff_rad_s, self._step_s)
        newer, older, share = delay_schedule(p.input_delay_s, self._step_s, self._n_steps)
        self._newer[:, cart], self._older[:, cart], self._older_share[cart] = newer, older, share

    def hold(self, voltages: FloatArray, noise: FloatArray | None = None) -> None:
        """
        One control period of all carts.

        :param voltages: asked of the motors, V, (n_carts,)
        :param noise: on x and θ at each physics step, m and rad, (n_physics_steps, 2, n_carts)
        """
        self._commands[1:] = self._commands[:-1]
        self._commands[0] = voltages
        share = self._older_share
        at_motor = (1.0 - share) * self._commands[self._newer, self._carts] + share * self._commands[self._older, self._carts]
        drives = self._input_gain * (at_motor + self._voltage_offset)
        self.peaks[:] = 0.0
        for step, drive in enumerate(drives):
            self._integrate(drive)
            if self._options.filtered_velocities:
                self._sense(None if noise is None else noise[step])
        if not self._options.filtered_velocities:
            self._measured_positions[:] = self._measure(None if noise is None else noise[-1])
            self._measured_velocities[:] = self.state[2:]

    def _integrate(self, drive: FloatArray) -> None:
        """One physics step."""
        state, work = self.state, self._work
        stage, increment, reached = self._stage, work.increment, work.reached
        work.push_on_cart[:] = drive
        stage.state[:] = state
        so_far = state
        for share, ahead in self._stages[:-1]:
            self._accelerate(stage)
            multiply(share, stage.derivative, out=increment)
            add(so_far, increment, out=reached)
            multiply(ahead, stage.derivative, out=increment)
            add(state, increment, out=stage.state)
            so_far = reached
        self._accelerate(stage)
        multiply(self._stages[-1][0], stage.derivative, out=increment)
        add(reached, increment, out=state)
        np.abs(self._positions, out=work.pair)
        np.maximum(self.peaks, work.pair, out=self.peaks)

    def _accelerate(self, stage: "_Stage") -> None:
        """Fill in a stage's accelerations from its state."""
        work, speeds, theta_dot = self._work, stage.speeds, stage.theta_dot
        sine, cosine, friction, dry = work.sine, work.cosine, work.friction, work.dry
        numerator, denominator = work.numerator, work.denominator
        np.sin(stage.theta, out=sine)
        np.cos(stage.theta, out=cosine)
        multiply(self._slope, speeds, out=dry)
        np.minimum(dry, self._coulomb, out=dry)
        np.maximum(dry, self._negative_coulomb, out=dry)
        multiply(self._damping, speeds, out=friction)
        add(friction, dry, out=friction)
        multiply(self._fall, sine, out=work.push_on_pole)
        subtract(work.push, friction, out=work.force_and_torque)
        multiply(theta_dot, theta_dot, out=work.theta_dot_squared)
        multiply(work.cosine_and_sine, work.torque_and_square, out=work.products)
        subtract(work.product_with_torque, work.product_with_square, out=numerator)
        multiply(self._coupling, numerator, out=numerator)
        add(work.force, numerator, out=numerator)
        multiply(cosine, cosine, out=denominator)
        multiply(self._inertia_loss, denominator, out=denominator)
        subtract(work.ones, denominator, out=denominator)
        divide(numerator, denominator, out=stage.x_acceleration)
        multiply(self._inverse_length, cosine, out=numerator)
        multiply(numerator, stage.x_acceleration, out=numerator)
        add(work.torque, numerator, out=stage.theta_acceleration)

    def _sense(self, noise: FloatArray | None) -> None:
        """The rigs' encoders and velocity filters, once a physics step."""
        pair, velocities = self._work.pair, self._measured_velocities
        positions = self._measure(noise)
        subtract(positions, self._measured_positions, out=pair)
        multiply(self._filter_gain, pair, out=pair)
        multiply(self._keep, velocities, out=velocities)
        add(velocities, pair, out=velocities)
        self._measured_positions[:] = positions

    def _measure(self, noise: FloatArray | None) -> FloatArray:
        positions = self._positions if noise is None else self._positions + noise
        if not self._options.encoder_counts:
            return positions
        counted = divide(positions, self._counts, out=self._work.dry)
        np.rint(counted, out=counted)
        return multiply(counted, self._counts, out=counted)


class _Stage:
    """
    Rows of a Runge-Kutta stage: the first four are a state, the last four its derivative.

    :param rows: x, θ, ẋ, θ̇, ẍ, θ̈, (6, n_carts)
    """

    def __init__(self, rows: FloatArray):
        self.state, self.derivative, self.speeds = rows[0:4], rows[2:6], rows[2:4]
        self.theta, self.theta_dot, self.x_acceleration, self.theta_acceleration = rows[1], rows[3], rows[4], rows[5]


class _Workspace:
    """
    Memory for what is computed on the way to the accelerations. Rows that neighbour each other do so to be used together.

    :param n_carts: length of a row
    """

    def __init__(self, n_carts: int):
        self.ones = np.ones(n_carts)
        self.numerator, self.denominator = np.zeros((2, n_carts))
        self.pair, self.dry, self.friction, self.push, self.products, self.cosine_and_sine = np.zeros((6, 2, n_carts))
        self.increment, self.reached = np.zeros((2, 4, n_carts))
        self.cosine, self.sine = self.cosine_and_sine
        self.push_on_cart, self.push_on_pole = self.push
        self.product_with_torque, self.product_with_square = self.products

        # Force on the cart without the pole's share, torque on the pole were the cart held still, and θ̇².
        loads = np.zeros((3, n_carts))
        self.force, self.torque, self.theta_dot_squared = loads
        self.force_and_torque, self.torque_and_square = loads[0:2], loads[1:3]
