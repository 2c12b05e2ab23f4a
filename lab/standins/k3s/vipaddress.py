"""A virtual address on an interface: netlink and ARP, without any program of the machine.

The address is given a lifetime and renewed: if this process is killed, the kernel takes the address away by itself, so
that a dead holder never answers for the address beside its successor.
"""

import contextlib
import fcntl
import socket
import struct
import time

_RTM_NEWADDR, _RTM_DELADDR = 20, 21
_NLM_REQUEST, _NLM_ACK, _NLM_REPLACE, _NLM_CREATE = 1, 4, 0x100, 0x400
_IFA_ADDRESS, _IFA_LOCAL, _IFA_CACHEINFO = 1, 2, 6
_ETH_P_ARP = 0x0806
_SIOCGIFHWADDR = 0x8927
_BROADCAST = b"\xff" * 6


class VipError(Exception):
    """The kernel or the interface refused."""


def hold(interface: str, address: str, lifetime_s: int) -> None:
    """Adds address/32 or renews it; raises VipError."""
    cacheinfo = struct.pack("=IIII", lifetime_s, lifetime_s, 0, 0)
    _change(_RTM_NEWADDR, _NLM_CREATE | _NLM_REPLACE, interface, address, _attribute(_IFA_CACHEINFO, cacheinfo))


def drop(interface: str, address: str) -> None:
    """Removes the address; that it was not there is fine."""
    with contextlib.suppress(VipError):
        _change(_RTM_DELADDR, 0, interface, address, b"")


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", len(value) + 4, kind) + value


def _change(message: int, flags: int, interface: str, address: str, extra: bytes) -> None:
    raw = socket.inet_aton(address)
    body = struct.pack("=BBBBI", socket.AF_INET, 32, 0, 0, _index(interface))
    body += _attribute(_IFA_LOCAL, raw) + _attribute(_IFA_ADDRESS, raw) + extra
    header = struct.pack("=IHHII", len(body) + 16, message, _NLM_REQUEST | _NLM_ACK | flags, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        netlink.settimeout(2)
        netlink.send(header + body)
        answer = netlink.recv(4096)
    error = -struct.unpack_from("=i", answer, 16)[0]
    if error:
        raise VipError(f"{address}/32 on {interface}: error {error} of the kernel")


def _index(interface: str) -> int:
    try:
        return socket.if_nametoindex(interface)
    except OSError:
        raise VipError(f"no interface called {interface}") from None


def announce(interface: str, address: str) -> None:
    """Gratuitous ARP, as request and as reply: neighbours update their tables."""
    mac = _mac(interface)
    raw = socket.inet_aton(address)
    for operation in (1, 2):
        _send(interface, mac, operation, raw, raw)


def held_elsewhere(interface: str, address: str, wait_s: float = 0.4) -> bool:
    """ARP probe (RFC 5227): true if some other machine answers for the address. Blocks for `wait_s`."""
    mac, raw = _mac(interface), socket.inet_aton(address)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ARP)) as listener:
        listener.bind((interface, _ETH_P_ARP))
        _send(interface, mac, 1, bytes(4), raw)
        deadline = time.monotonic() + wait_s
        while (left := deadline - time.monotonic()) > 0:
            listener.settimeout(left)
            try:
                frame = listener.recv(128)
            except TimeoutError:
                return False
            if len(frame) >= 42 and frame[20:22] == b"\x00\x02" and frame[28:32] == raw and frame[22:28] != mac:
                return True
    return False


def _send(interface: str, mac: bytes, operation: int, sender: bytes, target: bytes) -> None:
    frame = _BROADCAST + mac + struct.pack("!H", _ETH_P_ARP)
    frame += struct.pack("!HHBBH", 1, 0x0800, 6, 4, operation) + mac + sender + bytes(6) + target
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender_socket:
        sender_socket.bind((interface, 0))
        sender_socket.send(frame)


def _mac(interface: str) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFHWADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            raise VipError(f"no interface called {interface}") from None
    return answer[18:24]
