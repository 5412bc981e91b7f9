"""One module per flow that a person starts; wiring only, the work is in tasks/."""

from tasks import environment as environment
