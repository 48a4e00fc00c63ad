"""What goes wrong around the command, as a process: a sentence, a code, and nothing is lost."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edge_kit.bundle import pack
from edge_kit.delivery.spool import Spool
from edge_kit.wire import Refusal
from tests.support.device import DOUBTFUL, PHOTOS, WAIT_S, Worker, finish
from tests.support.mosquitto import free_port

pytestmark = pytest.mark.broker

ASSETS = Path(__file__).parents[3] / "edge_kit" / "demo" / "assets"


def test_wrong_password_ends_with_a_sentence_and_nothing_is_lost(edge, make_mosquitto, tmp_path):
    broker = make_mosquitto(users={"cam": "right"})
    url = f"mqtt://cam@127.0.0.1:{broker.port}"
    child = edge("--json", "--broker", url, more_env={"EDGE_KIT_PASSWORD": "wrong-secret"})
    out, err = child.communicate(timeout=WAIT_S)
    assert child.returncode == 6
    assert "edge-kit: error: the broker" in err and "wrong user or password" in err
    assert "Traceback" not in err and "wrong-secret" not in err
    reported = [json.loads(t) for t in out.splitlines() if '"provisional"' in t]
    spool = Spool(tmp_path / "spool.db")
    assert {r["sample"] for r in reported} <= {s.hex() for s in spool.pending()}
    spool.close()


def test_worker_that_refuses_keeps_the_devices_answers(edge, mosquitto, tmp_path):
    worker = Worker(mosquitto, refusal=Refusal.UNKNOWN_MODEL)
    code, lines, _err = finish(edge("--json", "--broker", mosquitto.url))
    worker.stop()
    run = lines[-1]["summary"]["run"]
    assert code == 0 and len(set(worker.seen)) == DOUBTFUL
    assert (run["refused"], run["standing"], run["pending"], run["lost"]) == (6, 6, 0, 0)
    reasons = {line["reason"] for line in lines if line.get("status") == "standing"}
    assert reasons == {"the worker refused it: unknown model"}
    assert lines[-1]["summary"]["total"]["standing"] == DOUBTFUL


def damaged(bundle: Path, out: Path, how: str) -> Path:
    """Return a copy of a bundle, damaged."""
    if how == "packed and truncated":
        pack(bundle, out)
        out.write_bytes(out.read_bytes()[:-100])
        return out
    shutil.copytree(bundle, out)
    file = out / "end/any.onnx"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data[:-9] if how == "truncated" else data)
    return out


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("truncated", "end/any.onnx in .* is truncated or was changed"),
        ("tampered with", "end/any.onnx in .* is truncated or was changed"),
        ("packed and truncated", "is not a valid bundle file"),
    ],
)
def test_damaged_bundle_is_refused_and_the_spool_stays_as_it_was(
    edge, tiny_bundle, tmp_path, how, sentence
):
    nobody = ("--broker", f"mqtt://127.0.0.1:{free_port()}", "--linger", "0", "--json")
    finish(edge(*nobody))
    bundle = damaged(tiny_bundle.root, tmp_path / "damaged", how)
    code, lines, err = finish(edge(*nobody, bundle=bundle))
    assert (code, lines) == (3, []) and "Traceback" not in err
    assert re.search(f"edge-kit: error: .*{sentence}", err)
    spool = Spool(tmp_path / "spool.db")
    assert len(spool) == spool.counters()["offloaded"] == DOUBTFUL
    spool.close()


def test_unreadable_photo_is_skipped_in_a_folder_and_an_error_by_itself(
    edge, photo_folder, tmp_path
):
    some = tmp_path / "some"
    shutil.copytree(photo_folder, some)
    (some / "03.png").write_bytes((some / "03.png").read_bytes()[:40])
    nobody = ("--broker", f"mqtt://127.0.0.1:{free_port()}", "--linger", "0", "--json")
    code, lines, err = finish(edge(*nobody, source=some))
    run = lines[-1]["summary"]["run"]
    assert code == 0 and "skipped: " in err and "03.png cannot be read as a photo" in err
    assert (run["frames"], run["skipped"], run["lost"]) == (PHOTOS - 1, 1, 0)
    code, lines, err = finish(edge(*nobody, source=some / "03.png"))
    assert code == 5 and "03.png cannot be read as a photo" in err and "Traceback" not in err
    spool = Spool(tmp_path / "spool.db")
    assert len(spool) == DOUBTFUL
    spool.close()


def test_reader_that_leaves_ends_the_run_quietly(edge):
    child = edge("--json", "--fps", "20")
    child.stdout.readline()
    child.stdout.close()
    child.stdout = None
    _out, err = child.communicate(timeout=WAIT_S)
    assert child.returncode in (0, 141) and "Traceback" not in err


def test_output_on_a_full_disk_gets_a_sentence_and_loses_no_sample(edge, mosquitto, tmp_path):
    with Path("/dev/full").open("w") as full:
        child = edge("--json", "--broker", mosquitto.url, "--linger", "0", stdout=full)
        _out, err = child.communicate(timeout=WAIT_S)
    assert child.returncode == 1 and "Traceback" not in err
    assert "error: results can no longer be written: No space left on device" in err
    spool = Spool(tmp_path / "spool.db")
    assert len(spool) == spool.counters()["offloaded"] >= 1
    spool.close()


def test_closed_output_is_refused_before_a_file_takes_its_descriptor(edge, tmp_path):
    child = edge("--broker", "mqtt://127.0.0.1:1", stdout=None, preexec_fn=lambda: os.close(1))
    _out, err = child.communicate(timeout=WAIT_S)
    assert child.returncode == 2 and "standard output is closed" in err
    assert not (tmp_path / "spool.db").exists()


@pytest.mark.parametrize("form", ["--json", ""])
def test_names_that_are_not_unicode_reach_any_output_and_the_spool(edge, mosquitto, tmp_path, form):
    odd = tmp_path / "odd"
    odd.mkdir()
    for name in (b"\xff.png", "\u00fc\n.png".encode()):
        path = Path(os.fsdecode(os.fsencode(odd) + b"/" + name))
        Image.fromarray(np.full((16, 16, 3), 120, np.uint8)).save(path)
    child = edge(
        *filter(None, ["--broker", mosquitto.url, "--linger", "0", form]),
        source=odd, more_env={"PYTHONIOENCODING": "ascii:strict"},
    )  # fmt: skip
    out, err = child.communicate(timeout=WAIT_S)
    assert child.returncode == 0 and "Traceback" not in err
    if form:
        names = {json.loads(line).get("source") for line in out.splitlines()} - {None}
        assert names == {"\udcff.png", "\u00fc\n.png"}
    else:
        assert sorted(line.split(":")[0] for line in out.splitlines()) == [
            "\\udcff.png", "\\xfc\\n.png"
        ]  # fmt: skip
    spool = Spool(tmp_path / "spool.db")
    assert len(spool) == 2
    spool.close()


@pytest.mark.parametrize(
    ("args", "code", "sentence"),
    [
        (("--camera", "0"), 2, "either --camera or --source"),
        (("--threshold", "7"), 2, "threshold = 7 lies outside"),
        (("--threshold", "0.1", "--target-offload", "0.3"), 2, "not both"),
        (("--broker", "mqtt://u:secret@h"), 2, "holds a password"),
        (("--engine", "warp"), 2, "warp"),
        (("--bundle", "elsewhere"), 2, "given twice"),
    ],
)
def test_mistake_gets_a_sentence_an_exit_code_and_no_traceback(edge, args, code, sentence):
    child = edge(*args)
    _out, err = child.communicate(timeout=WAIT_S)
    assert (child.returncode, "Traceback" in err) == (code, False)
    assert sentence in err and "secret" not in err


def test_run_whose_every_message_is_too_large_ends_with_6(edge, make_mosquitto):
    # The shipped bundle's messages of 600 bytes: the tiny one's are smaller than a CONNECT packet.
    broker = make_mosquitto(extra="max_packet_size 500")
    photos = ASSETS / "photos" / "skirt"
    args = ("--json", "--broker", broker.url, "--threshold", "-1", "--limit", "3")
    code, lines, err = finish(edge(*args, bundle=ASSETS / "clothing.ekb", source=photos))
    run = lines[-1]["summary"]["run"]
    standing = [line for line in lines[:-1] if line["status"] == "standing"]
    # Nothing at all was offloaded, which the exit code tells; each frame is answered none the less.
    assert code == 6 and "Traceback" not in err
    assert err.count("refuses messages on edgekit/1/cam/features (Packet too large)") == 2
    assert all("Packet too large" in line["reason"] for line in standing)
    assert len(standing) == run["refused"] == 3 and (run["lost"], run["pending"]) == (0, 0)
