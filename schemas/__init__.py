"""The contracts of eyas: the recipe, the Parquet tables and the errors. Knows nothing of Prefect, torch or files."""
