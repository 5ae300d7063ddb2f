"""One POST to an IP address that was checked before: a name that changes meanwhile cannot lead elsewhere."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping
from functools import cache

import httpx

from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations.webhooks.deliveries import DeliveryAttempt
from tilewright.service.operations.webhooks.url import (
    NOT_PUBLIC,
    IpAddress,
    WebhookAddress,
    address_of,
    check_url,
    is_allowed,
)

DEADLINE_S = 10.0
"""The deadline for looking the name up, connecting, sending, and reading the answer's head together."""


async def post(url: str, headers: Mapping[str, str], body: bytes) -> DeliveryAttempt:
    """The result of the attempt. The answer's body is not read, redirects are not followed, proxies are not used."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            target = check_url(url)
            return await _send(target, await _address(target), headers, body)
    except InvalidRequestError as refusal:
        return DeliveryAttempt(error=refusal.reason)
    except TimeoutError:
        return DeliveryAttempt(error=f"No answer within {DEADLINE_S:g} s.")
    except (httpx.HTTPError, OSError, UnicodeError) as error:
        return DeliveryAttempt(error=f"{type(error).__name__}: {error}")


async def _address(target: WebhookAddress) -> IpAddress:
    """The address to connect to; raises OSError, and InvalidRequestError where any of the name's is not allowed."""
    loop = asyncio.get_running_loop()
    records = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    addresses = [address for *_, place in records if (address := address_of(str(place[0]))) is not None]
    if not addresses:
        raise OSError(f"{target.host} has no address")
    for address in addresses:
        if not is_allowed(address):
            raise InvalidRequestError("url", NOT_PUBLIC.format(address=address))
    return addresses[0]


async def _send(target: WebhookAddress, address: IpAddress, headers: Mapping[str, str], body: bytes) -> DeliveryAttempt:
    host = f"[{address}]" if address.version == 6 else str(address)
    # The certificate is that of the name, whatever address was dialled.
    extensions = {} if target.literal else {"sni_hostname": target.host}
    async with (
        httpx.AsyncClient(trust_env=False, verify=_certificates(), timeout=DEADLINE_S) as client,
        client.stream(
            "POST",
            f"{target.scheme}://{host}:{target.port}{target.path}",
            headers={**headers, "Host": target.host_header},
            content=body,
            extensions=extensions,
        ) as answer,
    ):
        return DeliveryAttempt(status_code=answer.status_code)


@cache
def _certificates() -> ssl.SSLContext:
    return ssl.create_default_context()
