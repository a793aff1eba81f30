"""The report in headless Chromium: it draws, it filters, it stays fluid, it asks for nothing, and hostile text stays text.

Skipped where there is no chromium; REQUIRE_CHROMIUM=1 makes that a failure.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from report_runs import HOSTILE, made_run
from toolkit.report import report_data
from toolkit.report.comparison import comparison_data
from toolkit.report.completions import CUT, FORMED, LENIENT, RIGHT
from toolkit.report.document import write_document
from toolkit.report.records import read_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None and not os.environ.get("REQUIRE_CHROMIUM"), reason="there is no chromium on this machine"
)
Open = Callable[..., "Tab"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    assert CHROMIUM, "apt-get install chromium"
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture
def opened(browser: Browser) -> Iterator[Open]:
    """Opens a page; at the end there must have been no error, no message and no request but for the file itself."""
    wrong: list[str] = []
    contexts = []

    def open_page(path: Path, **settings: Any) -> Tab:
        window: Any = {"viewport": {"width": 1280, "height": 900}} | settings
        context = browser.new_context(**window)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: wrong.append(f"console {message.type}: {message.text}"))
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("request", lambda request: wrong.extend([request.url] if request.url != path.as_uri() else []))
        page.goto(path.as_uri())
        page.wait_for_selector(".browser .item, .charts .uplot", state="attached")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    run = made_run(tmp_path_factory.mktemp("work") / "sums-20261130-120000")
    return report_data(read_run(run.path))


@pytest.fixture(scope="module")
def report(data: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_document(tmp_path_factory.mktemp("page") / "report.html", data)


def until(page: Tab, expression: str) -> None:
    """Wait until it is true. (The tab's own wait_for_function would need what the page's policy forbids.)"""
    end = time.monotonic() + 20
    while not page.evaluate(expression):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(30)


def count(page: Tab) -> int:
    return int(page.locator(".count").inner_text().split(" of ")[0].replace(",", ""))


def choose(page: Tab, name: str) -> int:
    page.locator(".browser .chips").first.get_by_role("button", name=name, exact=True).click()
    return count(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_it_draws_everything_and_fits_its_window(
    scheme: str, width: int, report: Path, data: dict[str, Any], opened: Open
) -> None:
    page = opened(report, color_scheme=scheme, viewport={"width": width, "height": 900})
    assert page.locator(".verdict .first").inner_text() == data["verdict"]["sentences"][0]
    assert page.locator(".bars .row").count() == 3
    page.locator("details").first.evaluate("found => { found.open = true; }")
    until(page, f"document.querySelectorAll('.chart canvas').length === {len(data['figures'])}")
    drawn = page.eval_on_selector_all(
        ".chart canvas",
        "all => all.map(one => one.getContext('2d').getImageData(0, 0, one.width, one.height).data.some(value => value))",
    )
    assert all(drawn)
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_dark_and_light_are_both_readable(report: Path, opened: Open) -> None:
    """Contrast of text to its background by WCAG 2.1: 4.5 and more for text, on the page and on its cards."""
    contrast = """() => {
      const light = (text) => {
        const parts = text.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255);
        const [r, g, b] = parts.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const ratio = (one, other) => (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
      const colour = (node, name) => light(getComputedStyle(node)[name]);
      const find = (name) => document.querySelector(name);
      return [
        ratio(colour(find("h1"), "color"), colour(document.body, "backgroundColor")),
        ratio(colour(find(".run"), "color"), colour(document.body, "backgroundColor")),
        ratio(colour(find(".verdict p"), "color"), colour(find(".verdict"), "backgroundColor")),
        ratio(colour(find(".card .note"), "color"), colour(find(".card"), "backgroundColor")),
      ];
    }"""
    grounds = []
    for scheme in ("light", "dark"):
        page = opened(report, color_scheme=scheme)
        assert min(page.evaluate(contrast)) >= 4.5, scheme
        grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert grounds[0] != grounds[1]


def test_plots_are_drawn_anew_when_the_scheme_changes(report: Path, opened: Open) -> None:
    page = opened(report, color_scheme="light")
    picture = "document.querySelector('#figure-reward canvas').toDataURL()"
    before = page.evaluate(picture)
    page.emulate_media(color_scheme="dark")
    until(page, f"{picture} !== {before!r}")


def test_filters_show_what_they_say(report: Path, data: dict[str, Any], opened: Open) -> None:
    page, table = opened(report), data["training"]
    flags, rewards = table["flags"], table["reward"]
    assert count(page) == len(flags)
    expected = {
        "Right": sum(bool(bits & RIGHT) for bits in flags),
        "Wrong": sum(not bits & RIGHT for bits in flags),
        "Right answer, wrong format": sum(bool(bits & LENIENT) and not bits & FORMED for bits in flags),
        "Paid but wrong": sum(not bits & LENIENT and paid > 0 for bits, paid in zip(flags, rewards, strict=True)),
        "Cut off": sum(bool(bits & CUT) for bits in flags),
    }
    assert all(expected.values())
    assert {name: choose(page, name) for name in expected} == expected
    choose(page, "All")
    page.get_by_label("Order").select_option(label="longest first")
    assert page.locator(".completion.chosen .note").inner_text() == f"{max(table['tokens'])} tokens"


def test_search_finds_in_prompts_and_completions(report: Path, data: dict[str, Any], opened: Open) -> None:
    page, table = opened(report), data["training"]
    search = page.get_by_role("searchbox")
    for query in ("I GUESS", "<svg onload", table["prompts"][0][1]):
        search.fill(query)
        found = sum(
            query.lower() in text.lower() or query.lower() in table["prompts"][at][1].lower()
            for text, at in zip(table["text"], table["prompt"], strict=True)
        )
        until(page, f"document.querySelector('.count').textContent.startsWith('{found} of')")
        assert 0 < found < len(table["text"])
    search.fill("nothing has this")
    page.wait_for_selector("text=Nothing matches.")


def test_a_prompt_is_shown_across_its_steps_with_every_reward(report: Path, data: dict[str, Any], opened: Open) -> None:
    page = opened(report)
    page.get_by_label("Order").select_option(label="prompts seen most often first")
    steps = page.locator(".seen button")
    assert steps.count() == 9
    steps.nth(4).click()
    assert page.locator(".seen button[aria-pressed=true]").inner_text().startswith("step 5:")
    assert page.locator(".completion").count() == 4
    for card in page.locator(".completion").all():
        assert [pay.split()[0] for pay in card.locator(".reward").all_inner_texts()] == list(
            data["training"]["rewards"]
        )
    assert page.locator(".completion mark").first.inner_text() == page.locator(".gold b").inner_text()


def test_base_and_tuned_stand_side_by_side_with_their_flips(report: Path, opened: Open) -> None:
    page = opened(report)
    page.get_by_role("tab", name="Held-out").click()
    assert page.locator(".side h4").all_inner_texts() == ["base model", "after warm-up", "after GRPO"]
    assert [column.locator(".completion").count() for column in page.locator(".side .model").all()] == [3, 3, 3]
    assert choose(page, "Flips: wrong → right") == 4
    assert choose(page, "Flips: right → wrong") == 0
    page.get_by_label("Which").select_option(label="after warm-up")
    assert choose(page, "Flips: wrong → right") == 0, "its greedy answers were right already"
    assert choose(page, "Wrong") == 4


def test_a_click_on_a_curve_leads_to_that_steps_completions(report: Path, opened: Open) -> None:
    page = opened(report)
    over = page.locator("#figure-reward .u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 40)
    until(page, "document.querySelector('.count').textContent.startsWith('8 of')")
    assert page.get_by_label("Which").input_value() == "5"


def test_the_cursor_reads_all_curves_at_one_step(report: Path, opened: Open) -> None:
    page = opened(report)
    page.locator("#figure-reward .u-over").hover(position={"x": 3, "y": 30})
    until(page, "document.querySelector('#figure-entropy .readout').textContent.startsWith('step 1:')")


def test_a_series_can_be_switched_off(report: Path, opened: Open) -> None:
    page = opened(report)
    button = page.locator("#figure-heldout .legend button").first
    picture = "document.querySelector('#figure-heldout canvas').toDataURL()"
    before = page.evaluate(picture)
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    until(page, f"{picture} !== {before!r}")


def test_hostile_completions_are_shown_as_they_are_and_do_nothing(
    report: Path, data: dict[str, Any], opened: Open
) -> None:
    page, table = opened(report), data["training"]
    page.get_by_label("Order").select_option(label="prompts seen most often first")
    shown = set()
    for at in range(9):
        page.locator(".seen button").nth(at).click()
        shown |= set(page.eval_on_selector_all(".completion pre", "all => all.map(one => one.textContent)"))
    assert set(HOSTILE) <= shown <= set(table["text"])
    page.get_by_role("tab", name="Held-out").click()
    for row in page.locator(".item").all():
        row.click()
    assert page.evaluate("window.hacked") is None
    assert page.locator("img, iframe, object, embed, link, #page script, #page a[href^='javascript']").count() == 0
    assert page.locator("#page svg").count() == 0


def test_what_gets_in_as_markup_after_all_still_does_not_run(report: Path, tmp_path: Path, browser: Browser) -> None:
    """The second wall: a script in the page that is not the one whose hash the policy names."""
    text = report.read_text(encoding="utf-8")
    broken = tmp_path / "broken.html"
    attack = "<script>window.hacked = 1</script><img src='https://example.org/x.png' onerror='window.hacked = 2'>"
    broken.write_text(text.replace('<main id="page">', f'{attack}<main id="page">'), encoding="utf-8")
    page = browser.new_page()
    requests: list[str] = []
    page.on("requestfinished", lambda request: requests.append(request.url))
    page.goto(broken.as_uri())
    page.wait_for_selector(".item")
    assert page.evaluate("window.hacked") is None
    assert requests == [broken.as_uri()]
    page.close()


def test_twenty_thousand_completions_stay_fluid(data: dict[str, Any], tmp_path: Path, opened: Open) -> None:
    times = 20_000 // len(data["training"]["text"]) + 1
    table: dict[str, Any] = {
        name: values * times if name not in ("prompts", "rewards", "left_out", "groups") else values
        for name, values in data["training"].items()
    }
    table["rewards"] = {name: values * times for name, values in table["rewards"].items()}
    table["text"] = [f"{text} {'word ' * 60}{number}" for number, text in enumerate(table["text"])]
    page = opened(write_document(tmp_path / "large.html", data | {"training": table}))
    total = len(table["text"])
    assert count(page) == total >= 20_000
    assert page.locator(".item").count() < 40
    begun = time.monotonic()
    assert choose(page, "Right") == sum(bool(bits & RIGHT) for bits in table["flags"])
    choose(page, "All")
    page.get_by_role("searchbox").fill(f"word {total - 1}")
    until(page, "document.querySelector('.count').textContent.startsWith('1 of')")
    page.get_by_role("searchbox").fill("")
    until(page, f"document.querySelector('.count').textContent.startsWith('{total:,} of')")
    page.locator(".list").evaluate("list => { list.scrollTop = list.scrollHeight; }")
    until(
        page,
        f"[...document.querySelectorAll('.item')].length < 40 && document.querySelector('.list').scrollTop > {total * 50}",
    )
    page.locator(".item").last.click()
    assert str(total - 1) in page.locator(".completion.chosen pre").inner_text()
    assert time.monotonic() - begun < 10, "a second on an idle machine"


def test_the_list_obeys_the_keyboard(report: Path, opened: Open) -> None:
    page = opened(report)
    page.locator(".list").focus()
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    chosen = page.locator(".item[aria-selected=true]")
    assert chosen.count() == 1
    assert chosen.evaluate("one => [...one.parentNode.children].indexOf(one)") == 2


def test_a_comparison_draws_a_line_for_each_run(tmp_path: Path, opened: Open) -> None:
    runs = [read_run(made_run(tmp_path / name).path) for name in ("one-20261130-120000", "two-20261130-130000")]
    page = opened(write_document(tmp_path / "compare.html", comparison_data(runs)))
    assert page.locator("#figure-reward .legend button").all_inner_texts()[0].startswith("one-20261130-120000")
    assert page.locator("#result tbody tr").count() == 2 + 1
    assert page.get_by_text("no difference can be shown").count() == 1
    assert page.locator("#recipe").inner_text().endswith("The recipes do not differ.")
