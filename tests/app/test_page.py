"""The page as a program and as a person use it: through its API, and in Chromium."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from sdgmnet.data.synthetic.demo import image_path
from tests.app.samples import write_log

reason = "the app's page needs gradio: make test-app"
gr = pytest.importorskip("gradio", reason=reason)
client = pytest.importorskip("gradio_client", reason=reason)

from sdgmnet.app import page  # noqa: E402  after the check for gradio

LEFT, RIGHT = (str(image_path(f"motorcycle_{side}.png")) for side in ("left", "right"))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, runs = (tmp_path_factory.mktemp(name) for name in ("uploads", "runs"))
    write_log(runs / "one")
    patch = pytest.MonkeyPatch()
    patch.setenv("GRADIO_TEMP_DIR", str(folder))
    app, found = page.build(page.Setting(folder, runs)), []
    page.launch(app, "127.0.0.1", None, on_ready=found.append)
    yield found[0]
    app.close(verbose=False)
    patch.undo()


@pytest.fixture(scope="module")
def api(url: str) -> Any:
    return client.Client(url, verbose=False, analytics_enabled=False)


def match(api: Any, first: str | None, second: str | None, descriptors: list[str] | None = None) -> tuple[Any, ...]:
    sent = [None if one is None else client.handle_file(one) for one in (first, second)]
    found: tuple[Any, ...] = api.predict(*sent, descriptors or ["sift"], 300, 0.9, "homography", api_name="/match")
    return found


def test_two_users_at_once(api: Any) -> None:
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(match, api, LEFT, RIGHT, [name]) for name in ("sift", "rootsift")]
        for name, one in zip(("sift", "rootsift"), waiting, strict=True):
            problem, table, *_ = one.result(timeout=120)
            assert problem == "" and f"| {name} |" in table


def test_wrong_input_is_reported_and_the_app_goes_on(api: Any, tmp_path: Path) -> None:
    text, large = tmp_path / "text.jpg", tmp_path / "large.png"
    text.write_text("not an image")
    cv2.imwrite(str(large), np.zeros((5000, 8000), np.uint8))
    for first, message in ((str(text), "text.jpg"), (str(large), "40.0 megapixels"), (None, "is missing")):
        problem, table, *_ = match(api, first, RIGHT)
        assert message in problem and not table
        assert "/" not in problem  # no path of the server
    assert "does not exist" in match(api, LEFT, RIGHT, ["runs/none.safetensors"])[0]
    assert "not a run" in api.predict("../one", api_name="/train")[0]
    assert match(api, LEFT, RIGHT)[0] == ""


def test_a_run_and_the_statistics(api: Any) -> None:
    problem, curves, text = api.predict("one", api_name="/train")
    assert problem == "" and Path(curves).stat().st_size > 1000 and "Iteration 20" in text
    problem, text, _ = api.predict(api_name="/understand")
    assert problem == "" and "279.16" in text


def test_a_public_page_opens_no_paths(tmp_path: Path) -> None:
    setting = page.Setting(tmp_path, tmp_path, is_public=True)
    with pytest.raises(page.InputError, match="not offered"):
        page.run_match(setting, None, None, [str(tmp_path)], 100, 0.9, "none")


def test_the_command_ends_without_leaving_files(tmp_path: Path) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    command = [sys.executable, "-m", "sdgmnet", "app", "--runs", str(tmp_path)]
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        assert any("Open http://127.0.0.1" in line for line in process.stderr)
        assert list(folder.glob("sdgmnet-app-*/example_1a.jpg"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    assert not list(folder.glob("sdgmnet-app-*"))


# In the browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium: make test-app")
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
    if driver is None or chromium is None:
        pytest.skip("needs Debian's chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for word in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1280,1000",
    ):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    opened.set_script_timeout(120)
    yield opened
    opened.quit()


def wait(browser: Any, script: str, seconds: float = 120) -> Any:
    """The value of a JavaScript expression as soon as it is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := browser.execute_script(f"return {script}"):
            return found
        time.sleep(0.3)
    raise AssertionError(f"not true after {seconds} s: {script}")


def open_tab(browser: Any, name: str) -> None:
    find = f"[...document.querySelectorAll('button[role=tab]')].find(one => one.innerText.trim() == '{name}')"
    wait(browser, find)
    browser.execute_script(f"{find}.click()")


def screenshot(browser: Any, folder: Path, name: str, width: int) -> Path:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    time.sleep(1)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width  # nothing is cut off
    height = browser.execute_script("return document.documentElement.scrollHeight")
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {**size, "height": min(height, 4000)})
    time.sleep(1)
    path = folder / f"{name}_{width}.png"
    assert browser.save_screenshot(str(path))
    return path


def test_match_and_understand_in_chromium(browser: Any, url: str, tmp_path: Path) -> None:
    browser.get(url)
    wait(browser, "document.querySelectorAll('input[type=file]').length >= 2")
    for number, path in enumerate((LEFT, RIGHT)):
        browser.find_element("css selector", f"#image-{number} input[type=file]").send_keys(path)
        wait(browser, f"document.querySelector('#image-{number} img')")
    wait(browser, "document.querySelector('#match-button')").click()
    assert "inliers" in wait(browser, "document.querySelector('#match-table table')?.innerText")
    drawn = wait(browser, "document.querySelector('#drawn-1 img')")
    wait(browser, "document.querySelector('#drawn-1 img').complete")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", drawn)
    time.sleep(0.5)
    drawn.click()
    assert "°" in wait(browser, "document.querySelector('#neighbours .patches')?.innerText")
    for width in (1280, 390):
        screenshot(browser, tmp_path, "match", width)

    open_tab(browser, "Understand")
    before = wait(browser, "document.querySelector('#powers p')?.innerText")
    assert "279.16" in before and wait(browser, "document.querySelectorAll('#panels img').length") == 6
    slider = browser.find_element("css selector", "#slider-margin input[type=range]")
    slider.send_keys("\ue014" * 5)  # right arrow: the page can be used from the keyboard
    assert wait(browser, f"document.querySelector('#powers p')?.innerText != {before!r}")
    for width in (1280, 390):
        screenshot(browser, tmp_path, "understand", width)

    open_tab(browser, "Train")
    wait(browser, "document.querySelector('#run-summary')?.innerText.includes('Iteration 20')")
    screenshot(browser, tmp_path, "train", 1280)
    severe = [one for one in browser.get_log("browser") if one["level"] == "SEVERE"]
    assert not severe
    assert outside_requests(browser) == []


def outside_requests(browser: Any) -> list[str]:
    """URLs of other machines that the page has asked for."""
    sent = (json.loads(one["message"])["message"] for one in browser.get_log("performance"))
    asked = [one["params"]["request"]["url"] for one in sent if one["method"] == "Network.requestWillBeSent"]
    return [one for one in asked if one.startswith("http") and not one.startswith("http://127.0.0.1")]
