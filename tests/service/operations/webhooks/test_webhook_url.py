from __future__ import annotations

import ipaddress

import pytest

from tilewright.service.errors import InvalidRequestError
from tilewright.service.operations.webhooks.url import check_url, is_public

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
