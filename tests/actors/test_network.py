"""Which interface gloo is told to use."""

from __future__ import annotations

import socket

import pytest

from zellige_ray.actors.network import VARIABLE, bind_gloo, interface_of


def test_the_interface_of_an_address_is_found_and_a_foreign_address_has_none() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.77") is None


@pytest.mark.parametrize("address", ["::1", "[::1]", "::1%lo"])
def test_ipv6_addresses_are_understood_with_brackets_and_zone(address: str) -> None:
    if not socket.has_ipv6 or interface_of("::1") is None:
        pytest.skip("this machine has no IPv6 loopback")
    assert interface_of(address) == "lo"


def test_gloo_is_bound_to_it_and_a_choice_of_the_user_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "eth7")
    bind_gloo("127.0.0.1")
    import os

    assert os.environ[VARIABLE] == "eth7"
    monkeypatch.delenv(VARIABLE)
    bind_gloo("203.0.113.77")
    assert VARIABLE not in os.environ
    bind_gloo("127.0.0.1")
    assert os.environ[VARIABLE] == "lo"
    monkeypatch.delenv(VARIABLE)
