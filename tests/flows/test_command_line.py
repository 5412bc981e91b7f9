"""What the terminal gets: exit codes, and one short message instead of a traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flows import command_line
from flows.command_line import main
from schemas.errors import GateFailed
from schemas.recipe import Recipe
from tests.flows.recipes import write_recipe

Refuse = Callable[..., str]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Runs the command, which must exit with 1 before any flow starts, and gives its stderr."""

    def never(recipe: Recipe) -> None:
        raise AssertionError("the flow was started")

    monkeypatch.setattr(command_line, "run", never)

    def refuse(*arguments: str) -> str:
        with pytest.raises(SystemExit) as stopped:
            main(list(arguments))
        assert stopped.value.code == 1
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith("error: ")
        return said.err

    return refuse


def test_a_recipe_that_is_not_there_is_named(refused: Refuse, tmp_path: Path) -> None:
    assert "nowhere.yaml cannot be read" in refused(str(tmp_path / "nowhere.yaml"))


def test_a_file_that_is_no_recipe_is_named(refused: Refuse, tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text("name: [")
    assert "broken.yaml is not YAML" in refused(str(path))


def test_an_unknown_key_is_named(refused: Refuse, tiny_target: Path, tmp_path: Path) -> None:
    path = write_recipe(tmp_path, tiny_target, training={"epoch": 3})
    assert "training.epoch: unknown field; known fields: ttt_steps" in refused(str(path))


def test_an_impossible_value_is_named(refused: Refuse, tiny_target: Path, tmp_path: Path) -> None:
    path = write_recipe(tmp_path, tiny_target, training={"epochs": -1})
    assert "training.epochs: " in refused(str(path))


def test_a_dry_run_fails_like_a_run(refused: Refuse, store: Path, tiny_target: Path, tmp_path: Path) -> None:
    path = write_recipe(tmp_path, tiny_target)
    (tmp_path / "bench.jsonl").unlink()
    assert "bench.jsonl does not exist" in refused(str(path), "--dry-run")


def test_without_dry_run_the_recipe_is_run(tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Recipe] = []
    monkeypatch.setattr(command_line, "run", ran.append)
    main([str(write_recipe(tmp_path, tiny_target))])
    assert [recipe.name for recipe in ran] == ["tiny"]


@pytest.mark.parametrize("arguments", [[], ["one.yaml", "two.yaml"], ["one.yaml", "--wet-run"]])
def test_a_wrong_command_exits_with_2_and_shows_the_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "usage: python -m flows.build_draft" in capsys.readouterr().err


def test_a_closed_gate_ends_in_one_line(
    tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(recipe: Recipe) -> None:
        print("a traceback, from Prefect's log")
        raise GateFailed("the audit stops the flow: too few rows\ncheck   rows failed\n...")

    monkeypatch.setattr(command_line, "run", fail)
    with pytest.raises(SystemExit) as stopped:
        main([str(write_recipe(tmp_path, tiny_target))])
    assert stopped.value.code == 1
    assert capsys.readouterr().err == "error: the audit stops the flow: too few rows\n"
