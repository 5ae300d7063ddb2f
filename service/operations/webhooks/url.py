"""Addresses that webhooks may call: public ones only, whatever a name resolves to, unless a setting allows others."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from tilewright.service.errors import InvalidRequestError
from tilewright.service.settings import settings

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

EXAMPLE = "https://ci.example/hooks/tilewright"
MAX_LENGTH = 2048
_CLOSED = tuple(
    ipaddress.ip_network(network)
    for network in (
        "192.0.0.0/24",  # protocols' own (RFC 6890); Python 3.11 calls it public
        "192.88.99.0/24",  # relays of 6to4 (RFC 7526), which hand on to where a packet says
        "3fff::/20",  # documentation (RFC 9637), newer than Python 3.11
        "2001::/23",  # Teredo and other protocols: they carry an IPv4 address, which a route may lead anywhere
        "2002::/16",  # 6to4: likewise
        "64:ff9b::/96",  # NAT64: likewise
        "::ffff:0:0/96",  # an IPv4 address in other words; Python 3.13 calls it what that is, 3.11 private
    )
)
_PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True)
class WebhookAddress:
    """The parts of an address: where to connect, and which path to request there."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def host_header(self) -> str:
        """The `Host` of the request."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def literal(self) -> IpAddress | None:
        """The host's IP address; None where the host is a name."""
        return address_of(self.host)


def check_url(url: str) -> WebhookAddress:
    """The parts of an allowed address; raises InvalidRequestError for one that no message may go to.

    Names are not looked up here: what they resolve to is checked at every attempt.
    """
    parts = _split(url)
    allows_private = settings().webhook_private_addresses
    if parts.scheme != "https" and not (parts.scheme == "http" and allows_private):
        raise _refusal("must begin with https://")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise _refusal("must not contain a user, a password or a fragment.")
    if not parts.hostname or "%" in parts.netloc:
        raise _refusal("must name a host.")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    target = WebhookAddress(parts.scheme, parts.hostname, _port(parts), path)
    if target.literal is not None and not is_allowed(target.literal):
        raise _refusal(NOT_PUBLIC.format(address=target.literal))
    return target


NOT_PUBLIC = "{address} is not a public address, and TILEWRIGHT_WEBHOOK_PRIVATE_ADDRESSES is off."


def is_allowed(address: IpAddress) -> bool:
    """Whether messages may go to that address."""
    return settings().webhook_private_addresses or is_public(address)


def is_public(address: IpAddress) -> bool:
    """Whether it is public: not private, loopback, link-local, shared, reserved or of a tunnel."""
    is_closed = address.is_multicast or address.is_reserved or getattr(address, "is_site_local", False)
    return address.is_global and not is_closed and not any(address in network for network in _CLOSED)


def address_of(text: str) -> IpAddress | None:
    """The text as an IP address; None for a name."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _split(url: str) -> SplitResult:
    if len(url) > MAX_LENGTH or not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise _refusal(f"must be at most {MAX_LENGTH} printable ASCII characters without spaces and backslashes.")
    try:
        return urlsplit(url)
    except ValueError as error:
        raise _refusal(f"is not an address: {error}.") from None


def _port(parts: SplitResult) -> int:
    try:
        port = parts.port or _PORTS[parts.scheme]
    except ValueError:
        raise _refusal("has an invalid port; ports go from 1 to 65535.") from None
    return port


def _refusal(reason: str) -> InvalidRequestError:
    return InvalidRequestError("url", reason, EXAMPLE)
