"""The endpoint that `GET best` is compared with: FastAPI, async, the same bytes every time."""

from __future__ import annotations

import os
from pathlib import Path

from fastapi import FastAPI, Response

BODY = Path(os.environ["BENCH_BODY"]).read_bytes()
HEADERS = {"ETag": '"0123456789abcdef0123456789abcdef"', "Cache-Control": "max-age=60"}
app = FastAPI()


@app.get("/constant")
async def constant() -> Response:
    """The bytes of one real answer, read when the process started."""
    return Response(BODY, media_type="application/json", headers=HEADERS)
