"""A system call filter for sandboxes: no new namespaces, mounts, keys or kernel interfaces that a harness never needs.

From:  process.py.
To:    a classic BPF program, as bubblewrap's --seccomp wants it.
Holds: debugging, threads and forks work; what is refused fails with EPERM (clone3: ENOSYS, so that libc uses clone,
       whose flags the filter can read).
Never: is the only wall: capabilities and namespaces stand behind it. A machine type it does not know has no filter.
"""

import errno
import platform
import struct

LOAD, EQUAL, ANY_BIT, AT_LEAST, RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
NUMBER_AT, MACHINE_AT, FIRST_ARGUMENT_AT = 0, 4, 16
ALLOW, ERROR = 0x7FFF0000, 0x00050000
NEW_NAMESPACES = 0x7E020000
X32_BIT = 0x40000000

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
CLONE = {"x86_64": 56, "aarch64": 220}
CLONE3 = 435
REFUSED = {  # name: x86_64, aarch64
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
}


def build_filter(machine: str | None = None) -> bytes | None:
    """The program for a machine type (default: this one); None where it is not known."""
    machine = machine or platform.machine()
    if machine not in MACHINES:
        return None
    refuse, unknown = ERROR | errno.EPERM, ERROR | errno.ENOSYS
    program = [
        (LOAD, 0, 0, MACHINE_AT),
        *unless(EQUAL, MACHINES[machine], unknown),
        (LOAD, 0, 0, NUMBER_AT),
        *when(AT_LEAST, X32_BIT, unknown),
        *when(EQUAL, CLONE3, unknown),
    ]
    for numbers in REFUSED.values():
        program += when(EQUAL, numbers[list(MACHINES).index(machine)], refuse)
    program += [
        (EQUAL, 0, 3, CLONE[machine]),
        (LOAD, 0, 0, FIRST_ARGUMENT_AT),
        *when(ANY_BIT, NEW_NAMESPACES, refuse),
        (RETURN, 0, 0, ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def when(test: int, value: int, answer: int) -> list[tuple[int, int, int, int]]:
    return [(test, 0, 1, value), (RETURN, 0, 0, answer)]


def unless(test: int, value: int, answer: int) -> list[tuple[int, int, int, int]]:
    return [(test, 1, 0, value), (RETURN, 0, 0, answer)]
