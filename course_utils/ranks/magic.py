"""`%%ranks` and `%ranks` in a notebook."""

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import launch
from .live import Live
from .pool import Ranks
from .report import NotRun, NotSent, RanksError, RanksInterrupted, show

_HELP = """\
%%ranks 4                 run the cell on 4 ranks (at first 4, later the last number if none is given)
%%ranks ranks=0,2         on some of them only
%%ranks 4 push=x,f        copy the notebook's x and f to every rank first
%%ranks 4 pull=loss       afterwards: loss in the notebook, a list by rank
%%ranks 4 timeout=20      seconds that the cell may take (10)
%%ranks 4 fails           the cell is meant to fail: show how, go on
%%ranks 4 debug=off       do not check that collectives match: for counting messages and time, and
                          for async_op=True (to compare, a checked call waits for all ranks)
%%ranks 4 watch=off       leave a deadlock to the group's own timeout
%ranks                    what is running, and the memory it takes
%ranks stop               stop it"""


@dataclass
class Options:
    """What stands after `%%ranks`."""

    world_size: int
    only: tuple[int, ...] | None = None
    timeout: float | None = None
    push: tuple[str, ...] = ()
    pull: tuple[str, ...] = ()
    fails: bool = False
    debug: bool = True
    watch: bool = True


def parse(line: str, world_size: int) -> Options:
    """Raises ValueError with what could have been said."""
    options = Options(world_size)
    readers: dict[str, tuple[str, Callable[[str], Any]]] = {
        "ranks": ("only", lambda text: tuple(int(part) for part in text.split(","))),
        "timeout": ("timeout", _seconds),
        "push": ("push", _names),
        "pull": ("pull", _names),
        "debug": ("debug", _on_or_off),
        "watch": ("watch", _on_or_off),
    }
    for word in shlex.split(line):
        name, equals, value = word.partition("=")
        try:
            if word.isdigit() and int(word) > 0:
                options.world_size = int(word)
            elif word == "fails":
                options.fails = True
            elif equals and name in readers:
                attribute, read = readers[name]
                setattr(options, attribute, read(value))
            else:
                raise ValueError
        except ValueError:
            raise ValueError(f"%%ranks does not understand {word!r}. It knows\n{_HELP}") from None
    return options


def _names(text: str) -> tuple[str, ...]:
    found = tuple(text.split(","))
    if not all(name.isidentifier() for name in found):
        raise ValueError
    return found


def _seconds(text: str) -> float:
    found = float(text)
    if not found > 0:
        raise ValueError
    return found


def _on_or_off(text: str) -> bool:
    return {"on": True, "off": False}[text] if text in ("on", "off") else _wrong()


def _wrong() -> bool:
    raise ValueError


class Magic:
    """The pools of one notebook, one for each number of ranks, with variables of their own."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.pools: dict[int, Ranks] = {}
        self.world_size = 4

    def __call__(self, line: str, cell: str | None = None) -> None:
        """Run a cell on several processes of this machine: `%%ranks 4`. `%ranks` says what runs."""
        try:
            if cell is None:
                self.line(line.strip())
            else:
                self.cell(parse(line, self.world_size), cell)
        except ValueError as error:
            raise _usage_error(str(error)) from None

    __name__ = "ranks"

    def line(self, word: str) -> None:
        """`%ranks` and `%ranks stop`. Raises ValueError for another word."""
        if word == "stop":
            self.close()
        elif word:
            raise ValueError(f"%ranks does not understand {word!r}. It knows\n{_HELP}")
        else:
            print(self.status())

    def status(self) -> str:
        """Which pools run, and what memory each of their processes has to itself."""
        lines = []
        for world_size, pool in sorted(self.pools.items()):
            if pool.running:
                sizes = ", ".join(f"{size / 2**20:.0f}" for size in pool.memory())
                lines.append(
                    f"{world_size} ranks, started by {pool.method}: {sizes} MiB of their own"
                )
        return "\n".join(lines) or "no ranks are running"

    def cell(self, options: Options, source: str) -> None:
        """Run a cell on the ranks and show what they did. Raises RanksError if one failed.

        Somebody who watches sees it as it comes; then all is shown by rank, in order.
        """
        self.world_size = options.world_size
        pool = self.pools.setdefault(options.world_size, Ranks(options.world_size))
        missing = [name for name in options.push if name not in self.shell.user_ns]
        if missing:
            raise NotRun(f"push: {', '.join(missing)} is not defined in the notebook")
        live = Live() if _somebody_watches(self.shell) else None
        try:
            if options.push:
                pool.push(**{name: self.shell.user_ns[name] for name in options.push})
            replies = pool.run(
                source,
                options.only,
                timeout=options.timeout,
                watch=options.watch,
                debug=options.debug,
                look=live,
            )
        except NotSent as error:
            raise NotRun(f"push: {error}") from None
        except SyntaxError as error:
            place = f"line {error.lineno}:  {(error.text or '').strip()}"
            raise NotRun(f"{type(error).__name__}: {error.msg}, {place}") from None
        except KeyboardInterrupt:
            if live:
                live.clear()
            show(pool.interrupted)
            raise RanksInterrupted(pool.interrupted, pool.lost) from None
        if live:
            live.clear()
        if pool.note:
            print(pool.note, file=sys.stderr)
        show(replies)
        if any(not reply.ok for reply in replies):
            failure = RanksError(replies, pool.lost)
            if not options.fails:
                raise failure
            print(failure)
            return
        if options.fails:
            raise NothingFailed("this cell was meant to fail, and no rank did")
        if options.pull:
            self.shell.push({name: pool.pull(name) for name in options.pull})

    def close(self) -> None:
        """Stop all processes."""
        for pool in self.pools.values():
            pool.close()


def _somebody_watches(shell: Any) -> bool:
    """Could somebody answer `input()`? nbclient and nbval say no: they want the same in every run."""
    return bool(getattr(getattr(shell, "kernel", None), "_allow_stdin", False))


class NothingFailed(AssertionError):
    """`%%ranks fails` met a cell that did not fail."""

    def _render_traceback_(self) -> list[str]:
        return [f"%%ranks fails: {self}"]


def _usage_error(message: str) -> Exception:
    from IPython.core.error import UsageError

    error: Exception = UsageError(message)
    return error


_loaded: Magic | None = None


def load(shell: Any) -> None:
    """Register the magic; torch is loaded for the ranks meanwhile."""
    global _loaded
    if _loaded is None:
        _loaded = Magic(shell)
        launch.launcher(launch.DEFAULT)
    shell.register_magic_function(_loaded, "line_cell", "ranks")


def unload(shell: Any) -> None:
    """Take %ranks and %%ranks away from the shell, and close the ranks."""
    global _loaded
    if _loaded is not None:
        _loaded.close()
        _loaded = None
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("ranks", None)
