"""`toolkit serve`: the file's own template, nothing added, the greedy answer that was verified; stopped alone and whole; and
what can be wrong is said plainly."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from serving import (
    NAME,
    NO_SYSTEM_ROLE,
    Serving,
    ends_soon,
    fixed_answer,
    is_running,
    serving,
    taken_port,
    write_export,
)
from test_chat import greedy_text
from tiny import edit_gguf
from toolkit.bundle import Settings, open_webui_model, speech_of
from toolkit.cli import main
from toolkit.errors import ToolkitError
from toolkit.fixed_chats import CHATS
from toolkit.llamacpp import open_model
from toolkit.prompts import messages
from toolkit.recipe import load_resolved
from toolkit.serve import prepare, webui, webui_setup
from toolkit.serve.process import until_stopped


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_export(tmp_path_factory.mktemp("serve") / "a")


@pytest.fixture(scope="module")
def server(export: Path) -> Iterator[Serving]:
    """Started with what other programs may have in the environment, and llama-cpp-python's server would take for its own."""
    strays = {"HOST": "0.0.0.0", "PORT": "1", "API_KEY": "secret", "SEED": "1", "N_CTX": "8", "CONFIG_FILE": "/none"}
    with serving(export, env=strays) as started:
        yield started


def test_it_reports_one_model_with_the_name_that_clients_are_given(server: Serving) -> None:
    assert [model["id"] for model in server.ask("/models")["data"]] == [NAME]


def test_the_answer_is_the_one_that_verification_grades(server: Serving, export: Path) -> None:
    recipe = load_resolved(export / "recipe.json").recipe
    chat = messages("What is 17 + 25?", recipe.task.system_text)
    answer = server.answer(chat)["choices"][0]["message"]["content"]
    assert answer == greedy_text(export / f"{NAME}.gguf", recipe, "What is 17 + 25?")


def test_prompts_are_written_by_the_files_own_template_and_nothing_is_added(server: Serving, export: Path) -> None:
    with open_model(export / f"{NAME}.gguf", context=64) as model:
        expected = {name: len(model.chat_ids(chat)) for name, chat in CHATS.items()}
    got = {name: server.answer(chat, max_tokens=1)["usage"]["prompt_tokens"] for name, chat in CHATS.items()}
    assert got == expected


def test_a_request_that_says_nothing_is_sampled_as_in_training(tmp_path: Path) -> None:
    """One token to draw from, so that the answer is known; the library's own defaults would penalise repetition."""
    export = write_export(tmp_path / "a", "grpo.top_k=1", "grpo.max_completion_length=12")
    recipe = load_resolved(export / "recipe.json").recipe
    with serving(export) as started:
        found = started.ask("/chat/completions", {"messages": messages("Count: 1 1 1", recipe.task.system_text)})
        assert found["choices"][0]["message"]["content"] == greedy_text(export / f"{NAME}.gguf", recipe, "Count: 1 1 1")
        assert found["usage"]["completion_tokens"] <= 12


def test_answers_name_the_model_and_no_path_of_this_machine(server: Serving) -> None:
    assert server.answer(messages("Hi", ""), max_tokens=1)["model"] == NAME


def test_chat_asks_the_server_and_gets_the_answer_that_it_gets_alone(
    server: Serving, export: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    for words in (["--server", server.url], ["--server", server.url.removesuffix("/v1")], []):
        assert main(["chat", str(export), "--question", "What is 17 + 25?", *words]) == 0
        shown = capsys.readouterr()
        said.append(shown.out)
        assert ("asking the server" in shown.err) == bool(words)
    assert said[0].strip() and said == [said[0]] * 3


def test_chat_finds_the_server_at_the_usual_port_and_any_file_of_the_export_there(
    server: Serving, export: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("toolkit.llamacpp.USUAL_PORT", int(server.url.split(":")[2].split("/")[0]))
    assert main(["chat", str(export), "--question", "2"]) == 0
    assert "asking the server" in capsys.readouterr().err


def test_a_prompt_that_is_too_long_is_said_in_the_middle_of_a_stream_too(
    server: Serving, export: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chat", str(export), "--server", server.url, "--question", "one " * 2000]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "the model cannot be asked this" in said and "context" in said


def test_a_server_that_has_another_model_or_is_not_there_is_said(
    server: Serving, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_export(tmp_path / "b")
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["files"][0]["file"] = "b-f16.gguf"
    (other / "manifest.json").write_text(json.dumps(manifest))
    assert main(["chat", str(other), "--server", server.url, "--question", "2"]) == 2
    assert f"it serves {NAME}, not b-f16" in " ".join(capsys.readouterr().err.split())
    with taken_port() as held:
        port = held.getsockname()[1]
    assert main(["chat", str(other), "--server", f"127.0.0.1:{port}", "--question", "2"]) == 2
    assert "no server answers there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "status", "shown", "error"),
    [
        (b'data: {"choices": [{"delta": {"content": "4\\u001b[2J"}}]}\n\n', 200, "4[2J", "ended in the middle"),
        (b'data: {"error": {"message": "full \\u001b]0;x"}}\n\n', 200, "", "cannot be asked this: full ]0;x"),
        (b'data: {"choices": []}\n\ndata: [DONE]\n\n', 200, "", "no whole answer"),
        (b"data: [1]\n\n", 200, "", "no whole answer"),
        (b"\xff\xfe", 200, "", "no whole answer"),
        (b'{"error": {"message": "too long"}}', 400, "", "cannot be asked this: too long"),
        (b"<html>", 500, "", "cannot be asked this: 500"),
    ],
)
def test_whatever_a_server_answers_is_an_answer_or_a_plain_error(
    body: bytes, status: int, shown: str, error: str, export: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with fixed_answer(body, status=status) as url:
        assert main(["chat", str(export), "--server", url, "--question", "2"]) == 2
    said = capsys.readouterr()
    assert said.out == shown and error in " ".join(said.err.split()) and "\x1b]" not in said.err


def test_a_second_question_does_not_break_off_the_first_answer(server: Serving) -> None:
    ends: list[str] = []

    def stream() -> None:
        body = {"messages": messages("Count.", ""), "stream": True, "max_tokens": 24, "temperature": 0}
        request = urllib.request.Request(
            server.url + "/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=180) as answer:
            lines = [line for line in answer.read().decode().splitlines() if line.startswith("data: {")]
        ends.append(json.loads(lines[-1].removeprefix("data: "))["choices"][0]["finish_reason"])

    both = [threading.Thread(target=stream) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert len(ends) == 2 and all(ends)


def test_what_is_served_can_be_asked_while_an_answer_is_written(server: Serving) -> None:
    """Else `toolkit chat` would find no server there, and Open WebUI no model."""
    body = {"messages": messages("Tell a long story.", ""), "stream": True, "max_tokens": 200, "temperature": 0}
    request = urllib.request.Request(
        server.url + "/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    ended = threading.Event()
    with urllib.request.urlopen(request, timeout=180) as answer:
        answer.readline()
        rest = threading.Thread(target=lambda: (answer.read(), ended.set()))
        rest.start()
        listed = [model["id"] for model in server.ask("/models")["data"]]
        early = not ended.is_set()
        rest.join()
    assert listed == [NAME] and early


def test_ctrl_c_stops_the_server_and_is_no_error(export: Path) -> None:
    with serving(export) as started:
        os.kill(started.process.pid, signal.SIGINT)
        said, _ = started.process.communicate(timeout=60)
        assert started.process.returncode == 0 and "stopped" in said
        assert not is_running(started.server)


def test_the_server_ends_with_a_parent_that_was_killed(export: Path) -> None:
    with serving(export) as started:
        os.kill(started.process.pid, signal.SIGKILL)
        assert ends_soon(started.server)


def test_a_server_that_died_is_said_with_exit_code_2(export: Path) -> None:
    with serving(export) as started:
        os.kill(started.server, signal.SIGKILL)
        said, _ = started.process.communicate(timeout=60)
    assert started.process.returncode == 2 and "the llama.cpp server was ended by SIGKILL" in said
    assert "memory ran out" in said


def test_a_system_text_without_a_role_stands_where_training_had_it(export: Path, tmp_path: Path) -> None:
    other = write_export(tmp_path / "b")
    file = other / f"{NAME}.gguf"
    source = file.resolve()
    file.unlink()
    shutil.copyfile(source, file)
    edit_gguf(file, tokenizer__chat_template=NO_SYSTEM_ROLE)
    with serving(other) as started:
        parted = started.answer(messages("Hi", "Be brief."), max_tokens=4)
        whole = started.answer(messages("Be brief.\n\nHi", ""), max_tokens=4)
    assert parted["usage"] == whole["usage"] and parted["choices"] == whole["choices"]


# --- what can be wrong


@pytest.mark.parametrize("verb", ["serve", "open-webui"])
def test_a_port_that_is_taken_is_said_before_anything_starts(
    verb: str, export: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with taken_port() as held:
        port = held.getsockname()[1]
        assert main([verb, str(export), "--port", str(port)]) == 2
    said = capsys.readouterr().err
    assert f"port {port} is taken" in said and "--port 0" in said


@pytest.mark.parametrize("host", ["192.0.2.1", "nosuchhost.invalid", "a" * 70])
def test_a_host_that_is_not_this_machine_is_said(host: str, export: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.getaddrinfo", _without_names)
    with pytest.raises(ToolkitError, match="no address of this machine") as caught:
        prepare(export, file=None, host=host, port=0)
    assert "--host 127.0.0.1" in str(caught.value.hint)


def _without_names(host: str, port: int, **_: Any) -> list[Any]:
    """Names are looked up elsewhere, which tests do not."""
    if host != "192.0.2.1":
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:"),
        ("localhost", "http://localhost:"),
        ("0.0.0.0", "http://127.0.0.1:"),
        ("::1", "http://[::1]:"),
        ("::", "http://[::1]:"),
    ],
)
def test_the_address_that_is_printed_is_one_to_ask(host: str, url: str, export: Path) -> None:
    if ":" in host and not _has_ipv6():
        pytest.skip("this machine has no IPv6")
    served = prepare(export, file=None, host=host, port=0)
    assert served.base_url == f"{url}{served.port}/v1"


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def test_what_is_ignored_stays_ignored_so_that_nohup_keeps_a_server() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with until_stopped():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("port", ["-1", "65536", "http", "1.5"])
def test_what_is_no_port_is_refused(port: str, export: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(export), f"--port={port}"]) == 2
    assert "is no port" in capsys.readouterr().err


def test_a_missing_file_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export = write_export(tmp_path / "a")
    (export / f"{NAME}.gguf").unlink()
    assert main(["serve", str(export)]) == 2
    assert "the file is missing" in capsys.readouterr().err


def test_a_file_cut_short_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export = write_export(tmp_path / "a")
    file = export / f"{NAME}.gguf"
    data = file.read_bytes()[:-5000]
    file.unlink()
    file.write_bytes(data)
    assert main(["serve", str(export)]) == 2
    assert "not a whole GGUF file" in capsys.readouterr().err


def test_a_host_that_others_reach_is_warned_of(export: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with taken_port() as held:
        main(["serve", str(export), "--host", "0.0.0.0", "--port", str(held.getsockname()[1])])
    assert "can be reached from other machines" in " ".join(capsys.readouterr().err.split())


# --- Open WebUI; the real one is in tests/webui


class StandIn(BaseHTTPRequestHandler):
    """What of Open WebUI's API is used, as its routers/auths.py and routers/models.py have it."""

    models: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/api/v1/auths/signin" and body == {"email": "", "password": ""}:
            self.answer(200, {"token": "pass"})
        elif self.path == "/api/v1/models/import" and self.headers["Authorization"] == "Bearer pass":
            self.models.extend(body["models"])
            self.answer(200, True)
        else:
            self.answer(401, {"detail": "no"})

    def answer(self, code: int, value: Any) -> None:
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())

    def log_message(self, *_: object) -> None:
        pass


def test_open_webui_is_told_of_the_model_as_its_own_page_would(export: Path) -> None:
    file = export / f"{NAME}.gguf"
    settings = Settings.of(load_resolved(export / "recipe.json").recipe)
    model = open_webui_model(file.name, speech_of(file, export / "merged"), settings)
    server = HTTPServer(("127.0.0.1", 0), StandIn)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        webui.add_model(url, model)
        with pytest.raises(ToolkitError, match="401"):
            webui.post_json(f"{url}/api/v1/models/import", {"models": []})
    finally:
        server.shutdown()
        server.server_close()
    assert StandIn.models == [model]


def test_open_webui_sees_nothing_of_the_environment_that_could_lead_it_elsewhere(
    export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_API_KEY", "DATABASE_URL", "HTTP_PROXY", "WEBUI_AUTH", "PYTHONPATH"):
        monkeypatch.setenv(name, "stray")
    served = webui.prepare(export, file=None, host="127.0.0.1", port=0)
    first = webui._environment(served, "a", 3000)
    assert "stray" not in first.values()
    assert first["WEBUI_AUTH"] == "False" and first["OPENAI_API_BASE_URLS"] == served.base_url
    assert first["DATA_DIR"] == str(tmp_path / ".open-webui" / "data")
    assert first["CORS_ALLOW_ORIGIN"] == "http://127.0.0.1:3000;http://localhost:3000"
    assert webui._environment(served, "a", 3000) == first  # the secret is kept
    assert (tmp_path / ".open-webui" / "secret").stat().st_mode & 0o077 == 0


def test_a_folder_of_somebody_else_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    with pytest.raises(ToolkitError, match="something else"):
        webui_setup.set_up(tmp_path)
    assert (tmp_path / "mine.txt").exists()


def test_a_finished_environment_is_left_alone_until_the_pins_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins = tmp_path / "open-webui.txt"
    pins.write_text("torch==2.13.0\n")
    monkeypatch.setattr(webui_setup, "PINS", pins)
    steps: list[str] = []
    monkeypatch.setattr(webui_setup, "_run", lambda command, log: _pretend(steps, tmp_path / "env", command))
    for _ in range(2):
        assert webui_setup.set_up(tmp_path / "env") == tmp_path / "env" / "bin" / "python"
    assert len(steps) == 4 and "torch==2.13.0" in steps[1]
    pins.write_text("torch==2.13.1\n")
    webui_setup.set_up(tmp_path / "env")
    assert len(steps) == 8


def _pretend(steps: list[str], folder: Path, command: list[str]) -> None:
    steps.append(" ".join(command))
    folder.mkdir(exist_ok=True)
    (folder / "pyvenv.cfg").touch()


def test_a_set_up_that_fails_shows_the_end_of_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pins = tmp_path / "open-webui.txt"
    pins.write_text("torch==2.13.0\n")
    monkeypatch.setattr(webui_setup, "PINS", pins)
    monkeypatch.setattr(webui_setup, "_python", lambda: "/bin/false")
    with pytest.raises(ToolkitError, match="could not be set up"):
        webui_setup.set_up(tmp_path / "env")
