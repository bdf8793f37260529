"""The command line: `coarea list` and `coarea run STUDY`."""

import importlib.util
import sys
import tempfile
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from coarea.errors import CoareaError, ResultError, SettingError

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


@run.callback()
def _check_figures() -> None:
    """Run a study: it prints a table and writes figures and draws to a folder."""
    if importlib.util.find_spec("matplotlib") is None:
        raise SettingError(
            "the studies draw figures with matplotlib, which is not installed: "
            "pip install 'coarea[studies]'."
        )


Draws = Annotated[int, typer.Option(min=1, help="Draws kept from each chain.")]
Warmup = Annotated[int, typer.Option(min=20, help="Transitions spent on finding a step size.")]
Chains = Annotated[int, typer.Option(min=1, help="Independent chains.")]
Seed = Annotated[
    int, typer.Option(min=0, help="The same seed gives the same data and the same draws.")
]
Study = Annotated[
    bool,
    typer.Option("--study", help="Compare methods instead; goes on with what OUT/study holds."),
]
Budget = Annotated[
    float, typer.Option(min=0.1, help="Seconds for all runs of each method in a study.")
]
Runs = Annotated[int, typer.Option(min=2, help="Runs of each method in a study.")]
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
    study: Study = False,
    budget: Budget = 20.0,
    runs: Runs = 10,
) -> None:
    """Rates of a stochastic predator–prey model from exactly observed populations."""
    if study:
        from coarea.studies import lotka_volterra_study

        lotka_volterra_study.run(runs, budget, seed, out / "study")
    else:
        from coarea.studies import lotka_volterra

        lotka_volterra.run(draws, warmup, chains, seed, out)


@run.command("tukey-lambda")
def tukey_lambda(
    draws: Draws = 1000,
    warmup: Warmup = 500,
    chains: Chains = 4,
    seed: Seed = 0,
    out: Out = Path("out/tukey-lambda"),
    study: Study = False,
    budget: Budget = 20.0,
    runs: Runs = 10,
) -> None:
    """A distribution that only its quantiles define, from 250 draws."""
    if study:
        from coarea.studies import tukey_lambda_study

        tukey_lambda_study.run(runs, budget, seed, out / "study")
    else:
        from coarea.studies import tukey_lambda

        tukey_lambda.run(draws, warmup, chains, seed, out)


@run.command("human-pose")
def human_pose(
    draws: Draws = 300,
    warmup: Warmup = 500,
    chains: Chains = 4,
    seed: Seed = 0,
    out: Out = Path("out/human-pose"),
    study: Study = False,
    budget: Budget = 300.0,
    runs: Runs = 5,
    noise: Annotated[
        float, typer.Option(help="Standard deviation of an image coordinate.")
    ] = 0.001,
    decoder: Annotated[
        Path | None, typer.Option(help="Weights of another prior over poses (.npz).")
    ] = None,
) -> None:
    """A person's pose, bone lengths and camera from 2D joint positions."""
    if study:
        from coarea.studies.human_pose import study as whole

        whole.run(runs, budget, seed, out / "study", noise, decoder)
    else:
        from coarea.studies.human_pose import quick

        quick.run(draws, warmup, chains, seed, out, noise, decoder)


@run.command("mnist-inpainting")
def mnist_inpainting(
    draws: Draws = 500,
    warmup: Warmup = 500,
    chains: Chains = 4,
    seed: Seed = 0,
    out: Out = Path("out/mnist-inpainting"),
    study: Study = False,
    budget: Budget = 100.0,
    runs: Runs = 10,
    mask: Annotated[
        str, typer.Option(help="What is seen: top-quarter, left-half, centre-hole or random.")
    ] = "top-quarter",
    digit: Annotated[
        int, typer.Option(help="Which digit of the package, 0 to 19: two of each kind in turn.")
    ] = 4,
    image: Annotated[
        Path | None, typer.Option(help="Another digit: a picture of 28 × 28 pixels, or .npy.")
    ] = None,
) -> None:
    """The rest of a handwritten digit, given a part of it."""
    if study:
        from coarea.studies.mnist import study as whole

        whole.run(runs, budget, seed, out / "study", mask, digit, image)
    else:
        from coarea.studies.mnist import quick

        quick.run(draws, warmup, chains, seed, out, mask, digit, image)


@run.command("fitzhugh-nagumo")
def fitzhugh_nagumo(
    draws: Draws = 500,
    warmup: Warmup = 300,
    chains: Chains = 2,
    seed: Seed = 0,
    out: Out = Path("out/fitzhugh-nagumo"),
) -> None:
    """Rates and hidden states of a neuron from its exactly observed voltage."""
    from coarea.studies import fitzhugh_nagumo

    fitzhugh_nagumo.run(draws, warmup, chains, seed, out)


@run.command("boarding-school")
def boarding_school(
    draws: Draws = 400,
    warmup: Warmup = 300,
    chains: Chains = 2,
    seed: Seed = 0,
    out: Out = Path("out/boarding-school"),
    noise: Annotated[
        float, typer.Option(min=0.0, help="Standard deviation of a count; 0: seen exactly.")
    ] = 1.0,
) -> None:
    """An influenza outbreak: a stochastic SIR model of 14 daily counts."""
    from coarea.studies import boarding_school

    boarding_school.run(draws, warmup, chains, seed, out, noise)


def main() -> None:
    """Run the command line; report an error as one line without a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # some terminals cannot show all characters
    try:
        app()
    except ResultError as error:
        seen = str(error.__cause__ or error).rstrip(".")
        _print_error(f"{seen}. {_rescued(error.draws)}")
        sys.exit(1)
    except CoareaError as error:
        _print_error(str(error))
        sys.exit(1)
    except OSError as error:
        _print_error(f"a file cannot be read or written: {error}.")
        sys.exit(1)
    except KeyboardInterrupt as interrupt:
        Console(stderr=True).print(str(interrupt) or "interrupted.", highlight=False)
        sys.exit(130)


def _print_error(message: str) -> None:
    console = Console(stderr=True)
    console.print(f"[red]Error:[/red] {escape(message)}", highlight=False, soft_wrap=True)


def _rescued(draws: Any) -> str:
    """Save the draws to a temporary folder; return a sentence that says where they are."""
    from coarea.results.netcdf import write_netcdf

    try:
        path = Path(tempfile.mkdtemp(prefix="coarea-")) / "draws.nc"
        write_netcdf(draws, path)
    except Exception as error:  # no writable folder, or draws that are not ArviZ data
        return f"The draws could not be saved elsewhere either ({error})."
    return f"The draws were saved to {path}."
