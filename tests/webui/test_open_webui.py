"""The real Open WebUI in front of a real model: `toolkit open-webui` sets it up, a person's question goes in through the page in
headless Chromium, the answer of the model comes out of it, and Ctrl-C ends both servers.

Not part of `make test`: it installs 3 GB. `make test-open-webui` runs it; RUN names an export to ask instead of the base model.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from models import child_environment
from serving import NAME, children, ends_soon, write_export
from test_chat import greedy_text
from toolkit.bundle import Settings, open_webui_model, speech_of
from toolkit.recipe import load_resolved
from toolkit.rundir import ExportDir, chosen_gguf

WANTED = os.environ.get("TEST_OPEN_WEBUI", "")
if not WANTED:
    pytest.skip("make test-open-webui runs it", allow_module_level=True)

from playwright.sync_api import Page, sync_playwright  # noqa: E402

ROOT = Path(__file__).parents[2]
ENVIRONMENT = Path(os.environ.get("OPEN_WEBUI_ENVIRONMENT") or ROOT / ".open-webui" / "env")
PICTURES = Path(os.environ.get("OPEN_WEBUI_PICTURES") or ROOT / ".open-webui" / "pictures")
QUESTION = "What is 17 + 25?"
ANSWER_S = 180


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default's base model; sampled from one token at a time, so that its answer is known beforehand."""
    if WANTED != "1":
        return Path(WANTED)
    return write_export(tmp_path_factory.mktemp("webui") / "a", "grpo.top_k=1", "grpo.max_completion_length=48")


class Started:
    """A running `toolkit open-webui`, once it has said where."""

    def __init__(self, export: Path, folder: Path) -> None:
        command = [sys.executable, "-u", "-m", "toolkit", "open-webui", str(export.resolve()), "--port", "0"]
        self.process = subprocess.Popen(
            [*command, "--environment", str(ENVIRONMENT)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder, env=child_environment(),
        )  # fmt: skip
        self.said = ""
        assert self.process.stdout
        for line in self.process.stdout:
            self.said += line
            if "Ctrl-C stops both" in line:
                break
        found = re.search(r"Open WebUI: (http://\S+)", self.said)
        assert found, self.said
        self.url = found[1]
        self.servers = children(self.process.pid)


@pytest.fixture(scope="module")
def started(export: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    started = Started(export, tmp_path_factory.mktemp("project"))
    yield started
    started.process.kill()
    started.process.communicate()


@pytest.fixture(scope="module")
def page(started: Started) -> Iterator[Page]:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert browser, "this test needs a browser: apt-get install chromium"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": 1200, "height": 900})
        page.goto(started.url)
        yield page
        chromium.close()


def expected_answer(export: Path) -> str | None:
    """Where only one token may be drawn at a time, what the model answers to the training's prompt."""
    recipe = load_resolved(export / "recipe.json").recipe
    if recipe.grpo.top_k != 1:
        return None
    return greedy_text(export / chosen_gguf(ExportDir(export), None), recipe, QUESTION)


def words_of(text: str) -> str:
    """Without white space, which Markdown gathers."""
    return "".join(text.split())


def wait_for_answer(page: Page) -> str:
    """The text of the answer once it has ended: then there are buttons to rate it."""
    answer = page.locator(".chat-assistant").last
    page.get_by_label("Good Response").last.wait_for(timeout=ANSWER_S * 1000)
    return answer.inner_text()


def test_a_question_asked_on_the_page_is_answered_there_by_the_trained_model(page: Page, export: Path) -> None:
    news = page.get_by_role("button", name="Okay, Let's Go!")
    page.locator("#chat-input").wait_for(timeout=ANSWER_S * 1000)
    news.click(timeout=ANSWER_S * 1000)
    picture(page, "before")
    assert f"{name_of(export)} (as trained)" in page.locator("body").inner_text()
    page.locator("#chat-input").click()
    page.keyboard.type(QUESTION)
    page.keyboard.press("Enter")
    answer = wait_for_answer(page)
    picture(page, "answered")
    expected = expected_answer(export)
    assert answer.strip() and (expected is None or words_of(answer) == words_of(expected))


def test_its_model_is_the_one_of_the_bundle(page: Page, export: Path) -> None:
    """Read back through Open WebUI's own API, with the page's log-in."""
    found = model_called(page, f"{name_of(export)}-as-trained")
    recipe = load_resolved(export / "recipe.json").recipe
    assert found["base_model_id"] == name_of(export)
    assert found["params"].get("system", "") == recipe.task.system_text
    assert found["params"]["temperature"] == recipe.grpo.temperature
    assert found["meta"]["capabilities"]["builtin_tools"] is False


def test_the_file_of_the_bundle_is_taken_by_the_pages_own_import(
    page: Page, started: Started, export: Path, tmp_path: Path
) -> None:
    """Workspace > Models > Import JSON, as somebody does with an Open WebUI of their own."""
    file = export / chosen_gguf(ExportDir(export), None)
    settings = Settings.of(load_resolved(export / "recipe.json").recipe)
    model: dict[str, Any] = open_webui_model(file.name, speech_of(file, export / "merged"), settings)
    model["id"] = "by-hand"
    (tmp_path / "a.open-webui.json").write_text(json.dumps([model]), encoding="utf-8")
    page.goto(f"{started.url}/workspace/models")
    page.locator("#models-import-input").wait_for(state="attached", timeout=ANSWER_S * 1000)
    with page.expect_response("**/api/v1/models/import", timeout=ANSWER_S * 1000) as imported:
        page.locator("#models-import-input").set_input_files(tmp_path / "a.open-webui.json")
    assert imported.value.ok
    found = model_called(page, "by-hand")
    assert {key: found[key] for key in ("name", "base_model_id", "params")} == {
        key: model[key] for key in ("name", "base_model_id", "params")
    }
    assert found["meta"]["capabilities"] == model["meta"]["capabilities"]


def test_ctrl_c_ends_both_servers_and_is_no_error(started: Started) -> None:
    assert len(started.servers) == 2
    os.kill(started.process.pid, signal.SIGINT)
    said, _ = started.process.communicate(timeout=60)
    assert started.process.returncode == 0 and "stopped" in said
    assert all(ends_soon(server) for server in started.servers)


def model_called(page: Page, name: str) -> dict[str, Any]:
    """What Open WebUI has under this id."""
    return page.evaluate(
        "id => fetch('/api/v1/models/model?id=' + encodeURIComponent(id),"
        " {headers: {authorization: 'Bearer ' + localStorage.token}}).then(answer => answer.json())",
        name,
    )


def name_of(export: Path) -> str:
    return NAME if WANTED == "1" else Path(chosen_gguf(ExportDir(export), None)).stem


def picture(page: Page, name: str) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"{name}.png")
