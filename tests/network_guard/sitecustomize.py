"""Refuse network connections of the test suite and of the processes it starts.

The tests put this folder on PYTHONPATH, so that every Python process below them loads this file at
its start. An audit hook cannot be removed. Loopback and unix sockets are allowed.
"""

import ipaddress
import socket
import sys

MESSAGE = "the tests must not use the network"
EVENTS = ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo")


def is_local(host: object) -> bool:
    """Return whether a host is this machine."""
    if isinstance(host, bytes):
        host = host.decode("ascii", "replace")
    if host in (None, "", "localhost", socket.gethostname()):
        return True
    try:
        address = ipaddress.ip_address(str(host).partition("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def refuse(event: str, arguments: tuple[object, ...]) -> None:
    """Raise an error for an address outside this machine."""
    if event not in EVENTS:
        return
    target = arguments[0] if event == "socket.getaddrinfo" else arguments[1]
    host = target[0] if isinstance(target, tuple) else target
    # The address of a unix socket is text; a socket that is already connected has none.
    unix = event != "socket.getaddrinfo" and not isinstance(target, tuple)
    if not unix and not is_local(host):
        raise PermissionError(f"{MESSAGE}: {event} {host!r}")


if not getattr(sys, "scs_network_guard", False):
    sys.scs_network_guard = True  # type: ignore[attr-defined]
    sys.addaudithook(refuse)
