"""Which hosts a sandbox may reach: read from task.toml, bounded by the operator.

From:  `[environment] allowed_hosts` and `allow_internet` of a task; GYRE_EGRESS_ANY, GYRE_EGRESS_PRIVATE.
To:    Rule and `may_reach`, which proxy.py asks.
Holds: a name is matched as a name, an address is judged as an address: no rule of a task opens a private one.
"""

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings

WEB_PORTS = (80, 443)
NAME = re.compile(r"(?:\*\.)?(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
MAX_NAME_CHARS = 253

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class InvalidRule(ValueError):
    """An entry of allowed_hosts that means nothing; the text says what is meant."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """host: a name, `*.` and a name (all below it, not itself), or `*`. port: None means the web's, 80 and 443."""

    host: str
    port: int | None = None

    def matches(self, host: str, port: int) -> bool:
        if port not in ((self.port,) if self.port is not None else WEB_PORTS):
            return False
        if self.host.startswith("*."):
            return host.endswith(self.host[1:])
        return self.host in ("*", host)

    def __str__(self) -> str:
        return self.host if self.port is None else f"{self.host}:{self.port}"


def parse_rule(text: str) -> Rule:
    """`pypi.org`, `*.example.org`, `example.org:8443`. Raises InvalidRule."""
    name, colon, digits = text.strip().lower().partition(":")
    port = int(digits) if digits.isascii() and digits.isdigit() else None
    if colon and not (port and port < 65536):
        raise InvalidRule(f"{text!r}: after the colon stands a port, 1 to 65535 (no scheme, no path)")
    if is_address(name):
        raise InvalidRule(f"{text!r}: addresses cannot be allowed, only names")
    if len(name) > MAX_NAME_CHARS or not NAME.fullmatch(name):
        raise InvalidRule(f"{text!r} is no host name; use `example.org`, `*.example.org` or `example.org:8443`")
    return Rule(host=name, port=port)


def normalise_host(text: str) -> str:
    """Lower case, without the dot at the end; international names as the wire has them."""
    host = text.strip().rstrip(".").lower()
    try:
        return host if host.isascii() else host.encode("idna").decode()
    except UnicodeError:
        return host


def is_address(host: str) -> bool:
    """Also what a resolver reads as one: 127.1, 0x7f000001, 2130706433, [::1]."""
    plain = host.strip("[]")
    if ":" in plain:
        return True
    last = plain.rpartition(".")[2]
    return bool(re.fullmatch(r"\d+|0x[0-9a-f]*", last))


def open_proxy(environment: dict[str, Any]) -> bool:
    """The task would have the whole internet, and the operator lets it."""
    return bool(environment.get("allow_internet")) and not environment.get("allowed_hosts") and settings.EGRESS_ANY


def allowed_rules(environment: dict[str, Any]) -> tuple[Rule, ...]:
    """Of a task's `[environment]`; entries that mean nothing are refused when a task is read, here they allow nothing."""
    if open_proxy(environment):
        return (Rule(host="*"),)
    found = []
    for text in environment.get("allowed_hosts") or ():
        try:
            found.append(parse_rule(str(text)))
        except InvalidRule:
            continue
    return tuple(found)


def wants_network(environment: dict[str, Any]) -> bool:
    return bool(allowed_rules(environment))


def private_networks() -> list[Network]:
    """What the operator opened beside the public internet."""
    return [ipaddress.ip_network(text, strict=False) for text in settings.EGRESS_PRIVATE]


def may_reach(address: str, opened: Iterable[Network]) -> bool:
    """Public, or opened by the operator. Addresses that carry another one inside are judged by that one."""
    found: Address = ipaddress.ip_address(address.partition("%")[0])
    inner = _inner(found)
    return all(
        (one.is_global and not one.is_multicast) or any(one in network for network in opened)
        for one in ([found] if inner is None else [inner])
    )


def _inner(address: Address) -> Address | None:
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in ipaddress.ip_network("64:ff9b::/96"):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)


def find_rule(rules: Sequence[Rule], host: str, port: int) -> Rule | None:
    return next((rule for rule in rules if rule.matches(host, port)), None)
