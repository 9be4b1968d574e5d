"""How much memory the watchdog takes a tree of processes to hold."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest

from asyncrl.sandbox.jail import proc

TABLES = """
import mmap
block = mmap.mmap(-1, 4 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, mmap.PROT_READ)
for place in range(0, len(block), 2 << 20):
    block[place]
"""
SOCKETS = """
import socket
kept = [*socket.socketpair(), *socket.socketpair()]
"""
TCP = """
import socket, subprocess
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
client.setblocking(False)
try:
    while True:
        client.send(b"x" * 65536)
except BlockingIOError:
    pass
"""


def measured(program, measure, own_network=False):
    """`measure([pid])` before and after a program has done what it does."""
    wait, go_on = "print('up', flush=True)", "sys.stdin.readline()"
    text = "\n".join(["import sys", wait, go_on, program, wait, "sys.stdin.read()"])
    argv = [*(["unshare", "-n"] if own_network else []), sys.executable, "-c", text]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        amounts = []
        for _ in range(2):
            assert process.stdout.readline() == "up\n"
            amounts.append(measure([process.pid]))
            process.stdin.write("\n")
            process.stdin.flush()
        process.kill()
    return amounts


def test_page_tables_count_as_memory_of_their_process():
    before, after = measured(TABLES, proc.private_bytes)
    assert 8 << 20 <= after - before < 16 << 20
    least, most = measured(TABLES, proc.most_private_bytes)
    assert most - least > 8 << 20


def test_every_open_socket_counts_as_a_full_buffer():
    assert measured(SOCKETS, proc.socket_bytes) == [0, 4 * proc.SOCKET_BYTES]


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a network namespace here")


@needs_root
@pytest.mark.parametrize(("program", "least"), [(SOCKETS, 0), (TCP, 1 << 20)])
def test_in_a_network_of_their_own_all_sockets_count_and_what_tcp_has_queued(program, least):
    before, after = measured(program, proc.socket_bytes, own_network=True)
    assert before == 0
    assert after >= least + 2 * proc.SOCKET_BYTES


@needs_root
def test_sockets_that_wait_to_be_accepted_count(tmp_path):
    path = tmp_path / "socket"
    program = f"""
import socket
server = socket.socket(socket.AF_UNIX)
server.bind({str(path)!r})
server.listen(8)
for _ in range(5):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect({str(path)!r})
        client.send(b"x")
"""
    _, after = measured(program, proc.socket_bytes, own_network=True)
    assert after >= 6 * proc.SOCKET_BYTES


def test_a_limit_is_passed_by_sockets_alone():
    pairs = [socket.socketpair() for _ in range(20)]
    pid = os.fork()
    if pid == 0:
        signal.pause()
    try:
        assert proc.socket_bytes([pid]) >= 40 * proc.SOCKET_BYTES
        assert proc.holds_more_than(os.getpid(), 40 * proc.SOCKET_BYTES - 1)
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        for pair in pairs:
            for end in pair:
                end.close()
