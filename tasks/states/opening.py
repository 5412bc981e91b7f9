"""Opens the source of states that a recipe asks for; one per process, shared by the tasks that run side by side."""

from __future__ import annotations

from schemas.extraction import ExtractionSpec
from schemas.sections import TargetSpec
from tasks.artifacts.artifact import Shards
from tasks.states.asking import StateServer
from tasks.states.embedded import EmbeddedSource
from tasks.states.launching import launched_url
from tasks.states.sglang import SglangSource
from tasks.states.source import StateSource, aux_layers
from tasks.states.vllm import VllmSource
from tasks.target.model import load_target
from tasks.target.parts import load_head_parts


def open_source(target: Shards, target_spec: TargetSpec, spec: ExtractionSpec) -> StateSource:
    """What gives the target's states.

    Raises:
        EngineError: the server does not answer, or cannot give the states that the recipe needs.
        TargetError: the target's files are missing, were changed, or do not load.
    """
    if spec.engine == "transformers":
        return EmbeddedSource(load_target(target, target_spec), spec)
    server = StateServer(spec.endpoint or launched_url(target, target_spec, spec), spec.concurrency)
    if spec.engine == "vllm":
        return VllmSource(server, load_head_parts(target, target_spec), spec)
    return SglangSource(server, aux_layers(spec, target.facts["num_layers"]), target.facts, spec)
