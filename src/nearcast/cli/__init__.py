"""The `nearcast` command: a thin shell that parses arguments, calls the packages and prints.

Commands import what they need when they run, so that `nearcast --help` answers at once.
Read `terminal.py` for how everything is printed and which exit codes there are.
"""

from __future__ import annotations

import sys
import traceback

import typer

from nearcast import __version__
from nearcast.cli import (
    ban,
    bench,
    clients,
    config,
    demo,
    explain,
    journal,
    keys,
    network,
    peers,
    pipeline,
    plan,
    policy,
    reproduce,
    serve,
)
from nearcast.cli.terminal import exit_code, report_error, report_fields
from nearcast.model.errors import EnvironmentProblem, NearcastError

_OF_THE_EXTRA_SPARK = {"pyspark": "PySpark", "pandas": "pandas"}  # modules of jobs import these
USAGE = 2
BUG = 6
INTERRUPTED = 130

app = typer.Typer(
    name="nearcast",
    help="Publish/subscribe for things that move.",
    epilog="Start with: nearcast serve; then, in two other terminals, "
    "nearcast sub -t 'shops/#' and nearcast pub -t shops/1 -m hello",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_RUN, _USE = "Run a broker", "Use a broker"
_LEARN, _MEASURE = "Learn from its log", "See and measure it"
app.command(rich_help_panel=_RUN)(serve.serve)
app.command(rich_help_panel=_RUN)(config.init)
app.add_typer(config.app, name="config", rich_help_panel=_RUN)
app.command(rich_help_panel=_RUN)(serve.passwd)
app.add_typer(ban.app, name="ban", rich_help_panel=_RUN)
app.add_typer(journal.app, name="journal", rich_help_panel=_RUN)
app.add_typer(keys.app, name="keys", rich_help_panel=_RUN)
app.command(rich_help_panel=_RUN)(network.up)
app.command(rich_help_panel=_RUN)(network.nodes)
app.command(rich_help_panel=_RUN)(peers.peer)
app.command(rich_help_panel=_RUN)(peers.peers)
app.command(rich_help_panel=_USE)(clients.sub)
app.command(rich_help_panel=_USE)(clients.pub)
app.command(rich_help_panel=_USE)(clients.status)
app.command(rich_help_panel=_USE)(explain.explain)
app.add_typer(pipeline.app, name="pipeline", rich_help_panel=_LEARN)
app.add_typer(plan.app, name="plan", rich_help_panel=_LEARN)
app.add_typer(policy.app, name="policy", rich_help_panel=_LEARN)
app.command(rich_help_panel=_MEASURE)(demo.demo)
app.add_typer(bench.app, name="bench", rich_help_panel=_MEASURE)
app.command(rich_help_panel=_MEASURE)(reproduce.reproduce)


def _version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"nearcast {__version__}")
        raise typer.Exit


@app.callback()
def root(
    *,
    version: bool = typer.Option(
        False,
        "--version",
        is_eager=True,
        callback=lambda wanted: _version(wanted=wanted),
        help="Print the version and stop.",
    ),
) -> None:
    """Publish/subscribe for things that move."""


def main() -> None:
    """Run the command line; an error becomes one line, or one JSON object, and an exit code."""
    as_json = "--json" in sys.argv
    try:
        sys.exit(app(standalone_mode=not as_json) or 0)
    except NearcastError as error:
        report_error(error, as_json=as_json)
        sys.exit(exit_code(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader (head, less) has closed the pipe: no error
        sys.stderr.close()
        sys.exit(0)
    except Exception as error:  # noqa: BLE001 - whatever it is, a script wants JSON and a code
        if _follows_interrupt(error):
            sys.exit(INTERRUPTED)
        if isinstance(error, ModuleNotFoundError) and error.name in _OF_THE_EXTRA_SPARK:
            problem = EnvironmentProblem(
                f"{_OF_THE_EXTRA_SPARK[error.name]} is not installed",
                todo="pip install 'nearcast[spark]'",
            )
            report_error(problem, as_json=as_json)
            sys.exit(exit_code(problem))
        sys.exit(_report_other(error, as_json=as_json))


def _report_other(error: Exception, *, as_json: bool) -> int:
    """Print an error of another library; return the exit code.

    With --json Typer leaves its usage errors to us. They have no public class in common; all of
    them, and nothing else, have a method that formats their message and an exit code.
    """
    usage = getattr(error, "format_message", None)
    if as_json and usage is not None:
        report_fields({"error": "UsageError", "message": usage()})
        return USAGE
    told = {"error": type(error).__name__, "message": str(error) or "a bug in Nearcast"}
    if as_json:
        report_fields(told | {"traceback": "".join(traceback.format_exception(error))})
    else:
        traceback.print_exception(error)
        typer.echo("This is a bug in Nearcast. Please report it with the lines above.", err=True)
    return BUG


def _follows_interrupt(error: BaseException | None) -> bool:
    """Return whether something failed only because of Ctrl-C in its middle, as Spark's calls do."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None
