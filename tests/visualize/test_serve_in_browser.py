"""The page of ``spacy latent serve`` works in a browser, with the keyboard and with a mouse."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from spacy_latent.cli.serve import listen
from spacy_latent.visualize.explorer import Explorer
from tests.pipeline.keyword_pipelines import TREE, keyword_pipeline
from tests.visualize.browser import requests, script, wait_for

TEXT = "good filler1 filler2 bad"


@pytest.fixture(scope="module")
def address(driver: Any) -> Iterator[str]:
    uvicorn = pytest.importorskip("uvicorn")
    pytest.importorskip("starlette")
    from spacy_latent.visualize.server import make_application

    first, last = (keyword_pipeline(TREE, steps=steps) for steps in (1, 12))
    steps = [Explorer(first, "step-1"), Explorer(last, "step-12")]
    application = make_application(steps, Explorer(first, "other"), example=[TEXT])
    listening = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(application, log_level="critical", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join(30)


def look(driver: Any, address: str, width: int = 1280, scheme: str = "light") -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    requests(driver)
    driver.get_log("browser")
    driver.get(address)
    wait_for(lambda: script(driver, "document.querySelectorAll('.structure').length") == 2)


def press(driver: Any, *keys: str) -> None:
    """Press keys on the focused element."""
    from selenium.webdriver import ActionChains

    ActionChains(driver).send_keys(*keys).perform()


def go_to(driver: Any, code: str, key: str = "\ue004") -> None:
    """Press a key, by default the tab key, until the focused element satisfies an expression.

    The page has fewer than 200 stops of the tab key.
    """
    for _ in range(200):
        if script(driver, f"((node) => {code})(document.activeElement)"):
            return
        press(driver, key)
    raise AssertionError(f"the keyboard does not come to {code}")


def told(driver: Any) -> str:
    return script(driver, "document.getElementById('status').textContent")


def read(driver: Any) -> str:
    return wait_for(lambda: "…" not in told(driver) and told(driver))


def chosen(driver: Any, column: int = 0) -> list[str]:
    return script(
        driver,
        f"[...document.querySelectorAll('.column')[{column}].querySelectorAll('tr.chosen td.told')]"
        ".map(node => node.textContent)",
    )


def first_cats(driver: Any, column: int = 0) -> list[str]:
    return script(
        driver,
        f"[...document.querySelectorAll('.column')[{column}].querySelectorAll('.cats tbody tr')]"
        ".map(node => node.textContent)",
    )


def test_with_the_keyboard_alone(driver: Any, address: str) -> None:
    look(driver, address)
    before, others = first_cats(driver), first_cats(driver, 1)
    assert "step-12: predicted" in read(driver) and "other: predicted" in told(driver)
    # The tab key goes from the controls to the words, which are a single stop.
    driver.find_element("tag name", "body").click()
    go_to(driver, "node.id === 'text-0'")
    go_to(driver, "node.dataset.word === '0'")
    assert isolated(driver) == ["0"] * len(isolated(driver)) and isolated(driver)
    press(driver, "\ue014")
    assert script(driver, "document.activeElement.dataset.word") == "1"
    press(driver, "\ue007")
    assert script(driver, "document.activeElement.getAttribute('aria-pressed')") == "true"
    shown = script(
        driver,
        "[...document.querySelector('.column').querySelectorAll('tbody tr[data-of]')]"
        ".filter(row => !row.hidden).map(row => row.dataset.of.split(' ').includes('1'))",
    )
    assert shown and all(shown)
    press(driver, "\ue00c")
    assert not script(driver, "document.querySelector('[data-word][aria-pressed=true]') !== null")
    # Forbid a part that the structure has.
    part = chosen(driver)[0]
    go_to(driver, f"node.getAttribute('aria-label') === 'Forbid: ' + {part!r}")
    press(driver, " ")
    wait_for(lambda: script(driver, "document.querySelector('.edits') !== null"))
    read(driver)
    assert part not in chosen(driver) and first_cats(driver) != before
    assert "now " in first_cats(driver)[0] or "same" in first_cats(driver)[0]
    assert first_cats(driver, 1) == others, "each pipeline has its own edits"
    # The part is no longer listed, and the focus is on the button that undoes this.
    label = script(driver, "document.activeElement.getAttribute('aria-label')")
    assert label == f"Take back: forbidden {part}"
    press(driver, "\ue007")
    wait_for(lambda: script(driver, "document.querySelector('.edits') === null"))
    read(driver)
    assert first_cats(driver) == before and part in chosen(driver)
    assert script(driver, "document.activeElement.tagName") == "SELECT"
    assert driver.get_log("browser") == []


def isolated(driver: Any) -> list[str]:
    """Return an item for each arc that is highlighted for the focused word.

    The item is the word's number. It is "wrong" if the arc does not belong to the word. An item
    "wrong" is added for each arc whose opacity does not agree with its highlight.
    """
    return script(
        driver,
        "(() => { const word = document.activeElement.dataset.word;"
        "const structure = document.activeElement.closest('.structure');"
        "if (!structure.classList.contains('isolating')) return ['not'];"
        "const found = [...structure.querySelector('.drawing').querySelectorAll('[data-words]')];"
        "return found.filter(part => part.classList.contains('of-word') !=="
        "  (getComputedStyle(part).opacity !== '0.1')).map(() => 'wrong')"
        ".concat(found.filter(part => part.classList.contains('of-word'))"
        ".map(part => part.dataset.words.split(' ').includes(word) ? word : 'wrong')); })()",
    )


def test_any_part_may_be_forced_and_what_cannot_be_says_so(driver: Any, address: str) -> None:
    look(driver, address)
    force = """
    const [head, word] = document.querySelectorAll('.column fieldset select');
    head.value = arguments[0]; word.value = arguments[1];
    document.querySelectorAll('.column fieldset button')[1].click();
    """
    read(driver)
    driver.execute_script(force, "4", "1")
    wait_for(lambda: "good <- bad" in chosen(driver) and "1 edit" in read(driver))
    assert "good <- bad" in script(driver, "document.querySelector('.edits').textContent")
    forced = "[...document.querySelectorAll('.asked')].map(part => part.dataset.words)"
    assert {tuple(sorted(one.split())) for one in script(driver, forced)} == {("0", "3")}
    driver.execute_script(force, "3", "1")
    alert = wait_for(
        lambda: script(driver, "(document.querySelector('[role=alert]') || {}).textContent")
    )
    assert "leave no structure" in alert and "exclude each other" in alert
    assert script(driver, "document.querySelectorAll('.edits li').length") == 2
    script(driver, "document.querySelector('.all > button').click()")
    wait_for(lambda: script(driver, "document.querySelector('[role=alert]') === null"))


def test_temperature_and_steps(driver: Any, address: str) -> None:
    look(driver, address)
    read(driver)
    last = first_cats(driver)
    step = driver.find_element("id", "step")
    step.send_keys("\ue012")
    wait_for(lambda: "step-1:" in read(driver))
    assert first_cats(driver) == first_cats(driver, 1) != last, "the other is of that step"
    temperature = driver.find_element("id", "temperature")
    temperature.send_keys("\ue010")
    wait_for(lambda: "temperature × 100" in read(driver))
    driver.find_element("id", "temperature-reset").click()
    wait_for(lambda: "temperature" not in read(driver))
    step.send_keys("\ue014")
    wait_for(lambda: "step-12:" in read(driver))
    assert first_cats(driver) == last
    # Enter another text, and read it by the keyboard.
    area = driver.find_element("id", "text-0")
    area.clear()
    area.send_keys("<img src=x onerror=alert(1)> bad\ue009\ue007\ue000")
    wait_for(lambda: "<img" in script(driver, "document.querySelector('.drawing').textContent"))
    assert script(driver, "document.images.length") == 0


def test_hovering_a_word(driver: Any, address: str) -> None:
    from selenium.webdriver import ActionChains

    look(driver, address)
    words = driver.find_elements("css selector", ".drawing [data-word]")
    ActionChains(driver).move_to_element(words[2]).perform()
    wait_for(lambda: script(driver, "document.querySelector('.isolating') !== null"))
    standing = script(
        driver,
        "[...document.querySelectorAll('.isolating .drawing [data-words].of-word')]"
        ".map(part => part.dataset.words)",
    )
    assert standing and all("2" in one.split() for one in standing)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_it_fits_and_keeps_to_itself(driver: Any, address: str, width: int, scheme: str) -> None:
    look(driver, address, width, scheme)
    read(driver)
    assert script(driver, "document.documentElement.scrollWidth") <= width
    ground = script(driver, "getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    side_by_side = script(
        driver,
        "(([a, b]) => a.getBoundingClientRect().top === b.getBoundingClientRect().top)"
        "(document.querySelectorAll('.column'))",
    )
    assert side_by_side == (width == 1280)
    # The drawing and the first alternative, and both pipelines, may have the same drawing.
    names = script(driver, "[...document.querySelectorAll('svg [id]')].map(node => node.id)")
    assert names and len(set(names)) == len(names)
    time.sleep(0.2)
    assert all(asked.startswith(f"{address}/") for asked in requests(driver))
    # The console would have a message if the content security policy had blocked anything.
    assert driver.get_log("browser") == []
