"""The network of a worker: gloo is told which interface to use, because a host name often means loopback."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
from pathlib import Path

SIOCGIFADDR = 0x8915
INET6 = Path("/proc/net/if_inet6")
VARIABLE = "GLOO_SOCKET_IFNAME"


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
