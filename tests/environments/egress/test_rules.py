"""Which hosts and addresses may be reached."""

import ipaddress

import pytest

from environments.egress.rules import (
    InvalidRule,
    allowed_rules,
    find_rule,
    is_address,
    may_reach,
    normalise_host,
    parse_rule,
    wants_network,
)


@pytest.mark.parametrize(
    ("rule", "host", "port", "matches"),
    [
        ("example.org", "example.org", 443, True),
        ("example.org", "example.org", 80, True),
        ("example.org", "example.org", 22, False),
        ("example.org", "www.example.org", 443, False),
        ("Example.org:8443", "example.org", 8443, True),
        ("example.org:8443", "example.org", 443, False),
        ("*.example.org", "www.example.org", 443, True),
        ("*.example.org", "a.b.example.org", 443, True),
        ("*.example.org", "example.org", 443, False),
        ("*.example.org", "badexample.org", 443, False),
        ("example.org", "example.org.evil.net", 443, False),
    ],
)
def test_a_rule_matches_a_name_and_its_ports_and_nothing_else(rule: str, host: str, port: int, matches: bool) -> None:
    assert (find_rule([parse_rule(rule)], host, port) is not None) == matches


@pytest.mark.parametrize(
    "text", ["", "http://a.org", "a.org/x", "a.org:", "a.org:0", "10.0.0.1", "[::1]", "*", "a.*", "127.1"]
)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidRule):
        parse_rule(text)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "2130706433", "0x7f000001", "[::1]", "::ffff:1.2.3.4"])
def test_an_address_is_known_in_every_spelling(host: str) -> None:
    assert is_address(host)
    assert not is_address("host-1.example.org")


def test_a_name_is_compared_without_case_and_final_dot() -> None:
    assert normalise_host("Example.ORG.") == "example.org"
    assert normalise_host("bücher.example") == "xn--bcher-kva.example"


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
        "::1", "fe80::1%eth0", "fd00::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::",
    ],
)  # fmt: skip
def test_private_addresses_are_not_reached_however_they_are_wrapped(address: str) -> None:
    assert not may_reach(address, ())


def test_public_addresses_are_reached_and_private_ones_that_the_operator_opened() -> None:
    assert may_reach("8.8.8.8", ())
    assert may_reach("2606:4700::1111", ())
    opened = [ipaddress.ip_network("10.1.0.0/16")]
    assert may_reach("10.1.2.3", opened)
    assert not may_reach("10.2.2.3", opened)
    assert may_reach("::ffff:10.1.2.3", opened)


def test_the_whole_internet_needs_the_operators_word(settings) -> None:
    assert not wants_network({"allow_internet": True})
    settings.EGRESS_ANY = True
    assert [str(rule) for rule in allowed_rules({"allow_internet": True})] == ["*"]
    assert [str(rule) for rule in allowed_rules({"allow_internet": True, "allowed_hosts": ["a.org"]})] == ["a.org"]
    assert not wants_network({})
