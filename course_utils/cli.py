"""The `course` command. Each verb imports what it needs when it is called."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Strides to Shards: PyTorch for people who build language models.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Output = Annotated[Path, typer.Option("--output", "-o", help="Where to write.")]
Notebooks = Annotated[
    list[Path] | None, typer.Argument(help="Notebooks (default: all of notebooks/).")
]


def stop(message: str) -> typer.Exit:
    """Say what is wrong; ``raise`` the result."""
    typer.echo(message, err=True)
    return typer.Exit(1)


def chapters(paths: list[Path] | None) -> list[Path]:
    """The given notebooks, or all chapters of the course whose folder we are in."""
    if paths:
        absent = [str(path) for path in paths if not path.is_file()]
        if absent:
            raise stop(f"no such file: {', '.join(absent)}")
        return paths
    found = sorted(Path("notebooks").glob("*.ipynb"))
    if not found:
        raise stop("no notebooks/*.ipynb here: run this in the course's folder, or name a notebook")
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
    """Train a GPT-2 on the sources of Python's own library; `course train --help` lists the settings."""
    from course_utils.reference.pretraining import main

    main(context.args)


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
def check(
    what: Annotated[
        str | None,
        typer.Argument(help="A notebook or an exercise's key (default: every chapter)."),
    ] = None,
) -> None:
    """Check the answers in your notebooks, with the verdicts that they give. Status 1 if one failed."""
    from course_utils import grading

    keys: tuple[str, ...] = ()
    if what is None:
        notebooks = chapters(None)
    elif what.endswith(".ipynb"):
        notebooks = chapters([Path(what)])
    else:
        keys = (what,)
        notebooks = [
            path for path in chapters(None) if f'exercise(\\"{what}\\"' in path.read_text("utf-8")
        ]
        if not notebooks:
            try:
                grading.find(what)
            except LookupError as error:
                raise stop(str(error.args[0])) from None
            raise stop(f"no notebook here has the exercise {what!r}")
    outcomes = []
    for path in notebooks:
        try:
            verdicts = grading.check_notebook(path, keys)
        except ValueError as error:  # a file that is no notebook
            raise stop(str(error)) from None
        for verdict in verdicts:
            typer.echo(str(verdict))
            outcomes.append(verdict.outcome)
    if not outcomes:
        raise stop("no exercise was checked: " + ", ".join(map(str, notebooks)) + " holds none")
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
    from course_utils.authoring import notebooks, recording

    sources = chapters(paths)
    if (output and len(sources) > 1) or (not output and any(p.suffix == ".py" for p in sources)):
        raise stop("a percent file is one source and needs -o NOTEBOOK.ipynb")
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
        found += [f"{target}: {problem}" for problem in notebooks.problems(as_it_is)]
        if check and source.suffix == ".ipynb":
            for where, state, stamp in recording.status([source]):
                if state == recording.OUTDATED:  # no defect: who has no GPU cannot mend it
                    typer.echo(f"note: {where}: {state}, to be recorded again. {stamp}", err=True)
    for line in found:
        typer.echo(line, err=True)
    raise typer.Exit(int(check and bool(found)))


@app.command()
def percent(notebook: Path, output: Output) -> None:
    """Write a notebook as a Python file that is pleasant to edit; `course normalise` brings it back."""
    from course_utils.authoring import notebooks

    (source,) = chapters([notebook])
    output.parent.mkdir(parents=True, exist_ok=True)
    text = notebooks.to_percent(notebooks.normalise(notebooks.read(source)))
    output.write_text(text, encoding="utf-8", newline="\n")


@app.command()
def solve(output: Output, paths: Notebooks = None) -> None:
    """Write notebooks with the book's solutions into a folder; there a wrong answer raises."""
    from course_utils.authoring import notebooks

    output.mkdir(parents=True, exist_ok=True)
    sources = chapters(paths)
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
        raise stop(str(problem)) from None
    for problem_said in failed:
        typer.echo(problem_said, err=True)
    raise typer.Exit(int(bool(failed)))


if __name__ == "__main__":
    app()
