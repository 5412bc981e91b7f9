"""One package per step of the pipeline, and what they share: artifacts, the target model and the draft model."""

from tasks import environment as environment
