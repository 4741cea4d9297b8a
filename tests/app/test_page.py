"""The page as a program and as a person use it: through its API, and in Chromium."""

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from sdgmnet.data.synthetic.demo import image_path
from sdgmnet.errors import InputError, Interrupted
from tests.app.samples import write_log, write_triplets
from tests.sfm.planes import write_photos

reason = "the app's page needs gradio: make test-app"
gr = pytest.importorskip("gradio", reason=reason)
client = pytest.importorskip("gradio_client", reason=reason)

from sdgmnet.app import match_tab, page, reconstruct_tab, reconstructing, understand_tab  # noqa: E402  after the check for gradio

LEFT, RIGHT = (str(image_path(f"motorcycle_{side}.png")) for side in ("left", "right"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of uploads, jobs and results."""
    return tmp_path_factory.mktemp("uploads")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return list(map(str, write_photos(tmp_path_factory.mktemp("photos"))))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    write_log(runs / "one")
    return runs


@pytest.fixture(scope="module")
def app(folder: Path, runs: Path) -> Iterator[Any]:
    patch = pytest.MonkeyPatch()
    patch.setenv("GRADIO_TEMP_DIR", str(folder))
    built = page.build(page.Setting(folder, runs))
    yield built
    built.close(verbose=False)
    patch.undo()


@pytest.fixture(scope="module")
def url(app: Any) -> str:
    found: list[str] = []
    page.launch(app, "127.0.0.1", None, on_ready=found.append)
    return found[0]


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


def test_the_memory_of_large_uploads_returns(api: Any, tmp_path: Path) -> None:
    large = tmp_path / "large.png"
    cv2.imwrite(str(large), np.random.default_rng(0).integers(0, 256, (5000, 8000), np.uint8) // 32 * 32)
    assert "40.0 megapixels" in match(api, str(large), RIGHT)[0]
    before = resident_megabytes()
    for _ in range(3):
        assert "40.0 megapixels" in match(api, LEFT, str(large))[0]
    assert resident_megabytes() < before + 100


def test_a_run_and_the_statistics(api: Any) -> None:
    problem, text, curves, hardest, table = api.predict("one", api_name="/train")
    assert problem == "" and curves.count("<img") == 3 and hardest == "" and "Iteration 20" in text
    assert "| P⁺ | 320 | 320 |" in table
    problem, text, _ = api.predict(api_name="/understand")
    assert problem == "" and "279.16" in text


def test_a_public_page_opens_no_paths(tmp_path: Path) -> None:
    setting = page.Setting(tmp_path, tmp_path, is_public=True)
    with pytest.raises(InputError, match="not offered"):
        match_tab.run_match(setting, None, None, [str(tmp_path)], 100, 0.9, "none")


def test_emptied_number_fields(api: Any) -> None:
    assert "keypoints per image" in api.predict(None, None, ["sift"], None, 0.9, "none", api_name="/match")[0]
    assert "ratio test" in api.predict(None, None, ["sift"], 300, None, "none", api_name="/match")[0]
    assert "keypoints per photo" in api.predict([], "sift", None, 800, api_name="/reconstruct")[0]


def test_losses_that_are_not_offered() -> None:
    with pytest.raises(InputError, match="choose from none, hardnet,"):
        understand_tab.run_understand("", *[0.5] * 8, "angle", "step", "sdgm")


# Photos of a scene


class Request:
    session_hash = "one"


def test_a_job_cancelled_while_its_photos_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = page.Setting(tmp_path, tmp_path)
    monkeypatch.setattr(reconstructing, "require_photos", lambda *_: setting.jobs.stop(Request.session_hash))
    monkeypatch.setattr(reconstructing, "reconstruct_photos", lambda *_: pytest.fail("goes on"))
    with pytest.raises(Interrupted):
        reconstruct_tab.runner(setting)([], "sift", 1000, 800, Request())


def test_a_job_whose_folder_is_removed_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = page.Setting(tmp_path / "uploads", tmp_path)
    monkeypatch.setattr(reconstructing, "require_photos", lambda *_: (setting.folder / "photo.png").read_bytes())
    with pytest.raises(Interrupted):
        reconstruct_tab.runner(setting)([], "sift", 1000, 800, Request())
    setting.folder.mkdir()
    with pytest.raises(FileNotFoundError):  # a mistake of ours, which must be seen
        reconstruct_tab.runner(setting)([], "sift", 1000, 800, Request())


def reconstruct(api: Any, photos: list[str]) -> Any:
    """The job, under way."""
    return api.submit([client.handle_file(one) for one in photos], "sift", 1000, 800, api_name="/reconstruct")


def wait_for(condition: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_two_users_reconstruct_at_once(url: str, folder: Path, photos: list[str], tmp_path: Path) -> None:
    text = tmp_path / "text.jpg"
    text.write_text("not an image")
    users = [client.Client(url, verbose=False, analytics_enabled=False) for _ in range(2)]
    jobs = [reconstruct(user, sent) for user, sent in zip(users, (photos, [*photos, str(text)]), strict=True)]
    for job, remark in zip(jobs, ("", "text.jpg is not"), strict=True):
        problem, remarks, model, *files, tables = job.result(timeout=300)
        cloud, points, archive = (Path(one["value"]) for one in files)
        assert problem == "" and remarks.startswith(remark)
        assert "<iframe" in model and f"| registered photos | 6 of {6 + bool(remark)} |" in tables
        assert cloud.stat().st_size > 1000 and points.stat().st_size > 1000
        with zipfile.ZipFile(archive) as zipped:
            assert {"model/images/00.png", "model/sparse/0/points3D.txt", "model/summary.json"} <= set(
                zipped.namelist()
            )
    assert not list(folder.glob("job-*"))


def test_photos_that_cannot_be_used(api: Any, photos: list[str], tmp_path: Path) -> None:
    text, large = tmp_path / "text.jpg", tmp_path / "large.png"
    text.write_text("not an image")
    cv2.imwrite(str(large), np.zeros((5000, 8000), np.uint8))
    for sent, message in (
        ([], "not 0"),
        (photos[:2], "not 2"),
        (photos[:1] * 31, "not 31"),
        ([*photos, str(large)], "large.png has 40.0 megapixels"),
        ([*photos[:2], str(text)], "text.jpg"),
    ):
        problem, *others = reconstruct(api, sent).result(timeout=120)
        assert message in problem and all(one is None or not one.get("visible", True) for one in others)
        assert "/" not in problem  # no path of the server


def test_a_cancelled_job_stops_and_its_files_and_memory_return(api: Any, folder: Path, photos: list[str]) -> None:
    cancel_a_job(api, folder, photos)
    before = resident_megabytes()
    for _ in range(3):
        cancel_a_job(api, folder, photos)
    assert resident_megabytes() < before + 100
    assert match(api, LEFT, RIGHT)[0] == ""


def cancel_a_job(api: Any, folder: Path, photos: list[str]) -> None:
    job = reconstruct(api, photos)
    wait_for(lambda: list(folder.glob("job-*/model/database.db")))
    assert api.predict(api_name="/cancel") == "Cancelled."
    assert job.result(timeout=60)[0] == "Cancelled."
    assert not list(folder.glob("job-*"))


def resident_megabytes() -> float:
    gc.collect()
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("needs /proc")
    return int(next(line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmRSS:"))) / 1000


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
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})  # on a phone, some are in a menu
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


def test_match_and_understand_in_chromium(browser: Any, app: Any, url: str, tmp_path: Path) -> None:
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
    before = drawn.get_attribute("src")
    drawn.click()
    assert "°" in wait(browser, "document.querySelector('#neighbours-1 .patches')?.innerText")
    wait(
        browser, f"document.querySelector('#drawn-1 img').src != {before!r}"
    )  # with the keypoint and its neighbours marked
    assert held_results(app)
    for width in (1280, 390):
        screenshot(browser, tmp_path, "match", width)

    open_tab(browser, "Understand")
    before = wait(browser, "document.querySelector('#powers p')?.innerText")
    assert "279.16" in before and wait(browser, "document.querySelectorAll('#panels img').length") == 6
    slider = browser.find_element("css selector", "#slider-margin input[type=range]")
    slider.send_keys("\ue014" * 5)  # right arrow: the page can be used from the keyboard
    assert wait(browser, f"document.querySelector('#powers p')?.innerText != {before!r}")
    chosen = "document.querySelector('#preset input').value"
    assert browser.execute_script(f"return {chosen}") != ""
    browser.find_element("css selector", "#slider-pos_mean input[type=range]").send_keys("\ue014" * 5)
    wait(browser, f"{chosen} == ''")  # the statistics are no preset any more
    number = browser.find_element("css selector", "#slider-margin input[type=number]")
    number.send_keys("\ue009a\ue0005")  # Ctrl+A, released
    assert wait(browser, "[...document.querySelectorAll('.problem')].some(one => one.innerText.includes('margin'))")
    for width in (1280, 390):
        screenshot(browser, tmp_path, "understand", width)
    assert errors(browser) == [] and outside_requests(browser) == []


def held_results(app: Any) -> int:
    """Results of the tab Match that wait for a click, in the sessions of browsers and of API clients."""
    states = [state for session in app.state_holder.session_data.values() for state in session.state_data.values()]
    return sum(isinstance(state, match_tab.Shown) for state in states)


def errors(browser: Any) -> list[str]:
    """In the console."""
    return [one["message"] for one in browser.get_log("browser") if one["level"] == "SEVERE"]


def test_a_closed_tab_gives_the_memory_of_its_match_back(browser: Any, app: Any, url: str) -> None:
    browser.get(url)
    examples = wait(browser, "document.querySelectorAll('#examples button').length == 3")
    assert examples
    before = held_results(app)
    browser.execute_script("document.querySelectorAll('#examples button')[2].click()")
    wait(browser, "document.querySelectorAll('#image-0 img, #image-1 img').length == 2")
    browser.execute_script("document.querySelector('#match-button').click()")
    wait(browser, "document.querySelector('#match-table table')")
    wait_for(lambda: held_results(app) == before + 1)
    browser.get("about:blank")
    wait_for(lambda: held_results(app) == before)


def test_wrong_images_in_chromium(browser: Any, url: str, tmp_path: Path) -> None:
    text, large = tmp_path / "text.jpg", tmp_path / "large.png"
    text.write_text("not an image")
    cv2.imwrite(str(large), np.zeros((5000, 8000), np.uint8))
    browser.get(url)
    browser.get_log("browser")
    wait(browser, "document.querySelectorAll('input[type=file]').length >= 2")
    browser.execute_script("document.querySelector('#match-button').click()")
    wait(browser, "document.querySelector('#match-problem')?.innerText.includes('first image is missing')")
    for path, message in ((text, "text.jpg"), (large, "40.0 megapixels")):
        browser.find_element("css selector", "#image-0 input[type=file]").send_keys(str(path))
        wait(browser, f"document.querySelector('#image-0 img')?.src.includes('{path.name}')")
        browser.execute_script("document.querySelector('#match-button').click()")
        wait(browser, f"document.querySelector('#match-problem')?.innerText.includes('{message}')")
        browser.execute_script("document.querySelector('#image-0 button[aria-label=\"Remove Image\"]').click()")
        wait(browser, "document.querySelector('#image-0 input[type=file]')")
    assert errors(browser) == []


def test_a_run_under_way_in_chromium(browser: Any, url: str, runs: Path, tmp_path: Path) -> None:
    browser.get(url)
    browser.get_log("browser")
    open_tab(browser, "Train")
    wait(browser, "document.querySelector('#run-progress')?.innerText.includes('Iteration 20')")
    assert wait(browser, "document.querySelectorAll('#curves img').length == 3")
    assert browser.execute_script("return document.querySelectorAll('#hardest img').length") == 0
    for step in (10, 20):  # written by a run while the page is open
        write_triplets(runs / "one", step)
        wait(browser, f"document.querySelector('#hardest')?.innerText.includes('iteration {step}')")
        patches = "[...document.querySelectorAll('#hardest img')]"
        assert wait(browser, f"{patches}.length == 6 && {patches}.every(one => one.naturalWidth == 64)")
    for width in (1280, 390):
        screenshot(browser, tmp_path, "train", width)
    write_log(runs / "two")
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_script("document.querySelector('#run input').scrollIntoView({block: 'center'})")
    browser.find_element("css selector", "#run input").click()
    options = "[...document.querySelectorAll('ul[role=listbox] li')]"
    wait(browser, f"{options}.some(one => one.innerText.includes('two'))")  # listed although it is newer than the page
    browser.execute_script(
        f"{options}.find(one => one.innerText.includes('two')).dispatchEvent(new MouseEvent('mousedown', {{bubbles: true}}))"
    )
    wait(browser, "document.querySelectorAll('#hardest img').length == 0")
    assert errors(browser) == [] and outside_requests(browser) == []


def test_a_phone_in_the_dark_and_the_keyboard(browser: Any, url: str) -> None:
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": dark})
    try:
        browser.get(url)
        tabs = "[...document.querySelectorAll('button[role=tab]')].filter(one => one.offsetParent)"
        assert wait(browser, f"{tabs}.length == 4")  # none in a menu
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
        assert wait(browser, "document.body.classList.contains('dark')")
        outlines = []
        for _ in range(20):
            webdriver = pytest.importorskip("selenium.webdriver")
            webdriver.ActionChains(browser).send_keys("\ue004").perform()  # tab
            found = "getComputedStyle(document.activeElement)"
            outlines.append(browser.execute_script(f"return [{found}.outlineWidth, {found}.outlineColor]"))
        assert outlines.count(["3px", "rgb(165, 180, 252)"]) > 15
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_reconstruct_in_chromium(browser: Any, url: str, folder: Path, photos: list[str], tmp_path: Path) -> None:
    start_reconstruction(browser, url, photos)
    frame = wait(browser, "document.querySelector('#model iframe')")
    assert "registered photos" in wait(browser, "document.querySelector('#model-summary table')?.innerText")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", frame)
    browser.switch_to.frame(frame)
    title = browser.find_element("css selector", "header").text
    canvas, before = browser.find_element("css selector", "canvas"), wait(browser, DRAWN)
    canvas.send_keys("\ue014" * 3)  # right arrow
    wait(browser, f"{DRAWN} != {before}")
    browser.switch_to.default_content()
    assert "6 of 6 photos" in title
    for width in (1280, 390):
        screenshot(browser, tmp_path, "reconstruct", width)
    assert errors(browser) == []
    assert outside_requests(browser) == []


# A number that depends on all drawn pixels, 0 before anything is drawn.
DRAWN = "image ? new Uint32Array(image.data.buffer).reduce((sum, one, at) => (sum + one * (at % 997)) % 1e9, 0) : 0"


def start_reconstruction(browser: Any, url: str, photos: list[str]) -> None:
    browser.get(url)
    browser.get_log("browser")  # what the page before was still asking for was aborted
    open_tab(browser, "Reconstruct")
    wait(browser, "document.querySelector('#photos input[type=file]')")
    browser.find_element("css selector", "#photos input[type=file]").send_keys("\n".join(photos))
    wait(browser, f"document.querySelectorAll('#photos .download').length == {len(photos)}")
    browser.execute_script("document.querySelector('#reconstruct-button').click()")


def test_cancel_in_chromium_and_a_closed_tab(browser: Any, url: str, folder: Path, photos: list[str]) -> None:
    models = len(list(folder.glob("model-*")))
    start_reconstruction(browser, url, photos)
    wait_for(lambda: list(folder.glob("job-*")))
    assert wait(browser, "!document.querySelector('#cancel-button').disabled")
    browser.execute_script("document.querySelector('#cancel-button').click()")
    wait(browser, "document.querySelector('#reconstruct-problem')?.innerText.includes('Cancelled.')")
    assert wait(browser, "document.querySelector('#cancel-button').disabled")
    wait_for(lambda: not list(folder.glob("job-*")))
    start_reconstruction(browser, url, photos)
    wait_for(lambda: list(folder.glob("job-*")))
    browser.get("about:blank")
    wait_for(lambda: not list(folder.glob("job-*")))
    assert len(list(folder.glob("model-*"))) == models  # both stopped before their end


def outside_requests(browser: Any) -> list[str]:
    """URLs of other machines that the page has asked for."""
    sent = (json.loads(one["message"])["message"] for one in browser.get_log("performance"))
    asked = [one["params"]["request"]["url"] for one in sent if one["method"] == "Network.requestWillBeSent"]
    return [one for one in asked if one.startswith("http") and not one.startswith("http://127.0.0.1")]
