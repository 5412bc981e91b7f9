"""What people read after a run: plots, tables in the terminal, a Markdown report, and all three in Prefect."""
