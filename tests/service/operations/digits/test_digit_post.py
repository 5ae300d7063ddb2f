"""Drawings on their way to a device: which are still worth an answer, and what fits a message."""

from __future__ import annotations

import json
import threading
import uuid

import pytest
from waiting import PATIENCE_S

from tilewright.service.errors import DeviceUnavailableError, NoAnswerError
from tilewright.service.operations.digits import post as digit_post
from tilewright.service.store.changes import Changes
from tilewright.service.store.session import session_scope

CELLS = [4] * 64


def message(asked_at, **changed):
    answers = f"tilewright_answer_{uuid.uuid4().hex}"
    return json.dumps({"answers": answers, "cells": CELLS, "asked_at": asked_at} | changed)


def test_what_nobody_waits_for_any_more_is_left_aside_and_the_newest_comes_first(session):
    now_s = digit_post.clock_s(session)
    ages_s = [digit_post.WITHIN_S + 1, 1.0, 0.5]
    found = digit_post.tasks(session, [message(now_s - age_s) for age_s in ages_s])
    assert [task.asked_at for task in found] == [now_s - 0.5, now_s - 1.0]
    many = [message(now_s) for _ in range(digit_post.MOST_AT_ONCE + 3)]
    assert len(digit_post.tasks(session, many)) == digit_post.MOST_AT_ONCE


@pytest.mark.parametrize(
    "changed",
    [
        {"cells": CELLS[1:]},
        {"cells": [17, *CELLS[1:]]},
        {"cells": None},
        {"answers": "tilewright_best"},  # not a channel of anybody else
        {"asked_at": float("nan")},
    ],
)
def test_a_message_that_is_no_drawing_does_not_keep_the_others_from_their_answer(session, changed):
    now_s = digit_post.clock_s(session)
    good = message(now_s)
    assert len(digit_post.tasks(session, [message(**{"asked_at": now_s} | changed), "x", good])) == 1


@pytest.fixture
def device(configured):
    """Answers every drawing with the reply that the test puts here."""
    name, replies, stop = f"GPU-{uuid.uuid4()}", [], threading.Event()
    listening = threading.Event()

    def serve():
        with Changes(digit_post.channel_of(name)) as messages:
            listening.set()
            while not stop.is_set():
                told = messages.wait(0.05)
                with session_scope() as session:
                    for task in digit_post.tasks(session, told) if replies else []:
                        digit_post.send(session, task, replies[0])

    thread = threading.Thread(target=serve)
    thread.start()
    assert listening.wait(PATIENCE_S)
    yield name, replies
    stop.set()
    thread.join()


def asked(name, within_s=PATIENCE_S):
    with pytest.MonkeyPatch.context() as patch, session_scope() as session:
        patch.setattr(digit_post, "WITHIN_S", within_s)
        return digit_post.ask(name, CELLS, digit_post.clock_s(session))


def test_a_refusal_however_long_arrives_with_the_way_out(device):
    name, replies = device
    replies.append(digit_post.refusal("it melted " * 1000))
    with pytest.raises(DeviceUnavailableError, match="it melted") as refused:
        asked(name)
    assert str(refused.value).endswith("Set `on` to api.")
    replies[:] = [digit_post.DrawingReply(refusal="x" * 9000)]  # of another version, which does not cut it
    with pytest.raises(DeviceUnavailableError, match="too long"):
        asked(name)


def test_nobody_waits_longer_than_promised_and_a_late_answer_is_not_anothers(device):
    name, replies = device
    with pytest.raises(NoAnswerError, match=r"within 0\.2 s"):
        asked(name, 0.2)
    replies.append(digit_post.refusal("later"))
    with pytest.raises(DeviceUnavailableError, match="later"):
        asked(name)


def test_only_so_many_wait_at_once(device, monkeypatch):
    name, _ = device
    monkeypatch.setattr(digit_post, "_waiting", threading.BoundedSemaphore(1))
    digit_post._waiting.acquire()
    with pytest.raises(DeviceUnavailableError, match="wait for devices already"):
        asked(name)
