"""Drawings sent to the worker of a device, and its answers: NOTIFY there and back. Nothing is stored, or left."""

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
"""How long an answer is waited for; most trials are shorter. After it nobody wants the answer any more."""
WAITING_AT_ONCE = 8
"""Of one API process. Each holds a thread and a pooled connection (forty of either) as long as it waits."""
MOST_AT_ONCE = 8
"""Drawings that a device computes before it looks at anything else, such as its job's next trial."""
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
    """What a device did for one drawing."""

    probabilities: Annotated[list[float], Field(min_length=10, max_length=10)]
    environment: EnvironmentAnswer
    layers: list[LayerAnswer]
    kernels_us: float | None
    pass_us: float


class DrawingTask(BaseModel):
    """A drawing for a device: what the network is to be shown, and the channel that wants to know.

    `asked_at` as `clock_s` says it.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    answers: str = Field(pattern=f"^{CHANNEL_OF_ANSWER.format('[0-9a-f]{32}')}$")
    cells: Annotated[list[Cell], Field(min_length=CELLS**2, max_length=CELLS**2)]
    asked_at: float


class DrawingReply(BaseModel):
    """What a device made of it, or why nothing."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    work: DrawingWork | None = None
    refusal: str | None = None


def channel_of(device: str) -> str:
    """The channel that whoever has the device listens on; names of channels have at most 63 bytes."""
    return f"tilewright_digits_{hashlib.sha256(device.encode()).hexdigest()[:32]}"


def ask(device: str, cells: Sequence[int], asked_at: float) -> DrawingWork:
    """What that device makes of the cells; waits WITHIN_S for it. `asked_at` as `clock_s` says it.

    Raises NoAnswerError, DeviceUnavailableError where the device says why not or too many wait already.
    """
    if not _waiting.acquire(blocking=False):
        raise DeviceUnavailableError(f"{WAITING_AT_ONCE} drawings wait for devices already. Set `on` to api.")
    try:
        said = ask_through_database(
            channel_of(device),
            lambda answers: DrawingTask(answers=answers, cells=list(cells), asked_at=asked_at).model_dump_json(),
            WITHIN_S,
        )
    finally:
        _waiting.release()
    if said is None:
        raise NoAnswerError(
            f"The device {device} did not answer within {WITHIN_S:g} s: it is in the middle of a trial, settles a job, "
            "or prepares the network. Ask again, or set `on` to api."
        )
    reply = DrawingReply.model_validate_json(said)
    if reply.work is None:
        reason = (reply.refusal or "no reason was given").rstrip(". ")
        raise DeviceUnavailableError(f"The device {device} does not compute it: {reason}. Set `on` to api.")
    return reply.work


def tasks(session: Session, told: Sequence[str]) -> list[DrawingTask]:
    """Those of the messages that somebody still waits for, the newest first, and not too many."""
    now_s, found = clock_s(session), list[DrawingTask]()
    for message in reversed(told):
        try:
            task = DrawingTask.model_validate_json(message)
        except ValidationError:
            logger.warning("A message that is no drawing was left aside (%d bytes).", len(message))
            continue
        if now_s - task.asked_at < WITHIN_S:
            found.append(task)
    return found[:MOST_AT_ONCE]


def send(session: Session, task: DrawingTask, reply: DrawingReply) -> None:
    """Sends the answer, when the session commits."""
    payload = reply.model_dump_json()
    if len(payload.encode()) > LONGEST_BYTES:
        payload = DrawingReply(refusal="its answer is too long for a message.").model_dump_json()
    session.execute(select(func.pg_notify(task.answers, payload)))


def refusal(reason: str) -> DrawingReply:
    """The reply that says why there is none, cut to what fits a message."""
    return DrawingReply(refusal=reason[:LONGEST_REFUSAL])


def clock_s(session: Session) -> float:
    """The database's clock, seconds since 1970: the same for whoever asks and whoever answers."""
    return float(session.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one())
