"""The answers and refusals of the application behind ``spacy latent serve``."""

from __future__ import annotations

import re
import threading
import time
import warnings
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from spacy.language import Language

pytest.importorskip("starlette")
pytest.importorskip("httpx")

with warnings.catch_warnings():
    # Newer versions of starlette warn about the name of the test client.
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient

from spacy_latent.errors import LatentError
from spacy_latent.interventions import Intervention
from spacy_latent.visualize import explorer as explorer_module
from spacy_latent.visualize import server
from spacy_latent.visualize.explorer import Busy, Explorer, Limits, TooMuch
from spacy_latent.visualize.server import make_application
from tests.models import pair_pipelines as pairs
from tests.pipeline.keyword_pipelines import TREE, keyword_pipeline
from tests.visualize.structures import INJECTIONS

KEY, TEXT = "latent_encoder", "good filler1 filler2 bad"


@pytest.fixture(scope="module")
def nlp() -> Language:
    return keyword_pipeline(TREE, steps=12)


@pytest.fixture(scope="module")
def explorer(nlp: Language) -> Explorer:
    return Explorer(nlp, "keywords")


@pytest.fixture(scope="module")
def client(explorer: Explorer) -> Iterator[TestClient]:
    application = make_application([explorer], example=[TEXT])
    with TestClient(application, base_url="http://127.0.0.1:5000") as made:
        yield made


def edit(part: list[int], force: bool, start: int = 0, key: str = KEY) -> dict[str, Any]:
    return {"key": key, "start": start, "part": part, "force": force}


def asked(client: TestClient, text: str = TEXT, **more: Any) -> dict[str, Any]:
    reply = client.post("/read", json={"texts": [text], **more})
    assert reply.status_code == 200, reply.text
    return reply.json()


def refused(client: TestClient, status: int, **options: Any) -> str:
    reply = client.post("/read", **options)
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert error["title"] and error["text"]
    return f"{error['title']}: {error['text']}"


def cats(found: dict[str, Any]) -> dict[str, float]:
    return {label: p for label, p in found["cats"]}


# ---------------------------------------------------------------- answers


def test_without_edits_it_is_exactly_what_the_pipeline_gives(
    client: TestClient, nlp: Language
) -> None:
    for text in (TEXT, "good", "bad bad", "", " ", "filler1 . filler2\nbad"):
        found, doc = asked(client, text), nlp(text)
        assert cats(found) == doc.cats
        assert found["tokens"] == len(doc)
        heads = [
            [part["part"][0] for part in one["parts"] if part["chosen"]]
            for one in found["structures"]
        ]
        assert heads == [span.decoded.tolist() for span in doc._.latent[KEY].spans]


def test_an_edit_is_seen_and_gone_with_the_request(client: TestClient) -> None:
    before = asked(client)
    found = asked(client, edits=[edit([4, 1], True), edit([0, 4], False)])
    chosen = [tuple(p["part"]) for p in found["structures"][0]["parts"] if p["chosen"]]
    assert (4, 1) in chosen and (0, 4) not in chosen
    assert cats(found) != cats(before)
    assert asked(client) == before


def test_temperature(client: TestClient, nlp: Language) -> None:
    cold, hot = (asked(client, temperature=t) for t in (0.05, 50.0))
    sure = [max(p["probability"] for p in one["structures"][0]["parts"]) for one in (cold, hot)]
    assert sure[0] > sure[1]


def test_parts_come_with_their_words_and_what_else_they_could_be(client: TestClient) -> None:
    (one,) = asked(client)["structures"]
    assert one["words"] == TEXT.split() and one["key"] == KEY and one["why_not"] == ""
    head, word = one["axes"]
    assert head["options"][0] == "(root)" and word["first"] == 1
    assert [option.split()[1] for option in word["options"]] == TEXT.split()
    drawn = one["drawing"]
    for part in one["parts"]:
        if part["chosen"]:
            wanted = {str(node - 1) for node in part["part"] if node}
            assert set(part["words"]) == wanted
            marks = [set(m.split()) for m in re.findall(r'data-words="([^"]*)"', drawn)]
            assert wanted in marks
    assert re.findall(r'data-word="(\d+)"', drawn) == ["0", "1", "2", "3"]


def test_two_threads_see_their_own_edits(client: TestClient) -> None:
    parts = [[4, 1], [3, 1], [2, 1], [0, 1]]
    wanted = {tuple(part): asked(client, edits=[edit(part, True)]) for part in parts}
    wrong: list[Any] = []
    barrier = threading.Barrier(len(parts))

    def work(part: list[int]) -> None:
        barrier.wait()
        for _ in range(4):
            if asked(client, edits=[edit(part, True)]) != wanted[tuple(part)]:
                wrong.append(part)

    threads = [threading.Thread(target=work, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len({str(found["cats"]) for found in wanted.values()}) > 1


def test_pipelines_beside_each_other_and_steps(nlp: Language) -> None:
    other = keyword_pipeline(TREE, steps=1)
    steps = [Explorer(other, "step-1"), Explorer(nlp, "step-12")]
    application = make_application(steps, Explorer(other, "other"))
    with TestClient(application, base_url="http://localhost") as client:
        told = client.get("/models").json()
        assert told["steps"] == ["step-1", "step-12"] and told["beside"] == "other"
        found = [asked(client, model=i) for i in range(3)]
        assert [one["model"] for one in found] == ["step-1", "step-12", "other"]
        assert cats(found[0]) == cats(found[2]) == other(TEXT).cats
        assert cats(found[1]) == nlp(TEXT).cats
        refused(client, 400, json={"texts": [TEXT], "model": 3})


def test_a_pair_of_texts() -> None:
    nlp = pairs.trained(pairs.pipeline(), steps=2)
    application = make_application([Explorer(nlp, "pairs", pairs=True)])
    with TestClient(application, base_url="http://127.0.0.1") as client:
        texts = ["the dog runs", "the dog runs fast"]
        body = {"texts": texts, "edits": [edit([0, 3], True, key=pairs.NAME)]}
        (one,) = client.post("/read", json=body).json()["structures"]
        (forced,) = [part for part in one["parts"] if part["part"] == [0, 3]]
        assert forced["chosen"] and forced["words"] == ["0", "b3"]
        assert 'data-words="0 b3"' in one["drawing"]
        assert "two texts" in refused(client, 422, json={"texts": texts[:1]})
        assert client.post("/read", json={"texts": ["", "a"]}).json()["structures"] == []


# ---------------------------------------------------------------- refusals


def test_edits_that_leave_nothing_or_mean_nothing(client: TestClient) -> None:
    two = [edit([2, 1], True), edit([3, 1], True)]
    assert "leave no structure" in refused(client, 422, json={"texts": [TEXT], "edits": two})
    for wrong in (
        edit([0, 9], True),
        edit([1, 1], True),
        edit([1], False),
        edit([0, 1], True, start=3),
        edit([0, 1], True, key="ner"),
    ):
        refused(client, 422, json={"texts": [TEXT], "edits": [wrong]})


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "evil.example:5000", ""]
)
def test_names_of_others_are_not_answered_to(client: TestClient, host: str) -> None:
    for path in ("/", "/models", "/page.js"):
        reply = client.get(path, headers={"host": host})
        assert reply.status_code == 421 and "keywords" not in reply.text
    refused(client, 421, json={"texts": [TEXT]}, headers={"host": host})


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:81", "[::1]", "[::1]:5000", "LOCALHOST"])
def test_names_of_this_machine_are(client: TestClient, host: str) -> None:
    assert client.get("/models", headers={"host": host}).status_code == 200


def test_pages_of_others_cannot_post(client: TestClient) -> None:
    for origin in (
        "http://evil.example",
        "https://127.0.0.1:5000",
        "http://localhost:5000",
        "null",
    ):
        refused(client, 403, json={"texts": [TEXT]}, headers={"origin": origin})
    own = {"origin": "http://127.0.0.1:5000"}
    assert client.post("/read", json={"texts": [TEXT]}, headers=own).status_code == 200
    # A form of another site can post these content types without a preflight request.
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        headers = {"content-type": kind}
        refused(client, 415, content=b'{"texts": ["a"]}', headers=headers)
    assert client.get("/read").status_code == 405


def test_every_answer_has_the_policy(client: TestClient) -> None:
    for path in ("/", "/page.js", "/page.css", "/models", "/nothing", "/../setup.cfg"):
        policy = client.get(path).headers["content-security-policy"]
        assert policy.startswith("default-src 'none'") and "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
    reply = client.get("/", headers={"host": "evil.example"})
    assert reply.headers["content-security-policy"] == policy
    assert reply.headers["x-content-type-options"] == "nosniff"


def test_the_page_asks_for_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/").text
    assert not re.findall(r"https?://|<script>|<style|\son\w+=|style=", page)
    assert set(re.findall(r'(?:src|href)="([^"]*)"', page)) == {
        "/page.css",
        "/page.js",
        "/isolate.js",
    }
    assert "url(" not in client.get("/page.css").text
    assert not re.findall(r"https?://|eval\(|Function\(", client.get("/page.js").text)


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[1, 2]",
        b"null",
        b'"text"',
        b"[" * 5000,
        b'{"texts": "a"}',
        b'{"texts": [1]}',
        b'{"texts": null}',
        b'{"texts": ["\\ud800"]}',
        b'{"texts": ["a"], "more": 1}',
        b'{"texts": ["a"], "model": -1}',
        b'{"texts": ["a"], "model": true}',
        b'{"texts": ["a"], "model": 1e400}',
        b'{"texts": ["a"], "temperature": 0}',
        b'{"texts": ["a"], "temperature": "1"}',
        b'{"texts": ["a"], "temperature": NaN}',
        b'{"texts": ["a"], "temperature": 1e300}',
        b'{"texts": ["a"], "edits": {}}',
        b'{"texts": ["a"], "edits": [1]}',
        b'{"texts": ["a"], "edits": [{"key": "latent_encoder"}]}',
        b'{"texts": ["a"], "edits": [{"key": "k", "start": 0, "part": [1.5], "force": true}]}',
        b'{"texts": ["a"], "edits": [{"key": "k", "start": 1e999, "part": [1], "force": true}]}',
        b'{"texts": ["a"], "edits": [{"key": [], "start": 0, "part": [1], "force": true}]}',
    ],
)
def test_what_is_no_request_is_refused(client: TestClient, body: bytes) -> None:
    refused(client, 400, content=body, headers=JSON)


def test_huge_numbers_and_many_edits(client: TestClient) -> None:
    number = b'{"texts": ["a"], "edits": [{"key": "latent_encoder", "start": 0, "part": ['
    refused(client, 400, content=number + b"9" * 5000 + b'], "force": true}]}', headers=JSON)
    many = [edit([0, 1], False)] * 101
    assert "101 parts" in refused(client, 413, json={"texts": [TEXT], "edits": many})


def test_texts_and_requests_that_are_too_long(client: TestClient) -> None:
    assert "characters" in refused(client, 413, json={"texts": ["word " * 10_000]})
    assert "400 tokens" in refused(client, 413, json={"texts": ["a " * 400]})
    huge = b'{"texts": ["' + b"a" * server.LARGEST + b'"]}'
    refused(client, 413, content=huge, headers=JSON)

    def pieces() -> Iterator[bytes]:
        # A request in pieces has no Content-Length to check beforehand.
        for _ in range(server.LARGEST // 1000 + 2):
            yield b" " * 1000

    refused(client, 413, content=pieces(), headers=JSON)
    assert asked(client)["tokens"] == 4


def test_hostile_texts_stay_texts(client: TestClient) -> None:
    for text in [" ".join(word for word in INJECTIONS if word != "\ud800"), "\x00\x1b[31m\u202e a"]:
        found = asked(client, text)
        drawn = "".join(one["drawing"] + one["alternatives"] for one in found["structures"])
        elements = Elements(drawn)
        assert elements.names and not elements.names & {"script", "img", "iframe", "style", "a"}
        assert not [name for name in elements.attributes if name.startswith("on")]
        # The page finds style attributes by this string, to set them one by one. No text can
        # contain it, since quotation marks are escaped.
        assert drawn.count(' style="') == elements.attributes.count("style") > 0


class Elements(HTMLParser):
    def __init__(self, markup: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: list[str] = []
        self.feed(markup)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.names.add(tag)
        self.attributes += [name for name, _ in attrs]


def test_it_takes_turns_and_gives_up_in_time(nlp: Language) -> None:
    explorer = Explorer(nlp, limits=Limits(seconds=0.2))
    application = make_application([explorer])
    explorer._turn.acquire()
    try:
        with pytest.raises(Busy):
            explorer.predict([TEXT])
        with TestClient(application, base_url="http://127.0.0.1") as client:
            begun = time.monotonic()
            refused(client, 503, json={"texts": [TEXT]})
            assert time.monotonic() - begun < 20
    finally:
        explorer._turn.release()
    assert explorer.predict([TEXT]).doc.cats == nlp(TEXT).cats


def test_threads_of_the_server_use_the_gpu_of_the_pipeline(
    nlp: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stand-ins for Thinc's functions keep a device for each thread, so no GPU is needed."""
    here = threading.local()
    seen: list[Any] = []

    def device() -> torch.device:
        return torch.device(getattr(here, "device", "cpu"))

    def use(number: int) -> None:
        here.device = f"cuda:{number}"

    def set_ops(ops: str) -> None:
        if ops == "those of the CPU":
            here.device = "cpu"

    def pipe(*arguments: Any, **options: Any) -> Any:
        seen.append((threading.get_ident(), str(device())))
        return inspect_pipe(*arguments, **options)

    inspect_pipe = explorer_module.inspect_pipe
    for name, pretended in (
        ("get_torch_default_device", device),
        ("get_current_ops", lambda: "those of the CPU" if device().type == "cpu" else "others"),
        ("require_gpu", use),
        ("set_active_gpu", use),
        ("set_current_ops", set_ops),
        ("inspect_pipe", pipe),
    ):
        monkeypatch.setattr(explorer_module, name, pretended)
    on_cpu = Explorer(nlp)
    use(1)
    on_gpu = Explorer(nlp)
    devices_after: list[str] = []

    def ask() -> None:
        for explorer in (on_gpu, on_cpu):
            explorer.predict([TEXT])
            devices_after.append(str(device()))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    threads, devices = zip(*seen)
    assert threading.get_ident() not in threads and devices == ("cuda:1", "cpu")
    # Each prediction restores the device that the thread had before.
    assert devices_after == ["cpu", "cpu"]
    use(0)
    on_gpu.predict([TEXT])
    assert seen[-1][1] == "cuda:1" and str(device()) == "cuda:0"


def test_too_many_at_once_are_refused(nlp: Language, monkeypatch: Any) -> None:
    monkeypatch.setattr(server, "WAITING", 1)
    explorer = Explorer(nlp)
    held, go = threading.Event(), threading.Event()

    class Slow(Explorer):
        def predict(self, *arguments: Any) -> Any:
            held.set()
            go.wait(60)
            return explorer.predict(*arguments)

    replies: list[Any] = []
    application = make_application([Slow(nlp)])
    with TestClient(application, base_url="http://127.0.0.1") as client:
        body = {"texts": [TEXT]}
        thread = threading.Thread(
            target=lambda: replies.append(client.post("/read", json=body).status_code)
        )
        thread.start()
        assert held.wait(60)
        assert "Too many" in refused(client, 503, json=body)
        go.set()
        thread.join()
        assert replies == [200]
        # The finished request has released its place.
        assert client.post("/read", json=body).status_code == 200


def test_a_pipeline_that_fails_says_where_to_look(nlp: Language) -> None:
    class Broken(Explorer):
        def predict(self, *arguments: Any) -> Any:
            raise KeyError("secret")

    application = make_application([Broken(nlp)])
    with TestClient(
        application, base_url="http://127.0.0.1", raise_server_exceptions=False
    ) as client:
        told = refused(client, 500, json={"texts": [TEXT]})
        assert "terminal" in told and "secret" not in told


def test_a_socket_is_closed(client: TestClient) -> None:
    from starlette.websockets import WebSocketDisconnect

    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/read"):
        pass


def test_limits_without_a_server(explorer: Explorer) -> None:
    with pytest.raises(LatentError, match="one text"):
        explorer.predict(["a", "b"])
    with pytest.raises(TooMuch, match="characters"):
        explorer.predict(["a" * 6000])
    many = Intervention(forbidden=((0, (0, 1)),) * 101)
    with pytest.raises(TooMuch, match="edited"):
        explorer.predict([TEXT], {KEY: many})
