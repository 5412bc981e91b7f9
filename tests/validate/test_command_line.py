"""`python -m tasks.validate` prints the audit of a file from anywhere, and its exit code says what a gate would do."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schemas.prompts import PROMPTS
from tasks.target.text import load_template
from tasks.validate.__main__ import main
from tests import rows, tokenizers
from tests.rows import prompt_id, request
from tests.validate import kimi
from tests.validate.kimi import CLOSE, good, ids

ROOT = Path(__file__).parents[2]
FAULTY = {"completion_ids": ids("x", CLOSE, "y")}


def written(folder: Path, *of: dict[str, Any], name: str = "sequences.parquet") -> str:
    pq.write_table(kimi.table(*of), folder / name)
    return str(folder / name)


@pytest.fixture
def tokenizer() -> list[str]:
    return ["--tokenizer", str(tokenizers.folder("kimi"))]


@pytest.fixture
def recipe(tmp_path: Path) -> Any:
    def write(**audit: Any) -> list[str]:
        content = {
            "name": "strict",
            "target": {"model": "m"},
            "datasets": [{"name": "a", "source": "a"}, {"name": "b", "source": "b", "split": "benchmark"}],
            "audit": audit,
        }
        (tmp_path / "recipe.yaml").write_text(json.dumps(content))  # JSON is YAML
        return ["--recipe", str(tmp_path / "recipe.yaml")]

    return write


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tasks.validate", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_good_rows_give_a_table_and_exit_code_0(tmp_path: Path, tokenizer: list[str]):
    done = run(written(tmp_path, good(1), good(2)), *tokenizer)
    assert (done.returncode, done.stderr) == (0, "")
    assert "close_marker_repeated" in done.stdout
    assert "2 rows in, 2 good, 0 not" in done.stdout
    assert "Not checked, since no benchmark and no context and no template was given" in done.stdout


def test_a_gate_that_would_close_gives_exit_code_1_and_examples(tmp_path: Path, tokenizer: list[str]):
    done = run(written(tmp_path, good(1), good(2, **FAULTY)), *tokenizer)
    assert (done.returncode, done.stderr) == (1, "")
    assert f"end_id_missing: prompt {prompt_id(2)}: a sequence must keep this rule" in done.stdout
    assert "end_id_missing (1 of 2 rows, 50.00%); audit.max_quarantined_share allows 5.00% for each" in done.stdout


def test_without_a_tokenizer_what_cannot_be_checked_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main([written(tmp_path, good(1), good(2, **FAULTY))]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "no tokenizer and no vocabulary was given: id_out_of_range" in printed
    assert "text_differs" in printed


def test_the_limits_of_a_recipe_hold(tmp_path: Path, tokenizer: list[str], recipe: Any, capsys: Any):
    path = written(tmp_path, good(1), good(2, **FAULTY))
    assert main([path, *tokenizer, *recipe(max_quarantined_share=0.5)]) == 0
    assert main([path, *tokenizer, *recipe(max_quarantined_share=0.5, min_rows=2)]) == 1
    assert main([path, *recipe(providers=["A"], max_quarantined_share=1)]) == 1
    assert "provider_not_allowed" in capsys.readouterr().out


def test_names_that_look_like_markup_are_printed_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main([written(tmp_path, good(1, provider="[/b] :smile: [red]"))]) == 0
    assert "[/b] :smile: [red]" in capsys.readouterr().out


def test_several_files_are_one_audit(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    one, two = written(tmp_path, good(1), name="1.parquet"), written(tmp_path, good(1), name="2.parquet")
    assert main([one, two]) == 1
    assert "the prompt is equal or nearly equal to an earlier one in 1 of 2 rows" in capsys.readouterr().out


def test_benchmark_prompts_are_looked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    first = rows.prompt("Are you well?", split="benchmark")
    second = rows.prompt(kimi.BENCHMARK, parent=first, split="benchmark")
    pq.write_table(PROMPTS.table([first, second]), tmp_path / "prompts.parquet")
    path = written(tmp_path, good(1), good(2, request=request(f"Well: {kimi.BENCHMARK}")))
    assert main([path, "--benchmark", str(tmp_path / "prompts.parquet")]) == 1
    assert f"benchmark_overlap: prompt {prompt_id(2)}" in " ".join(capsys.readouterr().out.split())


def test_columns_of_another_writer_are_read(tmp_path: Path):
    table = kimi.table(good(1))
    wide = [pa.field(f.name, pa.large_string() if f.type == pa.string() else f.type) for f in table.schema]
    wide[table.schema.get_field_index("prompt_ids")] = pa.field("prompt_ids", pa.large_list(pa.int64()))
    other = table.cast(pa.schema(wide)).append_column("note", pa.array(["x"]))
    pq.write_table(other.select(sorted(other.column_names)), tmp_path / "other.parquet")
    assert main([str(tmp_path / "other.parquet")]) == 0


def test_a_file_that_breaks_the_contract_gives_exit_code_2_and_no_traceback(tmp_path: Path):
    done = run(written(tmp_path, good(1, finish_reason="eos")))
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "contract 'sequences' is broken: finish_reason fails isin" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("column", "values", "says"),
    [
        ("loss_mask", None, "column loss_mask (list<element: int8 not null>) is missing"),
        ("completion_ids", ["1 2"], "column completion_ids is string, it must be list<element: int32 not null>"),
        ("prompt_id", ["no id"], "prompt_id fails str_matches"),
        ("max_tokens", ["many"], "cannot be read as sequences"),
        ("loss_mask", [[1]], "one_mask_entry_per_id"),
        ("dataset", [None], "Casting field 'dataset' with null values"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, capsys: Any, column: str, values: Any, says: str):
    table = kimi.table(good(1))
    place = table.schema.get_field_index(column)
    table = table.set_column(place, column, pa.array(values)) if values else table.drop_columns([column])
    pq.write_table(table, tmp_path / "bad.parquet")
    assert main([str(tmp_path / "bad.parquet")]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"not parquet", b"PAR1PAR1"])
def test_a_file_that_is_no_parquet_gives_exit_code_2(tmp_path: Path, capsys: Any, content: bytes):
    (tmp_path / "x.parquet").write_bytes(content)
    assert main([str(tmp_path / "x.parquet")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_missing_things_are_named(tmp_path: Path, capsys: Any):
    assert main([str(tmp_path / "none.parquet")]) == 2
    assert "none.parquet is missing" in capsys.readouterr().err
    path = written(tmp_path, good(1))
    assert main([path, "--tokenizer", str(tmp_path)]) == 2
    assert "tokenizer" in capsys.readouterr().err
    assert main([path, "--recipe", str(tmp_path / "none.yaml")]) == 2
    assert "the recipe" in capsys.readouterr().err


def test_a_format_of_another_family_is_refused(tmp_path: Path, tokenizer: list[str], capsys: Any):
    assert main([written(tmp_path, good(1)), *tokenizer, "--format", "kimi-k9"]) == 2
    assert "there is no token format 'kimi-k9'" in capsys.readouterr().err


def test_the_end_id_of_a_plain_model_is_its_tokenizers(tmp_path: Path, smollm2_tokenizer_folder: Path):
    rows_of = {"token_format": "plain", "prompt_ids": [1, 50], "answer_text": None}
    template = hashlib.sha256(load_template(smollm2_tokenizer_folder).text.encode()).hexdigest()
    good_row = good(1, completion_ids=[60, 2], template_sha256=template, **rows_of)
    assert main([written(tmp_path, good_row), "--tokenizer", str(smollm2_tokenizer_folder)]) == 0
    faulty = good_row | {"completion_ids": [60, 61]}
    assert main([written(tmp_path, faulty), "--tokenizer", str(smollm2_tokenizer_folder)]) == 1


def test_kimis_tokenizer_may_name_another_end_id(tmp_path: Path):
    folder = shutil.copytree(tokenizers.folder("kimi"), tmp_path / "tokenizer")
    settings = json.loads((folder / "tokenizer_config.json").read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"eos_token": "[EOS]"}))
    path = written(tmp_path, good(1))
    assert main([path, "--tokenizer", str(folder)]) == 0
    (folder / "generation_config.json").write_text('{"eos_token_id": 163585}')
    assert main([path, "--tokenizer", str(folder)]) == 2


def test_rows_of_two_formats_ask_for_one(tmp_path: Path, tokenizer: list[str], capsys: Any):
    assert main([written(tmp_path, good(1), good(2, token_format="plain")), *tokenizer]) == 2
    assert "kimi-k2.5, plain token formats; give the one to check against with --format" in capsys.readouterr().err
