"""The protections that the child process sets for itself before it executes a program's text.

This file is started as a script, `python -I jail.py`, and imports the standard library only: a user namespace can be
entered while there is one thread, and JAX starts several. `docs/security.md` lists the protections. Each is a promise
of the kernel, and a kernel may refuse it; those that are active are reported.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import resource
import signal
import struct
import sys


_CLONE_NEWUSER, _CLONE_NEWNET, _CLONE_NEWIPC, _CLONE_NEWUTS = 0x10000000, 0x40000000, 0x08000000, 0x04000000
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
FILES = 16
"""File descriptors that may be opened after the limits are set; JAX reads some of its modules late."""
THREADS = 64
"""Threads that may start after the limits are set; the compiler starts some for each module."""

MACHINES = {"x86_64": (0, 0xC000003E, 317), "aarch64": (1, 0xC00000B7, 277)}
"""Machine -> column of `DENIED`, AUDIT_ARCH_*, and the number of seccomp()."""
DENIED = {
    "socket": (41, 198), "connect": (42, 203), "accept": (43, 202), "accept4": (288, 242), "sendto": (44, 206),
    "recvfrom": (45, 207), "sendmsg": (46, 211), "recvmsg": (47, 212), "bind": (49, 200), "listen": (50, 201),
    "socketpair": (53, 199), "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281),
    "kill": (62, 129), "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "pidfd_send_signal": (424, 424),
    "truncate": (76, 45), "ftruncate": (77, 46), "rename": (82, None),
    "renameat": (264, 38), "renameat2": (316, 276), "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None),
    "creat": (85, None), "link": (86, None), "linkat": (265, 37), "unlink": (87, None), "unlinkat": (263, 35),
    "symlink": (88, None), "symlinkat": (266, 36), "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53),
    "fchmodat2": (452, 452), "utime": (132, None), "utimes": (235, None), "futimesat": (261, None),
    "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "setxattrat": (463, 463),
    "removexattrat": (466, 466), "file_setattr": (469, 469),
    "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "mknod": (133, None),
    "mknodat": (259, 33), "ptrace": (101, 117), "setpgid": (109, 154), "setsid": (112, 157), "setrlimit": (160, 164),
    "chroot": (161, 51), "mount": (165, 40), "umount2": (166, 39), "unshare": (272, 97), "setns": (308, 268),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "perf_event_open": (298, 241),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "bpf": (321, 280),
    "userfaultfd": (323, 282), "io_uring_setup": (425, 425), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
}  # fmt: skip
_ABSENT = {"clone3": (435, 435), "openat2": (437, 437)}
"""Refused as calls that the kernel does not have, so that the C library uses older ones, whose flags are visible."""
_FLAGGED = {
    "open": (2, None), "openat": (257, 56), "clone": (56, 220), "prlimit64": (302, 261), "tgkill": (234, 131),
    "fcntl": (72, 25), "ioctl": (16, 29),
}  # fmt: skip
_COMMANDS = {"fcntl": (8, 10, 15), "ioctl": (0x40086602, 0x401C5820, 0x8901, 0x8902)}
"""Refused second arguments. Of fcntl: F_SETOWN, F_SETSIG and F_SETOWN_EX, by which input on a file signals another
process. Of ioctl: FS_IOC_SETFLAGS and FS_IOC_FSSETXATTR, which change a file's attributes, FIOSETOWN and SIOCSPGRP."""
NUMBERS = DENIED | _ABSENT | _FLAGGED
"""Every call that the filter knows."""
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CLONE_THREAD = 0x10000


def isolate() -> list[str]:
    """A user and a network namespace of its own, and an end when the parent ends. With one thread only.

    **Returns:** the protections that the kernel granted.
    """
    granted: list[str] = []
    if sys.platform != "linux":
        return granted
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET | _CLONE_NEWIPC | _CLONE_NEWUTS) == 0:
        granted.append("network namespace")
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0:
        granted.append("ends with its parent")
    return granted


def confine(memory: int, seconds: float) -> list[str]:
    """Limits of resources and of system calls, for all threads, for good.

    **Arguments:** `memory`, bytes of address space beyond what is reserved now; `seconds`, of processor time beyond
    what is used now.
    **Returns:** the protections that the kernel granted.
    """
    granted = []
    pages = int(open("/proc/self/statm").read().split()[0]) if os.path.exists("/proc/self/statm") else 0
    used = resource.getrusage(resource.RUSAGE_SELF)
    opened = max(map(int, os.listdir("/proc/self/fd"))) + 1 if os.path.isdir("/proc/self/fd") else 256
    limits = {
        "AS": pages * resource.getpagesize() + memory if pages else None,
        "CPU": int(used.ru_utime + used.ru_stime + seconds) + 1,
        "FSIZE": 0,
        "CORE": 0,
        "NPROC": _threads() + THREADS,
        "NOFILE": opened + FILES,
    }
    for name, value in limits.items():
        if value is not None:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
                granted.append(f"RLIMIT_{name}")
    if filter_calls():
        granted.append("seccomp")
    return granted


def _threads() -> int:
    """Threads of this user on the machine, which the kernel counts together."""
    count = 0
    for entry in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if entry.isdecimal():
            with contextlib.suppress(OSError, KeyError, ValueError):
                if os.stat(f"/proc/{entry}").st_uid == os.getuid() or entry == str(os.getpid()):
                    count += len(os.listdir(f"/proc/{entry}/task"))
    return count


def filter_calls() -> bool:
    """Refuse system calls that write, connect, start or signal; False if the kernel has no such filter."""
    if platform.machine() not in MACHINES or sys.platform != "linux":
        return False
    column, architecture, number = MACHINES[platform.machine()]
    program = b"".join(_instructions(column, architecture))
    libc = ctypes.CDLL(None, use_errno=True)
    code = ctypes.create_string_buffer(program, len(program))
    described = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code)))
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    every_thread, mode_filter = 1, 1
    return libc.syscall(number, mode_filter, every_thread, described) == 0


def _instructions(column: int, architecture: int) -> list[bytes]:
    """A filter in classic BPF: `(code, jump if true, jump if false, value)`."""

    def step(code: int, true: int, false: int, value: int) -> bytes:
        return struct.pack("HBBI", code, true, false, value)

    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, denied, absent = 0x7FFF0000, 0x00050000 | 1, 0x00050000 | 38  # EPERM, ENOSYS
    steps = [step(load, 0, 0, 4), step(equal, 1, 0, architecture), step(give, 0, 0, denied), step(load, 0, 0, 0)]
    if column == 0:  # the x32 calls have numbers of their own
        steps += [step(at_least, 0, 1, 0x40000000), step(give, 0, 0, denied)]
    for table, verdict in ((DENIED, denied), (_ABSENT, absent)):
        for number in (numbers[column] for numbers in table.values()):
            if number is not None:
                steps += [step(equal, 0, 1, number), step(give, 0, 0, verdict)]
    for name, argument, bits, bad in (
        ("open", 1, _WRITING, True), ("openat", 2, _WRITING, True), ("clone", 0, _CLONE_THREAD, False),
    ):  # fmt: skip
        number = _FLAGGED[name][column]
        if number is not None:
            first, second = (denied, allow) if bad else (allow, denied)
            steps += [
                step(equal, 0, 4, number),
                step(load, 0, 0, 16 + 8 * argument),
                step(any_bit, 0, 1, bits),
                step(give, 0, 0, first),
                step(give, 0, 0, second),
            ]
    for name, commands in _COMMANDS.items():  # 32 bits, as the kernel reads them
        steps += [step(equal, 0, 2 * len(commands) + 2, _FLAGGED[name][column] or 0), step(load, 0, 0, 16 + 8)]
        for command in commands:
            steps += [step(equal, 0, 1, command), step(give, 0, 0, denied)]
        steps.append(step(give, 0, 0, allow))
    # new limits, whose address may have either half empty; and signals, but for those of this process to itself (abort)
    low, high = 16 + 8 * 2, 16 + 8 * 2 + 4
    new_limits, to_thread = (_FLAGGED[name][column] or 0 for name in ("prlimit64", "tgkill"))
    steps += [
        step(equal, 0, 6, new_limits),
        step(load, 0, 0, low),
        step(any_bit, 2, 0, 0xFFFFFFFF),
        step(load, 0, 0, high),
        step(any_bit, 0, 1, 0xFFFFFFFF),
        step(give, 0, 0, denied),
        step(give, 0, 0, allow),
        step(equal, 0, 4, to_thread),
        step(load, 0, 0, 16),
        step(equal, 0, 1, os.getpid()),
        step(give, 0, 0, allow),
        step(give, 0, 0, denied),
    ]
    return [*steps, step(give, 0, 0, allow)]


def main() -> None:
    """Read the request from standard input; `process.check_program` gets a descriptor for the reply."""
    reply = os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 1)
    granted = isolate()
    (size,) = struct.unpack("<Q", sys.stdin.buffer.read(8))
    request = json.loads(sys.stdin.buffer.read(size))
    payload = sys.stdin.buffer.read()
    sys.path[:] = request["path"]
    from llmrl_jax.advice.sandbox import process

    process.check_program(request, payload, reply, granted, confine)
    os._exit(0)  # no destructors, which might wait for threads


if __name__ == "__main__":
    main()
