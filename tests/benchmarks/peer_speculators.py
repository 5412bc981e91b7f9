"""Trains the EAGLE-3 draft of the `speculators` package as its own trainer does; tests/benchmarks/peers.py starts it.

Runs in an environment of its own and imports nothing of eyas. Its defaults are kept: K 3 without decay, KL, rows of
packed documents, norm_before_residual, norm_before_fc, norm_output, head frozen to the target's rows, AdamW at 1e-3
with 1 % warm-up and linear fall, clip 1.0. What a CPU forces is changed: eager losses (the fused ones need Triton),
sdpa (flex attention has no backward on a CPU), float32, and AdamW in place of Muon (whose bfloat16 iterations take
longer than the step itself there).
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

CALIBRATION = 2  # rows, to know how many fit into the budget
STEPS = 3
CLIP, RATE, WEIGHT_DECAY, WARMUP_SHARE = 1.0, 1e-3, 0.01, 0.01


def main() -> None:
    """Train for a number of CPU-seconds and write the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path, help="folder of sequences.safetensors, gets peer.safetensors")
    parser.add_argument("target", help="the target's folder")
    parser.add_argument("--seconds", type=float, required=True, help="CPU-seconds of training")
    parser.add_argument("--row", type=int, default=1024, help="tokens of a packed row")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    data = load_file(options.work / "sequences.safetensors")
    model, losses = peer_model(options.target, data)
    rows = packed_rows(data, options.row, options.seed)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimiser = torch.optim.AdamW(trained, lr=RATE, weight_decay=WEIGHT_DECAY)
    before = time.process_time()
    for _ in range(CALIBRATION):
        step(model, next(rows), optimiser, trained, losses, 0.0)
    steps = max(round(options.seconds * CALIBRATION / (time.process_time() - before)), 1)

    model.load_state_dict(start)
    optimiser = torch.optim.AdamW(trained, lr=RATE, weight_decay=WEIGHT_DECAY)
    began, wall, done, supervised = time.process_time(), time.perf_counter(), 0, 0
    warmup = int(steps * WARMUP_SHARE)
    while done < steps and time.process_time() - began < options.seconds:
        share = min((done + 1) / max(warmup, 1), 1.0) if done < warmup else (steps - done) / max(steps - warmup, 1)
        supervised += step(model, next(rows), optimiser, trained, losses, RATE * share)
        done += 1
    figures = {
        "cpu_seconds": time.process_time() - began,
        "wall_seconds": time.perf_counter() - wall,
        "steps": done,
        "supervised": supervised,
        "parameters": sum(parameter.numel() for parameter in trained),
    }
    weights = {
        n: t.contiguous() for n, t in model.state_dict().items() if t.is_floating_point() and "verifier" not in n
    }
    save_file(weights, options.work / "peer.safetensors")
    (options.work / "peer.json").write_text(json.dumps(figures))


def peer_model(target: str, data: dict[str, Tensor]) -> tuple[Any, Any]:
    """The package's model, made as its command line makes it, and its loss."""
    from speculators.losses import resolve_loss_config  # pyright: ignore
    from speculators.models.eagle3.core import Eagle3DraftModel  # pyright: ignore
    from speculators.train.cli import create_transformer_layer_config  # pyright: ignore

    ids = data["target_ids"]
    layer = create_transformer_layer_config(target, 1, "llama", None, 2048, [])
    t2d = torch.zeros(layer.vocab_size, dtype=torch.bool)
    t2d[ids] = True
    model = Eagle3DraftModel.from_training_args(
        layer,
        t2d=t2d,
        d2t=ids - torch.arange(len(ids)),
        draft_vocab_size=len(ids),
        norm_before_residual=True,
        norm_before_fc=True,
        norm_output=True,
        ttt_steps=STEPS,
        verifier_name_or_path=target,
        target_layer_ids=(data["aux_layers"] + 1).tolist(),
        draft_attn_impl="sdpa",
    )
    model.verifier_norm = torch.nn.Identity()  # the states were stored after the target's final norm
    return model.float().train(), resolve_loss_config("kl_div", "eager")


def packed_rows(data: dict[str, Tensor], size: int, seed: int) -> Iterator[dict[str, Tensor]]:
    """Endless rows of whole sequences, shuffled anew each epoch, aligned as the package's shift_batch aligns them."""
    shuffle = random.Random(seed)
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), data["lengths"].cumsum(0)]).tolist()
    order: list[int] = []
    while True:
        row, used = [], 0
        while True:
            if not order:
                order = list(range(len(starts) - 1))
                shuffle.shuffle(order)
            length = starts[order[-1] + 1] - starts[order[-1]] - 1
            if row and used + length > size:
                break
            row.append(order.pop())
            used += length
        yield padded([document(data, starts, number) for number in row], max(size, used))


def document(data: dict[str, Tensor], starts: list[int], number: int) -> dict[str, Tensor]:
    """One sequence: token t+1, states of t, teacher state of t+1, mask of t+1."""
    span = slice(starts[number], starts[number + 1])
    positions = torch.arange(starts[number + 1] - starts[number])
    return {
        "input_ids": data["token_ids"][span][1:],
        "hidden_states": data["aux"][span][:-1].float(),
        "verifier_last_hidden_states": data["last"][span][1:].float(),
        "loss_mask": positions[1:] >= data["prompt_lengths"][number],
        "position_ids": positions[1:],
    }


def padded(documents: list[dict[str, Tensor]], size: int) -> dict[str, Tensor]:
    """Documents one after another, then padding: every value (1, size, ...)."""
    lengths = torch.tensor([len(one["input_ids"]) for one in documents])
    row = {name: torch.cat([one[name] for one in documents]) for name in documents[0]}
    row["document_ids"] = torch.arange(len(documents)).repeat_interleave(lengths)
    missing = size - int(lengths.sum())
    fill = {"document_ids": -1}
    return {
        name: torch.cat([value, value.new_full((missing, *value.shape[1:]), fill.get(name, 0))])[None]
        for name, value in row.items()
    }


def step(model: Any, row: dict[str, Tensor], optimiser: Any, trained: list[Any], losses: Any, rate: float) -> int:
    """One update; returns the supervised tokens."""
    for group in optimiser.param_groups:
        group["lr"] = rate
    optimiser.zero_grad()
    _, loss, _ = model(**row, ttt_steps=STEPS, ttt_step_loss_decay=1.0, loss_config=losses)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(trained, CLIP)
    optimiser.step()
    return int(row["loss_mask"].sum())


if __name__ == "__main__":
    main()
