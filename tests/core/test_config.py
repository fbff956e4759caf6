"""Settings: precedence, parsing, and errors that say where a value came from."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

import gpuedge
from gpuedge.core import config
from gpuedge.core.errors import ConfigError


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in config.SETTINGS.values():
        monkeypatch.delenv(setting.variable, raising=False)
    monkeypatch.delenv("GPUEDGE_CONFIG", raising=False)


def write(path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text(text)
    monkeypatch.setenv("GPUEDGE_CONFIG", str(path))


def test_call_context_environment_file_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def now(call: str | None = None) -> tuple[str, str]:
        found = config.get("device", call=call)
        return found.value, found.source

    assert now() == ("auto", "default")
    write(tmp_path / "c.toml", 'device = "file"', monkeypatch)
    assert now() == ("file", "config file")
    monkeypatch.setenv("GPUEDGE_DEVICE", "environment")
    assert now() == ("environment", "GPUEDGE_DEVICE")
    with gpuedge.config(device="context"):
        assert now() == ("context", "gpuedge.config()")
        with gpuedge.config(device="inner", fallback="error"):
            assert now() == ("inner", "gpuedge.config()")
            assert config.get("fallback").value == "error"
        assert now() == ("context", "gpuedge.config()")
        assert now("call") == ("call", "argument")
    assert now() == ("environment", "GPUEDGE_DEVICE")


def test_context_is_left_after_an_error_and_does_not_reach_other_threads() -> None:
    seen = []
    with pytest.raises(KeyError), gpuedge.config(device="x"):
        thread = threading.Thread(target=lambda: seen.append(config.get("device").value))
        thread.start()
        thread.join()
        raise KeyError
    assert seen == ["auto"] and config.get("device").value == "auto"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("backends", "vulkan, gles wgpu", ("vulkan", "gles", "wgpu")),
        ("ignore", "", ()),
        ("debug", "3", 3),
        ("fallback", "error", "error"),
        ("device", " cpu ", "cpu"),
        ("pin", "vulkan=never, gles31:0=always", ("vulkan=never", "gles31:0=always")),
    ],
)
def test_values_are_parsed(
    name: str, text: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(config.SETTINGS[name].variable, text)
    assert config.get(name).value == value


@pytest.mark.parametrize(
    ("name", "text"),
    [("debug", "6"), ("debug", "-1"), ("debug", "1.0"), ("fallback", "CPU"), ("isolation", "no")],
)
def test_bad_values_name_variable_value_and_remedy(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = config.SETTINGS[name].variable
    monkeypatch.setenv(variable, text)
    with pytest.raises(ConfigError) as caught:
        config.check_environment()
    said = str(caught.value)
    assert variable in said and repr(text) in said and "unset it" in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("device =", "cannot be read"),
        ("devise = 'cpu'", "did you mean 'device'?"),
        ("debug = true", "debug in"),
        ("debug = 1.5", "debug in"),
        ("debug = 9", "debug in"),
        ("cache_dir = 3", "cache_dir in"),
        ("device = [1]", "device in"),
        ("[device]\na = 1", "device in"),
        ("\ufeff\x00", "cannot be read"),
    ],
)
def test_bad_config_files(
    text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "c.toml", text, monkeypatch)
    with pytest.raises(ConfigError, match=words) as caught:
        for name in config.SETTINGS:
            config.get(name)
    assert "c.toml" in str(caught.value)


def test_missing_config_file_and_edited_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUEDGE_CONFIG", str(tmp_path / "none.toml"))
    with pytest.raises(ConfigError, match=r"none\.toml cannot be read: No such file") as caught:
        config.get("device")
    assert "Errno" not in str(caught.value) and "GPUEDGE_CONFIG" in str(caught.value.hint)
    write(tmp_path / "c.toml", "debug = 2\nbackends = ['vulkan']", monkeypatch)
    assert config.get("debug").value == 2
    assert config.get("backends").value == ("vulkan",)
    write(tmp_path / "c.toml", "debug = 4 # longer", monkeypatch)
    assert config.get("debug").value == 4


def test_unknown_variables_are_listed_and_unknown_names_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GPUEDGE_DEVISE", "cpu")
    monkeypatch.setenv("GPUEDGE_QQ", "1")
    monkeypatch.setenv("GPUEDGE_device", "cpu")
    unknown = config.unknown_variables()
    assert unknown["GPUEDGE_DEVISE"] == "did you mean 'GPUEDGE_DEVICE'?"
    assert unknown["GPUEDGE_QQ"].startswith("known: GPUEDGE_DEVICE, ")
    assert unknown["GPUEDGE_QQ"].endswith(", GPUEDGE_CONFIG, GPUEDGE_EGL")
    assert unknown["GPUEDGE_device"] == "did you mean 'GPUEDGE_DEVICE'?"
    with pytest.raises(ConfigError, match="did you mean 'device'"):
        gpuedge.config(devise="cpu")
    with pytest.raises(ConfigError) as caught:
        gpuedge.config(**{"a" * 5000: "cpu"})
    assert len(caught.value.what) < 200
    with pytest.raises(ConfigError, match="fallback"):
        gpuedge.config(fallback="never")


def test_unknown_variables_are_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(config, "_told", set())
    config.check_environment()
    assert caplog.messages == []
    monkeypatch.setenv("GPUEDGE_DEVISE", "cpu")
    for _ in range(3):
        config.check_environment()
    (said,) = caplog.messages
    assert said == (
        "GPUEDGE_DEVISE is set, but gpuedge does not know it; did you mean 'GPUEDGE_DEVICE'?"
    )


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are POSIX")
def test_config_file_that_is_a_pipe_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", tmp_path):
        monkeypatch.setenv("GPUEDGE_CONFIG", str(place))
        with pytest.raises(ConfigError, match="it is not a file"):
            config.get("device")


@pytest.mark.parametrize("text", ["vulkan", "()", "vulkan=maybe", "vulkan=never vulkan=always"])
def test_bad_pin_is_answered_with_one_that_works(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUEDGE_PIN", text)
    with pytest.raises(ConfigError) as caught:
        config.get("pin")
    assert caught.value.hint == 'GPUEDGE_PIN="vulkan=never gles31=always"'
    assert "separated by spaces or commas" in (caught.value.known or "")
    monkeypatch.setenv("GPUEDGE_PIN", caught.value.hint.split('"')[1].replace(" ", ", "))
    assert config.get("pin").value == ("vulkan=never", "gles31=always")
    with pytest.raises(ConfigError) as caught:
        config.config(pin=text)
    assert caught.value.hint == 'gpuedge.config(pin="vulkan=never gles31=always")'
    monkeypatch.delenv("GPUEDGE_PIN")
    file = tmp_path / "gpuedge.toml"
    file.write_text(f'pin = "{text}"\n')
    monkeypatch.setenv("GPUEDGE_CONFIG", str(file))
    with pytest.raises(ConfigError) as caught:
        config.get("pin")
    assert caught.value.hint == 'pin = "vulkan=never gles31=always"'
