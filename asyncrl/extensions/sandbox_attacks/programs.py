"""The programs that the attack suite runs inside. Each is bounded, and harmless if it succeeds.

Each prints `LEAK` lines for what it got, and `DONE` at its end. `@NAME@` is filled in by
`attacks.py`.
"""

NETWORK = """
import socket
def attempt(name, family, kind, address):
    try:
        with socket.socket(family, kind) as s:
            s.settimeout(1)
            s.connect(address)
            s.send(b"@TOKEN@")
            print("LEAK", name)
    except (OSError, AttributeError, ValueError):
        pass
attempt("tcp", socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", @TCP@))
attempt("udp", socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", @UDP@))
attempt("tcp6", socket.AF_INET6, socket.SOCK_STREAM, ("::1", @TCP@))
attempt("abstract unix", socket.AF_UNIX, socket.SOCK_STREAM, "\\0@ABSTRACT@")
attempt("unix path", socket.AF_UNIX, socket.SOCK_STREAM, "@PATH@")
print("DONE")
"""

FILES = """
import os
TOKEN = "@TOKEN@"
def attempt(path):
    try:
        with open(path, errors="replace") as file:
            if TOKEN in file.read(100000):
                print("LEAK read", path)
    except OSError:
        pass
for root in ("", "/proc/1/root", "/proc/self/root", "/proc/self/cwd/../../..", "/../.."):
    attempt(root + "@SECRET@")
for folder in @FOLDERS@:
    try:
        if names := os.listdir(folder):
            print("LEAK listed", folder, names[:3])
    except OSError:
        pass
for path in ("/etc/shadow", "/root/.bashrc", "/root/.profile", "/etc/sudoers"):
    try:
        with open(path) as file:
            print("LEAK read", path, len(file.read(1000)))
    except OSError:
        pass
print("DONE")
"""

SECRETS = """
import os
TOKEN = "@TOKEN@"
if any(TOKEN in value for value in os.environ.values()):
    print("LEAK environment")
try:
    names = os.listdir("/proc")
except OSError:
    names = map(str, [1, os.getppid(), *@PIDS@])
for name in names:
    for part in ("environ", "cmdline"):
        try:
            with open(f"/proc/{name}/{part}", errors="replace") as file:
                if name.isdigit() and int(name) != os.getpid() and TOKEN in file.read(100000):
                    print("LEAK", part, "of process", name)
        except OSError:
            pass
print("DONE")
"""

DESCRIPTORS = """
import os, stat
for fd in range(3, 1024):
    try:
        print("LEAK descriptor", fd, oct(os.fstat(fd).st_mode))
    except OSError:
        pass
print("DONE")
"""

OTHER_PROCESSES = """
import ctypes, os, signal
victim = @VICTIM@
try:
    os.kill(victim, signal.SIGUSR1)
    with open(f"/proc/{victim}/cmdline") as file:
        print("LEAK signalled", file.read(100))
except OSError:
    pass
libc = ctypes.CDLL(None, use_errno=True)
if libc.ptrace(16, victim, None, None) == 0:
    print("LEAK traced")
    libc.ptrace(17, victim, None, None)
try:
    with open(f"/proc/{victim}/mem", "rb"):
        print("LEAK memory of another process")
except OSError:
    pass
print("DONE")
"""

FORK_BOMB = """
import os, time
count = 0
for _ in range(@TRIES@):
    try:
        if os.fork() == 0:
            time.sleep(3)
            os._exit(0)
        count += 1
        if count == @ALLOWED@ + 1:
            print("LEAK more than", @ALLOWED@, "processes", flush=True)
    except OSError:
        break
print("DONE")
"""

MEMORY_ONE = """
import time
blocks = []
for _ in range(@BLOCKS@):
    blocks.append(bytearray(b"x") * (16 << 20))
# A limit kept by watching has a right to a moment.
time.sleep(0.5)
print("LEAK one process holds", len(blocks) * 16, "MiB")
"""

MEMORY_MANY = """
import os, time
pids = []
for _ in range(8):
    pid = os.fork()
    if pid == 0:
        block = bytearray(b"x") * (@EACH_MIB@ << 20)
        time.sleep(2)
        os._exit(0)
    pids.append(pid)
if all(os.waitpid(pid, 0)[1] == 0 for pid in pids):
    print("LEAK eight processes hold", 8 * @EACH_MIB@, "MiB")
"""

MEMORY_HIDDEN = """
# Memory that belongs to no process's resident size, or to several.
import ctypes, mmap, os, time
libc = ctypes.CDLL(None, use_errno=True)
STEP, WANTED = 8 << 20, @WANTED_MIB@ << 20
total = 0
fds = []
try:
    while total < WANTED:
        fd = os.memfd_create("x")
        os.write(fd, b"x" * STEP)
        fds.append(fd)
        total += STEP
except (OSError, AttributeError, MemoryError):
    pass
if total >= WANTED:
    print("LEAK memory files hold", total >> 20, "MiB", flush=True)
for fd in fds:
    os.close(fd)
segments = []
while len(segments) * STEP < WANTED:
    number = libc.shmget(0, STEP, 0o1600)
    if number < 0:
        break
    libc.shmat.restype = ctypes.c_void_p
    address = libc.shmat(number, None, 0)
    libc.shmctl(number, 0, None)
    if address in (None, ctypes.c_void_p(-1).value):
        break
    ctypes.memset(address, 1, STEP)
    libc.shmdt(ctypes.c_void_p(address))
    segments.append(number)
if len(segments) * STEP >= WANTED:
    print("LEAK System V segments hold", len(segments) * STEP >> 20, "MiB", flush=True)
maps = []
while len(maps) * STEP < WANTED:
    block = mmap.mmap(-1, STEP)
    block.write(b"x" * STEP)
    maps.append(block)
time.sleep(1.5)
print("LEAK shared mappings hold", len(maps) * STEP >> 20, "MiB")
"""

MEMORY_IPC = """
# Semaphore sets: two megabytes of kernel memory each, in no process's account.
import ctypes, time
libc = ctypes.CDLL(None, use_errno=True)
sets = []
while len(sets) * 2 < @WANTED_MIB@ and (number := libc.semget(0, 32000, 0o600)) >= 0:
    sets.append(number)
time.sleep(1.5)
if len(sets) * 2 >= @WANTED_MIB@:
    print("LEAK semaphore sets hold", len(sets) * 2, "MiB", flush=True)
for number in sets:
    libc.semctl(number, 0, 0)
print("DONE")
"""

MEMORY_SOCKETS = """
# What is written and not read, between connected sockets, to ones not accepted yet and through datagrams.
import os, socket, sys, time
WANTED, MOST, BLOCK = @WANTED_MIB@ << 20, 1 << 30, b"x" * 65536
def fill(sock, address=None):
    sent = 0
    for name in ("SO_SNDBUFFORCE", "SO_SNDBUF"):
        try:
            sock.setsockopt(socket.SOL_SOCKET, {"SO_SNDBUFFORCE": 32, "SO_SNDBUF": 7}[name], MOST)
            break
        except OSError:
            pass
    sock.setblocking(False)
    try:
        while sent < WANTED // 16:
            sent += sock.sendto(BLOCK, address) if address else sock.send(BLOCK)
    except OSError:
        pass
    return sent
def pairs():
    while True:
        kept.extend(socket.socketpair())
        yield sum(map(fill, kept[-2:]))
def unaccepted():
    server = socket.socket(socket.AF_UNIX)
    kept.append(server)
    server.bind(f"s{os.getpid()}")
    server.listen(4096)
    while True:
        with socket.socket(socket.AF_UNIX) as client:
            client.setblocking(False)
            client.connect(f"s{os.getpid()}")
            yield fill(client)
def datagrams():
    while True:
        server = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        kept.append(server)
        name = f"d{os.getpid()}-{len(kept)}"
        server.bind(name)
        for _ in range(10):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
                yield fill(client, name)
kept, total = [], 0
read_end, write_end = os.pipe()
for way in 4 * (pairs, unaccepted, datagrams):
    if os.fork() == 0:
        held = 0
        # Where a way is closed, the one that libraries need is taken.
        for way in (way, pairs):
            try:
                for sent in way():
                    held += sent
                    if held > WANTED // 8:
                        break
            except OSError:
                pass
        os.write(write_end, b"%d\\n" % held)
        time.sleep(3)
        os._exit(0)
os.close(write_end)
with os.fdopen(read_end) as results:
    total = sum(int(results.readline()) for _ in range(12))
# A limit kept by watching has a right to a moment.
time.sleep(1.5)
print("LEAK" if total >= WANTED else "LESS", "socket buffers hold", total >> 20, "MiB")
print("DONE")
"""

MEMORY_TABLES = """
# Reading through an empty mapping takes no page, but a page of tables for every two megabytes.
import mmap, time
STEP, WANTED = 2 << 20, @WANTED_MIB@ << 20
tables = []
try:
    while len(tables) * 64 << 20 < WANTED:
        block = mmap.mmap(-1, (64 << 20) // 4096 * STEP, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, mmap.PROT_READ)
        for place in range(0, len(block), STEP):
            block[place]
        tables.append(block)
except (OSError, MemoryError):
    print("DONE")
    raise SystemExit
time.sleep(1.5)
print("LEAK page tables hold", len(tables) * 64, "MiB")
"""

IPC_LEAVE = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.semget(@KEY@, 1, 0o1666)
libc.msgget(@KEY@, 0o1666)
libc.shmget(@KEY@, 4096, 0o1666)
try:
    ctypes.CDLL("librt.so.1").mq_open(b"/@TOKEN@", 0o102, 0o666, None)
except (OSError, AttributeError):
    pass
print("DONE")
"""

IPC_FIND = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
if (number := libc.semget(@KEY@, 1, 0)) >= 0:
    print("LEAK a semaphore set of another session")
    libc.semctl(number, 0, 0)
if (number := libc.msgget(@KEY@, 0)) >= 0:
    print("LEAK a message queue of another session")
    libc.msgctl(number, 0, None)
if (number := libc.shmget(@KEY@, 0, 0)) >= 0:
    print("LEAK shared memory of another session")
    libc.shmctl(number, 0, None)
try:
    rt = ctypes.CDLL("librt.so.1")
    if rt.mq_open(b"/@TOKEN@", 0) >= 0:
        print("LEAK a POSIX message queue of another session")
        rt.mq_unlink(b"/@TOKEN@")
except (OSError, AttributeError):
    pass
print("DONE")
"""

DISK = """
import os
LIMIT, STEP = @LIMIT@, 4 << 20
block = b"x" * STEP
total, made = 0, []
folders = [".", "/tmp", "/dev/shm", "/var/tmp", "/run", "/dev", "/", "/etc", "/home", "/mnt", "/run/lock"]
for folder in folders:
    try:
        while total <= LIMIT * 3:
            path = f"{folder}/@TOKEN@-{len(made)}"
            with open(path, "wb", buffering=0) as file:
                made.append(path)
                total += file.write(block)
    except OSError:
        pass
print("WROTE", total >> 20, "MiB", flush=True)
if total > LIMIT + LIMIT // 16:
    print("LEAK wrote", total >> 20, "MiB, quota", LIMIT >> 20)
for path in made:
    try:
        os.unlink(path)
    except OSError:
        pass
print("DONE")
"""

MANY_FILES = """
import os
made = 0
os.mkdir("many")
try:
    for made in range(1, @TRIES@ + 1):
        os.close(os.open(f"many/{made}", os.O_CREAT | os.O_WRONLY))
except OSError:
    pass
if made >= @TRIES@:
    print("LEAK made", made, "files")
try:
    with open("large", "wb") as file:
        file.truncate(@LARGE@)
    print("LEAK a file of", @LARGE@, "bytes")
except OSError:
    pass
print("DONE")
"""

ENDLESS_LOOP = """
import signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True:
    pass
"""

ENDLESS_SLEEP = """
import os, signal, time
if os.fork() == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
while True:
    time.sleep(1)
"""

ENDLESS_OUTPUT = """
import os
block = b"x" * 65536
for _ in range(@BLOCKS@):
    os.write(1, block)
    os.write(2, block)
print("LEAK wrote all of it")
"""

OUTSIDE_WRITES = """
import os
for folder in @FOLDERS@:
    path = folder + "/@TOKEN@"
    try:
        with open(path, "w") as file:
            file.write("@TOKEN@")
        print("LEAK created", path)
        os.unlink(path)
    except OSError:
        pass
# Opened for writing but not written to: enough to know, and harmless.
for path in ("/etc/passwd", "/etc/hosts", "/usr/bin/env", "/usr/bin/bwrap", "/proc/sys/kernel/core_pattern",
             "/proc/sysrq-trigger", "/proc/sys/vm/drop_caches", "/sys/kernel/mm/ksm/run", "/dev/kmsg", "/dev/mem"):
    try:
        os.close(os.open(path, os.O_WRONLY))
        print("LEAK writable", path)
    except OSError:
        pass
print("DONE")
"""

SYSTEM_CALLS = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    # In a child: some of these change their caller.
    pid = os.fork()
    if pid == 0:
        result = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
        os._exit(1 if result >= 0 or ctypes.get_errno() not in (1, 38) else 0)
    status = os.waitpid(pid, 0)[1]
    return os.WIFEXITED(status) and os.WEXITSTATUS(status) == 1
for name, number, arguments in @CALLS@:
    if call(number, *arguments):
        print("LEAK", name)
print("DONE")
"""

DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        # Keeps stdout open as well, so that a reader that waits for its end would wait long.
        os.execv("/usr/bin/env", ["env", "sleep", "@SECONDS@"])
    os._exit(0)
os.wait()
print("DONE")
"""

ORPHANS = """
import os
for _ in range(3):
    if os.fork() == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
print("OK")
"""

LINKS = """
import os
os.symlink("@SECRET@", "link")
os.symlink("@FOLDER@", "folder")
os.symlink("/", "root")
os.symlink("link", "chain")
os.mkfifo("fifo")
os.symlink("@FOLDER@/written", "target")
with open("sparse", "wb") as file:
    file.truncate(@SPARSE@)
for name in ("/proc/self/environ", "/proc/1/environ"):
    try:
        os.link(name, "hard")
    except OSError:
        pass
print("DONE")
"""

LINK_RACE = """
import os, time
os.mkdir("real")
with open("real/secret", "w") as file:
    file.write("inside")
os.symlink("@FOLDER@", "fake")
print("READY", flush=True)
end = time.monotonic() + @SECONDS@
while time.monotonic() < end:
    os.rename("real", "aside")
    os.rename("fake", "real")
    time.sleep(0.0003)
    os.rename("real", "fake")
    os.rename("aside", "real")
    time.sleep(0.0003)
"""

LITTER = """
import os, socket, time
os.makedirs("a/b/c")
open("a/b/c/deep", "w").write("x")
os.symlink("/etc/passwd", "link")
os.symlink("/etc", "folder")
os.mkfifo("pipe")
socket.socket(socket.AF_UNIX).bind("socket")
open(b"\\xff name", "w").write("x")
open("/tmp/left", "w").write("x")
open("/dev/shm/left", "w").write("x")
try:
    os.setxattr(".", "user.note", b"x")
    os.removexattr(".", "user.note")
except OSError:
    pass
os.chmod("a", 0)
os.chmod(".", 0o777)
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 3)
            for _ in range(400):
                open("spy", "a").write("x")
                time.sleep(0.005)
        os._exit(0)
while not os.path.exists("spy"):
    time.sleep(0.005)
print("DONE")
"""
"""Leaves behind whatever a program can, and processes that go on writing for two seconds."""
FLAGS = """
import fcntl, os, struct
fd = os.open(".", os.O_RDONLY)
for flag in (0x40, 0x80, 0x20, 0x10, 0x08):
    try:
        fcntl.ioctl(fd, 0x40086602, struct.pack("l", flag))
    except OSError:
        pass
print("DONE")
"""
"""Sets what a folder's owner may set on it and no listing shows: its inode flags."""
LOOK = """
import fcntl, os, stat, time
time.sleep(0.2)
for folder in (".", "/tmp", "/dev/shm"):
    for name in os.listdir(folder):
        print("LEAK", ascii(f"{folder}/{name}"))
if stat.S_IMODE(os.stat(".").st_mode) != 0o700:
    print("LEAK the folder's mode")
if os.listxattr("."):
    print("LEAK the folder's attributes")
try:
    if any(fcntl.ioctl(os.open(".", os.O_RDONLY), 0x80086601, bytes(8))):
        print("LEAK the folder's flags")
except OSError:
    pass
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) != os.getpid():
        print("LEAK process", name)
for left in ("/tmp/left", "/dev/shm/left"):
    if os.path.exists(left):
        os.unlink(left)
print("DONE")
"""
"""Looks for what `LITTER` has left, and removes what lies outside of the session's folder."""
