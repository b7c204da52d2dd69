"""A network of one's own, with nothing but loopback in it, for what listens on ports that others
here may have, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterator

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_SET_FLAGS, _UP = 0x8914, 0x41  # SIOCSIFFLAGS; IFF_UP and IFF_RUNNING


@contextlib.contextmanager
def own_network() -> Iterator[None]:
    """What this thread begins inside, threads and processes too, is in it.

    Who isn't root stays in the machine's: then a port may be taken by somebody who listens on all
    addresses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        if libc.unshare(_NEW_NETWORK):
            yield
            return
        try:
            with socket.socket() as any_socket:
                fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh", b"lo", _UP))
            yield
        finally:
            assert libc.setns(before, _NEW_NETWORK) == 0, os.strerror(ctypes.get_errno())
    finally:
        os.close(before)
