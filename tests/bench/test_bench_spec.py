"""Specifications: FAI-PEP's and ours, hashes that are required, and errors that say where."""

from __future__ import annotations

import hashlib
import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from gpuedge.bench.spec import SpecPlaces, locate, read_spec
from gpuedge.core.errors import InputError

HERE = SpecPlaces()
DATA = b"a model"
SHA = hashlib.sha256(DATA).hexdigest()
MD5 = hashlib.md5(DATA, usedforsecurity=False).hexdigest()


def fai_pep(**file: Any) -> dict[str, Any]:
    """A specification with the keys of FAI-PEP's specifications/models/."""
    model = {"filename": "net.onnx", "location": "sub/net.onnx", **file}
    return {
        "model": {
            "category": "CNN", "description": "a net", "files": {"predict": model},
            "format": "onnx", "kind": "deployment", "name": "net",
        },
        "tests": [
            {
                "identifier": "{ID}", "metric": "error", "iter": 1, "warmup": 0,
                "input_files": {"data": [{"filename": "data.npy", "location": "t0/data.npy"}]},
                "output_files": {
                    "y": {"filename": "y.npy", "location": "t0/y.npy"},
                    "made": {"filename": "made.txt", "location": "{TGTDIR}/made.txt"},
                },
            },
            {
                "identifier": "dims-{ID}", "metric": "delay", "iter": 20, "warmup": 2,
                "arguments": '--net {files.predict} --input "data,info" '
                '--input_dims "1,3,24,24;1,3" --input_type float',
            },
            {
                "identifier": "tf", "metric": "delay",
                "commands": ['{program} --input_layer=x --input_layer_shape="1,96,96,3"'],
            },
            {
                "identifier": "many", "metric": "delay",
                "inputs": {"data": {"shapes": [[1, 3, 8, 8], [4, 3, 8, 8]], "type": "float"}},
            },
            {"identifier": "top1", "metric": "accuracy", "postprocess": {"commands": ["rm x"]}},
        ],
    }  # fmt: skip


def written(folder: Path, body: Any, name: str = "spec.json") -> Path:
    path = folder / name
    path.write_text(body if isinstance(body, str) else json.dumps(body))
    return path


def test_fai_pep_is_read_as_it_is(tmp_path: Path) -> None:
    spec = read_spec(written(tmp_path, fai_pep(md5=MD5)))
    assert spec.name == "net" and spec.model is not None and spec.model.md5 == MD5
    by_name = {test.name: test for test in spec.tests}
    assert list(by_name) == ["0", "dims-1", "tf", "many-1x3x8x8", "many-4x3x8x8", "top1"]
    assert by_name["0"].iterations == 1 and by_name["0"].warm_up == 0
    assert by_name["0"].inputs["data"].at == "$.tests[0].input_files.data[0]"
    assert set(by_name["0"].outputs) == {"y"}  # what the benchmark would write is no golden output
    assert by_name["dims-1"].shapes == {"data": (1, 3, 24, 24), "info": (1, 3)}
    assert (by_name["dims-1"].iterations, by_name["dims-1"].warm_up) == (20, 2)
    assert by_name["tf"].shapes == {"x": (1, 96, 96, 3)}
    assert by_name["many-4x3x8x8"].shapes == {"data": (4, 3, 8, 8)}
    assert "commands" in by_name["top1"].skipped and not by_name["tf"].skipped


def test_another_format_is_read_and_said_not_to_run(tmp_path: Path) -> None:
    body = fai_pep()
    body["model"]["format"] = "caffe2"
    spec = read_spec(written(tmp_path, body))
    assert spec.model is None and all("'caffe2'" in test.skipped for test in spec.tests)


def test_the_string_map_replaces_anywhere(tmp_path: Path) -> None:
    body = fai_pep(location="{DIR}/net.onnx", sha256=SHA)
    body["tests"][1]["identifier"] = "{NAME}"
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "net.onnx").write_bytes(DATA)
    path = written(tmp_path, body)
    spec = read_spec(path, {"DIR": "m", "NAME": "seen"})
    assert spec.tests[1].name == "seen" and spec.model is not None
    assert locate(spec.model, path, HERE) == tmp_path / "m" / "net.onnx"


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda b: b.pop("tests"), "$: 'tests' is a required property"),
        (lambda b: b["tests"][1].update(iter=0), "$.tests[1].iter"),
        (lambda b: b["tests"][1].update(iter="50"), "$.tests[1].iter"),
        (lambda b: b["tests"][0].pop("metric"), "$.tests[0]: 'metric'"),
        (lambda b: b["model"]["files"]["predict"].update(sha256="ABC"), "$.model.files.predict"),
        (lambda b: b.update(tests=[]), "$.tests"),
        (lambda b: b["tests"][3]["inputs"]["data"].update(shapes=[[1.5]]), "$.tests[3].inputs"),
        (lambda b: b["tests"][3]["inputs"]["data"].update(shapes=[[10**30]]), "$.tests[3].inputs"),
        (lambda b: b["tests"][3].update(inputs={}), "$.tests[3].inputs: {}"),
        (lambda b: b.update(model=7), "$.model"),
    ],
)  # fmt: skip
def test_errors_say_where(tmp_path: Path, change: Any, place: str) -> None:
    body = fai_pep()
    change(body)
    with pytest.raises(InputError) as caught:
        read_spec(written(tmp_path, body))
    assert place in str(caught.value.known) and "spec.json" in caught.value.what


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "[" * 100_000])
def test_what_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match=r"spec\.json"):
        read_spec(written(tmp_path, text))


def test_inputs_with_different_numbers_of_shapes_are_refused(tmp_path: Path) -> None:
    body = fai_pep()
    body["tests"][3]["inputs"]["b"] = {"shapes": [[1], [2], [3]]}
    with pytest.raises(InputError, match="different numbers") as caught:
        read_spec(written(tmp_path, body))
    assert "$.tests[3].inputs: data has 2, b has 3" in str(caught.value.known)


def found(folder: Path, **file: Any) -> Path:
    """Locate the model of a specification whose model lies where its location says."""
    (folder / "sub").mkdir(exist_ok=True)
    (folder / "sub" / "net.onnx").write_bytes(DATA)
    path = written(folder, fai_pep(**file))
    before = path.read_bytes()
    spec = read_spec(path)
    assert spec.model is not None
    try:
        return locate(spec.model, path, HERE)
    finally:
        assert path.read_bytes() == before  # never overwritten


def test_a_file_with_the_right_hash_is_used(tmp_path: Path) -> None:
    assert found(tmp_path, sha256=SHA) == tmp_path / "sub" / "net.onnx"


def test_another_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not the file that the specification means") as caught:
        found(tmp_path, sha256="0" * 64)
    assert SHA in str(caught.value.known) and "$.model.files.predict" in str(caught.value.asked_by)


def test_md5_alone_is_refused_with_the_line_to_add(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no SHA-256") as caught:
        found(tmp_path, md5=MD5)
    assert f'"sha256": "{SHA}"' in str(caught.value.hint)
    with pytest.raises(InputError, match="no SHA-256") as caught:
        found(tmp_path, md5="0" * 32)
    assert "sha256" not in str(caught.value.hint), "no line for a file that is another one"


def test_root_is_what_double_slashes_mean(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "net.onnx").write_bytes(DATA)
    path = written(tmp_path, fai_pep(location="//models/net.onnx", sha256=SHA))
    model = read_spec(path).model
    assert model is not None
    with pytest.raises(InputError) as caught:
        locate(model, path, HERE)
    assert caught.value.hint == "--root FOLDER"
    assert locate(model, path, SpecPlaces(root=tmp_path)) == tmp_path / "models" / "net.onnx"


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(DATA if self.path == "/right" else b"something else")

    def log_message(self, *_: Any) -> None:
        pass


def test_what_is_fetched_has_its_hash_or_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUEDGE_CACHE_DIR", str(tmp_path / "cache"))
    server = HTTPServer(("127.0.0.1", 0), Answer)
    Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        for name in ("wrong", "right"):
            path = written(tmp_path, fai_pep(location=f"{url}/{name}", sha256=SHA))
            model = read_spec(path).model
            assert model is not None
            with pytest.raises(InputError) as caught:
                locate(model, path, HERE)
            assert "--fetch" in str(caught.value.hint)
            if name == "wrong":
                with pytest.raises(InputError, match="not the file"):
                    locate(model, path, SpecPlaces(is_fetching=True))
                assert not (tmp_path / "cache").exists()
        assert locate(model, path, SpecPlaces(is_fetching=True)).read_bytes() == DATA
    finally:
        server.shutdown()
        server.server_close()
    assert locate(model, path, HERE).read_bytes() == DATA  # from the cache, offline


def test_our_own_form_is_short(tmp_path: Path) -> None:
    spec = read_spec(written(tmp_path, {"model": "net.onnx", "sha256": SHA}))
    assert [t.name for t in spec.tests] == ["0"] and spec.tests[0].iterations == 50
    body = {
        "model": "net.onnx",
        "tests": [
            {"name": "a", "shapes": {"x": [1, 2]}, "iter": 7},
            {"outputs": {"y": {"file": "y.npy", "sha256": SHA}}},
        ],
    }
    path = written(tmp_path, body)
    spec = read_spec(path)
    assert [t.name for t in spec.tests] == ["a", "1"]
    assert spec.tests[0].shapes == {"x": (1, 2)} and spec.tests[0].iterations == 7
    assert spec.model is not None
    with pytest.raises(InputError, match="no SHA-256"):
        locate(spec.model, path, HERE)
    for wrong, place in (({"iters": 5}, "'iters'"), ({"outputs": {"y": {"file": "f"}}}, "sha256")):
        with pytest.raises(InputError) as caught:
            read_spec(written(tmp_path, {"model": "net.onnx", "tests": [wrong]}))
        assert "$.tests[0]" in str(caught.value.known) and place in str(caught.value.known)
