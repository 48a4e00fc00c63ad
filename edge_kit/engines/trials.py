"""Successful trials, kept on disk so that the next start needs none."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
import platform
import tempfile
from pathlib import Path

from edge_kit.bundle.split import EngineFile
from edge_kit.engines.probe import ProbeResult
from edge_kit.folders import cache_folder
from edge_kit.host.board import read_text

__all__ = ["TrialCache"]

_LOG = logging.getLogger(__name__)
_PACKAGES = ("onnxruntime", "tflite-runtime", "ai-edge-litert", "numpy")
# Lines of /proc/cpuinfo that change when a memory card moves to another board.
_CPU_LINES = ("model name", "flags", "features", "cpu part", "hardware", "revision", "model")


class TrialCache:
    """Remember results by model file, machine, package versions and threads.

    Only successes are kept: a failure may be gone at the next start. A cache that cannot be read or
    written is ignored.

    Args:
        folder: Where the results lie; by default in the user's cache directory.
        cpuinfo: Where Linux describes the CPU.
    """

    def __init__(self, folder: Path | None = None, cpuinfo: Path = Path("/proc/cpuinfo")) -> None:
        caches = cache_folder()
        self._folder = folder or (caches and caches / "trials")
        self._machine = _machine(cpuinfo)

    def get(self, file: EngineFile, threads: int) -> ProbeResult | None:
        """Return the earlier result, or None."""
        if self._folder is None:
            return None
        try:
            data = json.loads(self._path(self._folder, file, threads).read_text(encoding="utf-8"))
            return ProbeResult(True, float(data["seconds_best"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put(self, file: EngineFile, threads: int, result: ProbeResult) -> None:
        """Keep a success."""
        if self._folder is None or not result.ok:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", dir=self._folder, suffix=".part", delete=False, encoding="utf-8"
            ) as part:
                json.dump({"seconds_best": result.seconds_best, "file": file.path}, part)
            Path(part.name).replace(self._path(self._folder, file, threads))
        except OSError as error:
            _LOG.debug("the trial of %s is not kept: %s", file.path, error)

    def _path(self, folder: Path, file: EngineFile, threads: int) -> Path:
        # Splits that share a file ask it for different outputs.
        used = [file.sha256, file.engine, repr(file.outputs), str(threads)]
        key = "\n".join([*used, self._machine, *_versions()])
        return folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def _versions() -> list[str]:
    found = []
    for package in _PACKAGES:
        try:
            found.append(f"{package}=={importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _machine(cpuinfo: Path) -> str:
    lines = read_text(cpuinfo).splitlines()
    facts = {ln for ln in lines if ln.partition(":")[0].strip().lower() in _CPU_LINES}
    return "\n".join(
        [platform.machine(), platform.node(), platform.python_version(), *sorted(facts)]
    )
