"""The pages in headless Chromium: what a person sees and can do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from radixserve.cache.view import NodeView
from radixserve.server.app import create_app
from radixserve.tokens import pack
from tests.server.fake import ANSWER, MODEL, FakeFrontend
from tests.server.sockets import serving

pytestmark = pytest.mark.browser
CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
PATIENCE = 30.0
"""Seconds after which the page hangs."""


class Page:
    def __init__(self, driver: webdriver.Chrome, url: str):
        self.driver = driver
        driver.get(url)

    def one(self, css: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, css)

    def all(self, css: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def say(self, text: str) -> None:
        self.one("#question").send_keys(text + Keys.ENTER)

    def wait(self, css: str, count: int = 1) -> list[WebElement]:
        """The elements, once there are ``count`` of them."""
        WebDriverWait(self.driver, PATIENCE, poll_frequency=0.02).until(
            lambda _: len(self.all(css)) >= count, f"no {count} of {css}"
        )
        return self.all(css)

    def wait_text(self, css: str, text: str) -> None:
        WebDriverWait(self.driver, PATIENCE, poll_frequency=0.02).until(
            lambda _: text in self.one(css).text, f"{css} never said {text!r}"
        )


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    if not (CHROMIUM.exists() and DRIVER.exists()):
        pytest.skip("needs Debian's packages chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for each in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1200,800"):
        options.add_argument(each)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, Service(str(DRIVER)))
    yield driver
    driver.quit()


@pytest.fixture
def page(driver: webdriver.Chrome, frontend: FakeFrontend) -> Iterator[Page]:
    with serving(create_app(frontend)) as server:
        yield Page(driver, server.url)
        errors = [each for each in driver.get_log("browser") if each["level"] == "SEVERE"]
        driver.get("about:blank")
    assert [each for each in errors if "status of" not in each["message"]] == []


def test_a_chat_shows_what_was_said_and_what_was_reused(page: Page, frontend: FakeFrontend):
    page.wait_text("#model", MODEL)
    page.say("Hi")
    [bar] = page.wait(".bar.reuse")
    assert page.one("li.user").text == "Hi"
    assert page.one("li.assistant .said").text == ANSWER
    tokens = len("user: Hi\nassistant:")
    assert bar.get_attribute("title") == f"0 reused, 0 copied, {tokens} computed"
    assert len(bar.find_elements(By.CSS_SELECTOR, ".computed")) == 1
    page.say("And?")
    page.wait(".bar.reuse", 2)
    said = bytes(frontend.requests[-1].prompt[3::4]).decode()
    assert said == f"user: Hi\nassistant: {ANSWER}\nuser: And?\nassistant:"


def test_a_prompt_that_was_there_before_is_shown_as_reused(page: Page):
    page.say("Hi")
    page.wait(".bar.reuse")
    page.one("#new").click()
    assert page.all("#turns li") == []
    page.say("Hi")
    [bar] = page.wait(".bar.reuse")
    tokens = len("user: Hi\nassistant:")
    assert bar.get_attribute("title") == f"{tokens - 1} reused, 0 copied, 1 computed"
    assert bar.find_element(By.CSS_SELECTOR, ".reused").size["width"] > 200


def test_the_state_of_the_cache_and_the_queue_is_live(page: Page, frontend: FakeFrontend):
    page.wait_text("#total", "100")
    assert page.one("#reuse").text == "80.0 %"
    assert page.one("#pages").get_attribute("title") == "25 in-use, 25 cold, 50 free"
    assert page.one("#waiting").text == "0"
    frontend.waiting = 12
    page.wait_text("#waiting", "12")


def test_an_answer_can_be_stopped(page: Page, frontend: FakeFrontend):
    frontend.hold(after=2)
    page.say("Hi")
    page.wait_text("li.assistant .said", ANSWER[:2])
    page.one("#stop").click()
    page.wait_text("li.assistant .note", "stopped")
    assert frontend.aborted.acquire(timeout=PATIENCE)
    assert page.one("#send").is_displayed()


def test_errors_are_shown_and_the_chat_goes_on(page: Page, frontend: FakeFrontend):
    page.say("x" * 300)
    page.wait_text("li.assistant .wrong", "maximum context length")
    page.one("#new").click()
    frontend.fail_after = 2
    page.say("Hi")
    page.wait_text("li.assistant .wrong", "It broke.")
    frontend.fail_after = None
    page.say("Again")
    page.wait(".bar.reuse")


def test_what_a_model_says_is_text_and_never_markup(page: Page, frontend: FakeFrontend):
    frontend.answer = "<img src=x onerror=document.title='hacked'><b>bold</b>"
    page.say("<b>mine</b>")
    page.wait(".bar.reuse")
    assert page.one("li.assistant .said").text == frontend.answer
    assert page.one("li.user .said").text == "<b>mine</b>"
    assert page.all("#turns img, #turns b") == []
    assert page.driver.title == "radixserve"


def test_settings_are_sent(page: Page, frontend: FakeFrontend):
    page.one("summary").click()
    for css, text in (("#system", "Be short."), ("#temperature", "0.5"), ("#max-tokens", "3")):
        page.one(css).send_keys(text)
    page.one("#salt").send_keys("mine")
    page.say("Hi")
    page.wait(".bar.reuse")
    [request] = frontend.requests
    assert bytes(request.prompt[3::4]).decode().startswith("system: Be short.\n")
    assert request.sampling.temperature == 0.5
    assert request.sampling.max_tokens == 3
    assert request.namespace.endswith(b"mine")
    assert page.one("li.assistant .said").text == ANSWER[:3]


def test_pages_are_no_wider_than_a_phone(page: Page):
    size = page.driver.get_window_size()
    page.driver.set_window_size(420, 800)
    wider = "return document.documentElement.scrollWidth - innerWidth"
    try:
        assert page.driver.execute_script(wider) <= 0
        page.one("header a").click()
        page.wait_text("#tree", "Nothing is cached yet.")
        assert page.driver.execute_script(wider) <= 0
    finally:
        page.driver.set_window_size(size["width"], size["height"])


def test_the_tree_is_drawn_and_a_bar_tells_what_it_is(page: Page, frontend: FakeFrontend):
    page.one("header a").click()
    page.wait_text("#tree", "Nothing is cached yet.")
    common = {"idle": 0, "hits": 2, "hidden": 0, "tenant": ""}
    frontend.nodes = [
        NodeView(id=1, above=None, start=0, end=64, pins=1, head=pack([*b"<b>You"]), **common),
        NodeView(id=2, above=1, start=64, end=96, pins=0, head=pack([*b"mine"]), **common),
        NodeView(id=3, above=1, start=64, end=128, pins=1, head=pack([*b"yours"]), **common),
    ]
    trunk, short, long = page.wait("#tree rect", 3)
    assert "pinned" in str(trunk.get_attribute("class"))
    widths = [float(str(bar.get_attribute("width"))) for bar in (trunk, short, long)]
    assert widths[0] == pytest.approx(2 * widths[1])
    assert widths[2] == pytest.approx(2 * widths[1])
    assert page.one("#shown").text == "3"
    assert page.one("#tokens").text == "160"
    page.one("#pause").click()
    webdriver.ActionChains(page.driver).move_to_element(page.all("#tree rect")[0]).perform()
    page.wait_text("#node-text", "<b>You")
    assert page.one("#node-place").text == "0, 64"
    assert page.all("#node-text b") == []
