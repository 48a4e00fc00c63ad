from __future__ import annotations

import subprocess
import sys

import click
import pytest

from edge_kit.errors import SpoolError
from edge_kit.terminal.command_line import run_group
from tests.support.mosquitto import free_port

COMMANDS = ("edge_kit.cli", "cloud_kit.cli")
FULL = "error: [Errno 28] No space left on device\n"


def shell(module: str, line: str) -> subprocess.CompletedProcess[str]:
    """Run a command of ours as the first of a pipeline in bash, and return its own exit code."""
    script = f"{sys.executable} -m {module} {line}; exit ${{PIPESTATUS[0]}}"
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("raised", "code", "text"),
    [
        (SpoolError("the disk is full", "free some space"), 7, "x: error: the disk is full; free"),
        (KeyboardInterrupt(), 130, ""),
        (click.UsageError("what?"), 2, "what?"),
        (OSError(28, "No space left on device", "/there"), 1, "No space left on device: '/there'"),
        (BrokenPipeError(), 141, ""),
    ],
)
def test_error_becomes_a_sentence_and_an_exit_code(raised, code, text, capsys):
    @click.command()
    def fail() -> None:
        raise raised

    assert run_group(fail, "x", []) == code
    error = capsys.readouterr().err
    assert text in error and "Traceback" not in error


@pytest.mark.parametrize("module", COMMANDS)
@pytest.mark.parametrize("option", ["--help", "--version"])
@pytest.mark.parametrize(
    ("redirection", "code", "said"),
    [
        (">/dev/full", 1, FULL),
        (">/dev/full 2>/dev/full", 1, ""),
        (">&-", 0, ""),
        ("2>&-", 0, None),
        (">&- 2>&-", 0, ""),
        ("| true", None, ""),
    ],
)
def test_output_that_cannot_be_written(module, option, redirection, code, said):
    done = shell(module, f"{option} {redirection}")
    if code is not None:
        assert done.returncode == code
    if said is not None:
        assert done.stdout == "" and done.stderr.endswith(said)
    assert done.stderr.count("\n") <= 1


@pytest.mark.parametrize("module", COMMANDS)
@pytest.mark.parametrize("redirection", [">/dev/full", "2>/dev/full", ">&-", "2>&-", ">&- 2>&-"])
def test_usage_error_keeps_its_exit_code(module, redirection):
    done = shell(module, f"fly {redirection}")
    assert done.returncode == 2
    assert ("No such command" in done.stderr) == ("2>" not in redirection)


@pytest.mark.parametrize("redirection", [">/dev/full", "| true"])
def test_worker_whose_json_cannot_be_written_ends_with_a_sentence(tiny_bundle, redirection):
    url = f"mqtt://127.0.0.1:{free_port()}"
    line = f"worker --json --bundle {tiny_bundle.root} --broker {url} {redirection}"
    done = shell("cloud_kit.cli", line)
    assert done.returncode == 1
    assert done.stderr == (f"cloud-kit: {FULL}" if "full" in redirection else "")


def test_closed_output_gives_its_number_to_no_file(tmp_path):
    code = (
        "import click, os\n"
        "from edge_kit.terminal.command_line import run_group\n"
        "@click.command()\n"
        "def write():\n"
        f"    file = open({str(tmp_path / 'file')!r}, 'w')\n"
        "    os.write(1, b'stray')\n"
        "run_group(write, 'x', [])\n"
    )
    subprocess.run(["bash", "-c", '"$@" >&-', "x", sys.executable, "-c", code], check=True)
    assert (tmp_path / "file").read_text() == ""


def test_full_stderr_does_not_end_a_run(tiny_bundle, photo_folder):
    done = shell("edge_kit.cli", f"run {tiny_bundle.root} --source {photo_folder} 2>/dev/full")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == len(list(photo_folder.iterdir()))
