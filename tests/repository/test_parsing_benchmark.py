"""The table of parsers is written from the stored runs. Measured figures are not tested."""

import time

import pytest
import spacy
from spacy.tokens import Doc, DocBin
from spacy.training.initialize import init_nlp
from spacy.util import load_config

from benchmarks import parsing, raw_results


@pytest.fixture
def keep(tmp_path, monkeypatch):
    path = tmp_path / "parsing.jsonl"
    monkeypatch.setattr(parsing, "KEPT", path)

    def keep(component: str, seed: int, speed: int, uas: float, **changed: object) -> None:
        row = {
            "language": "english",
            "component": component,
            "seconds": 20.0,
            "seed": seed,
            "digest": parsing.SIDES["english"][component].digest,
            "date": f"2030-01-0{1 + seed}",
            "torch": "2",
            "spacy": "3",
            "steps": 10 + seed,
            "scores": {"UAS": uas, "LAS": 0.25, "sentences F1": 0.5},
            "speed": speed,
        }
        raw_results.add(path, {**row, **changed})

    keep("latent_parser", 0, 2000, 0.5)
    keep("latent_parser", 2, 1000, 0.75)
    keep("parser", 0, 3000, 0.25)
    return keep


def test_the_table_has_means_and_leaves_out_what_was_not_run(keep):
    first, *_, own, other = parsing.table("english", 20.0)
    assert first.startswith("2030-01-01 to 2030-01-03, torch 2")
    figures = "62.5 ± 35.4 (50.0, 75.0) | 25.0 ± 0.0 (25.0, 25.0) | 50.0 ± 0.0 (50.0, 50.0)"
    assert own == f"| latent_parser | 0, 2 | 11 | {figures} | 2,000 |"
    assert other == "| parser | 0 | 10 | 25.0 | 25.0 | 50.0 | 3,000 |"
    assert not any("nothing" in line for line in parsing.table("latin", 20.0)[3:])


def test_rows_of_other_settings_do_not_count(keep):
    keep("parser", 3, 1, 0.1, digest="of last month")
    keep("parser", 4, 1, 0.1, seconds=40.0)
    found = parsing.known("english", 20.0)
    assert {what: sorted(rows) for what, rows in found.items() if rows} == {
        "latent_parser": [0, 2],
        "parser": [0],
    }


def test_what_is_known_is_not_run_and_a_peer_that_is_not_there_is_left_out(
    keep, monkeypatch, capsys
):
    ran = []

    def run(side, seconds, seed, encoder):
        ran.append((side.config, seed, encoder))
        return {"steps": 1, "scores": dict.fromkeys(parsing.FIGURES, 0.5), "speed": 10}

    monkeypatch.setattr(parsing, "run", run)
    monkeypatch.setattr(parsing, "find_spec", lambda name: None if "experimental" in name else 1)
    sections = []
    monkeypatch.setattr(parsing, "write_section", lambda *given: sections.append(given))
    monkeypatch.setattr("sys.argv", "parsing english --seconds 20 --seeds 0 1".split())
    parsing.main()
    configs = ["parser_ewt", "parser_ewt_transition"]
    assert ran == [(config, 1, None) for config in configs]
    assert "left out, as spacy_experimental is not installed" in capsys.readouterr().out
    ((name, _, lines),) = sections
    assert name == "parsing_english" and "| 0, 1, 2 |" in lines[-2]


def test_rates_go_on_as_their_schedule_says(tmp_path, monkeypatch):
    vocab = spacy.blank("en").vocab
    doc = Doc(vocab, ["A", "cat", "sat"], heads=[1, 2, 2], deps=["det", "nsubj", "ROOT"])
    DocBin(docs=[doc] * 40).to_disk(tmp_path / "train.spacy")
    read = load_config(parsing.ROOT / "configs/parser_ewt.cfg")
    read["paths"].update(train=str(tmp_path / "train.spacy"), dev=str(tmp_path / "train.spacy"))
    warm_up = {"@schedules": "warmup_linear.v1", "warmup_steps": 4, "total_steps": 1000}
    read["training"]["optimizer"]["learn_rate"] = {**warm_up, "initial_rate": 4.0}
    nlp, rates = init_nlp(read), []
    monkeypatch.setattr(nlp, "update", lambda batch, sgd, **_: rates.append(sgd.learn_rate))
    elapsed = iter([0.0, 1.0, 2.0, 3.0])
    monkeypatch.setattr(time, "process_time", lambda: next(elapsed))
    assert parsing.train(nlp, parsing.Side("-"), seconds=2.0, seed=0) == 3
    assert rates == [0.0, 1.0, 2.0]
