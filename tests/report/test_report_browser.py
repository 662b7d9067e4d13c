"""The page in a browser: no script errors, hover, copy, filter, both themes, and opening in time."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("plotly")
pytest.importorskip("selenium")

from selenium.webdriver import ActionChains, Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from evoprune.report.page import page
from evoprune.report.reading import RunView, view
from evoprune.runs.folder import RunFolder

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--window-size=1200,1000",
)  # fmt: skip

DRAWN = "return document.querySelector('#chart-progress')?.dataset.drawn ?? ''"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    driver = shutil.which("chromedriver")
    if driver is None or shutil.which("chromium") is None:
        pytest.skip("Debian's chromium and chromium-driver are not installed")
    options = ChromeOptions()
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.binary_location = str(shutil.which("chromium"))
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = Chrome(options=options, service=Service(driver))
    yield chrome
    chrome.quit()


@pytest.fixture
def opened(browser: Chrome, tmp_path: Path) -> Callable[..., Chrome]:
    """Opens the page of some runs and waits until the progress is drawn."""

    def open_page(*runs: RunView) -> Chrome:
        path = tmp_path / "report.html"
        path.write_text(page(runs), encoding="utf-8")
        browser.get(path.as_uri())
        until(lambda: browser.execute_script(DRAWN))
        return browser

    return open_page


def until(found: Callable[[], Any], seconds: float = 15) -> Any:
    end = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < end, "it did not come in time"
        time.sleep(0.05)
    return value


def errors(browser: Chrome) -> list[str]:
    return [line["message"] for line in browser.get_log("browser") if line["level"] == "SEVERE"]


def dots(browser: Chrome) -> list[Any]:
    return browser.find_elements(By.CSS_SELECTOR, "#chart-progress .scatterlayer .trace .point")


def seen(browser: Chrome) -> Any:
    """A dot inside the chart's window; those of failed evaluations lie below it."""
    script = (
        "const box = document.querySelector('#chart-progress .nsewdrag').getBoundingClientRect();"
        "return [...document.querySelectorAll('#chart-progress .scatterlayer .trace .point')].find((dot) => {"
        "  const at = dot.getBoundingClientRect();"
        "  return at.top > box.top + 10 && at.bottom < box.bottom - 10;"
        "}) ?? null"
    )
    return browser.execute_script(script)


def hover(browser: Chrome, element: Any) -> str:
    """What the chart says where the pointer is on an element."""
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    ActionChains(browser).move_to_element(element).perform()
    return str(
        until(lambda: " ".join(e.text for e in browser.find_elements(By.CSS_SELECTOR, ".hoverlayer text")))
    )


def test_every_chart_is_drawn_without_errors(
    opened: Callable[..., Chrome], plain: RunView, tmp_path: Path
) -> None:
    browser = opened(plain)
    charts = browser.find_elements(By.CSS_SELECTOR, ".chart")
    assert len(charts) == 7
    for chart in charts:
        browser.execute_script("arguments[0].scrollIntoView()", chart)
        until(lambda chart=chart: chart.get_attribute("data-drawn"))
        assert chart.find_elements(By.CSS_SELECTOR, ".main-svg")
    assert len(dots(browser)) >= len(plain.judged)
    assert browser.save_screenshot(str(tmp_path / "page.png"))
    assert errors(browser) == []


def test_the_nearest_ancestors_of_a_long_run_have_their_generations(
    opened: Callable[..., Chrome], tangled: RunView
) -> None:
    browser = opened(tangled)
    chart = browser.find_element(By.ID, "chart-ancestry-0")
    browser.execute_script("arguments[0].scrollIntoView()", chart)
    until(lambda: chart.get_attribute("data-drawn"))
    ticks = [each.text for each in chart.find_elements(By.CSS_SELECTOR, ".xtick text")]
    best = tangled.ledger.best()
    assert best is not None and str(best.individual.generation) in ticks and len(ticks) > 2


def test_hovering_tells_formula_fitness_accuracies_and_parents(
    opened: Callable[..., Chrome], plain: RunView
) -> None:
    browser = opened(plain)
    element = next(e for e in dots(browser)[len(plain.judged) - 1 :])
    told = hover(browser, element)
    assert "%" in told and "parents:" in told and " a " in f" {told}".replace("(", " ")
    texts = {str(each.individual.expr)[:20] for each in plain.judged}
    assert any(text in told for text in texts), told


def test_clicking_a_row_tells_where_a_function_comes_from(
    opened: Callable[..., Chrome], plain: RunView
) -> None:
    browser = opened(plain)
    best = plain.ledger.best()
    assert best is not None
    row = browser.find_element(By.CSS_SELECTOR, "#functions tbody tr")
    assert str(best.individual.expr) in row.text
    browser.execute_script("arguments[0].click()", row)
    detail = browser.find_element(By.ID, "detail")
    assert detail.is_displayed() and f"{100 * best.fitness:.2f} %" in detail.text
    parents = detail.find_elements(By.CSS_SELECTOR, ".link")
    assert len(parents) == len(best.individual.parents) > 0
    browser.execute_script("arguments[0].click()", parents[0])
    generation, index = best.individual.parents[0]
    told = browser.find_element(By.ID, "detail").text
    assert f"generation {generation}, number {index}" in told
    assert str(plain.ledger.born[generation, index].expr) in told


def test_copying(opened: Callable[..., Chrome], plain: RunView) -> None:
    browser = opened(plain)
    best = plain.ledger.best()
    assert best is not None
    expr = best.individual.expr
    browser.execute_cdp_cmd(
        "Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    )
    for button, expected in zip(
        browser.find_elements(By.CSS_SELECTOR, ".form .copy"),
        (str(expr), expr.latex(), expr.tree()),
        strict=True,
    ):
        browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
        button.click()
        until(lambda button=button: button.text == "copied")
        clipboard = browser.execute_async_script(
            "const done = arguments[0];"
            "navigator.clipboard.readText().then(done, (e) => done('refused: ' + e))"
        )
        assert clipboard == expected


def test_filtering(opened: Callable[..., Chrome], plain: RunView) -> None:
    browser = opened(plain)
    browser.find_element(By.ID, "filter").send_keys("F+ var_g")
    fitting = [e for e in plain.judged if all(w in str(e.individual.expr) for w in ("F+", "var_g"))]
    assert 0 < len(fitting) < len(plain.judged)
    until(
        lambda: (
            browser.find_element(By.ID, "count").text == f"{len(fitting)} of {len(plain.judged)} evaluations"
        )
    )
    rows = browser.find_elements(By.CSS_SELECTOR, "#functions tbody tr")
    assert 0 < len(rows) <= len(fitting)
    assert all("F+" in row.text and "var_g" in row.text for row in rows)
    browser.find_element(By.ID, "filter").clear()
    browser.find_element(By.ID, "filter").send_keys("no such thing")
    until(lambda: browser.find_element(By.ID, "count").text.startswith("0 of"))
    assert not browser.find_elements(By.CSS_SELECTOR, "#functions tbody tr")
    assert errors(browser) == []


def test_light_and_dark(opened: Callable[..., Chrome], plain: RunView) -> None:
    def ground() -> str:
        return str(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))

    browser = opened(plain)
    media = "Emulation.setEmulatedMedia"
    features = {"name": "prefers-color-scheme"}
    try:
        browser.execute_cdp_cmd(media, {"features": [features | {"value": "dark"}]})
        until(lambda: browser.execute_script(DRAWN) == "dark")
        assert ground() == "rgb(20, 23, 26)"
        browser.find_element(By.ID, "theme").click()
        until(lambda: browser.execute_script(DRAWN) == "light")
        assert ground() == "rgb(251, 251, 250)"
        browser.find_element(By.ID, "theme").click()
        until(lambda: browser.execute_script(DRAWN) == "dark")
        assert errors(browser) == []
    finally:
        browser.execute_cdp_cmd(media, {"features": [features | {"value": "light"}]})


def test_a_telephone(opened: Callable[..., Chrome], browser: Chrome, plain: RunView) -> None:
    """Nothing is wider than the window, and no formula is set letter below letter."""
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    try:
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        opened(plain)
        for chart in browser.find_elements(By.CSS_SELECTOR, ".chart"):
            browser.execute_script("arguments[0].scrollIntoView()", chart)
            until(lambda chart=chart: chart.get_attribute("data-drawn"))
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
        rows = "return Math.max(...[...document.querySelectorAll('tr')].map((row) => row.offsetHeight))"
        assert browser.execute_script(rows) < 250
        cell = browser.find_element(By.CSS_SELECTOR, "#functions tbody tr code")
        assert cell.location["x"] + 100 < 390, "formulas are seen without scrolling"
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_markup_in_a_run_is_not_run(opened: Callable[..., Chrome], runs: Path, tmp_path: Path) -> None:
    path = tmp_path / "<img src=x onerror=window.broken=2>"
    shutil.copytree(runs / "failing", path)
    browser = opened(view(RunFolder(path)), view(RunFolder(runs / "random")))
    browser.execute_script("document.querySelector('#functions tbody tr').click()")
    hover(browser, seen(browser))
    assert browser.execute_script("return typeof window.broken") == "undefined"
    assert "window.broken=2" in browser.find_element(By.TAG_NAME, "h1").text
    assert not browser.find_elements(By.CSS_SELECTOR, "img")
    assert errors(browser) == []


def test_markup_in_names_is_not_markup_to_plotly(
    opened: Callable[..., Chrome], plain: RunView, runs: Path
) -> None:
    name = "<b>bold</b> x<sub>2</sub> &amp; %{x}"
    browser = opened(replace(plain, name=name), view(RunFolder(runs / "random")))
    legend = [each.text for each in browser.find_elements(By.CSS_SELECTOR, "#chart-progress .legendtext")]
    assert f"{name}: best so far" in legend
    assert not browser.find_elements(By.CSS_SELECTOR, "#chart-progress .legendtext tspan[style*=bold]")
    assert name in hover(browser, seen(browser))
    assert errors(browser) == []


def test_what_hovering_over_ancestors_tells(opened: Callable[..., Chrome], plain: RunView) -> None:
    browser = opened(plain)
    chart = browser.find_element(By.ID, "chart-ancestry-0")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
    until(lambda: chart.get_attribute("data-drawn"))
    told = hover(browser, chart.find_elements(By.CSS_SELECTOR, ".point")[-1])
    assert "fitness" in told and "%" in told
    best = plain.ledger.best()
    assert best is not None and str(best.individual.origin.split()[0]) in told


def test_a_run_without_anyone_judged_opens_too(
    opened: Callable[..., Chrome], browser: Chrome, runs: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "begun"
    folder.mkdir()
    (folder / "config.toml").write_bytes((runs / "plain" / "config.toml").read_bytes())
    first = (runs / "plain" / "journal.jsonl").read_bytes().splitlines(keepends=True)[0]
    (folder / "journal.jsonl").write_bytes(first)
    path = tmp_path / "begun.html"
    path.write_text(page([view(RunFolder(folder))]), encoding="utf-8")
    browser.get(path.as_uri())
    assert "No function has been judged yet" in browser.find_element(By.TAG_NAME, "main").text
    assert errors(browser) == []


@pytest.mark.heavy
def test_10000_evaluations_open_in_3_seconds(browser: Chrome, big: RunView, tmp_path: Path) -> None:
    path = tmp_path / "big.html"
    path.write_text(page([big]), encoding="utf-8")
    assert path.stat().st_size < 15e6
    times = []
    for _ in range(3):
        start = time.monotonic()
        browser.get(path.as_uri())
        until(lambda: browser.execute_script(DRAWN), 30)
        times.append(time.monotonic() - start)
    assert browser.find_element(By.ID, "count").text == "10,000 of 10,000 evaluations"
    assert errors(browser) == []
    assert min(times) < 3, times
    print(f"{path.stat().st_size / 1e6:.1f} MB, opened in {min(times):.2f} s")
