"""The command line: `coarea list` and `coarea run STUDY`."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from coarea.errors import CoareaError

app = typer.Typer(
    help="Condition a differentiable simulator on its data, exactly.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
run = typer.Typer(
    help="Run a study: it prints a table and writes figures and draws to a folder.",
    no_args_is_help=True,
)
app.add_typer(run, name="run")

Draws = Annotated[int, typer.Option(min=1, help="Draws kept from each chain.")]
Warmup = Annotated[int, typer.Option(min=20, help="Transitions spent on finding a step size.")]
Chains = Annotated[int, typer.Option(min=1, help="Independent chains.")]
Seed = Annotated[
    int, typer.Option(min=0, help="The same seed gives the same data and the same draws.")
]
Out = Annotated[Path, typer.Option(help="The folder for figures and draws; made if absent.")]


@app.command("list")
def list_studies() -> None:
    """Name the studies that can be run."""
    for command in run.registered_commands:
        summary = (command.callback.__doc__ or "").splitlines()[0] if command.callback else ""
        typer.echo(f"{command.name:20} {summary}")


@run.command("lotka-volterra")
def lotka_volterra(
    draws: Draws = 1000,
    warmup: Warmup = 500,
    chains: Chains = 4,
    seed: Seed = 0,
    out: Out = Path("out/lotka-volterra"),
) -> None:
    """Rates of a stochastic predator–prey model from exactly observed populations."""
    from coarea.experiments import lotka_volterra

    lotka_volterra.run(draws, warmup, chains, seed, out)


def main() -> None:
    """Run the command line; a mistake of the user's ends in one line, not in a traceback."""
    try:
        app()
    except CoareaError as error:
        Console(stderr=True).print(f"[red]Error:[/red] {error}", highlight=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt as interrupt:
        Console(stderr=True).print(str(interrupt) or "interrupted.", highlight=False)
        sys.exit(130)
