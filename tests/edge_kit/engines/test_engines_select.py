from __future__ import annotations

import importlib.util
import json
import os
import sys
from dataclasses import replace

import numpy as np
import pytest

from edge_kit.bundle.manifest import StoredFile
from edge_kit.bundle.selftest import SELFTEST
from edge_kit.engines.probe import ProbeResult, probe
from edge_kit.engines.select import open_end_model, open_tail
from edge_kit.engines.trials import TrialCache
from edge_kit.errors import BundleError, EngineError, MissingExtraError
from tests.support import tiny, tiny_tflite
from tests.support.tiny import make_bundle, with_split, write_manifest


@pytest.fixture
def bundle(tmp_path):
    return tiny_tflite.make_bundle_with_both(tmp_path / "bundle")


@pytest.fixture
def cache(tmp_path):
    return TrialCache(tmp_path / "trials")


def child(code: str):
    """A stand-in for the probing process."""
    return lambda: [sys.executable, "-c", code]


def suicide(number: str):
    return child(f"import os, signal; os.kill(os.getpid(), signal.{number})")


def test_probe_really_runs_the_file(bundle):
    for file in bundle.end_files():
        result = probe(bundle, file, 1)
        assert result.ok, result.error
        assert result.seconds_best > 0


def with_selftest(bundle, labels):
    """Add reference photos: pure red, green, blue and red again."""
    pixels = np.zeros((4, tiny.SIZE, tiny.SIZE, 3), np.uint8)
    for i, channel in enumerate((0, 1, 2, 0)):
        pixels[i, :, :, channel] = 255
    path = bundle.root / SELFTEST
    path.parent.mkdir()
    np.savez_compressed(
        path,
        pixels=pixels,
        **{f"{f.path}:labels": np.array(labels, np.int64) for f in bundle.end_files()},
    )
    manifest = replace(bundle.manifest, files={SELFTEST: StoredFile.of(path)})
    return write_manifest(bundle.root, manifest)


def test_probe_compares_answers_with_those_of_the_export(bundle):
    bundle = with_selftest(bundle, [0, 1, 2, 1])
    for file in bundle.end_files():
        result = probe(bundle, file, 1)
        assert (result.ok, result.agree, result.total) == (True, 3, 4)


def test_engine_with_other_answers_than_the_export_is_not_used(bundle, cache):
    bundle = with_selftest(bundle, [1, 2, 0, 0])
    result = probe(bundle, bundle.end_files()[0], 1)
    assert not result.ok
    assert "3 of 4 reference photos differently" in result.error
    with pytest.raises(EngineError, match="reference photos"):
        open_end_model(bundle, cache=cache)


def test_unreadable_reference_photos_are_one_sentence(bundle):
    path = bundle.root / SELFTEST
    path.parent.mkdir()
    path.write_bytes(b"no npz")
    manifest = replace(bundle.manifest, files={SELFTEST: StoredFile.of(path)})
    result = probe(write_manifest(bundle.root, manifest), bundle.end_files()[0], 1)
    assert not result.ok
    assert "cannot be read" in result.error


def test_probe_of_damaged_file_names_it(bundle):
    file = bundle.end_files()[0]
    bundle.path(file).write_bytes(b"gone")
    result = probe(bundle, file, 1)
    assert not result.ok
    assert "SHA-256" in result.error


def test_probe_whose_child_dies_says_so(bundle):
    result = probe(bundle, bundle.end_files()[0], 1, command=suicide("SIGILL"))
    assert not result.ok
    assert result.error == (
        "the process with onnxruntime dies with an illegal instruction on this CPU"
    )


def test_probe_result_is_what_the_child_answers(bundle):
    answer = {"answer": {"ok": True, "seconds_best": 0.25, "error": ""}}
    code = f"print({json.dumps(json.dumps(answer))})"
    result = probe(bundle, bundle.end_files()[0], 1, command=child(code))
    assert result == ProbeResult(True, 0.25)


@pytest.mark.parametrize("fast", ["onnx", "tflite"])
@pytest.mark.parametrize("onnx_first", [True, False])
def test_auto_takes_the_faster_engine(tmp_path, cache, fast, onnx_first):
    bundle = tiny_tflite.make_bundle_with_both(tmp_path / "b", onnx_first=onnx_first)
    model = open_end_model(
        bundle,
        threads=1,
        trial=lambda _b, f, _t: ProbeResult(True, 0.001 if f.engine == fast else 0.002),
        cache=cache,
    )
    assert model.engine.name == fast


def test_engine_that_dies_gives_way_to_the_next(bundle, cache):
    def trial(b, file, threads):
        if file.engine == "onnx":
            return probe(b, file, threads, command=suicide("SIGILL"))
        return probe(b, file, threads)

    assert open_end_model(bundle, threads=1, trial=trial, cache=cache).engine.name == "tflite"


def test_all_engines_failing_names_every_reason(bundle, cache):
    with pytest.raises(EngineError) as info:
        open_end_model(
            bundle,
            trial=lambda _b, f, _t: ProbeResult(False, error=f"{f.engine} is tired"),
            cache=cache,
        )
    assert "onnx is tired" in str(info.value)
    assert "tflite is tired" in str(info.value)


@pytest.mark.parametrize("engine", ["onnx", "tflite"])
def test_named_engine_is_used(bundle, cache, engine):
    model = open_end_model(bundle, engine, threads=1, cache=cache)
    assert model.engine.name == engine
    assert model.file.engine == engine


def test_engine_missing_from_the_bundle_is_refused(tmp_path, cache):
    bundle = make_bundle(tmp_path / "onnx-only")
    with pytest.raises(EngineError, match="it has: onnx"):
        open_end_model(bundle, "tflite", cache=cache)


def test_architecture_without_end_model_is_refused(bundle, cache, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    # 'any' fits everywhere, so only a bundle without such a file refuses
    assert len(bundle.end_files()) == 2
    with pytest.raises(BundleError, match="riscv64"):
        open_end_model(with_split(bundle, end=()), cache=cache)


def without(monkeypatch, *packages: str) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name in packages else real(name, *rest),
    )


def test_named_engine_not_installed_is_refused(bundle, cache, monkeypatch):
    without(monkeypatch, "onnxruntime")
    with pytest.raises(MissingExtraError, match=r"pip install 'edge-kit\[onnx\]'"):
        open_end_model(bundle, "onnx", cache=cache)


def test_auto_with_one_package_missing_uses_the_other(bundle, cache, monkeypatch):
    without(monkeypatch, "onnxruntime")
    assert open_end_model(bundle, threads=1, cache=cache).engine.name == "tflite"


def test_auto_with_both_packages_missing_names_both_extras(bundle, cache, monkeypatch):
    without(monkeypatch, "onnxruntime", "tflite_runtime", "ai_edge_litert")
    with pytest.raises(EngineError) as info:
        open_end_model(bundle, cache=cache)
    assert "edge-kit[onnx]" in str(info.value)
    assert "edge-kit[tflite]" in str(info.value)


def test_trial_is_made_once(bundle, cache, tmp_path):
    made = []

    def trial(_b, file, threads):
        made.append((file.engine, threads))
        return ProbeResult(True, 0.001)

    for _ in range(2):
        open_end_model(bundle, threads=1, trial=trial, cache=TrialCache(tmp_path / "trials"))
    assert sorted(made) == [("onnx", 1), ("tflite", 1)]
    open_end_model(bundle, threads=2, trial=trial, cache=cache)
    assert len(made) == 4


def test_failed_trial_is_repeated(bundle, cache):
    file = bundle.end_files()[0]
    cache.put(file, 1, ProbeResult(False, error="busy"))
    assert cache.get(file, 1) is None
    cache.put(file, 1, ProbeResult(True, 0.5))
    assert cache.get(file, 1) == ProbeResult(True, 0.5)


def test_trial_is_kept_per_machine_and_file(bundle, tmp_path):
    first, second = bundle.end_files()
    (tmp_path / "pi4").write_text("CPU part\t: 0xd08\n")
    (tmp_path / "pi5").write_text("CPU part\t: 0xd0b\n")
    pi4 = TrialCache(tmp_path / "t", tmp_path / "pi4")
    pi4.put(first, 1, ProbeResult(True, 0.5))
    assert pi4.get(second, 1) is None
    assert TrialCache(tmp_path / "t", tmp_path / "pi5").get(first, 1) is None
    assert TrialCache(tmp_path / "t", tmp_path / "pi4").get(first, 1) is not None


def test_unwritable_trial_cache_is_ignored(bundle, tmp_path):
    (tmp_path / "file").write_text("in the way")
    cache = TrialCache(tmp_path / "file" / "trials")
    cache.put(bundle.end_files()[0], 1, ProbeResult(True, 0.5))
    assert cache.get(bundle.end_files()[0], 1) is None


def test_damaged_trial_cache_entry_is_ignored(bundle, tmp_path, cache):
    file = bundle.end_files()[0]
    cache.put(file, 1, ProbeResult(True, 0.5))
    for entry in (tmp_path / "trials").iterdir():
        entry.write_text("{")
    assert cache.get(file, 1) is None


def test_threads_come_from_the_affinity_mask(bundle, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3})
    assert open_tail(bundle).threads == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(16)))
    assert open_tail(bundle).threads == 4
