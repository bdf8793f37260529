"""The command line, as a newcomer meets it."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner

from coarea import cli


def test_list_names_the_studies():
    result = CliRunner().invoke(cli.app, ["list"])
    assert result.exit_code == 0
    assert "lotka-volterra" in result.output


def test_the_main_job_writes_a_table_a_figure_and_the_draws(tmp_path):
    out = tmp_path / "new" / "folder"
    options = ["--draws", "40", "--warmup", "60", "--chains", "2", "--out", str(out)]
    result = CliRunner().invoke(cli.app, ["run", "lotka-volterra", *options])
    assert result.exit_code == 0, result.output
    assert "R-hat" in result.output
    assert "Largest constraint error" in result.output
    assert (out / "posterior.png").stat().st_size > 10_000
    draws = xr.open_datatree(out / "draws.nc", engine="h5netcdf")
    assert draws.posterior["z"].shape == (2, 40, 4)
    assert np.all(draws.sample_stats["constraint_error"] <= 1e-8)


def test_a_folder_that_cannot_be_written_is_refused_before_sampling(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setattr(
        "sys.argv", ["coarea", "run", "lotka-volterra", "--out", str(tmp_path / "file" / "out")]
    )
    monkeypatch.setattr("coarea.sample", lambda *_, **__: pytest.fail("sampling began"))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    assert "cannot be written" in capsys.readouterr().err


def test_draws_are_saved_elsewhere_if_the_folder_is_full(tmp_path, monkeypatch, capsys):
    write = Path.write_bytes

    def is_full(path, content):
        if path.parent == tmp_path / "full":
            write(path, content[:100])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", is_full)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    options = ["--draws", "20", "--warmup", "20", "--chains", "1", "--out", str(tmp_path / "full")]
    monkeypatch.setattr("sys.argv", ["coarea", "run", "lotka-volterra", *options])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    assert "No space left on device" in (said := capsys.readouterr().err)
    assert f"{tmp_path / 'full' / 'draws.nc'}'. The draws were saved to" in said
    assert not list((tmp_path / "full").iterdir())
    (saved,) = tmp_path.glob("coarea-*/draws.nc")
    assert xr.open_datatree(saved, engine="h5netcdf").posterior["z"].shape == (1, 20, 4)


def test_terminals_that_know_only_ascii_show_what_they_can():
    command = [sys.executable, "-c", "from coarea.cli import main; main()", "list"]
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=ascii_only, capture_output=True, text=True, check=True)
    assert "lotka-volterra" in done.stdout
