"""Export: the trained draft as a checkpoint that inference engines load."""
