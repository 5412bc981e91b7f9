"""Our draft against the one of the `speculators` package: same target, states, tokens, cores and CPU-seconds.

    python3 -m venv /tmp/peers && /tmp/peers/bin/pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
    /tmp/peers/bin/pip install transformers==5.19.0 datasets loguru openai pydantic-settings typer safetensors
    /tmp/peers/bin/pip install --no-deps speculators==0.9.0 hs-connectors==0.9.0
    EYAS_STORE=store python -m tests.benchmarks.peers --peer /tmp/peers/bin/python --seconds 300

The store must hold a finished run (`make demo`). Both trainings run at the same time with one thread each, so that what
else the machine does meets both; each plans its schedule by a short calibration and stops at the budget. Then both are
decoded with, greedily, in the loop of tasks/benchmark, on prompts that neither was trained on. Wanted: our acceptance
length higher with separate 95 % intervals, and three times the peer's supervised tokens per CPU-second.
"""

from __future__ import annotations

import tasks.environment  # noqa: F401  (before torch)

# isort: split
import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from schemas.sections import BenchmarkSpec, TrainingSpec
from tasks.benchmark.statistics import Acceptance
from tasks.draft.checkpoint import load_checkpoint, load_draft, write_checkpoint
from tasks.draft.config import DraftConfig
from tasks.draft.model import Eagle3Draft
from tasks.train.aux_scale import fold, unfold
from tasks.train.loader import SequenceStore
from tasks.train.teacher import teacher_parts
from tests.benchmarks.stored_run import StoredRun, measured, train_for

STEPS, RATE, BATCH = 3, 1e-3, 2


def main() -> None:
    """Train both, decode with both, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True, help="python of the peer's environment")
    parser.add_argument("--seconds", type=float, default=300, help="CPU-seconds that each may train")
    parser.add_argument("--rows", type=int, nargs="+", default=[512], help="tokens of the peer's packed rows")
    parser.add_argument("--tokens", type=int, default=96, help="new tokens per held-out prompt")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ours", type=Path, help=argparse.SUPPRESS)  # the child that trains our draft
    options = parser.parse_args()
    if options.ours:
        train_ours(options.ours, options.seconds, options.seed)
        return
    run = StoredRun.newest()
    target, _ = run.load_target()
    spec = BenchmarkSpec(max_tokens=options.tokens, temperatures=[0.0])
    prompts = run.held_out_prompts(options.tokens + spec.chain)
    print(f"SmolLM2, draft vocabulary {len(run.target_ids())}, K {STEPS}, {options.seconds:.0f} CPU-seconds each")
    for row in options.rows:
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder)
            write_sequences(run, work / "sequences.safetensors")
            train_both(options, row, run, work)
            ours, peer = load_checkpoint(work), peer_draft(work, ours_config(run))
            figures = {name: json.loads((work / f"{name}.json").read_text()) for name in ("ours", "peer")}
        results = {"ours": measured(target, ours, prompts, spec), "peer": measured(target, peer, prompts, spec)}
        show(row, figures, results)


def train_both(options: argparse.Namespace, row: int, run: StoredRun, work: Path) -> None:
    """Both trainings side by side, one thread each.

    Raises:
        SystemExit: one of them failed.
    """
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    shared = ["--seconds", str(options.seconds), "--seed", str(options.seed)]
    script = str(Path(__file__).with_name("peer_speculators.py"))
    folder = str(run.target.shards[0].locate().parent)
    peer = subprocess.Popen(
        [options.peer, script, str(work), folder, "--row", str(row), *shared],
        env={name: value for name, value in environment.items() if name != "PYTHONPATH"},
    )
    ours = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.peers", "--peer", options.peer, "--ours", str(work), *shared],
        env=environment,
    )
    if ours.wait() or peer.wait():
        raise SystemExit("a training failed: its error stands above")


def train_ours(work: Path, seconds: float, seed: int) -> None:
    """The demo's training for a number of CPU-seconds."""
    run = StoredRun.newest()
    scale = list(run.initial.facts["aux_scale"])
    teacher = teacher_parts(run.load_target()[0], torch.device("cpu"))
    spec = TrainingSpec(ttt_steps=STEPS, batch_sequences=BATCH, learning_rate=RATE)

    def initial() -> Eagle3Draft:
        draft = load_draft(run.initial)
        unfold(draft, scale)
        return draft

    trained = train_for(seconds, initial, run, teacher, spec, seed=seed)
    fold(trained.draft, scale)
    write_checkpoint(work, trained.draft, torch.float32)
    figures = {
        "cpu_seconds": trained.cpu_seconds,
        "wall_seconds": trained.wall_seconds,
        "steps": trained.training.steps,
        "supervised": trained.training.clock.rows,
        "parameters": sum(parameter.numel() for parameter in trained.draft.parameters()),
    }
    (work / "ours.json").write_text(json.dumps(figures))


def write_sequences(run: StoredRun, path: Path) -> None:
    """All training sequences one after another, for a process that knows nothing of the store."""
    store = SequenceStore(run.states, "train")
    sequences = [store.read(number) for number in range(len(store))]
    last = [nn.functional.pad(one.last, (0, 0, one.last_from, 0)) for one in sequences]  # nothing asks for a prompt's
    tensors = {
        "token_ids": torch.cat([one.token_ids for one in sequences]),
        "aux": torch.cat([one.aux for one in sequences]),
        "last": torch.cat(last),
        "lengths": torch.tensor([len(one.token_ids) for one in sequences]),
        "prompt_lengths": torch.tensor([one.prompt_length for one in sequences]),
        "target_ids": run.target_ids(),
        "aux_layers": torch.tensor(run.states[0].facts["aux_layers"]),
    }
    save_file(tensors, path)


class PeerDraft(Eagle3Draft):
    """The peer's draft for our loop: as ours with two of EAGLE-3.1's switches, and one norm over all three states."""

    def __init__(self, config: DraftConfig, input_norm: Tensor) -> None:
        super().__init__(config)
        self.input_norm = nn.RMSNorm(len(input_norm), eps=config.rms_norm_eps)
        self.input_norm.weight.data.copy_(input_norm)

    def fuse(self, aux: Tensor) -> Tensor:
        return self.fc(self.input_norm(aux))


def ours_config(run: StoredRun) -> DraftConfig:
    """The shape of the demo's draft."""
    return load_draft(run.initial).config


def peer_draft(work: Path, config: DraftConfig) -> PeerDraft:
    """The peer's weights in our model: its names differ only in that of the layer."""
    weights = load_file(work / "peer.safetensors")
    switches = {"norm_output": True, "norm_before_residual": True}
    draft = PeerDraft(config.model_copy(update=switches), weights["input_norm.weight"])
    own = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in weights.items()}
    own = {name: tensor for name, tensor in own.items() if name in draft.state_dict()}
    missing = draft.state_dict().keys() - own.keys() - {"d2t", "t2d"}
    if missing:
        raise SystemExit(f"the peer's weights lack {sorted(missing)}")
    draft.load_state_dict(own, strict=False)
    draft.set_vocabulary(load_file(work / "sequences.safetensors")["target_ids"])
    return draft


def show(row: int, figures: dict[str, dict[str, float]], results: dict[str, Acceptance]) -> None:
    """One table per length of the peer's rows."""
    print(f"\nthe peer's rows hold {row} tokens")
    print("draft  CPU-s  wall s  updates  supervised  per CPU-s  weights  acceptance  95 % interval  by position")
    for name, figure in figures.items():
        result = results[name]
        positions = " ".join(f"{share:.3f}" for share in result.joint)
        print(
            f"{name:5}  {figure['cpu_seconds']:5.0f}  {figure['wall_seconds']:6.0f}  {figure['steps']:7.0f}  "
            f"{figure['supervised']:10.0f}  {figure['supervised'] / figure['cpu_seconds']:9.0f}  "
            f"{figure['parameters']:7.0f}  {result.length:10.3f}  {result.low:.3f} – {result.high:.3f}  {positions}"
        )
    rates = {name: figure["supervised"] / figure["cpu_seconds"] for name, figure in figures.items()}
    apart = "separate" if results["ours"].exceeds(results["peer"]) else "NOT separate"
    ratio = rates["ours"] / rates["peer"]
    print(f"{results['ours'].prompts} prompts, intervals {apart}; {ratio:.2f} times the peer's tokens per CPU-second")


if __name__ == "__main__":
    main()
