"""Answers drawings on a device, in the process that has it open: the network is prepared once, then called."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict

import numpy as np
from sqlalchemy.exc import SQLAlchemyError

from tilewright.service.device_lock import DeviceBusyError
from tilewright.service.errors import ServiceError
from tilewright.service.operations.answers import EnvironmentAnswer
from tilewright.service.operations.digits import post as digit_post
from tilewright.service.operations.digits.layers import Layer, best_layers, safe_layers
from tilewright.service.operations.digits.post import DrawingReply, DrawingTask, DrawingWork
from tilewright.service.store.session import session_scope
from tilewright.tuner.devices.isolated.device import IsolatedDevice
from tilewright.tuner.errors import TrialFailure, TunerError
from tilewright.tuner.network import digits
from tilewright.tuner.network.place import ForwardPass, NetworkExtension, problems

logger = logging.getLogger(__name__)


class DigitAnswers:
    """Answers drawings on the device that `opened` returns, which the caller closes; used from one thread.

    After a failure it refuses for `again_s` without using the device.
    """

    def __init__(self, opened: Callable[[], IsolatedDevice], again_s: float) -> None:
        self._opened, self._again_s = opened, again_s
        self._layers: list[Layer] = []
        self._placed: tuple[IsolatedDevice, int] | None = None  # and the generation of its process
        self._failed: tuple[float, str] | None = None

    def answer(self, messages: Sequence[str]) -> None:
        """Answers the messages whose answer is still waited for, with a refusal where something goes wrong."""
        try:
            with session_scope() as session:
                waiting = digit_post.tasks(session, messages)
            for task in waiting:
                reply = self._reply(task)
                with session_scope() as session:
                    digit_post.send(session, task, reply)
        except (ServiceError, SQLAlchemyError) as error:
            logger.warning("Drawings could not be answered: %s", error)

    @property
    def has_failed(self) -> bool:
        """Whether the last drawing could not be computed."""
        return self._failed is not None

    def _reply(self, task: DrawingTask) -> DrawingReply:
        if self._failed is not None and time.monotonic() - self._failed[0] < self._again_s:
            return digit_post.refusal(self._failed[1])
        cells = np.array(task.cells, np.float32).reshape(1, digits.CELLS, digits.CELLS)
        try:
            device = self._prepared()
            passed: ForwardPass = device.call("call_extension", digits.images(cells))
        except (TrialFailure, TunerError, DeviceBusyError, OSError) as error:
            reason = error.log if isinstance(error, TrialFailure) else str(error)
            logger.warning("The digits network cannot run on this device: %s", reason)
            self._placed, self._failed = None, (time.monotonic(), reason)
            return digit_post.refusal(reason)
        self._failed = None
        return DrawingReply(work=self._work(device, passed))

    def _work(self, device: IsolatedDevice, passed: ForwardPass) -> DrawingWork:
        return DrawingWork(
            probabilities=passed.probabilities[0].tolist(),
            environment=EnvironmentAnswer(**asdict(device.environment)),
            layers=[layer.answer() for layer in self._layers],
            kernels_us=passed.kernels_us,
            pass_us=passed.pass_us,
        )

    def _prepared(self) -> IsolatedDevice:
        """The device with the network in its present process, by the best known configurations, else by defaults."""
        device = self._opened()
        device.ensure_child()
        if self._placed != (device, device.generation):
            model, launches = device.model, problems(digits.trained(), 1)
            try:
                with session_scope() as session:
                    layers = best_layers(session, model.slug, launches)
                self._place(device, layers)
            except (TrialFailure, TunerError, ServiceError) as error:
                logger.warning("The digits network runs with default configurations: %s", error)
                device.ensure_child()
                self._place(device, safe_layers(model.slug, model.limits, launches))
        return device

    def _place(self, device: IsolatedDevice, layers: list[Layer]) -> None:
        configurations = {layer.problem: layer.configuration for layer in layers}
        device.call("extend", NetworkExtension(digits.trained(), 1, configurations))
        self._layers, self._placed = layers, (device, device.generation)
