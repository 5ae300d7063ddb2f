"""Sends drawings to a device's worker and receives its answers, both by NOTIFY. Nothing is stored."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tilewright.service.errors import DeviceUnavailableError, NoAnswerError
from tilewright.service.operations.answers import Answer, EnvironmentAnswer, Match
from tilewright.service.store.ask import CHANNEL_OF_ANSWER, LONGEST_BYTES
from tilewright.service.store.ask import ask as ask_through_database
from tilewright.tuner.network.digits import CELLS

logger = logging.getLogger(__name__)

WITHIN_S = 2.0
"""How long to wait for an answer; most trials are shorter. A later answer is dropped."""
WAITING_AT_ONCE = 8
"""Drawings that one API process waits for at a time. Each holds one of forty threads and pooled connections."""
MOST_AT_ONCE = 8
"""Drawings that a device computes before it does anything else, such as its job's next trial."""
LONGEST_REFUSAL = 1000

_waiting = threading.BoundedSemaphore(WAITING_AT_ONCE)

Cell = Annotated[int, Field(ge=0, le=16)]


class LayerAnswer(Answer):
    """One launch of the network."""

    kernel: str
    shape: dict[str, int]
    variant: str
    configuration: dict[str, int]
    match: Match = Field(description="How the configuration was found; `exact`: tuned for this layer and device model.")


class DrawingWork(Answer):
    """A device's answer to one drawing."""

    probabilities: Annotated[list[float], Field(min_length=10, max_length=10)]
    environment: EnvironmentAnswer
    layers: list[LayerAnswer]
    kernels_us: float | None
    pass_us: float


class DrawingTask(BaseModel):
    """A drawing for a device: the network's input and the channel for the answer. `asked_at` is a time of `clock_s`."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    answers: str = Field(pattern=f"^{CHANNEL_OF_ANSWER.format('[0-9a-f]{32}')}$")
    cells: Annotated[list[Cell], Field(min_length=CELLS**2, max_length=CELLS**2)]
    asked_at: float


class DrawingReply(BaseModel):
    """A device's answer, or its reason to refuse."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    work: DrawingWork | None = None
    refusal: str | None = None


def channel_of(device: str) -> str:
    """The channel that the process which has the device listens on; names of channels have at most 63 bytes."""
    return f"tilewright_digits_{hashlib.sha256(device.encode()).hexdigest()[:32]}"


def ask(device: str, cells: Sequence[int], asked_at: float) -> DrawingWork:
    """The device's answer for the cells; waits WITHIN_S for it. `asked_at` is a time of `clock_s`.

    Raises NoAnswerError, and DeviceUnavailableError where the device refuses or too many drawings wait already.
    """
    if not _waiting.acquire(blocking=False):
        raise DeviceUnavailableError(f"{WAITING_AT_ONCE} drawings wait for devices already. Set `on` to api.")
    try:
        payload = ask_through_database(
            channel_of(device),
            lambda answers: DrawingTask(answers=answers, cells=list(cells), asked_at=asked_at).model_dump_json(),
            WITHIN_S,
        )
    finally:
        _waiting.release()
    if payload is None:
        raise NoAnswerError(
            f"The device {device} did not answer within {WITHIN_S:g} s: it is in the middle of a trial, settles a job, "
            "or prepares the network. Ask again, or set `on` to api."
        )
    reply = DrawingReply.model_validate_json(payload)
    if reply.work is None:
        reason = (reply.refusal or "no reason was given").rstrip(". ")
        raise DeviceUnavailableError(f"The device {device} does not compute it: {reason}. Set `on` to api.")
    return reply.work


def tasks(session: Session, messages: Sequence[str]) -> list[DrawingTask]:
    """The drawings among the messages whose answer is still waited for: MOST_AT_ONCE, the newest first."""
    now_s, waiting = clock_s(session), list[DrawingTask]()
    for message in reversed(messages):
        try:
            task = DrawingTask.model_validate_json(message)
        except ValidationError:
            logger.warning("Ignored a message that is not a drawing (%d bytes).", len(message))
            continue
        if now_s - task.asked_at < WITHIN_S:
            waiting.append(task)
    return waiting[:MOST_AT_ONCE]


def send(session: Session, task: DrawingTask, reply: DrawingReply) -> None:
    """Sends the answer, when the session commits."""
    payload = reply.model_dump_json()
    if len(payload.encode()) > LONGEST_BYTES:
        payload = DrawingReply(refusal="its answer is too long for a message.").model_dump_json()
    session.execute(select(func.pg_notify(task.answers, payload)))


def refusal(reason: str) -> DrawingReply:
    """A reply that refuses, its reason cut to what fits a message."""
    return DrawingReply(refusal=reason[:LONGEST_REFUSAL])


def clock_s(session: Session) -> float:
    """The database's clock, seconds since 1970, which API and workers share."""
    return float(session.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one())
