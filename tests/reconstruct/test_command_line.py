"""`python -m tasks.reconstruct` on files as people have them."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from schemas.answers import DELTA_CLASSES
from tasks.formats.registry import FORMATS
from tasks.reconstruct.__main__ import main
from tests.reconstruct.given import CLOSE, END, PROMPTS, raw_lines
from tests.test_responses import body
from tests.tokenizers import folder

HI = {"role": "user", "content": "Hi"}
FOUR = [17285, 9620, 2069, 387, 4771, 13, CLOSE, 1008, 7574, 387, 220, 19, 13, END]


def judged(capsys: pytest.CaptureFixture[str], path: Path, *options: str) -> tuple[list[dict[str, Any]], str]:
    """The printed verdicts, and what went to stderr."""
    code = main([str(path), *options])
    out = capsys.readouterr()
    lines = [json.loads(line) for line in out.out.splitlines()]
    assert code == (0 if all(line["accept"] for line in lines) else 1)
    return lines, out.err


def kimi_options() -> list[str]:
    return ["--format", "kimi-k2.5", "--tokenizer", str(folder("kimi"))]


def test_ten_answers_are_judged_end_to_end(tmp_path: Path):
    lines = [body() for _ in range(6)]
    lines += [
        body(usage={"completion_tokens": 15}),
        {"request": {"max_tokens": 64}, "response": body(choice={"token_ids": [1459, CLOSE, 1459, END]}, usage={})},
        {"error": {"code": 429, "message": "slow down"}},
    ]
    path = tmp_path / "answers.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + raw_lines(*lines).encode() + b"\n{broken\n")
    command = [sys.executable, "-m", "tasks.reconstruct", str(path), *kimi_options()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    verdicts = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["line"] for line in verdicts] == [*range(1, 10), 11]  # the tenth is blank
    assert verdicts[0] == {
        "line": 1,
        "choice": 0,
        "accept": True,
        "reason": None,
        "detail": None,
        "provenance": "reconstructed",
        "finish_reason": "stop",
        "ids": FOUR,
        "completion_tokens": 14,
        "billed": 14,
        "rebuilt": 14,
        "delta": 0,
        "delta_class": "exact",
        "provider": "ProviderA",
    }
    assert [line["reason"] for line in verdicts[6:]] == [
        verdicts[6]["delta_class"],
        "text_differs",
        "provider_error",
        "not_json",
    ]
    assert (verdicts[6]["rebuilt"], verdicts[6]["billed"], verdicts[6]["delta"]) == (14, 15, -1)
    assert "10 answers: 0 returned, 6 rebuilt, 4 quarantined\n" in done.stderr
    assert "\n  1 provider_error\n" in done.stderr
    assert "provider ProviderA: end id counted, reasoning inside completion_tokens (inferred)" in done.stderr


def test_a_provider_that_does_not_bill_the_end_is_stated(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "answers.jsonl"
    path.write_text(raw_lines(*[body(usage={"completion_tokens": 13})] * 5))
    lines, said = judged(capsys, path, *kimi_options())
    assert [(line["accept"], line["billed"], line["delta"]) for line in lines] == [(True, 14, 0)] * 5
    assert [line["completion_tokens"] for line in lines] == [13] * 5
    assert "end id not counted, reasoning inside completion_tokens (inferred)" in said
    path.write_text(raw_lines(body(usage={"completion_tokens": 13})))
    lines, said = judged(capsys, path, *kimi_options())
    assert not lines[0]["accept"]
    assert "(default)" in said
    lines, said = judged(capsys, path, *kimi_options(), "--counting", "ProviderA=inside")
    assert lines[0]["accept"]
    assert "(pinned)" in said
    assert judged(capsys, path, *kimi_options(), "--counting", "inside")[0][0]["accept"]


def test_thinking_off_is_said_by_a_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "answers.jsonl"
    path.write_text(raw_lines(body({"content": "Hi there"}, usage={"completion_tokens": 3})))
    lines, _ = judged(capsys, path, *kimi_options(), "--no-thinking")
    assert lines[0]["ids"] == [18699, 1459, END]
    lines, _ = judged(capsys, path, *kimi_options(), "--thinking")
    assert lines[0]["reason"] == "close_marker_missing"


def test_prompt_ids_in_the_body_say_how_the_answer_opens(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    usage = {"completion_tokens": 3, "prompt_tokens": len(PROMPTS[False])}
    path = tmp_path / "answers.jsonl"
    path.write_text(raw_lines(body({"content": "Hi there"}, usage=usage, prompt_token_ids=PROMPTS[False])))
    lines, _ = judged(capsys, path, *kimi_options())
    assert lines[0]["ids"] == [18699, 1459, END]


def test_without_a_tokenizer_returned_ids_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "answers.jsonl"
    ids = {"token_ids": [18699, 1459, END]}
    path.write_text(
        raw_lines(
            body(choice=ids, usage={"completion_tokens": 3}), body(choice=ids, usage={"completion_tokens": 9}), body()
        )
    )
    lines, said = judged(capsys, path, "--format", "kimi-k2.5")
    assert [line["reason"] for line in lines] == [None, "billed_count_differs", "tokenizer_missing"]
    assert lines[0]["ids"] == ids["token_ids"]
    assert "--tokenizer" in said
    assert "tiktoken.model" in said


def test_several_choices_are_a_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    raw = body()
    raw["choices"].append({**raw["choices"][0], "index": 1})
    path = tmp_path / "answers.jsonl"
    path.write_text(raw_lines(raw))
    lines, _ = judged(capsys, path, *kimi_options())
    assert [(line["line"], line["choice"], line["delta_class"]) for line in lines] == [
        (1, 0, "unverified"),
        (1, 1, "unverified"),
    ]


def test_a_prompt_is_rendered_where_messages_and_a_template_are_there(
    tmp_path: Path, smollm2_tokenizer_folder: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "answers.jsonl"
    hello = body({"content": "Hello"}, usage={"completion_tokens": 2, "prompt_tokens": 12345})
    sent = {"messages": [{"role": "user", "content": "Hi"}]}
    path.write_text(raw_lines({"request": sent, "response": hello}))
    lines, _ = judged(capsys, path, "--format", "plain", "--tokenizer", str(smollm2_tokenizer_folder))
    assert lines[0]["reason"] == "prompt_count_differs"
    counted = int(lines[0]["detail"].split()[0])
    hello["usage"]["prompt_tokens"] = counted
    path.write_text(raw_lines({"request": sent, "response": hello}))
    lines, _ = judged(capsys, path, "--format", "plain", "--tokenizer", str(smollm2_tokenizer_folder))
    assert lines[0]["accept"], lines


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"\n \n",
        gzip.compress(raw_lines(body()).encode(), mtime=0),
        b"PAR1\x15",
        raw_lines(body()).encode("utf-16"),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None
):
    path = tmp_path / "answers.jsonl"
    if content is not None:
        path.write_bytes(content)
    assert main([str(path), "--format", "kimi-k2.5"]) == 2
    assert str(path) in capsys.readouterr().err


def test_a_folder_without_a_tokenizer_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "answers.jsonl"
    path.write_text(raw_lines(body()))
    assert main([str(path), "--tokenizer", str(tmp_path)]) == 2
    assert "tokenizer.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    "request_",
    [
        7,
        {"messages": "Hi"},
        {"messages": [1]},
        {"messages": [HI], "chat_template_kwargs": [1]},
        {"max_tokens": "many"},
        {"messages": [HI | {"content": "\ud83d"}]},
    ],
)
def test_a_request_that_cannot_be_read_costs_only_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], request_: Any
):
    path = tmp_path / "answers.jsonl"
    path.write_text(json.dumps({"request": request_, "response": body()}) + "\n" + raw_lines(body()))
    lines, _ = judged(capsys, path, "--format", "kimi-k2.5", "--tokenizer", str(folder("kimi-k2.5")))
    assert [line["accept"] for line in lines] == [False, True]
    assert lines[0]["reason"] in ("request_unreadable", "lone_surrogate")


def test_a_pipe_is_refused_since_answers_are_read_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    assert main([str(path), "--format", "kimi-k2.5"]) == 2
    assert "is a pipe" in capsys.readouterr().err


def test_one_answer_over_many_lines_is_told_how_to_become_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "answers.jsonl"
    path.write_text(json.dumps(body(), indent=1))
    lines, err = judged(capsys, path)
    assert {line["reason"] for line in lines} == {"not_json"}
    assert "jq -c" in err


def test_a_reader_that_stops_early_and_an_output_without_unicode_are_no_failure(tmp_path: Path):
    path = tmp_path / "answers.jsonl"
    path.write_text(raw_lines(*[{"error": {"message": "langsam \u2026 \u4e2d"}}] * 2000))
    command = [sys.executable, "-m", "tasks.reconstruct", str(path)]
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, env=ascii_only, check=False)
    assert (done.returncode, len(done.stdout.splitlines())) == (1, 2000), done.stderr
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()


def test_totals_and_exit_code_tell_returned_rebuilt_and_quarantined(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "answers.jsonl"
    ids = body({}, {"token_ids": [1459, CLOSE, 1459, END]}, usage={"completion_tokens": 4})
    path.write_text(raw_lines(ids, body(), body(usage={})))
    _, said = judged(capsys, path, *kimi_options())
    assert "3 answers: 1 returned, 2 rebuilt, 0 quarantined\n  1 of those accepted are unverified" in said
    assert main([str(path), *kimi_options()]) == 0
    assert main([str(path), *kimi_options(), "--unverified", "quarantine"]) == 1


def test_help_lists_formats_and_classes(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert all(f"{name}," in shown or f"{name}\n" in shown for name in FORMATS)
    assert all(f"  {name} " in shown for name in DELTA_CLASSES)


OFF: list[dict[str, Any]] = [
    {"thinking": {"type": "disabled"}},
    {"thinking": False},
    {"enable_thinking": False},
    {"chat_template_kwargs": {"thinking": False}},
    {"extra_body": {"chat_template_kwargs": {"thinking": False}}},
    {"reasoning": {"enabled": False}},
    {"reasoning": {"effort": "none"}},
    {"reasoning_effort": "none"},
]
ON: list[dict[str, Any]] = [
    {"thinking": {"type": "enabled", "budget_tokens": 1024}},
    {"enable_thinking": True},
    {"reasoning": {"max_tokens": 2000}},
    {"reasoning": {"effort": "high", "exclude": False}},
    {"chat_template_kwargs": {"enable_thinking": False}},  # Kimi's template does not read it
    {"thinking": None},
]


@pytest.mark.parametrize("name", ["kimi", "kimi-k2.5"])  # without a template, and with one
@pytest.mark.parametrize(("keys", "off"), [*((keys, True) for keys in OFF), *((keys, False) for keys in ON)])
def test_requests_say_in_many_words_whether_the_model_thinks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], keys: dict[str, Any], off: bool, name: str
):
    path = tmp_path / "answers.jsonl"
    answer = body({"content": "Hi there"}, usage={"completion_tokens": 3})
    path.write_text(raw_lines({"request": {"model": "m", "messages": [HI], **keys}, "response": answer}))
    (line,), said = judged(capsys, path, "--format", "kimi-k2.5", "--tokenizer", str(folder(name)))
    assert (line["ids"], line["reason"]) == (([18699, 1459, END], None) if off else (None, "close_marker_missing"))
    assert "is not understood" not in said


@pytest.mark.parametrize(
    "keys",
    [
        {"thinking": {"type": "disabled"}, "enable_thinking": True},
        {"thinking": "perhaps"},
        {"reasoning": 7},
        {"extra_body": [1]},
    ],
)
def test_a_request_that_says_two_things_or_none_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], keys: dict[str, Any]
):
    path = tmp_path / "answers.jsonl"
    path.write_text(raw_lines({"request": keys, "response": body()}))
    (line,), _ = judged(capsys, path, *kimi_options())
    assert line["reason"] == "request_unreadable"


def test_keys_that_are_not_understood_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "answers.jsonl"
    keys = {"continue_final_message": True, "temperature": 0.7, "chat_template": "{{ x }}"}
    path.write_text(raw_lines(*[{"request": keys, "response": body()}] * 2))
    _, said = judged(capsys, path, *kimi_options())
    assert "warning: the key chat_template of 2 requests is not understood" in said
    assert "warning: the key continue_final_message of 2 requests" in said
    assert "temperature" not in said


@pytest.mark.parametrize(
    ("asked", "choice", "reason"),
    [
        ({"stop": ["\n\n"]}, {}, "stop_strings_asked"),
        ({"stop": []}, {}, None),
        ({}, {"stop_reason": "\n\n"}, "unknown_finish_reason"),
        ({}, {"matched_stop": "###"}, "unknown_finish_reason"),
        ({}, {"matched_stop": END}, None),
        ({}, {"stop_reason": "<|im_end|>"}, None),
        ({}, {"finish_reason": {"type": "stop", "matched": "\n\n"}}, "unknown_finish_reason"),
        ({}, {"finish_reason": {"type": "stop", "matched": END}}, None),
    ],
)
def test_an_answer_that_a_stop_string_ended_gets_no_end_id(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    asked: dict[str, Any],
    choice: dict[str, Any],
    reason: str | None,
):
    path = tmp_path / "answers.jsonl"
    path.write_text(raw_lines({"request": asked, "response": body(choice=choice)}))
    (line,), _ = judged(capsys, path, *kimi_options())
    assert line["reason"] == reason
