"""Socket options, the wait, and a route that the kernel itself refuses to cut batches for."""

from __future__ import annotations

import fcntl
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import inagg_wire
from inagg_link import sockopt

# In a network namespace of its own, where the loopback has the MTU of an Ethernet.
NARROW_LOOPBACK = """
import fcntl, socket, struct
import numpy as np
from inagg_link.base import Batch
from inagg_link.udp import UdpLink
SIOCSIFFLAGS, SIOCSIFMTU, IFF_UP = 0x8914, 0x8922, 1
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
    fcntl.ioctl(control, SIOCSIFMTU, struct.pack("16si", b"lo", 1500))
    fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh", b"lo", IFF_UP))
with UdpLink(offload=True) as sender, UdpLink(offload=True) as receiver:
    for size in (1472, 1473):
        data = np.repeat(np.arange(40, dtype=np.uint8), size)
        for _ in range(2):
            assert sender.send(Batch(data, size, receiver.address)) == 40
            received = b""
            while len(received) < data.nbytes:
                received += b"".join(batch.data.tobytes() for batch in receiver.receive(1.0))
            assert received == data.tobytes()
    print(sender.counters.offload_refused, sender.counters.calls_out, sender.counters.datagrams_out)
"""


def test_a_batch_of_datagrams_beyond_the_mtu_goes_in_fragments() -> None:
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-rn", "true"], capture_output=True, check=False).returncode:
        pytest.skip("cannot make a network namespace: no unshare(1), or no permission")
    done = subprocess.run(
        [unshare, "-rn", sys.executable, "-c", NARROW_LOOPBACK],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(Path(inagg_wire.__file__).parents[1])},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    # 1472 bytes: 2 calls; 1473: one refusal, then 80 datagrams one by one
    assert done.stdout.split() == ["1", "83", "160"]


@pytest.mark.parametrize("at_least", [3, sockopt.SELECT_DESCRIPTORS])
def test_waiting_tells_whether_there_is_something(at_least: int) -> None:
    one, other = socket.socketpair()
    with one, other:
        try:
            descriptor = fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, at_least)
        except OSError:
            pytest.skip(f"no descriptor {at_least} allowed; see ulimit -n")
        with socket.socket(fileno=descriptor):
            assert not sockopt.wait_readable(descriptor, 0.001)
            other.send(b"x")
            assert sockopt.wait_readable(descriptor, 5.0)


def test_an_option_that_the_kernel_does_not_know_is_not_enabled() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        assert not sockopt.enable(sock, 9999, 1)


def test_a_buffer_without_privilege_is_granted_up_to_the_limit() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        # an option that nobody may set stands for the privileged one
        granted = sockopt.grow_buffer(sock, socket.SO_RCVBUF, 9999, 1 << 30)
        limit = int(Path("/proc/sys/net/core/rmem_max").read_text())
        assert granted == 2 * limit


def test_a_socket_that_fails_to_connect_is_closed() -> None:
    with pytest.raises(OSError, match=r".+"):
        sockopt.open_socket(("127.0.0.1", 0), ("255.255.255.255", 9))  # not without SO_BROADCAST


@pytest.mark.parametrize("hops", [1, 32])
def test_what_goes_to_groups_leaves_by_the_interface_and_goes_as_far_as_is_said(hops: int) -> None:
    """The kernel's own choice would be one hop, and no result would pass a router."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sockopt.send_to_groups(sock, "127.0.0.9", hops)
        assert sock.getsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL) == hops
        assert sock.getsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, 4) == socket.inet_aton("127.0.0.9")
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        sockopt.send_to_groups(sock, "::1", hops)
        assert sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS) == hops
        assert sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF) == sockopt.interface_index("::1")
