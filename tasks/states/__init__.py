"""Where the target's hidden states come from, and how they lie on disk; shared by extraction and training."""
