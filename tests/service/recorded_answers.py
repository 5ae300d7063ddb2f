"""What a filled service answers, as tests/data/answers.json has it: a checksum of lists, documents, pages and commands.

    RECORD_ANSWERS=1 python -m pytest tests/service/test_recorded_answers.py --basetemp FOLDER

writes the record anew, after a change of an answer that was meant, and leaves the texts in FOLDER to compare.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import three_models
from caller import Caller
from factories import H100, H200, NEW, OLD, SHAPE, TILED_32, Rows, tune_four
from sqlalchemy import func, update

from tilewright.service.store import models

RECORD = Path(__file__).parents[1] / "data" / "answers.json"
LISTS = (
    "attention",
    "attention?kind=stale&limit=3",
    "attention?kernel=gemm&device_model=nvidia-h100",
    "claims",
    "demand",
    "demand?kernel=gemm&limit=1",
    "device-models",
    "devices",
    "export?kernel=gemm&device_model=nvidia-a100&limit=5",
    "kernels/gemm/best?device_model=nvidia-h200&shape=m=1000,n=1000,k=1000",
    "kernels/gemm/best?device_model=nvidia-h100&shape=m=7,n=4096,k=4096",
    "export?format=t4&study_id=1",
    "export?format=kernel-tuner&study_id=1",
    "jobs?limit=5",
    "jobs?state=failed",
    "jobs?search=linear",
    "keys",
    "kernels/gemm/compare?a=nvidia-h200&b=nvidia-h100&limit=9",
    "kernels/gemm/history?shape=m=256,n=100,k=784",
    "kernels/gemm/matrix?limit=7",
    "kernels/gemm/matrix?status=stale&order=ratio",
    "kernels/gemm/matrix?device_model=cpu:test&shape=m=512",
    "projects",
    "results?limit=4",
    "results?stale=true&kernel=gemm&limit=9",
    "results?retracted=true",
    "results?improvable=true&limit=3",
    "results?variant=naive&device_model=nvidia-a100",
    "schedules",
    "schedules/1",
    "schedules/1/comparisons",
    "schedules/1/fires",
    "studies?limit=5",
    "studies/1",
    "studies/1/trials",
    "studies?kernel=linear",
    "views",
    "webhooks",
    *(f"{table}?format=csv&limit=20" for table in ("attention", "demand", "jobs", "results", "studies")),
)

PAGES = (
    "",
    "?kernel=gemm&device_model=nvidia-h200&status=stale",
    "?kernel=linear",
    "results",
    "results?kernel=gemm&device_model=nvidia-h100&sort=time",
    "compare?kernel=gemm&a=nvidia-h200&b=nvidia-h100&show=all",
    "history",
    "views",
    "ask?kernel=gemm&device_model=nvidia-h200&shape=m%3D1000,n%3D1000,k%3D1000",
    "kernels/gemm/problem?shape=m%3D1000,n%3D1000,k%3D1000",
    "kernels/gemm/problem?shape=m%3D256,n%3D9,k%3D784",
    "device-models/nvidia-h200",
    "attention",
    "demand",
    "jobs",
    "schedules",
    "fleet",
    "access",
    "webhooks/ci",
    "schedules/1/edit",
    *(f"studies/{number}" for number in (1, 9)),
    "studies/9/columns?variant=tiled",
    "studies/9/trials/0",
)

COMMANDS = (
    "attention",
    "attention list --kind stale --limit 3",
    "best gemm --shape m=1000,n=1000,k=1000 --device-model nvidia-h200",
    "best gemm --shape m=7,n=4096,k=4096 --device-model nvidia-h100",
    "claims",
    "demand",
    "demand list --kernel gemm --limit 1",
    "jobs",
    "jobs list --state failed --limit 2",
    "keys",
    "projects",
    "results",
    "results list --stale --kernel gemm --limit 9",
    "results list --retracted",
    "schedules",
    "schedules show 1",
    "webhooks",
    "webhooks deliveries ci",
)


def fill(rows: Rows) -> None:
    """Three GPU models and a CPU, results of two environments, and a study with trials of all outcomes."""
    three_models.fill(rows, 12)
    tune_four(rows)
    rows.best(SHAPE | {"m": 300}, 0.9, source="an older source")
    rows.best(SHAPE | {"n": 7}, 0.25, dtype="float64", options={"trans_b": True}, configuration=TILED_32)
    rows.best(SHAPE | {"n": 9}, 0.5, environment=OLD)
    rows.best(SHAPE | {"n": 9}, 0.7, environment=NEW, library_ms=0.2)
    study, problem, device = rows.study({"m": 5, "n": 6, "k": 7}, model=H100)
    rows.job(problem, device, study, models.JobState.FAILED).error = "the worker died"
    rows.device(H200, NEW, "GPU-second").drain_requested_at = func.now()
    best = models.BestConfiguration
    aged = func.now() - (three_models.BEGAN + timedelta(days=20) - best.verified_at)  # as old next year as now
    rows.session.execute(
        update(best).where(best.verified_at < three_models.BEGAN + timedelta(days=20)).values(verified_at=aged)
    )


def ask(client: Caller) -> None:
    """What callers add: jobs, a schedule, a webhook, a view, a key, a note, a claim and a retraction."""
    budget = {"trials": 9, "seconds": 60.0}
    gemm = {"kernel": "gemm", "shape": {"m": 40, "n": 50, "k": 60}}
    posts = (
        ("jobs", gemm | {"device_model": "nvidia-h200", "budget": budget}),
        ("jobs", gemm | {"device_model": "nvidia-h100", "priority": 7, "sampler": "random"}),
        ("schedules", {"name": "nightly", "cron": "0 30 2 * * *", "problems": [gemm], "device_model": "nvidia-h200"}),
        ("schedules", {"name": "stale ones", "cron": "0 0 3 * * 1", "target": "stale", "device_model": "nvidia-h100"}),
        ("webhooks", {"name": "ci", "url": "https://ci.example/hook", "states": ["failed"]}),
        ("keys", {"name": "reader", "scope": "read"}),
        ("studies/1/notes", {"text": "looked at"}),
        ("results/2/retract", {"reason": "wrong"}),
    )
    for path, body in posts:
        response = client.post(f"/v1/{path}", json=body)
        assert response.is_success, (path, response.text)


def answers(client: Caller, run: Callable[[Sequence[str]], str]) -> Iterator[tuple[str, str]]:
    """Addresses and commands with what they answer, without moments and ids that differ from run to run."""
    ids: dict[str, str] = {}

    def plain(text: str) -> str:
        text = re.sub(_UUID, lambda found: ids.setdefault(found[0], f"uuid-{len(ids)}"), text)
        return re.sub(_OF_THIS_RUN, "…", text)

    for path in LISTS:
        yield path, plain(client.get(f"/v1/{path}").text)
    for path in PAGES:
        yield f"/{path}", plain(client.get(f"/{path}").text.partition('<main id="main">')[2])
    for command in COMMANDS:
        yield command, plain(run(command.split()))


def checksum(text: str) -> str:
    """Of a text."""
    return f"{zlib.crc32(text.encode()):08x}"


_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_OF_THIS_RUN = re.compile(
    r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\+00:00)?|<time[^>]*>[^<]*|\d+ (s|min) ago|--cursor \S+"
    r"""|"(next_cursor|request_id)":"[^"]+"|tw_[\w-]{6}"""
)
