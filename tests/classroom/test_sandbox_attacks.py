"""Hostile code in the sandbox: what must come of each attack, and that the next submission is served.

Each row is run by a submission of its own. After it an honest answer must pass in the same sandbox.
"""

import os
import socket
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from sandbox_cases import HONEST, KEY, REFUSED_EVERYWHERE, WRONG, Runner, found_by, verdict_on

from course_utils.authoring.counts import count
from course_utils.grading.judging.outcomes import FAILED, NOT_ATTEMPTED, PASSED
from course_utils.grading.student.channel import ChannelLost
from course_utils.sandbox import seccomp

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap exists for Linux only")

REPOSITORY = Path(__file__).parents[2]
ERRORS = ("PermissionError", "FileNotFoundError", "OSError", "NotADirectoryError")


@pytest.fixture(autouse=True)
def serves_the_next(sandbox: Any) -> Any:
    """After each attack an honest answer passes, and nothing is left of the attacker."""
    yield
    assert verdict_on(sandbox, HONEST).outcome == PASSED
    assert leftover(sandbox) == []


def leftover(sandbox: Any) -> list[psutil.Process]:
    """Processes inside, but for those that fork (and bwrap's own), and the one that waits for the next."""
    found = []
    sandbox.drop_spare()
    for zygote in sandbox.zygotes.values():
        zygote.calm(0)
    for zygote in sandbox.zygotes.values():
        inside = psutil.Process(zygote.process.pid).children(recursive=True)
        found += [p for p in inside[2:] if p.status() != psutil.STATUS_ZOMBIE]
    return found


# ------------------------------------------------------------------------------ the process is lost

FRAME = """
import os, struct, sys
def frame():
    f = sys._getframe()
    while not {"token", "channel"} <= f.f_locals.keys():
        f = f.f_back
    return f.f_locals
def send(data, token=None, size=None):
    head = struct.pack("<8sQ", token or frame()["token"], len(data) if size is None else size)
    rest = head + data
    while rest:
        rest = rest[os.write(frame()["channel"], rest):]
def every_descriptor():
    for fd in range(3, 1024):
        try:
            os.fstat(fd)
            yield fd
        except OSError:
            pass
"""
"""Frames as the student's side writes them; it finds the token and the channel in the frames of Python."""

NEVER_ENDS = """
while True:
    try:
        while True: pass
    except BaseException: pass
"""

LOST = {
    "os._exit": ("import os; os._exit(0)", "died"),
    "os.abort": ("import os; os.abort()", "died"),
    "a wild pointer": ("import ctypes; ctypes.string_at(0)", "died"),
    "the stack": (
        "class A:\n    def __repr__(self): return repr(self)\n"
        "import sys; sys.setrecursionlimit(10**9); repr(A())",
        "died",
    ),
    "an endless loop that swallows everything": (NEVER_ENDS, "timeout"),
    "a call that never returns": ("import time; time.sleep(1000)", "timeout"),
    "the time limit's own signal ignored": (
        f"import signal; signal.signal(14, signal.SIG_IGN)\n{NEVER_ENDS}",
        "timeout",
    ),
    "all descriptors closed": ("import os; os.closerange(0, 4096); found = 1", "died"),
    "a flood on every descriptor": (
        f"{FRAME}\nfor fd in every_descriptor():\n    while True: os.write(fd, b'x' * 2**20)",
        "garbage",
    ),
    "a frame ahead of time": (f"{FRAME}\nsend(b'{{}}', token=bytes(8)); found = 1", "garbage"),
    "a frame of a terabyte": (f"{FRAME}\nsend(b'', size=2**40); found = 1", "flood"),
    "a torn frame": (f"{FRAME}\nsend(b'half', size=1000); os._exit(0)", "garbage"),
    "a frame that never ends": (
        f"{FRAME}\nsend(b'half', size=1000)\nimport time; time.sleep(100)",
        "timeout",
    ),
    "a frame of zeros": (f"{FRAME}\nsend(bytes(10**6)); found = 1", "garbage"),
    "a pickle in a frame": (
        f"{FRAME}\nimport pickle\nclass P:\n    def __reduce__(self): return os._exit, (1,)\n"
        "send(pickle.dumps(P())); found = 1",
        "garbage",
    ),
    "a tree of a million lists": (
        f"""{FRAME}
from safetensors.torch import save
send(save({{}}, metadata={{"tree": "[" + "[]," * 10**6 + "[]]"}})); found = 1""",
        "garbage",
    ),
    "a tree as deep as a well": (
        f"""{FRAME}
from safetensors.torch import save
send(save({{}}, metadata={{"tree": "[" * 10**5 + "]" * 10**5}})); found = 1""",
        "garbage",
    ),
    "an array of a trillion elements in four bytes": (
        f"""{FRAME}
import torch
from course_utils.grading.pytrees.serialization import dumps
send(dumps({{"x": torch.zeros(1).expand(10**12)}})); found = 1""",
        "flood",
    ),
    "a function for a dtype": (
        f"""{FRAME}
import json, torch
from safetensors.torch import save
tree = {{"dict": [["x", {{"tensor": ["0", "load", [1], [1], 0, False, False, "cpu"]}}]]}}
send(save({{"0": torch.zeros(4, dtype=torch.uint8)}}, metadata={{"tree": json.dumps(tree)}}))
found = 1""",
        "garbage",
    ),
    "an array that reads beyond its bytes": (
        f"""{FRAME}
import json, torch
from safetensors.torch import save
tree = {{"dict": [["x", {{"tensor": ["0", "int64", [10**6], [1], 0, False, False, "cpu"]}}]]}}
send(save({{"0": torch.zeros(4, dtype=torch.uint8)}}, metadata={{"tree": json.dumps(tree)}}))
found = 1""",
        "garbage",
    ),
}


@pytest.mark.parametrize("name", LOST)
def test_the_process_is_lost_and_nothing_else(sandbox: Any, name: str) -> None:
    source, how = LOST[name]
    with sandbox.submission() as channel:
        runner = Runner(channel)
        with pytest.raises(ChannelLost) as lost:
            runner.run(source, limit_s=0.6 if how == "timeout" else 30.0)
        assert lost.value.how == how, lost.value.reason
        assert Runner(channel).run("found = 'a fresh one'") == "a fresh one"
    count("attacks in the sandbox")


# ------------------------------------------------------------------------------ it is told no


def tried(statement: str) -> str:
    """`found` is the name of the exception that the statement raises, "" if none."""
    body = "\n".join("    " + line for line in statement.splitlines())
    return f"found = ''\ntry:\n{body}\nexcept BaseException as e:\n    found = type(e).__name__\n"


REFUSED = REFUSED_EVERYWHERE | {
    "fork, for ever": ("import os\nwhile True: os.fork()", "PermissionError"),
    "another program": ("import subprocess; subprocess.run(['/bin/true'])", "PermissionError"),
    "this Python again": ("import os, sys; os.execv(sys.executable, ['p'])", "PermissionError"),
    "a signal to all": ("import os; os.kill(-1, 9)", "PermissionError"),
    "a signal to its group": ("import os; os.killpg(0, 9)", "PermissionError"),
    "memory: bytes": ("x = []\nwhile True: x.append(bytearray(10**7))", "MemoryError"),
    "memory: an array": ("import torch; torch.ones(10**10)", "RuntimeError"),
    "memory: shared maps": (
        "import mmap\nx = []\nwhile True: x.append(mmap.mmap(-1, 10**8))",
        "OSError",
    ),
    "memory: a file in memory": ("import os; os.memfd_create('x')", "PermissionError"),
    "memory: files in /tmp": (
        "for n in range(100): open(f'/tmp/{n}', 'wb').write(bytes(10**6))",
        "OSError",
    ),
    "memory: empty files in /tmp": (
        "for n in range(100_000): open(f'/tmp/{n}', 'w').close()",
        "OSError",
    ),
    "memory: files in /dev/shm": (
        "for n in range(100): open(f'/dev/shm/{n}', 'wb').write(bytes(10**6))",
        "OSError",
    ),
    "memory: one large file": ("open('/tmp/x', 'wb').write(bytes(10**7))", "OSError"),
    "threads without end": (
        "import threading, time\n"
        "while True: threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
        "RuntimeError",
    ),
    "descriptors without end": ("import os\nwhile True: os.pipe()", "OSError"),
    "more of a limit": (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**60, 2**60))",
        "ValueError",
    ),
    "root": ("import os; os.setuid(0)", "OSError"),
    "/etc/shadow": ("open('/etc/shadow')", "FileNotFoundError"),
    "/etc/passwd": ("open('/etc/passwd')", "FileNotFoundError"),
    "a home": ("import os; os.listdir('/home')", "FileNotFoundError"),
    "the tests": (f"import os; os.listdir({str(REPOSITORY / 'tests')!r})", "FileNotFoundError"),
    "the exercises": ("from course_utils.exercises import strides", "ModuleNotFoundError"),
    "the references as files": (
        "import os, course_utils; os.listdir(os.path.dirname(course_utils.__file__) + '/reference')",
        "FileNotFoundError",
    ),
    "the grader's environment": ("open('/proc/1/environ')", "FileNotFoundError"),
    "its own memory as a file": ("open('/proc/self/mem')", "FileNotFoundError"),
    "writing at the root": ("open('/x', 'w')", "OSError"),
    "writing into Python": ("import os; open(os.__file__, 'w')", "OSError"),
    "writing into the course": ("import course_utils; open(course_utils.__file__, 'a')", "OSError"),
    "writing into torch": ("import torch; open(torch.__file__ + 'c', 'w')", "OSError"),
    "writing a device": ("open('/dev/x', 'w')", "OSError"),
    "a Unix socket": ("import socket; socket.socket(socket.AF_UNIX)", "PermissionError"),
    "a name on the network": (
        "import socket; socket.create_connection(('example.org', 80), 1)",
        "gaierror",
    ),
    "input()": ("input()", "EOFError"),
}
SAME = {"OSError": ERRORS, "PermissionError": ("PermissionError",)}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_told_no(sandbox: Any, name: str) -> None:
    statement, error = REFUSED[name]
    assert found_by(sandbox, tried(statement)) in SAME.get(error, (error,))
    count("attacks in the sandbox")


CALLS = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def refused(number, *args):
    ctypes.set_errno(0)
    done = libc.syscall(number, *[ctypes.c_ulong(a) for a in (*args, 0, 0, 0, 0, 0, 0)[:6]])
    return errno.errorcode.get(ctypes.get_errno(), "") if done < 0 else "done"
"""


def test_system_calls_that_nobody_needs(sandbox: Any) -> None:
    import platform

    which = seccomp.ARCHITECTURES[platform.machine()][0]
    numbers = {name: n[which] for name, n in seccomp.DENIED.items() if n[which] >= 0}
    source = f"{CALLS}\nfound = {{name: refused(n) for name, n in {numbers!r}.items()}}"
    assert found_by(sandbox, source) == dict.fromkeys(numbers, "EPERM")


def test_clone_makes_threads_and_nothing_else(sandbox: Any) -> None:
    import platform

    which = seccomp.ARCHITECTURES[platform.machine()][0]
    clone, clone3 = seccomp.CLONE[which], seccomp.CLONE3[which]
    source = f"""{CALLS}
import threading
done = []
thread = threading.Thread(target=done.append, args=(1,))
thread.start(); thread.join()
user, thread_of_user, process = 0x10000000, 0x10010000, 17
found = [refused({clone}, user), refused({clone}, thread_of_user), refused({clone}, process)]
found += [refused({clone3}), done]"""
    assert found_by(sandbox, source) == ["EPERM", "EPERM", "EPERM", "ENOSYS", [1]]


@pytest.mark.skipif(
    os.uname().machine != "x86_64", reason="only x86_64 has a second set of numbers"
)
def test_the_other_numbers_of_system_calls(sandbox: Any) -> None:
    source = f"{CALLS}\nfound = [refused(0x40000000 + 57), refused(0x40000000 + 39)]"
    assert found_by(sandbox, source) == ["ENOSYS", "ENOSYS"]


# ------------------------------------------------------------------------------ what can be seen


def test_it_is_nobody_and_alone(sandbox: Any) -> None:
    source = """
import os
found = [os.getuid(), os.geteuid(), os.getpid(), os.getgroups(), os.uname().nodename, os.listdir("/proc")]
found += [os.listdir("/tmp"), os.listdir("/dev/shm"), sorted(os.listdir("/"))]"""
    uid, euid, pid, groups, name, proc, tmp, shm, root = found_by(sandbox, source)
    assert uid == euid != 0
    assert (pid, proc, tmp, shm, name) == (1, [], [], [], "sandbox")
    assert set(groups) <= {65534}
    assert not {"home", "boot", "var", "run", "sys", "mnt"} & set(root)


def test_the_kernel_says_so_too(sandbox: Any) -> None:
    """Seen from outside: no user of the machine, no capability, a filter, other namespaces."""
    with sandbox.submission() as channel:
        Runner(channel)
        (process,) = leftover(sandbox)
        status = dict(
            line.split(":\t", 1)
            for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()
        )
        own, here = Path(f"/proc/{process.pid}/ns"), Path("/proc/self/ns")
        apart = {k for k in os.listdir(here) if os.readlink(own / k) != os.readlink(here / k)}
    assert set(status["Uid"].split()) != {"0"}
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(status[name], 16) == 0
    assert int(status["CapBnd"], 16) == 0
    assert status["NoNewPrivs"].strip() == "1"
    assert status["Seccomp"].strip() == "2"
    assert {"mnt", "pid", "net", "ipc", "uts"} <= apart


def test_no_notebook_no_test_no_reference_lies_anywhere(sandbox: Any) -> None:
    source = f"""
import os
found = []
for home, folders, files in os.walk("/"):
    if "site-packages" in home or "/lib/python" in home or home.startswith("/usr/lib/"):
        folders[:] = []
        continue
    found += [f"{{home}}/{{name}}" for name in (*folders, *files)]
found = [f for f in found if f.endswith(".ipynb") or "reference" in f or "/exercises" in f
         or "test" in f or "shadow" in f or f == {str(REPOSITORY)!r}]"""
    assert found_by(sandbox, source) == []


def test_an_installed_course_is_covered(sandbox: Any) -> None:
    source = """
import os, sys
found = [p for p in sys.path if os.path.isdir(p + "/course_utils")]
found += [os.listdir(p + "/course_utils") for p in found if p != "/course"]"""
    first, *others = found_by(sandbox, source)
    assert first == "/course"
    assert not any(others)


def test_one_submission_leaves_nothing_for_the_next(sandbox: Any) -> None:
    left = """
import os, torch
open("/tmp/left", "w").write("x"); open("/dev/shm/left", "w").write("x")
os.symlink("/etc/passwd", "/tmp/marks.jsonl")
os.environ["LEFT"] = "x"; torch.LEFT = 1; torch.manual_seed(1)
found = torch.get_default_dtype() == torch.float32
torch.set_default_dtype(torch.float64)"""
    look = """
import os, torch
found = [os.listdir("/tmp"), os.listdir("/dev/shm"), "LEFT" in os.environ, hasattr(torch, "LEFT"),
         torch.get_default_dtype() == torch.float32]"""
    assert found_by(sandbox, left) is True
    assert found_by(sandbox, look) == [[], [], False, False, True]


# ------------------------------------------------------------------------------ the network

REACH = """
import socket
def tried(family, address):
    try:
        with socket.socket(family) as s:
            s.settimeout(1.0)
            s.connect(address)
            return "reached"
    except OSError as e:
        return type(e).__name__
found = [tried(socket.AF_INET, ("1.1.1.1", 53)), tried(socket.AF_INET, ("127.0.0.1", PORT)),
         tried(socket.AF_UNIX, ABSTRACT)]"""


@pytest.mark.parametrize("ranks", [False, True])
def test_neither_the_network_nor_this_machine_is_reached(sandbox: Any, ranks: bool) -> None:
    abstract = f"\0course-test-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(abstract)
        unix.listen()
        tcp.settimeout(0.01)
        unix.settimeout(0.01)
        source = f"PORT, ABSTRACT = {tcp.getsockname()[1]}, {abstract!r}\n{REACH}"
        found = found_by(sandbox, source, ranks=ranks)
        for listener in (tcp, unix):
            with pytest.raises(TimeoutError):
                listener.accept()
    assert "reached" not in found
    if ranks:
        assert found == ["OSError", "ConnectionRefusedError", "ConnectionRefusedError"]


# ------------------------------------------------------------------------------ marks

FORGERIES = {
    "an object equal to everything": """
class Equal(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __hash__ = int.__hash__
    def __bool__(self): return True
def result(*a): return Equal(3)
""",
    "a tensor that agrees with all": """
import torch
class Agree(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None): return True
def result(*a): return torch.zeros(1).as_subclass(Agree)
""",
    "torch's comparisons patched": """
import torch, math, builtins
yes = lambda *a, **k: True
torch.equal = torch.allclose = torch.isclose = torch.testing.assert_close = yes
math.isclose = math.isnan = yes
result = lambda *a: 3
""",
    "the engine patched": """
import sys
for name, module in list(sys.modules.items()):
    if name.startswith("course_utils"):
        for attribute, value in list(vars(module).items()):
            if callable(value) and getattr(value, "__module__", "").startswith("course_utils"):
                if attribute in ("same", "untouched", "weight", "differs", "judge", "grade", "is_stub"):
                    setattr(module, attribute, lambda *a, **k: True)
result = lambda *a: 3
""",
    "course_utils imported again": """
import sys
for name in [n for n in sys.modules if n.startswith("course_utils")]:
    del sys.modules[name]
import course_utils.grading.pytrees.tree
result = lambda *a: 3
""",
    "what is hidden made importable": """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if "Hidden" not in type(f).__name__]
sys.path += ["/", "/tmp", "/root", "/work"]
def result(index, stride, offset):
    try:
        from course_utils.reference.strides import flat_index
        return flat_index(index, stride, offset)
    except ImportError:
        return 3
""",
    "the book's own answer, asked for by name": """
def result(index, stride, offset):
    try:
        from course_utils.grading import find
        return find("strides.flat_index").parts[0](index, stride, offset)
    except Exception:
        return 3
""",
    "the student's side patched": """
from course_utils.grading.pytrees import serialization
from course_utils.grading.student import server
def handle(self, request):
    return {"keys": ["strides.flat_index"], "problems": {}, "attempted": True, "problem": None,
            "descriptions": [], "groups": [], "runs": [], "passed": True}
server.StudentSide.handle = handle
serialization.dumps = lambda tree: b"passed"
result = lambda *a: 3
""",
    "a verdict instead of an observation": """
from course_utils.grading.student import server
server.StudentSide.observe = lambda self, **k: {"verdict": "passed", "points": 1000,
    "groups": [{"observations": [{"seen": {"result": True, "passed": True}, "raised": None,
    "left": [], "seconds": 0.0}] * len(group), "overwritten": None} for group in k["groups"]]}
result = lambda *a: 3
""",
    "the channel hunted down": """
import gc, sys, os
def result(*a):
    f = sys._getframe()
    while f:
        if "channel" in f.f_locals and "token" in f.f_locals:
            os.write(f.f_locals["channel"], f.f_locals["token"] + bytes(8) + b"passed")
        f = f.f_back
    return 3
""",
    "an exit that answers": """
import atexit, os
def last():
    for fd in range(1024):
        try: os.write(fd, b"passed")
        except OSError: pass
atexit.register(last)
def result(*a): raise SystemExit(0)
""",
    "a thread that outlives the cell": """
import threading, time, sys
def later():
    while True:
        time.sleep(0.001)
        for module in list(sys.modules.values()):
            if getattr(module, "__name__", "").startswith("course_utils.grading"):
                for name in ("same", "untouched", "differs"):
                    if hasattr(module, name): setattr(module, name, lambda *a, **k: True)
threading.Thread(target=later, daemon=True).start()
result = lambda *a: 3
""",
    "os._exit while it is defined": "import os; os._exit(0)",
    "a huge result": "import torch\nresult = lambda *a: torch.zeros(10**8)",
    "a result that has no end": "result = lambda *a: [10**40] * 150_000",
    "a result inside itself": "x = []\nx.append(x)\nresult = lambda *a: x",
}


@pytest.mark.parametrize("name", FORGERIES)
def test_no_mark_is_forged(sandbox: Any, name: str) -> None:
    """The attack is what the wrong answer needs, so that its statements run first."""
    attack = "\n".join("    " + line for line in FORGERIES[name].splitlines())
    cell = f"""
def attack():
{attack}
    return locals().get("result", lambda *a: 3)

RESULT = attack()

@exercise("{KEY}")
def flat_index(index, stride, offset=0):
    return RESULT(index, stride, offset)
"""
    verdict = verdict_on(sandbox, cell)
    assert verdict.outcome in (FAILED, NOT_ATTEMPTED), str(verdict)
    count("attacks in the sandbox")


def test_a_wrong_answer_fails(sandbox: Any) -> None:
    assert verdict_on(sandbox, WRONG).outcome == FAILED


def test_a_flood_of_words_is_no_mistake(sandbox: Any) -> None:
    noisy = """
import sys, warnings
def flood():
    for stream in (sys.stdout, sys.stderr):
        stream.write("x" * 10_000_000)
    warnings.warn("mind the stride")
"""
    answer = HONEST.replace("    return", "    flood()\n    return")
    with sandbox.submission() as channel:
        assert Runner(channel).run(noisy + "\nflood(); found = 1") == 1
    assert verdict_on(sandbox, noisy, answer).outcome == PASSED


# ------------------------------------------------------------------------------ with processes

DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True: time.sleep(0.01)
    os._exit(0)
time.sleep(0.05)
found = 1"""

BOMB = """
import os, time
made = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(100); os._exit(0)
        made += 1
except OSError as e:
    found = [type(e).__name__, made]"""

MANY_EATERS = """
import os, time
for _ in range(6):
    if os.fork() == 0:
        x = bytearray(200 * 2**20)
        time.sleep(100)
time.sleep(100)"""


def test_a_daemon_ends_with_its_submission(sandbox: Any) -> None:
    with sandbox.submission(ranks=True) as channel:
        assert Runner(channel).run(DAEMON) == 1
        assert len(leftover(sandbox)) >= 2
    assert leftover(sandbox) == []


def test_a_fork_bomb_meets_the_limit(sandbox: Any) -> None:
    kind, made = found_by(sandbox, BOMB, ranks=True)
    assert kind == "BlockingIOError"
    assert made < sandbox.limits.tasks_on_ranks


def test_memory_of_many_processes_is_bounded(sandbox: Any) -> None:
    with sandbox.submission(ranks=True) as channel:
        runner = Runner(channel)
        with pytest.raises(ChannelLost, match="MiB of memory") as lost:
            runner.run(MANY_EATERS)
        assert lost.value.how == "died"


SOCKETS = """
import os, socket, time
def fill():
    kept = []
    while True:
        try:
            pair = socket.socketpair()
        except OSError:
            time.sleep(100)
        for one in pair:
            one.setblocking(False)
            kept.append(one)
            try:
                while True: one.send(bytes(2**16))
            except OSError: pass
for _ in range(FORKS):
    if os.fork() == 0: fill()
time.sleep(100)"""


def test_what_many_processes_hold_in_sockets_is_bounded(sandbox: Any) -> None:
    """It is the kernel's memory, which is nobody's: 40 processes would take 19 GiB."""
    with sandbox.submission(ranks=True) as channel:
        runner = Runner(channel)
        with pytest.raises(ChannelLost, match=r"opened \d+ sockets") as lost:
            runner.run(SOCKETS.replace("FORKS", "40"))
        assert lost.value.how == "died"


def test_what_one_socket_holds_is_bounded(sandbox: Any) -> None:
    """Without it, 250 pairs of one process hold as many MiB each as the system allows."""
    source = """
import socket
one, other = socket.socketpair()
sizes = [one.getsockopt(socket.SOL_SOCKET, kind) for kind in (socket.SO_SNDBUF, socket.SO_RCVBUF)]
for kind in (socket.SO_SNDBUF, socket.SO_RCVBUF):
    one.setsockopt(socket.SOL_SOCKET, kind, 4 * max(sizes))
one.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
found = [sizes == [one.getsockopt(socket.SOL_SOCKET, kind) for kind in (socket.SO_SNDBUF, socket.SO_RCVBUF)],
         one.getsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED)]"""
    for ranks in (False, True):
        assert found_by(sandbox, source, ranks=ranks) == [True, 1]
