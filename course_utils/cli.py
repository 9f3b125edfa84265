"""The `course` command. Each verb imports what it needs when it is called."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

_STUDENTS = (
    "lab",
    "check",
    "progress",
    "provenance",
    "update",
    "train",
    "sample",
    "serve",
    "capstone",
    "doctor",
)
AUTHORS = ("normalise", "percent", "solve", "record")
INSTRUCTORS = ("release", "grade")
"""The verbs, by who needs them. An edition holds only the first."""
_SCRIPTS = {
    "train": "pretraining",
    "sample": "sampling",
    "serve": "serving_http",
    "capstone": "capstone",
}
"""Verbs that an edition has only with the module of the reference that does their work."""


class Grouped(TyperGroup):
    """`course --help` with a list of verbs for each kind of user."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for whose, names in (
            ("Working through the course", _STUDENTS),
            ("Writing chapters and exercises", AUTHORS),
            ("Grading a class", INSTRUCTORS),
        ):
            verbs = [(name, self.commands[name]) for name in names if name in self.commands]
            if verbs:
                with formatter.section(whose):
                    formatter.write_dl([(n, verb.get_short_help_str(80)) for n, verb in verbs])


app = typer.Typer(
    cls=Grouped,
    help="Strides to Shards: PyTorch for people who build language models.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

_Output = Annotated[Path, typer.Option("--output", "-o", help="Where to write.")]
Notebooks = Annotated[
    list[Path] | None, typer.Argument(help="Notebooks (default: all of notebooks/).")
]


def _stop(message: str) -> typer.Exit:
    """Say what is wrong; ``raise`` the result."""
    typer.echo(message, err=True)
    return typer.Exit(1)


def chapters(paths: list[Path] | None) -> list[Path]:
    """The given notebooks, or all chapters of the course whose folder we are in, copies that an update
    kept aside."""
    if paths:
        absent = [str(path) for path in paths if not path.is_file()]
        if absent:
            raise _stop(f"no such file: {', '.join(absent)}")
        return paths
    found = sorted(Path("notebooks").glob("*.ipynb"))
    if not found:
        raise _stop(
            "no notebooks/*.ipynb here: run this in the course's folder, or name a notebook"
        )
    if any(".before-" in path.name for path in found):
        from course_utils.update.folders import BEFORE

        found = [path for path in found if not BEFORE.search(path.stem)]
    return found


@app.command()
def lab(
    notebook: Annotated[Path, typer.Argument()] = Path("notebooks/01_tensors.ipynb"),
) -> None:
    """Open JupyterLab on a chapter."""
    from course_utils.lab import open_lab

    raise typer.Exit(open_lab([str(*chapters([notebook]))]))


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def train(context: typer.Context) -> None:
    """Train a GPT-2 on Python's own library or on your own text; `course train --help` lists the settings."""
    from course_utils.processes.kept_memory import keep_freed_memory
    from course_utils.reference.pretraining import main

    keep_freed_memory()
    main(context.args)


@app.command()
def sample(
    source: Annotated[
        Path | None,
        typer.Argument(
            help="A checkpoint of `course train`, or a folder that it exported (default: the course's own model)."
        ),
    ] = None,
    prompt: Annotated[
        str, typer.Option(help="What the text begins with; without it a new document begins.")
    ] = "",
    number: Annotated[int, typer.Option(help="How many texts.")] = 1,
    tokens: Annotated[int, typer.Option(help="The most tokens after the prompt.")] = 200,
    temperature: Annotated[
        float, typer.Option(help="0: always the likeliest token; 1: the model's own chances.")
    ] = 0.8,
    top_k: Annotated[int, typer.Option(help="Draw among the k likeliest; 0: among all.")] = 0,
    top_p: Annotated[
        float, typer.Option(help="Draw among the likeliest that together have this chance.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="The same seed draws the same text.")] = 0,
) -> None:
    """Write text with a model that `course train` made, or with the course's own."""
    from course_utils.reference import sampling

    try:
        how = sampling.Sampling(tokens, temperature, top_k, top_p, seed)
        texts = sampling.sample(*sampling.load(source), prompt, number, how)
    except ValueError as error:
        raise _stop(f"course sample: {error}") from None
    typer.echo("\n----\n".join(texts))


@app.command()
def serve(
    source: Annotated[
        Path | None,
        typer.Argument(
            help="A checkpoint of `course train`, or a folder that it exported (default: the course's own model)."
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on; 0.0.0.0 lets other machines in.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes any that is free.")] = 8000,
    slots: Annotated[int, typer.Option(help="Requests that run at once, at most.")] = 16,
    blocks: Annotated[
        int,
        typer.Option(help="Blocks of the cache; 0: as many as all slots need for whole contexts."),
    ] = 0,
    block_size: Annotated[int, typer.Option(help="Tokens in a block.")] = 16,
    budget: Annotated[
        int, typer.Option(help="Tokens that one pass reads, at most: prompts come in such parts.")
    ] = 256,
    queue: Annotated[
        int, typer.Option(help="Requests that wait, at most; the next one is refused with 429.")
    ] = 64,
    max_tokens: Annotated[int, typer.Option(help="Tokens of an answer, at most.")] = 256,
    grace: Annotated[
        float, typer.Option(help="Seconds for what still runs when the server is told to stop.")
    ] = 30.0,
    dtype: Annotated[
        str, typer.Option(help="Of weights and cache: float32, bfloat16 or float64.")
    ] = "float32",
    threads: Annotated[int, typer.Option(help="Threads of torch; 0: as it chooses.")] = 0,
    name: Annotated[str, typer.Option(help="What /v1/models calls the model.")] = "course",
) -> None:
    """Serve a model over HTTP, as OpenAI's completions, with a page to try it on."""
    try:
        from course_utils.reference import serving_http
    except ModuleNotFoundError as error:
        raise _stop(
            f"course serve: {error.name} is not installed; pip install {error.name}"
        ) from None
    try:
        serving_http.serve(
            source,
            serving_http.EngineSettings(slots, blocks, block_size, budget, dtype, threads),
            serving_http.Limits(queue, max_tokens, grace=grace),
            (host, port),
            name,
            typer.echo,
        )
    except ValueError as error:
        raise _stop(f"course serve: {error}") from None


@app.command()
def capstone(
    folder: Annotated[
        Path,
        typer.Argument(
            help="With model/, adapter/ and adapter_text/, quantized.safetensors, served/: what there is of them."
        ),
    ] = Path(),
) -> None:
    """Check a model of your own: trained, adapted, quantized, served; says what to do next."""
    if not folder.is_dir():
        raise _stop(f"course capstone: no such folder: {folder}")
    typer.echo("loading PyTorch and the course", err=True)  # which takes seconds
    from course_utils.reference.capstone import GOOD, Work, examine, summary

    findings = []
    for finding in examine(Work(folder)):
        typer.echo(str(finding))
        findings.append(finding)
    typer.echo(summary(findings))
    raise typer.Exit(int(any(finding.mark != GOOD for finding in findings)))


@app.command()
def doctor() -> None:
    """Say what is here, what is missing, and what to do about it."""
    from course_utils.doctor import BAD, examine, report

    findings = examine()
    typer.echo(report(findings))
    raise typer.Exit(int(any(finding.mark == BAD for finding in findings)))


@app.command()
def progress() -> None:
    """Show which exercises are done."""
    from course_utils import progress as shown

    drawn = shown()
    if drawn is not None:
        typer.echo(str(drawn))


@app.command()
def provenance() -> None:
    """Show whose code later chapters take over: your answers, the book's, or a library's."""
    notebooks = chapters(None)
    from course_utils import carried

    try:
        found = carried.carried(notebooks)
    except (ValueError, LookupError) as error:  # no notebook; no such exercise
        raise _stop(str(error.args[0])) from None
    typer.echo(carried.report(found))


def notebooks_of(chapter: str) -> list[Path]:
    """The notebooks of a chapter by its name or number: "lora", "26", "2"; none for anything else."""
    number = f"{int(chapter):02}" if chapter.isascii() and chapter.isdigit() else None
    return [path for path in chapters(None) if chapter == path.stem[3:] or number == path.stem[:2]]


@app.command()
def check(
    what: Annotated[
        str | None,
        typer.Argument(
            help="A notebook, a chapter's name or number, or an exercise's key (default: all)."
        ),
    ] = None,
) -> None:
    """Check the answers in your notebooks, with the verdicts that they give. Status 1 if one failed."""
    everything = [] if what and what.endswith(".ipynb") else chapters(None)
    from course_utils import grading

    keys: tuple[str, ...] = ()
    if what is None:
        notebooks = everything
    elif what.endswith(".ipynb"):
        notebooks = chapters([Path(what)])
    elif found := notebooks_of(what):
        notebooks = found
    else:
        keys = (what,)
        notebooks = [
            path for path in everything if f'exercise(\\"{what}\\"' in path.read_text("utf-8")
        ]
        if not notebooks:
            try:
                grading.find(what)
            except LookupError as error:
                raise _stop(str(error.args[0])) from None
            raise _stop(f"no notebook here has the exercise {what!r}")
    outcomes = []
    for path in notebooks:
        try:
            verdicts = grading.check_notebook(path, keys)
        except ValueError as error:  # a file that is no notebook
            raise _stop(str(error)) from None
        for verdict in verdicts:
            typer.echo(str(verdict))
            outcomes.append(verdict.outcome)
    if not outcomes:
        raise _stop("no exercise was checked: " + ", ".join(map(str, notebooks)) + " holds none")
    typer.echo(", ".join(f"{outcomes.count(o)} {o}" for o in dict.fromkeys(outcomes)))
    raise typer.Exit(int("failed" in outcomes))


@app.command()
def normalise(
    paths: Notebooks = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Change nothing; status 1 if something would, or is wrong."),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The notebook to write (for one percent file)."),
    ] = None,
) -> None:
    """Give notebooks the form that is committed, or say what is wrong with them."""
    sources = chapters(paths)
    from course_utils.authoring import notebooks, recording
    from course_utils.authoring.problems import problems

    if (output and len(sources) > 1) or (not output and any(p.suffix == ".py" for p in sources)):
        raise _stop("a percent file is one source and needs -o NOTEBOOK.ipynb")
    found = []
    for source in sources:
        target = output or source
        normal = notebooks.normalise(notebooks.read(source))
        present = target.read_text(encoding="utf-8") if target.exists() else ""
        if source.suffix == ".py" and present:
            normal = notebooks.keep_recorded(normal, notebooks.read(target))
        if present != notebooks.text(normal):
            if check:
                found.append(f"{target}: not in its normal form; run `course normalise`")
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(notebooks.text(normal), encoding="utf-8", newline="\n")
                typer.echo(f"wrote {target}")
        as_it_is = notebooks.read(source) if check else normal
        found += [f"{target}: {problem}" for problem in problems(as_it_is)]
        if check and source.suffix == ".ipynb":
            for where, state, stamp in recording.status([source]):
                if state == recording.OUTDATED:  # no defect: who has no GPU cannot mend it
                    typer.echo(f"note: {where}: {state}, to be recorded again. {stamp}", err=True)
    for line in found:
        typer.echo(line, err=True)
    raise typer.Exit(int(check and bool(found)))


@app.command()
def percent(notebook: Path, output: _Output) -> None:
    """Write a notebook as a Python file that is pleasant to edit; `course normalise` brings it back."""
    from course_utils.authoring import notebooks

    (source,) = chapters([notebook])
    output.parent.mkdir(parents=True, exist_ok=True)
    text = notebooks.to_percent(notebooks.normalise(notebooks.read(source)))
    output.write_text(text, encoding="utf-8", newline="\n")


@app.command()
def solve(output: _Output, paths: Notebooks = None) -> None:
    """Write notebooks with the book's solutions into a folder; there a wrong answer raises."""
    sources = chapters(paths)
    from course_utils.authoring import notebooks

    output.mkdir(parents=True, exist_ok=True)
    for source in sources:
        solved = notebooks.solve(notebooks.read(source))
        (output / source.name).write_text(notebooks.text(solved), encoding="utf-8", newline="\n")
    if not paths:  # what is no chapter any more must not be run again
        for stale in set(output.glob("*.ipynb")) - {output / source.name for source in sources}:
            stale.unlink()
    typer.echo(f"solved {len(sources)} notebooks into {output}")


@app.command()
def record(
    paths: Notebooks = None,
    status: Annotated[
        bool, typer.Option("--status", help="Run nothing; list what is recorded, and where.")
    ] = False,
    traces: Annotated[
        bool,
        typer.Option(
            help="Also the traces that chapters compare themselves with; not if you name notebooks."
        ),
    ] = True,
) -> None:
    """On a machine with CUDA: run the solved notebooks and store what their gpu cells put out."""
    from course_utils.authoring import recording

    if status:
        rows = [*recording.status(chapters(paths))]
        rows += recording.trace_status() if traces and not paths else ()
        for where, state, stamp in rows:
            typer.echo(f"{state:<15} {where}" + (f": {stamp}" if stamp else ""))
        states = [state for _, state, _ in rows]
        typer.echo(", ".join(f"{states.count(s)} {s}" for s in dict.fromkeys(states)) or "nothing")
        return
    try:
        recording.require_cuda()
        from course_utils.recordings.recorders import RECORDERS

        names = list(RECORDERS) if traces and not paths else []
        failed = recording.record_all(chapters(paths), names, typer.echo)
    except recording.CannotRecord as problem:
        raise _stop(str(problem)) from None
    for problem_said in failed:
        typer.echo(problem_said, err=True)
    raise typer.Exit(int(bool(failed)))


def _decision(said: str) -> tuple[str, str, float]:
    """ "ada:strides.flat_index=1" → who, which exercise, how many points."""
    student, _, what = said.rpartition(":")
    key, _, points = what.partition("=")
    try:
        if student and key:
            return student, key, float(points)
    except ValueError:
        pass
    raise _stop(f"--decide is --decide ada:strides.flat_index=1; came {said}")


@app.command()
def grade(
    submissions: Annotated[
        Path,
        typer.Argument(help="A folder of notebooks, of students' folders, or an exported zip."),
    ],
    plan: Annotated[
        Path | None, typer.Option(help="The plan.json that `course release` wrote.")
    ] = None,
    chapter: Annotated[
        list[str] | None,
        typer.Option(
            help="Without a plan: chapters or exercises (strides, 02, strides.flat_index=5)."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The run folder (default: grades/ beside SUBMISSIONS)."
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes (0: one for each core).")] = 0,
    dask: Annotated[
        str | None, typer.Option(help="A Dask scheduler's address, instead of processes here.")
    ] = None,
    isolation: Annotated[
        str, typer.Option(help="best (what this machine gives), bubblewrap or process.")
    ] = "best",
    require_sandbox: Annotated[
        bool, typer.Option("--require-sandbox", help="Grade nothing without bubblewrap.")
    ] = False,
    as_root: Annotated[
        bool,
        typer.Option("--as-root", help="Let students' code run as root where it is not isolated."),
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option(help="Grade this student's submission again; repeatable.")
    ] = None,
    exercise: Annotated[
        list[str] | None, typer.Option(help="Grade this exercise again; repeatable.")
    ] = None,
    due: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STUDENT=WHEN",
            help="Other time for a student, ada=2026-12-08T18:00+01:00; nothing is graded anew for it. "
            "`ada=`: the plan's again. Repeatable.",
        ),
    ] = None,
    roster: Annotated[
        Path | None,
        typer.Option(help="What Canvas or Moodle exports, for the columns they import."),
    ] = None,
    also: Annotated[
        list[str] | None, typer.Option(help="gradescope or classroom: their files too; repeatable.")
    ] = None,
    similarity: Annotated[
        bool, typer.Option("--similarity", help="Report answers that resemble one another.")
    ] = False,
    decide: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STUDENT:KEY=POINTS",
            help="What an answer earns that is held. It goes into the record. Repeatable.",
        ),
    ] = None,
    leave_out: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STUDENT",
            help="Leave a student out of gradebook, pages and exports from now on; the record keeps the "
            "marks. `ada=`: counted again. Repeatable.",
        ),
    ] = None,
) -> None:
    """Grade a class: student code runs in a sandbox, marks and gradebooks go to the run folder.

    Interrupted, it goes on when the same command is given again.
    """
    typer.echo("loading PyTorch and the course")  # which takes seconds
    from course_utils.classroom.run import grade_class as run
    from course_utils.classroom.run import terminal

    try:
        extended = terminal.times(due or [])
    except ValueError as error:
        raise _stop(str(error)) from None
    settings = run.Settings(
        workers=workers,
        dask=dask,
        isolation=isolation,
        require_sandbox=require_sandbox,
        as_root=as_root,
        only=tuple(only or ()),
        exercises=tuple(exercise or ()),
        due=extended,
        roster=roster,
        also=tuple(also or ()),
        similarity=similarity,
        decide=tuple(map(_decision, decide or ())),
        leave_out=tuple((one.removesuffix("="), not one.endswith("=")) for one in leave_out or ()),
    )
    raise typer.Exit(terminal.grade(submissions, plan, chapter or [], output, settings))


@app.command()
def update(
    newer: Annotated[
        Path, typer.Option("--from", help="The folder of the newer edition.", show_default=False)
    ],
    paths: Notebooks = None,
    older: Annotated[
        Path | None,
        typer.Option(
            help="The edition that you began with, as it was, if your notebooks do not say."
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Change nothing; status 1 if something would, or cannot."),
    ] = False,
) -> None:
    """Carry your answers into a newer edition of the notebooks; yours are kept beside the new ones."""
    from course_utils import update as updating

    mine = chapters(paths) if paths else updating.notebooks_in(Path.cwd())
    if not mine:
        raise _stop("no notebooks here: run this in the folder of your notebooks, or name one")
    for folder in filter(None, (newer, older)):
        if not folder.is_dir():
            raise _stop(f"no such folder: {folder}")
    try:
        found = updating.changes(mine, newer, add=None if paths else mine[0].parent, older=older)
    except ValueError as error:
        raise _stop(str(error)) from None
    copies = {}
    for change in found:
        copy = None if check else updating.apply(change)
        if copy:
            copies[change.path] = copy
    typer.echo(updating.report(found, copies, done=not check))
    others = {} if paths else updating.rest(Path.cwd(), newer)
    if others:
        aside = None if check else updating.bring(others, Path.cwd())
        kept = f"; the earlier ones are in {aside.name}" if aside else ""
        typer.echo(f"course_utils and what goes with it: {len(others)} files differ{kept}")
        if Path("requirements.txt") in others:
            typer.echo("then install what has changed: pip install -r requirements.txt")
    changing = check and (bool(others) or any(change.text is not None for change in found))
    raise typer.Exit(int(changing or any(change.failed for change in found)))


@app.command()
def release(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="CHAPTER|KEY[=POINTS] …",
            help="Chapters, by name or number, and exercises: strides 08 modules.Linear=5.",
        ),
    ],
    output: _Output,
    title: Annotated[str, typer.Option(help="Of the assignment; names its folder, too.")] = "",
    due: Annotated[
        str | None, typer.Option(help="With its time zone: 2026-12-01T18:00+01:00.")
    ] = None,
    late_per_day: Annotated[
        float, typer.Option(help="Per cent of the points that a day begun costs.")
    ] = 0,
    late_most: Annotated[float, typer.Option(help="Per cent that late days cost at most.")] = 100,
    grace: Annotated[int, typer.Option(help="Minutes that are not late yet.")] = 0,
    late_closes: Annotated[
        int | None, typer.Option(help="Days after which a submission earns nothing.")
    ] = None,
    without_answers: Annotated[
        bool,
        typer.Option(
            "--without-answers",
            help="Leave out references, alternatives and mistakes of what counts.",
        ),
    ] = False,
    only_exercises: Annotated[
        bool,
        typer.Option("--only-exercises", help="Problem sets: statements and stubs, no chapters."),
    ] = False,
    form: Annotated[
        str, typer.Option("--format", help="plain, nbgrader, classroom or gradescope.")
    ] = "plain",
    run: Annotated[
        bool, typer.Option(help="Run the notebooks, unanswered, before anything is written.")
    ] = True,
) -> None:
    """Make an edition for students: a folder and a zip, and the plan that `course grade` reads."""
    if not list(Path("notebooks").glob("*.ipynb")):
        where = "no notebooks/*.ipynb here: run this in the course's folder"
        raise _stop(f"no edition was made: {where}")
    typer.echo("loading PyTorch and the course", err=True)  # which takes seconds
    from course_utils.classroom import release as editions
    from course_utils.classroom.marks.plan import Late, plan_of, time_of
    from course_utils.classroom.platforms.forms import released

    try:
        late = Late(late_per_day / 100, late_most / 100, grace, late_closes)
        until = time_of(due) if due else None
        plan = plan_of(what, title, due=until, late=late, hidden=without_answers)
        edition = released(
            plan,
            Path.cwd(),
            only_exercises=only_exercises,
            form=form,
            run=run,
            say=lambda line: typer.echo(line, err=True),
        )
        written = editions.write(edition, output)
    except editions.CannotRelease as error:
        raise _stop("\n".join(["no edition was made:", *error.problems])) from None
    except (ValueError, LookupError, FileNotFoundError) as error:
        raise _stop(f"no edition was made: {error.args[0] if error.args else error}") from None
    typer.echo(f"to hand out:  {written.folder}\n              {written.zip}")
    for path in written.instructor:
        typer.echo(f"for you only: {path}")
    for note in edition.notes:
        typer.echo(note)


if not (Path(__file__).parent / "authoring").is_dir():  # an edition, which grades nobody
    reference = Path(__file__).parent / "reference"
    app.registered_commands = [
        verb
        for verb in app.registered_commands
        if (name := getattr(verb.callback, "__name__", "")) in _STUDENTS
        and (name not in _SCRIPTS or (reference / f"{_SCRIPTS[name]}.py").is_file())
    ]

if __name__ == "__main__":
    app()
