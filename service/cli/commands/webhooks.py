"""`webhooks`: create, list, delete, and the state of their messages; in the database directly."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from typing import Annotated

import typer

from tilewright.service.cli.connection import database_session
from tilewright.service.cli.output import JsonFlag, data, lists_by_default, note, print_json, print_table

app = typer.Typer(help="Webhooks: addresses that get a message when a job ends.")

_session = partial(database_session, "Webhooks", "/v1/webhooks")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The webhook's name.")]


class EndState(StrEnum):
    """The states in which jobs end."""

    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@app.command("list")
def list_webhooks(as_json: JsonFlag = False) -> None:
    """List webhooks; secrets are never shown."""
    from tilewright.service.operations.webhooks import webhooks

    with _session("webhooks list") as session:
        hooks = webhooks.webhooks(session)
    if as_json:
        print_json({"items": hooks})
        return
    print_table(
        ("name", "address", "states", "waiting", "given up"),
        [(hook.name, hook.url, " ".join(hook.states), hook.waiting, hook.failed) for hook in hooks],
        nothing="No webhooks yet. Create one: tilewright webhooks create NAME https://…",
    )


lists_by_default(app, list_webhooks)


@app.command()
def create(
    name: Name,
    url: Annotated[str, typer.Argument(metavar="URL", help="Where messages are sent, https://…")],
    state: Annotated[
        list[EndState] | None,
        typer.Option("--state", help="Only jobs that end in this state; repeatable. Default: all."),
    ] = None,
    project: Annotated[
        str | None, typer.Option("--project", help="Only jobs of this project. Default: of all.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Create a webhook and print the secret of its signatures, which cannot be shown again."""
    from tilewright.service.operations.requests import WebhookRequest
    from tilewright.service.operations.webhooks import webhooks

    given = {"states": [one.value for one in state]} if state else {}
    request = WebhookRequest.model_validate({"name": name, "url": url, "project": project} | given)
    with _session("webhooks create") as session:
        made = webhooks.create_webhook(session, request)
    if as_json:
        print_json(made)
        return
    data.print(made.secret, soft_wrap=True)
    note(f"webhook {made.name}; the secret cannot be shown again. Messages are sent by the API: tilewright serve")


@app.command()
def delete(name: Name) -> None:
    """Delete a webhook and the record of its messages."""
    from tilewright.service.operations.webhooks import webhooks

    with _session("webhooks delete") as session:
        webhooks.delete_webhook(session, name)
    note(f"{name} is deleted")


@app.command()
def deliveries(
    name: Name,
    limit: Annotated[int, typer.Option("--limit", min=1, max=200, help="Most messages to show.")] = 50,
    as_json: JsonFlag = False,
) -> None:
    """List a webhook's messages, newest first."""
    from tilewright.service.operations.webhooks import webhooks

    with _session("webhooks deliveries") as session:
        page = webhooks.deliveries(session, name, limit=limit)
    if as_json:
        print_json(page)
        return
    print_table(
        ("message", "job", "state", "attempts", "next attempt", "answer", "error"),
        [
            (
                one.id,
                one.job_id,
                one.state,
                one.attempts,
                f"{one.next_at:%Y-%m-%d %H:%M:%S}" if one.next_at else None,
                one.status_code,
                one.error,
            )
            for one in page.items
        ],
        nothing="No messages yet.",
    )
