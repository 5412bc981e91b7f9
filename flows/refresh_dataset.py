"""`refresh_dataset`: prompts through to an audited corpus, which is what `build_draft` begins with. Wiring only.

python -m flows.refresh_dataset deployments/recipes/quickstart.yaml
python -m flows.refresh_dataset --status RECIPE    # from disk, while a run goes on

What the store has is neither made nor paid for again: of prompts that were added only the new ones are asked.
No postponed annotations here: Prefect loads this file under another name and must still resolve the parameter's type.
"""

from typing import Any, cast

from prefect import flow
from prefect.futures import PrefectFuture
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from flows.dataset import make_dataset, prepared_target
from flows.session import begin
from flows.steps import Steps
from schemas.recipe import Recipe
from tasks.artifacts.serializer import ParquetSerializer
from tasks.report.task import report_steps


@flow(
    name="refresh_dataset",
    flow_run_name="{recipe.name}",
    task_runner=cast("TaskRunner[PrefectFuture[Any]]", ThreadPoolTaskRunner()),
    persist_result=False,
    result_serializer=ParquetSerializer(),  # Prefect stores a failed flow's exception even so
)
def refresh_dataset(recipe: Recipe) -> None:
    """Prompts to an audited corpus; only what is new is paid for.

    Args:
        recipe: everything the run depends on.
    """
    store = begin()
    steps = Steps(recipe.name)
    make_dataset(steps, store, recipe, prepared_target(steps, recipe))
    report_steps(recipe.name, steps.finished())


if __name__ == "__main__":
    from flows.command_line import main_refresh

    main_refresh()
