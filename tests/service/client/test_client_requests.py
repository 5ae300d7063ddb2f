"""What a caller says is in the request: every argument of every call, each by itself."""

import inspect
import json
from uuid import UUID

import httpx
import pytest

from tilewright.service.client import Client
from tilewright.service.client.errors import ApiProblemError
from tilewright.service.operations.requests import BudgetRequest, DemandJobs, ScheduleChanges
from tilewright.service.operations.views.attention import AttentionFilter

SAID = {  # arguments by name, and what of each must be in the address, the headers or the body
    "kernel": ("layer_norm", "layer_norm"),
    "name": ("layer_norm", "layer_norm"),
    "device_model": ("nvidia-t4", "nvidia-t4"),
    "shape": ({"m": 4711}, "m=4711"),
    "dtype": ("bfloat16", "bfloat16"),
    "options": ({"trans_b": True}, "trans_b"),
    "job_id": (UUID(int=4711), str(UUID(int=4711))),
    "state": ("refuted", "refuted"),
    "limit": (17, "limit=17"),
    "cursor": ("Zm9v", "cursor=Zm9v"),
    "trial": (4712, "4712"),
    "schedule_id": (4713, "4713"),
    "uuid": ("GPU/1", "GPU%2F1"),
    "variant": ("wpt", "variant=wpt"),
    "result_id": (4714, "4714"),
    "claim_id": (4715, "4715"),
    "reason": ("was wrong", "was wrong"),
    "top": (13, "top=13"),
    "verdict": ("worse", "verdict=worse"),
    "chosen": (AttentionFilter(device_model="nvidia-t4"), "device_model=nvidia-t4"),
    "changes": (ScheduleChanges(name="renamed"), "renamed"),
    "enabled": (True, "resume"),
    "request": (DemandJobs(budget=BudgetRequest(trials=4716)), "4716"),
}
OTHERS = {"best_path", "create_schedule", "events", "report_claim", "request_job"}
"""Calls with a request of their own, and those that send none when they are called."""

CALLS = [
    (name, argument)
    for name, call in inspect.getmembers(Client, inspect.isfunction)
    if not name.startswith("_")
    for argument in inspect.signature(call).parameters
    if argument in SAID and name not in OTHERS
]


@pytest.mark.parametrize(("name", "argument"), CALLS)
def test_an_argument_is_part_of_the_request(name, argument):
    sent = []

    def note(request):
        sent.append(f"{request.url} {dict(request.headers)} {request.content.decode()}")
        return httpx.Response(404, content=json.dumps({"title": "none", "status": 404}))

    with Client("http://service.test") as client:
        client._http = httpx.Client(base_url="http://service.test", transport=httpx.MockTransport(note))
        parameters = list(inspect.signature(getattr(client, name)).parameters.values())
        needed = {one.name for one in parameters if one.default is one.empty} | {argument}
        with pytest.raises(ApiProblemError):
            getattr(client, name)(**{one: SAID[one][0] for one in needed})
    assert SAID[argument][1] in sent[-1]
