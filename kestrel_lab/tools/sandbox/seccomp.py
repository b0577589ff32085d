"""Seccomp filter: refuse system calls that no command in a sandbox needs."""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Sequence
from functools import cache

_DENIED = {
    "other processes": "ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, pidfd_getfd "
    "438 438, "
    "kcmp 312 272",
    "mounts and namespaces": (
        "mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51, move_mount 429 429, open_tree "
        "428 428, fsopen 430 430, "
        "fsconfig 431 431, fsmount 432 432, fspick 433 433, mount_setattr 442 442, unshare 272 97, "
        "setns 308 268, "
        "open_by_handle_at 304 265"
    ),
    "ways around a filter, and parts of the kernel where most holes are found": (
        "io_uring_setup 425 425, io_uring_enter 426 426, io_uring_register 427 427, bpf 321 280, "
        "perf_event_open 298 241, "
        "userfaultfd 323 282, keyctl 250 219, add_key 248 217, request_key 249 218"
    ),
    "the machine itself": (
        "kexec_load 246 104, kexec_file_load 320 294, init_module 175 105, finit_module 313 273, "
        "delete_module 176 106, "
        "reboot 169 142, swapon 167 224, swapoff 168 225, acct 163 89, quotactl 179 60, syslog 103 "
        "116, settimeofday 164 170, "
        "clock_settime 227 112"
    ),
}
"""System calls by purpose, with their numbers on x86-64 and 64-bit ARM; `-` if there is none."""
_EFFECTS = {
    "processes: started, signalled, slowed down": (
        "execve 59 221, execveat 322 281, fork 57 -, vfork 58 -, kill 62 129, tkill 200 130, tgkill 234 131, "
        "rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240, pidfd_open 434 434, pidfd_send_signal 424 "
        "424, setpriority 141 140, "
        "sched_setparam 142 118, sched_setscheduler 144 119, sched_setattr 314 274, ioprio_set 251 30, "
        "process_madvise 440 440, "
        "process_mrelease 448 448, migrate_pages 256 238, move_pages 279 239, setpgid 109 154"
    ),
    "what Landlock does not rule: modes, owners, times and attributes of files": (
        "chmod 90 -, fchmod 91 52, fchmodat 268 53, fchmodat2 452 452, chown 92 -, fchown 93 55, "
        "lchown 94 -, fchownat 260 54, "
        "utime 132 -, utimes 235 -, futimesat 261 -, utimensat 280 88, setxattr 188 5, lsetxattr 189 "
        "6, fsetxattr 190 7, "
        "removexattr 197 14, lremovexattr 198 15, fremovexattr 199 16, setxattrat 463 463, "
        "removexattrat 466 466"
    ),
}
"""Calls with an effect outside of the process, which a command in a sandbox may have and a preview may not.
"""
_PATHS = (
    "open 2 -, creat 85 -, openat 257 56, openat2 437 437, truncate 76 45, mkdir 83 -, mkdirat 258 34, "
    "mknod 133 -, mknodat 259 33, rmdir 84 -, unlink 87 -, unlinkat 263 35, rename 82 -, renameat 264 38, "
    "renameat2 316 276, link 86 -, linkat 265 37, symlink 88 -, symlinkat 266 36"
)
"""Calls on paths that Landlock allows or refuses."""
_OUTLIVES = (
    "shmget 29 194, shmat 30 196, shmctl 31 195, semget 64 190, semop 65 193, semctl 66 191, "
    "semtimedop 220 192, "
    "msgget 68 186, msgsnd 69 189, msgrcv 70 188, msgctl 71 187, mq_open 240 180, mq_unlink 241 181"
)
"""System V and POSIX memory, semaphores and queues, which outlive a process and which others can reach."""
_OF_OTHERS = "process_madvise 440 440, process_mrelease 448 448"
"""Calls that act on the memory of another process."""
_OWN_ONLY = ((302, 261), (256, 238), (279, 239))
"""Calls on a process by number: `prlimit64`, `migrate_pages` and `move_pages`; 0 is the caller."""
_AFFINITY = (203, 122)
"""`sched_setaffinity`. Programs set it, and the scheduling of their threads, by number; a filter cannot know
whether a number is that of an own thread.
"""
_OF_GROUPS = ((141, 140), (251, 30))
"""`setpriority` and `ioprio_set`, whose second argument is the number; they rule those of a whole user, too.
"""
_CALLS_BY_ARGUMENT = (
    "prlimit64 302 261, migrate_pages 256 238, move_pages 279 239, sched_setaffinity 203 122, "
    "setpriority 141 140, ioprio_set 251 30, fcntl 72 25, clone 56 220, socket 41 198, socketpair 53 199, "
    "ioctl 16 29"
)
"""Calls that are refused for some of their arguments."""
_SHMGET, _MOST_SEGMENT = (29, 194), 64 * 1024
"""Most bytes of System V shared memory that a command with namespaces of its own may request at once: it
belongs to no process, so the memory limit does not count it.
"""
_FCNTL, _SET_OWNER = (72, 25), (8, 15, 1024)
"""Commands of `fcntl` that set which process is signalled when a descriptor is ready or its lease is broken.
"""
_THREAD = 0x10000
_CLONE, _CLONE3, _TRUNCATE = (56, 220), (435, 435), "truncate 76 45"
_SOCKET, _SOCKETPAIR, _IOCTL = (41, 198), (53, 199), (16, 29)
_AUDIT_ARCH = (0xC000003E, 0xC00000B7)
_MACHINES = {"x86_64": 0, "amd64": 0, "aarch64": 1, "arm64": 1}

_NEW_NAMESPACES = 0x7E020000
_TERMINAL_INPUT = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX, which type into the terminal that started this process."""
_STREAM, _SEQPACKET = 1, 5
AF_INET, AF_INET6 = 2, 10

_LOAD, _MASK, _RETURN = 0x20, 0x54, 0x06
_EQUAL, _AT_LEAST, _ANY_BIT = 0x15, 0x35, 0x45
_NUMBER, _ARCH, _FIRST, _SECOND = 0, 4, 16, 24
_ALLOW, _ERRNO, _NOTIFY = 0x7FFF0000, 0x00050000, 0x7FC00000

_Instruction = tuple[int, int, int, int]


def processor_column() -> int | None:
    """Return the column of numbers for this processor; `None` for an unknown one."""
    return _MACHINES.get(platform.machine().lower())


@cache
def call_numbers() -> dict[int, str]:
    """Return the names of the system calls of this processor that a filter rules, by number."""
    column = processor_column()
    assert column is not None
    texts = [*_DENIED.values(), *_EFFECTS.values(), _OUTLIVES, _OF_OTHERS, _PATHS, _CALLS_BY_ARGUMENT]
    names = {}
    for call in ", ".join(texts).split(", "):
        name, *numbers = call.split()
        if numbers[column] != "-":
            names[int(numbers[column])] = name
    return names


@cache
def filter_program(
    families: Sequence[int],
    *,
    truncate: bool = True,
    effects: bool = True,
    namespaces: bool = False,
    observed: bool = False,
) -> bytes:
    """Return the filter as an array of `sock_filter`, for this machine's processor.

    `families` are the address families sockets may have; Unix sockets exist as connected pairs alone. Without
    `truncate`, files cannot be shortened by name. Unless the command has `namespaces` of its own for
    processes and shared memory, it rules no process but its own, and leaves no shared memory or queue behind.
    Without `effects` no process is started, signalled or ruled, no mode, owner or time of a file is changed,
    and nothing is left in shared memory; threads can be started. What is refused fails with `EPERM`, what a
    program can do without (`clone3`, calls of other processor modes) with `ENOSYS`. A filter that is
    `observed` refuses nothing itself: an observer hears of what it would refuse, and of all calls on paths,
    and answers them. Raises `OSError` for an unknown processor.
    """
    column = processor_column()
    if column is None:
        raise OSError(errno.ENOSYS, f"no list of system calls for the processor {platform.machine()}")
    refused = _return_instruction(_NOTIFY if observed else _ERRNO | errno.EPERM)
    absent = _return_instruction(_ERRNO | errno.ENOSYS)
    program: list[_Instruction] = [_load(_ARCH), (_EQUAL, 1, 0, _AUDIT_ARCH[column]), absent, _load(_NUMBER)]
    if column == 0:
        # The x32 mode has other numbers for the same calls, which would pass the filter.
        program += [(_AT_LEAST, 0, 1, 0x40000000), absent]
    shared = () if namespaces else (_OUTLIVES, _OF_OTHERS)
    denied = [
        *_DENIED.values(),
        *(() if truncate else (_TRUNCATE,)),
        *shared,
        *(() if effects else _EFFECTS.values()),
        *((_PATHS,) if observed else ()),
    ]
    for call in ", ".join(denied).split(", "):
        if (number := call.split()[1 + column]) != "-":
            program += [(_EQUAL, 0, 1, int(number)), refused]
    # A filter cannot read memory, and `clone3` has its flags there. "Not implemented" makes programs fall
    # back to `clone`, whose flags can be checked.
    program += [
        (_EQUAL, 0, 1, _CLONE3[column]),
        absent,
    ]
    alone = [] if effects else [(_ANY_BIT, 1, 0, _THREAD), refused]
    program += _section(
        _CLONE[column],
        [_load(_FIRST), (_ANY_BIT, 0, 1, _NEW_NAMESPACES), refused, *alone, _return_instruction(_ALLOW)],
    )
    program += _segment_section(column, refused) if namespaces else _others_sections(column, refused)
    if not effects:
        program += _section(_AFFINITY[column], [_load(_FIRST), *_allow_instructions((0,), refused)])
        owned = [step for code in _SET_OWNER for step in ((_EQUAL, 0, 1, code), refused)]
        program += _section(_FCNTL[column], [_load(_SECOND), *owned, _return_instruction(_ALLOW)])
    program += _section(_SOCKET[column], [_load(_FIRST), *_allow_instructions(families, refused)])
    # A datagram socket of a pair can send to any address; stream sockets stay connected to each other.
    program += _section(
        _SOCKETPAIR[column],
        [_load(_SECOND), (_MASK, 0, 0, 0xF), *_allow_instructions((_STREAM, _SEQPACKET), refused)],
    )
    codes = [step for code in _TERMINAL_INPUT for step in ((_EQUAL, 0, 1, code), refused)]
    program += _section(_IOCTL[column], [_load(_SECOND), *codes, _return_instruction(_ALLOW)])
    program.append(_return_instruction(_ALLOW))
    return b"".join(struct.pack("HBBI", *step) for step in program)


def _others_sections(column: int, refused: _Instruction) -> list[_Instruction]:
    """Refuse to rule any process but the one that asks."""
    program: list[_Instruction] = []
    for numbers in _OWN_ONLY:
        program += _section(numbers[column], [_load(_FIRST), *_allow_instructions((0,), refused)])
    for numbers, users in zip(_OF_GROUPS, (2, 3), strict=True):
        steps = [
            _load(_FIRST),
            (_EQUAL, 0, 1, users),
            refused,
            _load(_SECOND),
            *_allow_instructions((0,), refused),
        ]
        program += _section(numbers[column], steps)
    return program


def _segment_section(column: int, refused: _Instruction) -> list[_Instruction]:
    large: list[_Instruction] = [
        _load(_SECOND + 4),
        (_EQUAL, 1, 0, 0),
        refused,
        _load(_SECOND),
        (_AT_LEAST, 0, 1, _MOST_SEGMENT + 1),
        refused,
    ]
    return _section(_SHMGET[column], [*large, _return_instruction(_ALLOW)])


def _load(offset: int) -> _Instruction:
    return (_LOAD, 0, 0, offset)


def _return_instruction(what: int) -> _Instruction:
    return (_RETURN, 0, 0, what)


def _section(number: int, steps: list[_Instruction]) -> list[_Instruction]:
    """`steps`, which end by returning, for the system call of that number; others pass by."""
    return [(_EQUAL, 0, len(steps), number), *steps]


def _allow_instructions(values: Sequence[int], refused: _Instruction) -> list[_Instruction]:
    return [step for value in values for step in ((_EQUAL, 0, 1, value), _return_instruction(_ALLOW))] + [
        refused
    ]
