"""The network: gloo is told which interface to use, because a host name often means loopback; is a cluster there?"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
import time
from pathlib import Path

SIOCGIFADDR = 0x8915
INET6 = Path("/proc/net/if_inet6")
VARIABLE = "GLOO_SOCKET_IFNAME"
RETRY_S = 0.5


def interface_of(address: str) -> str | None:
    """The interface that has an address; None when this machine has none with it."""
    wanted = ipaddress.ip_address(address.strip("[]").partition("%")[0])
    if wanted.version == 6:
        rows = [line.split() for line in INET6.read_text().splitlines()] if INET6.exists() else []
        return next((row[5] for row in rows if ipaddress.IPv6Address(bytes.fromhex(row[0])) == wanted), None)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # an interface without an IPv4 address
                continue
            if found[20:24] == wanted.packed:
                return name
    return None


def bind_gloo(address: str) -> None:
    """Makes gloo listen where Ray knows this node; a choice of the user stands."""
    name = interface_of(address)
    if name is not None:
        os.environ.setdefault(VARIABLE, name)


def unreachable(address: str | None, timeout_s: float) -> str | None:
    """Why the Ray cluster of an address can't be reached; None when its port answers, or there is none to try.

    Asked before Ray is, which tries for minutes and fills the log while it does.
    """
    if address is None or address in ("auto", "local"):
        return None
    host, _, port = address.rpartition("://")[2].split("/")[0].rpartition(":")
    if not port.isdigit():
        return "it has no port"
    end = time.monotonic() + timeout_s
    while True:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), max(0.1, end - time.monotonic())):
                return None
        except (OSError, OverflowError) as fault:
            if time.monotonic() + RETRY_S > end:
                return str(fault)
            time.sleep(RETRY_S)
