"""The `nearcast` command: a thin shell that parses arguments, calls the packages and prints.

Commands import what they need when they run, so that `nearcast --help` answers at once.
Read `terminal.py` for how everything is printed and which exit codes there are.
"""

from __future__ import annotations

import sys

import typer

from nearcast import __version__
from nearcast.cli import (
    bench,
    clients,
    config,
    demo,
    explain,
    network,
    pipeline,
    plan,
    policy,
    reproduce,
    serve,
)
from nearcast.cli.terminal import exit_code, report_error
from nearcast.model.errors import NearcastError

INTERRUPTED = 130

app = typer.Typer(
    name="nearcast",
    help="Publish/subscribe for things that move.",
    epilog="Begin with: nearcast init, then nearcast config check, then nearcast demo",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(serve.serve)
app.command()(network.up)
app.command()(network.nodes)
app.command()(clients.pub)
app.command()(clients.sub)
app.command()(clients.status)
app.command()(explain.explain)
app.command()(serve.passwd)
app.command()(config.init)
app.add_typer(config.app, name="config")
app.command()(demo.demo)
app.add_typer(bench.app, name="bench")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(plan.app, name="plan")
app.add_typer(policy.app, name="policy")
app.command()(reproduce.reproduce)


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
    """Run the command line; our own errors become one line and an exit code."""
    try:
        app()
    except NearcastError as error:
        report_error(error, as_json="--json" in sys.argv)
        sys.exit(exit_code(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader (head, less) has gone: that is no error
        sys.stderr.close()
        sys.exit(0)
    except Exception as error:
        if not _follows_interrupt(error):
            raise
        sys.exit(INTERRUPTED)


def _follows_interrupt(error: BaseException | None) -> bool:
    """Tell whether something failed only because Ctrl-C came in its middle, as Spark's calls do."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None
