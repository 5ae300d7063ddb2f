"""`claims`: list and show what clients report of served configurations."""

from __future__ import annotations

from typing import Annotated

import typer

from tilewright.service.cli.arguments import describe
from tilewright.service.cli.connection import connect
from tilewright.service.cli.groups import lists_by_default
from tilewright.service.cli.output import JsonFlag, note, print_facts, print_json, print_table

app = typer.Typer(help="Claims: configurations that clients say are wrong, and what workers found.")


@app.command("list")
def list_claims(
    state: Annotated[str | None, typer.Option("--state", help="open, confirmed, refuted or unverified.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=200, help="Most rows to show.")] = 20,
    cursor: Annotated[str | None, typer.Option("--cursor", help="Continue after the previous page.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """List claims, newest first."""
    with connect() as connection:
        page = connection.claims(state=state, limit=limit, cursor=cursor)
    if as_json:
        print_json(page)
        return
    print_table(
        ("id", "state", "problem", "device", "variant", "seen"),
        [(one.id, one.state, describe(one.problem), one.device_model, one.variant, one.seen) for one in page.items],
        nothing="No claims match.",
    )
    if page.next_cursor:
        note(f"more follow: --cursor {page.next_cursor}")


lists_by_default(app, list_claims)


@app.command()
def show(
    claim_id: Annotated[
        int, typer.Argument(metavar="CLAIM", min=1, help="The claim's id; list them: tilewright claims")
    ],
    as_json: JsonFlag = False,
) -> None:
    """Show one claim, and what a worker found."""
    with connect() as connection:
        claim = connection.claim(claim_id)
    if as_json:
        print_json(claim)
        return
    values = ",".join(f"{name}={value}" for name, value in claim.configuration.items())
    print_facts(
        [
            ("state", claim.state),
            ("problem", describe(claim.problem)),
            ("device", f"{claim.device_model}, driver {claim.driver}"),
            ("configuration", f"{claim.variant} {values}"),
            ("seen", claim.seen),
            ("found", claim.found),
            ("job", claim.job_id),
        ]
    )
