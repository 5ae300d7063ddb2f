"""From the end of a job to a message that was delivered or given up; addresses that may be called."""

from __future__ import annotations

import ipaddress
import json
from datetime import timedelta

import pytest
from desk import request
from sqlalchemy import func, select, update

from tilewright.service.errors import InvalidRequestError, NotFoundError
from tilewright.service.operations.jobs import progress as job_progress
from tilewright.service.operations.jobs.jobs import cancel_job
from tilewright.service.operations.jobs.request import request_job
from tilewright.service.operations.requests import WebhookRequest
from tilewright.service.operations.webhooks import deliveries, webhooks
from tilewright.service.operations.webhooks.deliveries import PAUSES_S, DeliveryAttempt
from tilewright.service.operations.webhooks.url import check_url, is_public
from tilewright.service.store import models
from tilewright.service.store.models import JobState

URL = "https://ci.example/hook"


def hook(session, name="ci", **of) -> webhooks.NewWebhookAnswer:
    return webhooks.create_webhook(session, WebhookRequest(name=name, url=URL, **of))


def listed(session, name="ci"):
    session.expire_all()
    return webhooks.deliveries(session, name).items


def end(desk, state=JobState.DONE) -> None:
    job_progress.end_job(desk.session, desk.job_id, desk.epoch, state)


def make_due(session) -> None:
    session.execute(update(models.WebhookDelivery).values(next_at=func.now() - timedelta(seconds=1)))


def test_the_end_of_a_job_is_one_message_for_each_webhook_that_listens(session, take):
    hook(session)
    hook(session, "failures", states=["failed"])
    desk = take()
    assert listed(session) == []
    end(desk)
    (message,) = listed(session)
    assert (message.job_id, message.state, message.attempts) == (desk.job_id, "waiting", 0)
    assert listed(session, "failures") == []
    webhooks.announce(session, desk.job_id)
    assert len(listed(session)) == 1


def test_every_way_in_which_a_job_ends_is_told(session, take, device):
    hook(session)
    waiting = request_job(session, request(seed=1))[0].id
    cancel_job(session, waiting)
    crashed = take(wanted=request(seed=2))
    for _ in range(job_progress.MAX_CRASHES):
        if not job_progress.note_crash(session, crashed.job_id, crashed.epoch, "killed"):
            break
        crashed = take(crashed.job_id)
    abandoned = take(wanted=request(seed=3)).job_id
    for _ in range(job_progress.MAX_CRASHES):
        row = session.get_one(models.TuningJob, abandoned, populate_existing=True)
        job_progress.take_job(session, abandoned, row.engine_id, "worker-1")
    lost = take(wanted=request(seed=4))
    assert job_progress.note_lost_device(session, lost.job_id, lost.epoch, "GPU-1")
    lost = take(lost.job_id)
    assert not job_progress.note_lost_device(session, lost.job_id, lost.epoch, "GPU-2")
    told = {one.job_id for one in listed(session)}
    assert told == {waiting, crashed.job_id, abandoned, lost.job_id}


def test_a_job_that_lost_two_devices_fails_before_it_takes_a_third(session, take):
    desk = take()
    assert job_progress.note_lost_device(session, desk.job_id, desk.epoch, "GPU-1")
    assert desk.row.state is JobState.QUEUED
    desk = take(desk.job_id)
    assert not job_progress.note_lost_device(session, desk.job_id, desk.epoch, "GPU-2")
    assert (desk.row.state, desk.row.error) == (JobState.FAILED, "The device GPU-2 stopped answering during this job.")


def test_a_message_is_claimed_once_and_tells_of_its_job(session, take):
    made = hook(session)
    desk = take()
    end(desk)
    (claimed,) = deliveries.claim(session, limit=10)
    assert deliveries.claim(session, limit=10) == []
    assert (claimed.url, claimed.secret, claimed.attempt) == (URL, made.secret, 1)
    said = json.loads(claimed.body)
    assert (said["type"], said["data"]["id"], said["data"]["path"]) == (
        "job.done",
        str(desk.job_id),
        f"/v1/jobs/{desk.job_id}",
    )
    assert said["timestamp"] == said["data"]["finished_at"]
    assert said["data"]["problem"]["kernel"] == "gemm"


def test_a_webhook_that_is_being_told_waits_and_others_do_not(session, take):
    hook(session)
    hook(session, "other")
    for seed in (1, 2):
        end(take(wanted=request(seed=seed)))
    first = deliveries.claim(session, limit=10)
    assert len({one.webhook_id for one in first}) == len(first) == 2
    busy = first[0].webhook_id
    (second,) = deliveries.claim(session, limit=10, busy=[busy])
    assert second.webhook_id != busy


def test_a_message_that_was_taken_is_delivered(session, take):
    hook(session)
    end(take())
    (claimed,) = deliveries.claim(session, limit=10)
    deliveries.settle(session, claimed, DeliveryAttempt(status_code=204))
    (message,) = listed(session)
    assert (message.state, message.status_code, message.error, message.next_at) == ("delivered", 204, None, None)
    assert message.delivered_at is not None
    assert webhooks.webhooks(session)[0].waiting == 0


@pytest.mark.parametrize(
    "attempted", [DeliveryAttempt(status_code=500), DeliveryAttempt(status_code=302), DeliveryAttempt(error="away")]
)
def test_pauses_grow_until_a_message_is_given_up(session, take, attempted):
    hook(session)
    end(take())
    now = session.scalar(select(func.now()))
    for attempt, pause_s in enumerate(PAUSES_S, 1):
        make_due(session)
        (claimed,) = deliveries.claim(session, limit=10)
        deliveries.settle(session, claimed, attempted)
        (message,) = listed(session)
        assert (message.state, message.attempts) == ("waiting", attempt)
        assert message.next_at - now == timedelta(seconds=pause_s)
        assert message.error
    make_due(session)
    (claimed,) = deliveries.claim(session, limit=10)
    deliveries.settle(session, claimed, attempted)
    assert listed(session)[0].state == "failed"
    assert webhooks.webhooks(session)[0].failed == 1
    make_due(session)
    assert deliveries.claim(session, limit=10) == []
    again = webhooks.redeliver(session, "ci", claimed.id)
    assert (again.state, again.attempts) == ("waiting", 0)
    assert len(deliveries.claim(session, limit=10)) == 1


def test_a_receiver_that_is_gone_for_good_is_not_asked_again(session, take):
    hook(session)
    end(take())
    (claimed,) = deliveries.claim(session, limit=10)
    deliveries.settle(session, claimed, DeliveryAttempt(status_code=410))
    assert listed(session)[0].state == "failed"


def test_a_late_answer_does_not_speak_for_a_later_attempt(session, take):
    hook(session)
    end(take())
    (late,) = deliveries.claim(session, limit=10)
    make_due(session)  # its process stood still for longer than the claim
    (later,) = deliveries.claim(session, limit=10)
    deliveries.settle(session, late, DeliveryAttempt(error="too late"))
    assert listed(session)[0].error is None
    deliveries.settle(session, later, DeliveryAttempt(status_code=200))
    assert listed(session)[0].state == "delivered"


def test_old_messages_are_forgotten_but_those_that_wait_are_not(session, take):
    hook(session)
    for seed in (1, 2):
        end(take(wanted=request(seed=seed)))
    (claimed,) = deliveries.claim(session, limit=1)
    deliveries.settle(session, claimed, DeliveryAttempt(status_code=200))
    deliveries.forget_old_deliveries(session)
    assert len(listed(session)) == 2
    session.execute(update(models.WebhookDelivery).values(created_at=func.now() - timedelta(days=31)))
    deliveries.forget_old_deliveries(session)
    assert [one.state for one in listed(session)] == ["waiting"]


def test_the_signature_is_that_of_the_specifications_example():
    secret, body = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", b'{"test": 2432232314}'
    signed = deliveries.signature(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body)
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_messages_are_listed_page_by_page_newest_first(session, take):
    hook(session)
    for seed in (1, 2, 3):
        end(take(wanted=request(seed=seed)))
    first = webhooks.deliveries(session, "ci", limit=2)
    second = webhooks.deliveries(session, "ci", limit=2, cursor=first.next_cursor)
    ids = [one.id for one in (*first.items, *second.items)]
    assert ids == sorted(ids, reverse=True)
    assert (len(ids), second.next_cursor) == (3, None)


def test_a_deleted_webhook_is_told_nothing_and_leaves_no_messages(session, take):
    hook(session)
    desk = take()
    end(desk)
    webhooks.delete_webhook(session, "ci")
    assert session.scalar(select(func.count()).select_from(models.WebhookDelivery)) == 0
    with pytest.raises(NotFoundError):
        webhooks.deliveries(session, "ci")


NOT_PUBLIC = [
    "127.0.0.1",
    "127.255.255.254",
    "0.0.0.0",  # noqa: S104 - an address to refuse
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "169.254.169.254",  # where clouds keep the keys of their machines
    "100.64.0.1",
    "192.0.0.8",
    "192.88.99.1",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:8.8.8.8",
    "64:ff9b::7f00:1",
    "2002:7f00:1::",
    "3fff::1",
    "3fff:fff:ffff::1",
    "64:ff9b::7f00:1",
    "2001:0:7f00:1::",
    "fc00::1",
    "fd12:3456::1",
    "fe80::1",
    "fec0::1",
    "ff02::1",
]


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_what_is_not_of_the_open_internet_is_known(address):
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "192.88.98.1", "192.88.100.1", "172.32.0.1", "2606:4700::1111", "2a00:1450::1"]
)
def test_public_addresses_are_public(address):
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "url",
    [
        "http://ci.example/x",
        "ftp://ci.example/x",
        "file:///etc/passwd",
        "//ci.example/x",
        "https://",
        "https:///x",
        "https://user@ci.example/",
        "https://user:word@ci.example/",
        "https://ci.example/#here",
        "https://ci.example:99999/",
        "https://ci.example:port/",
        "https://[::1/",
        "https://[fe80::1%25eth0]/",
        "https://ci.example/a b",
        "https://ci.example\\@169.254.169.254/",
        "https://ci.example/\r\nHost: other",
        "https://bücher.example/",
        "https://ci.example/" + "x" * 2048,
        *[f"https://[{one}]/" if ":" in one else f"https://{one}/" for one in NOT_PUBLIC],
    ],
)
def test_an_address_that_may_never_be_called_is_refused_by_its_field(url):
    with pytest.raises(InvalidRequestError) as refused:
        check_url(url)
    assert refused.value.field == "url"


def test_an_address_is_taken_apart():
    target = check_url("https://ci.example:8443/hooks/a?b=c")
    assert (target.scheme, target.host, target.port, target.path) == ("https", "ci.example", 8443, "/hooks/a?b=c")
    assert target.host_header == "ci.example:8443"
    assert check_url("https://ci.example").path == "/"
    assert check_url("https://[2606:4700::1111]/").host_header == "[2606:4700::1111]"


@pytest.mark.usefixtures("private_allowed")
def test_a_setting_allows_private_addresses_and_plain_http():
    assert check_url("http://192.168.1.9:9000/x").host_header == "192.168.1.9:9000"
    with pytest.raises(InvalidRequestError):
        check_url("file:///etc/passwd")
