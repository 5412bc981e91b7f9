"""The prompts that are decoded together, and what has come out so far."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from tasks.benchmark.verify import Uniforms, Verdict
from tasks.target.rendering import RenderedPrompt


@dataclass(frozen=True)
class DecodeSettings:
    """How a batch is decoded; each prompt is decoded once per temperature."""

    temperatures: tuple[float, ...]
    chain: int
    max_tokens: int
    end_ids: tuple[int, ...]
    seed: int


@dataclass
class Answer:
    """One prompt decoded at one temperature.

    A verify step counts with all drafts it accepted, also those that `max_tokens` then cut from the output: counting
    only what fits would lower the last step's count, and the more so the better the draft. Where an accepted draft ends
    the turn, the drafts after it do not count as accepted.
    """

    prompt: RenderedPrompt
    temperature: float
    chain: int
    random: np.random.Generator
    output_ids: list[int] = field(default_factory=list)
    verify_steps: int = 0
    drafted: int = 0
    accepted_by_position: list[int] = field(default_factory=list)
    done: bool = False

    @property
    def accepted(self) -> int:
        """Drafted tokens that the target kept."""
        return sum(self.accepted_by_position)

    def take(self, tokens: Sequence[int], settings: DecodeSettings) -> None:
        """Add new tokens, up to the end of the turn or to `max_tokens`."""
        for token in tokens:
            self.output_ids.append(token)
            if token in settings.end_ids or len(self.output_ids) == settings.max_tokens:
                self.done = True
                return


class Batch:
    """Answers in the making, one row each; a row's last known token has not been through the target yet.

    Attributes:
        answers: one per row.
        tokens: int64 (rows, capacity), prompt and output, zeros after them.
        lengths: int64 (rows,), known tokens; 2 in rows that are done.
        temperatures: float32 (rows,).
        active: int64, numbers of the rows that are not done.
    """

    def __init__(
        self, prompts: Sequence[RenderedPrompt], settings: DecodeSettings, drafter: str, device: torch.device
    ) -> None:
        self.settings, self.device = settings, device
        self.answers = [
            Answer(
                prompt,
                temperature,
                settings.chain,
                _generator(settings.seed, prompt.prompt_id, temperature, drafter),
                accepted_by_position=[0] * settings.chain,
            )
            for prompt in prompts
            for temperature in settings.temperatures
        ]
        rows = len(self.answers)
        capacity = max(len(p.ids) for p in prompts) + settings.max_tokens + settings.chain + 1
        self.tokens = torch.zeros(rows, capacity, dtype=torch.int64)
        for row, answer in enumerate(self.answers):
            self.tokens[row, : len(answer.prompt.ids)] = torch.tensor(answer.prompt.ids)
        self.tokens = self.tokens.to(device)
        self.lengths = torch.tensor([len(a.prompt.ids) for a in self.answers], device=device)
        self.temperatures = torch.tensor([a.temperature for a in self.answers], device=device)
        self.active = torch.arange(rows, device=device)
        self.end_ids = torch.tensor(settings.end_ids, dtype=torch.int64, device=device)

    @property
    def capacity(self) -> int:
        """Positions per row."""
        return self.tokens.shape[1]

    def uniforms(self) -> Uniforms:
        """The next random numbers, each row's from its own generator, so that no row depends on its batch mates."""
        chain = self.settings.chain
        numbers = np.zeros((len(self.answers), 2 * chain + 1))
        for row, answer in enumerate(self.answers):
            if answer.temperature > 0 and not answer.done:
                numbers[row] = answer.random.random(2 * chain + 1)
        drawn = torch.from_numpy(numbers).to(self.device)
        return Uniforms(drawn[:, :chain], drawn[:, chain : 2 * chain], drawn[:, -1])

    def start(self, first: Tensor) -> None:
        """Take each row's first token, int64 (rows,), which the prefill gave: no verify step."""
        self._append(first[:, None], torch.ones_like(self.lengths))

    def advance(self, verdict: Verdict, drafted: Tensor) -> None:
        """Take what a verify step gave the active rows; `drafted` int64 (rows,) is what each had proposed."""
        proposed, kept = drafted.tolist(), verdict.accepted.tolist()
        for row in self.active.tolist():
            answer = self.answers[row]
            answer.verify_steps += 1
            answer.drafted += proposed[row]
            for position in range(kept[row]):
                answer.accepted_by_position[position] += 1
        self._append(verdict.tokens, verdict.emitted)

    def select(self, rows: Tensor) -> None:
        """Keep these rows only; the others must be done."""
        self.answers = [self.answers[row] for row in rows.tolist()]
        self.tokens, self.lengths = self.tokens[rows], self.lengths[rows]
        self.temperatures = self.temperatures[rows]
        self._find_active()

    def _append(self, tokens: Tensor, counts: Tensor) -> None:
        active = self.active
        positions = self.lengths[active, None] + torch.arange(tokens.shape[1], device=self.device)
        self.tokens[active[:, None], positions] = tokens[active]
        self.lengths[active] += counts[active]
        values, emitted = tokens.tolist(), counts.tolist()
        for row in active.tolist():
            self.answers[row].take(values[row][: emitted[row]], self.settings)
            if self.answers[row].done:
                self.lengths[row] = 2  # the row is carried on until the next selection, within its capacity
        self._find_active()

    def _find_active(self) -> None:
        rows = [row for row, answer in enumerate(self.answers) if not answer.done]
        self.active = torch.tensor(rows, dtype=torch.int64, device=self.device)


def _generator(seed: int, prompt_id: str, temperature: float, drafter: str) -> np.random.Generator:
    digest = hashlib.sha256(f"{seed}|{prompt_id}|{temperature!r}|{drafter}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))
