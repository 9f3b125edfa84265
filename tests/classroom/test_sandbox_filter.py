"""The filter of system calls, run by an interpreter of its own: both machines on any machine."""

import errno

import pytest

from course_utils.sandbox import seccomp
from course_utils.sandbox.seccomp import ALLOW, ARCHITECTURES, ERRNO, KILL

EPERM, ENOSYS = ERRNO | errno.EPERM, ERRNO | errno.ENOSYS
PID = 42


def answer(
    machine: str,
    number: int,
    first: int = 0,
    processes: bool = False,
    arch: int = 0,
    second: int = 0,
    third: int = 0,
) -> int:
    """What the filter returns for a call."""
    lines = seccomp.program(machine, PID, processes=processes)
    data = {0: number, 4: arch or ARCHITECTURES[machine][1], 16: first & 0xFFFFFFFF}
    data |= {24: second, 32: third}
    at = value = 0
    while True:
        code, yes, no, operand = lines[at]
        at += 1
        if code == seccomp.LOAD:
            value = data[operand]
        elif code == seccomp.RETURN:
            return operand
        else:
            holds = {
                seccomp.JUMP_EQUAL: value == operand,
                seccomp.JUMP_ABOVE: value >= operand,
                seccomp.JUMP_BITS: bool(value & operand),
            }[code]
            at += yes if holds else no


MACHINES = pytest.mark.parametrize("machine", list(ARCHITECTURES))


@MACHINES
@pytest.mark.parametrize("processes", [False, True])
def test_jumps_stay_inside_and_each_path_ends(machine: str, processes: bool) -> None:
    lines = seccomp.program(machine, PID, processes=processes)
    assert len(lines) < 4096
    assert lines[-1] == (seccomp.RETURN, 0, 0, ALLOW)
    for at, (code, yes, no, _) in enumerate(lines):
        assert 0 <= yes < 256
        assert 0 <= no < 256
        if code not in (seccomp.LOAD, seccomp.RETURN):
            assert at + 1 + max(yes, no) < len(lines)


@MACHINES
def test_what_is_denied_and_what_is_not(machine: str) -> None:
    which = ARCHITECTURES[machine][0]
    for processes in (False, True):
        for numbers in seccomp.DENIED.values():
            if numbers[which] >= 0:
                assert answer(machine, numbers[which], processes=processes) == EPERM
        for allowed in {"read": (0, 63), "mmap": (9, 222), "futex": (202, 98)}.values():
            assert answer(machine, allowed[which], processes=processes) == ALLOW
        assert answer(machine, seccomp.CLONE3[which], processes=processes) == ENOSYS


@MACHINES
def test_a_call_of_another_machine_kills(machine: str) -> None:
    other = next(arch for name, (_, arch) in ARCHITECTURES.items() if name != machine)
    assert answer(machine, 0, arch=other) == KILL


@MACHINES
def test_arguments_decide(machine: str) -> None:
    which = ARCHITECTURES[machine][0]
    clone, sock = seccomp.CLONE[which], seccomp.SOCKET[which]
    thread, user = seccomp.CLONE_THREAD, 0x10000000
    assert answer(machine, clone, thread) == ALLOW
    assert answer(machine, clone, 17) == EPERM
    assert answer(machine, clone, 17, processes=True) == ALLOW
    for processes in (False, True):
        assert answer(machine, clone, user | thread, processes=processes) == EPERM
        assert answer(machine, clone, 0x20000000, processes=processes) == EPERM
    assert answer(machine, sock, seccomp.AF_INET) == EPERM
    assert answer(machine, sock, seccomp.AF_INET, processes=True) == ALLOW
    assert answer(machine, sock, 40, processes=True) == EPERM  # AF_VSOCK leads out of the machine
    for numbers in seccomp.SIGNALS.values():
        assert answer(machine, numbers[which], PID) == ALLOW
        for pid in (0, 1, -1, PID + 1):
            assert answer(machine, numbers[which], pid) == EPERM
    assert answer(machine, seccomp.PRLIMIT[which], 0) == ALLOW
    assert answer(machine, seccomp.PRLIMIT[which], PID + 1) == EPERM


@MACHINES
def test_buffers_of_sockets_keep_their_size(machine: str) -> None:
    number = seccomp.SETSOCKOPT[ARCHITECTURES[machine][0]]
    for option in range(70):
        due = ERRNO if option in seccomp.BUFFER_SIZES else ALLOW
        assert answer(machine, number, 3, second=seccomp.SOL_SOCKET, third=option) == due
        assert answer(machine, number, 3, second=6, third=option) == ALLOW  # of TCP


def test_x86_64_has_no_second_way_in() -> None:
    assert answer("x86_64", 0x40000000 + 57) == ENOSYS


def test_no_number_is_named_twice() -> None:
    tables = {**seccomp.DENIED, **seccomp.NEW_PROCESS, **seccomp.SIGNALS}
    tables |= {"clone": seccomp.CLONE, "clone3": seccomp.CLONE3}
    tables |= {"socket": seccomp.SOCKET, "prlimit": seccomp.PRLIMIT}
    tables |= {"setsockopt": seccomp.SETSOCKOPT}
    for which in (0, 1):
        numbers = [n[which] for n in tables.values() if n[which] >= 0]
        assert len(numbers) == len(set(numbers))
