"""The command ``spacy latent serve`` without the page itself."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest
import spacy
from typer.testing import CliRunner

from spacy_latent.cli import serve
from spacy_latent.cli.commands import latent_cli
from spacy_latent.cli.demo import EXPRESSION, carried_pipeline
from spacy_latent.visualize.explorer import Explorer, Limits
from tests.models import pair_pipelines as pairs


def test_without_the_extra_it_says_which_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    imported = builtins.__import__

    def lacking(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] in ("starlette", "uvicorn"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return imported(name, *rest)

    monkeypatch.setattr(builtins, "__import__", lacking)
    # The missing package is reported before the missing pipeline.
    result = CliRunner().invoke(latent_cli, ["serve", "nowhere"])
    assert result.exit_code == 1
    assert "spacy-latent[serve]" in result.output + capsys.readouterr().err


def test_it_listens_here_and_answers_to_no_other_name_unasked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for host in ("0.0.0.0", "::"):
        result = CliRunner().invoke(latent_cli, ["serve", "nowhere", "--host", host])
        assert result.exit_code == 1
    (host,) = (p for p in _parameters() if p.name == "host")
    assert host.default == "127.0.0.1"


def _parameters() -> Any:
    from typer.main import get_command

    group: Any = get_command(latent_cli)
    return group.commands["serve"].params


def test_a_port_that_is_taken_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    taken = serve.listen("127.0.0.1", 0)
    try:
        with pytest.raises(SystemExit):
            serve.listen("127.0.0.1", taken.getsockname()[1])
        assert "--port" in capsys.readouterr().err
    finally:
        taken.close()


def test_a_host_that_is_another_machine_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    # This address is reserved for documentation.
    with pytest.raises(SystemExit):
        serve.listen("192.0.2.1", 0)
    told = capsys.readouterr().err
    assert "--host" in told and "--port" not in told


def test_names_are_as_short_as_tells_them_apart() -> None:
    assert serve.names_of(["training/model-best"]) == ["training/model-best"]
    assert serve.names_of(["training/mine"]) == ["mine"] and serve.names_of(["model-best"])
    assert serve.names_of(["a/model-best", "b/model-best"]) == ["a/model-best", "b/model-best"]
    assert serve.names_of(["a/model-best", "a/model-best"]) == ["a/model-best"] * 2


def test_steps_are_in_the_order_of_their_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("step-10", "step-9", "step-100"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "meta.json").write_text("{}")
    found = [Path(step).name for step in serve.steps_of([tmp_path])]
    assert found == ["step-9", "step-10", "step-100"]
    # A step that is named itself keeps its position.
    first = serve.steps_of([tmp_path / "step-100", tmp_path])
    assert [Path(step).name for step in first][:2] == ["step-100", "step-9"]
    with pytest.raises(SystemExit):
        serve.steps_of([tmp_path / "step-9" / "nothing"])
    assert "There is no pipeline" in capsys.readouterr().err


def test_pipelines_that_do_not_fit_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("starlette")
    import spacy

    spacy.blank("en").to_disk(tmp_path / "blank")
    pairs.trained(pairs.pipeline(), steps=1).to_disk(tmp_path / "pairs")
    with carried_pipeline() as demo:
        for model, text, beside, told in (
            (str(tmp_path / "blank"), [], None, "cannot be shown"),
            (str(tmp_path / "nowhere"), [], None, "cannot be loaded"),
            (str(demo), [], str(tmp_path / "pairs"), "read pairs"),
            (str(demo), ["a", "b"], None, "2 texts"),
            (str(tmp_path / "pairs"), ["a"], None, "1 text given"),
            # The number of texts is checked before the second pipeline is loaded.
            (str(demo), ["a", "b"], str(tmp_path / "nowhere"), "2 texts given"),
        ):
            with pytest.raises(SystemExit):
                serve.application_of(model, text, beside)
            printed = capsys.readouterr()
            # Messages are wrapped.
            assert told in " ".join(printed.err.split())
            assert printed.out.startswith("Loading ")


@pytest.mark.parametrize("name", ["name:5000", "http://name", "::1"])
def test_a_name_that_could_not_match_is_refused(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("starlette")
    with carried_pipeline() as demo, pytest.raises(SystemExit):
        serve.application_of(str(demo), [], None, allow_host=[name])
    assert "without port" in capsys.readouterr().err


def test_in_another_tree_the_expression_has_another_value() -> None:
    """The example of the documentation holds for the pipeline in the package."""
    from spacy_latent.interventions import Intervention
    from spacy_latent.visualize.explorer import Explorer

    with carried_pipeline() as demo:
        explorer = serve.explorer_of(str(demo), "demo", 3, Limits())
    assert isinstance(explorer, Explorer)
    (one,) = explorer.predict([EXPRESSION]).structures()
    assert one.seen.cats[0][0] == "4"
    head, word = (axis["options"] for axis in one.axes())
    part = (head.index("1 [MAX"), word.index("4 9") + 1)
    asked = {one.key: Intervention(forced=((0, part),))}
    assert explorer.predict([EXPRESSION], asked).cats[0][0] == "9"


def test_it_serves_what_it_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    uvicorn = pytest.importorskip("uvicorn")
    ran: list[Any] = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: ran.append((self, sockets)))
    result = CliRunner().invoke(latent_cli, ["serve", "--port", "0"])
    assert result.exit_code == 0, result.output
    ((made, (listening,)),) = ran
    address, port = listening.getsockname()
    listening.close()
    assert address == "127.0.0.1"
    assert f"http://127.0.0.1:{port}" in result.output
    # The server logs no texts, and does not trust the headers of proxies.
    assert not made.config.access_log and not made.config.proxy_headers
    assert not made.config.server_header


def test_the_page_begins_with_an_example_whatever_the_corpora_are() -> None:
    nlp = spacy.blank("en")
    listops = {"@readers": "spacy-latent.ListOps.v1"}
    for corpora, begins in (
        ({"train": listops, "dev": "${corpora.train}"}, EXPRESSION),
        ({"train": None, "dev": None}, serve.EXAMPLE),
        ({"@readers": "my_project.Corpora.v1", "path": "corpus"}, serve.EXAMPLE),
    ):
        nlp.config["corpora"] = corpora
        assert serve.example_for(Explorer(nlp, "model")) == [begins]
