"""A signalling game with a latent word: success by estimator, and number of calls of the receiver.

    python -m benchmarks signal_game --seeds 0 1 2 3 4

This is the emergent communication of Lazaridou et al. 2017 in the size of Correia et al. 2020
(section 5.2). A sender sees an object and says one of 256 words. A receiver hears the word and sees
sixteen objects. Both succeed if the receiver points to the sender's object. There the objects are
pictures. Here they have eight properties of four values each, so that 256 words cannot distinguish
all 65,536 objects. A sender that uses all words equally often would be understood in 97.1 % of the
games. No meaning of a word is annotated: the receiver learns it. No object of the test occurs in
training.

"calls" is the number of calls of the receiver for each object, in the last tenth of training. In
the test, the sender says its best word.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from datetime import date
from statistics import mean, stdev

import torch
from torch import Tensor, nn

from benchmarks.raw_results import RAW, add, read
from benchmarks.sections import write_section
from spacy_latent.estimators.base import Draw, Estimator
from spacy_latent.estimators.control_variates import LeaveOneOut, MovingAverage, SelfCritical
from spacy_latent.estimators.dense_marginalization import DenseMarginalization
from spacy_latent.estimators.relaxed_perturbation import RelaxedPerturbation
from spacy_latent.estimators.score_function import ScoreFunction
from spacy_latent.estimators.sparsemap import SparseMAP
from spacy_latent.estimators.straight_through import StraightThrough
from spacy_latent.estimators.sum_and_sample import SumAndSample
from spacy_latent.estimators.top_k_sparsemax import TopKSparsemax
from spacy_latent.structures.one_of_n import OneOfN

WORDS, CANDIDATES, PROPERTIES, VALUES = 256, 16, 8, 4
WIDTH, BATCH, STEPS, TESTED, LEARN_RATE = 64, 64, 3000, 4096, 2e-3
TITLE = "A game of signals with 256 words"
PATH = RAW / "signal_game.jsonl"

ESTIMATORS: dict[str, Callable[[], Estimator]] = {
    "all words summed": lambda: DenseMarginalization(max_structures=WORDS),
    "sparsemax, summed over its support": lambda: SparseMAP(marginalize=True, prediction="map"),
    "top-k sparsemax, k = 10": lambda: TopKSparsemax(k=10),
    "sum of the best and a sample": lambda: SumAndSample(k=1),
    "score function": ScoreFunction,
    "score function, moving average": lambda: ScoreFunction(control_variate=MovingAverage()),
    "score function, self-critical": lambda: ScoreFunction(control_variate=SelfCritical()),
    "score function, two samples, leave one out": lambda: ScoreFunction(
        num_samples=2, control_variate=LeaveOneOut()
    ),
    "Gumbel-softmax": RelaxedPerturbation,
    "straight-through Gumbel-softmax": lambda: RelaxedPerturbation(straight_through=True),
    "straight-through": StraightThrough,
}


class Game(nn.Module):
    """The networks of both players.

    The sender scores words for an object. The receiver scores candidates for a word.
    """

    def __init__(self, estimator: Estimator) -> None:
        super().__init__()
        size = PROPERTIES * VALUES
        self.sender = nn.Sequential(nn.Linear(size, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WORDS))
        self.words = nn.Linear(WORDS, WIDTH, bias=False)
        self.seen = nn.Sequential(nn.Linear(size, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.structure = OneOfN()
        self.estimator = estimator.for_width(size)

    def forward(self, objects: Tensor, candidates: Tensor) -> tuple[Draw, Tensor]:
        """Play a round.

        Args:
            objects: the objects that the sender sees, ``(B, size)``.
            candidates: the objects that the receiver sees, ``(B, CANDIDATES, size)``.

        Returns:
            The draw of words, and the receiver's scores for each word, ``(K, B, CANDIDATES)``.
        """
        scores = self.sender(objects)
        lengths = torch.full((len(objects),), WORDS)
        draw = self.estimator(self.structure, scores, lengths, self.training)
        heard = self.words(draw.z)
        return draw, torch.einsum("kbd,bcd->kbc", heard, self.seen(candidates))


def objects() -> tuple[Tensor, Tensor]:
    """Return the objects of the training and the objects of the test, each ``(count, size)``."""
    codes = torch.arange(VALUES**PROPERTIES)
    values = torch.stack([codes // VALUES**place % VALUES for place in range(PROPERTIES)], 1)
    order = torch.randperm(len(codes), generator=torch.Generator().manual_seed(0))
    every = nn.functional.one_hot(values, VALUES).flatten(1).float()[order]
    held_out = len(every) // 10
    return every[held_out:], every[:held_out]


def drawn(pool: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Draw objects for the sender, candidates for the receiver, and the object's place in them."""
    candidates = pool[torch.randint(len(pool), (count, CANDIDATES), generator=generator)]
    places = torch.randint(CANDIDATES, (count,), generator=generator)
    return candidates[torch.arange(count), places], candidates, places


def play(name: str, seed: int, steps: int = STEPS) -> dict[str, object]:
    """Train a game with an estimator, and return the scores of its test."""
    random.seed(seed)
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    pool, unseen = objects()
    game = Game(ESTIMATORS[name]())
    optimizer = torch.optim.Adam(game.parameters(), LEARN_RATE)
    calls: list[float] = []
    start = time.process_time()
    for step in range(steps):
        spoken, candidates, places = drawn(pool, BATCH, generator)
        draw, found = game(spoken, candidates)
        gold = places.expand(len(found), -1)
        losses = nn.functional.cross_entropy(found.flatten(0, 1), gold.flatten(), reduction="none")
        losses = losses.view_as(gold)
        if game.estimator.needs_loss or game.estimator.hard:
            log_probs = torch.zeros_like(losses) if draw.log_probs is None else draw.log_probs
            own = (losses, draw.weights, log_probs, spoken, draw.extras)
            loss = game.estimator.objective(*own).mean()
        else:
            loss = (draw.weights * losses).sum(0).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if 10 * step >= 9 * steps:
            calls.append(float(draw.present.sum()) / BATCH)
    seconds = time.process_time() - start
    game.eval()
    with torch.no_grad():
        spoken, candidates, places = drawn(unseen, TESTED, generator)
        draw, found = game(spoken, candidates)
    right = float((found[0].argmax(-1) == places).float().mean())
    said = len(draw.z[0].argmax(-1).unique())
    return {
        "estimator": name,
        "seed": seed,
        "steps": steps,
        "scores": {"understood": right, "words": said, "calls": mean(calls)},
        "processor_seconds": round(seconds, 1),
        "date": str(date.today()),
        "torch": torch.__version__,
    }


def table(rows: list[dict[str, object]]) -> list[str]:
    lines = [
        "| estimator | seeds | understood, percent | words used | calls | seconds of a processor |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name in ESTIMATORS:
        own = {row["seed"]: row for row in rows if row["estimator"] == name}
        if not own:
            continue
        scores = [row["scores"] for row in own.values()]
        shares = [100 * score["understood"] for score in scores]  # type: ignore[index]
        spread = f" ± {stdev(shares):.1f}" if len(shares) > 1 else ""
        cells = [f"{mean(shares):.1f}{spread}"]
        cells += [f"{mean(score[key] for score in scores):.1f}" for key in ("words", "calls")]  # type: ignore[index]
        cells.append(f"{mean(row['processor_seconds'] for row in own.values()):.0f}")  # type: ignore[misc]
        lines.append(f"| {name} | {len(own)} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--only", nargs="+", choices=list(ESTIMATORS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    for seed in given.seeds:
        for name in given.only or ESTIMATORS:
            rows = read(PATH)
            if not any(row["estimator"] == name and row["seed"] == seed for row in rows):
                add(PATH, play(name, seed))
                print(name, seed, read(PATH)[-1]["scores"], flush=True)
    rows = read(PATH)
    made = ", ".join(sorted({row["torch"] for row in rows}))
    dates = sorted({row["date"] for row in rows})
    lines = [
        f"{' to '.join(sorted({dates[0], dates[-1]}))}, torch {made}, one thread, "
        f"{STEPS:,} steps of {BATCH} objects; mean and standard deviation.",
        "",
        *table(rows),
    ]
    write_section("signal_game", TITLE, lines)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
