"""An answer that was acknowledged is there once and whole: after kills, cuts, damage, compaction, and for readers."""

from __future__ import annotations

import asyncio
import errno
import os
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import ArtifactInvalid, StoreError
from schemas.ledger import PAID_ANSWERS
from tasks.artifacts.files import read_table
from tasks.generate.asked import Scope, content_key
from tasks.generate.durable import segment_path, segments_in
from tasks.generate.key_index import KeyIndex
from tasks.generate.old_journal import import_journal
from tasks.generate.paid import AnswerMeta, PaidAnswers, open_paid
from tasks.generate.parts import part_path, parts_in
from tasks.responses import Response, read_responses
from tests.generate.crashing import ANSWERS, META, body, key
from tests.generate.kills import EVERY_STEP, MOMENTS, Killer, killer, told

SCOPE = Scope("kimi", "r1", "openrouter", {"temperature": 1, "top_p": 0.95}, {"only": ["A"]}, "0" * 64, {})
ASKED: dict[str, Any] = {"max_tokens": 64, "seed": 7, "messages": [{"role": "user", "content": "Hi"}]}


def filled(folder: Path, bodies: list[bytes]) -> list[int]:
    """A closed store of these answers in one segment; its length before each and after the last."""
    ends = [0]
    with PaidAnswers(folder) as paid:
        for number, content in enumerate(bodies):
            paid.append_now(key(number), META, content)
            ends.append(segment_path(folder, 1).stat().st_size)
    return ends


def held(paid: PaidAnswers, bodies: list[bytes]) -> list[int]:
    """Numbers of the answers that are there, each of which must be right."""
    found = {number: paid.get(key(number)) for number in range(len(bodies))}
    assert all(answer is None or answer.body == bodies[number] for number, answer in found.items())
    present = [number for number, answer in found.items() if answer]
    assert len(paid) == len(present)
    return present


class TestKeys:
    def test_equal_numbers_are_one_question(self) -> None:
        same = replace(SCOPE, sampling={"top_p": 0.95, "temperature": 1.0})
        assert content_key(SCOPE, **ASKED) == content_key(same, **ASKED)

    @pytest.mark.parametrize(
        "change",
        [
            {"model": "other"},
            {"revision": "r2"},
            {"dialect": "sglang"},
            {"sampling": {}},
            {"provider_rules": {"only": ["B"]}},
            {"template_sha256": "1" * 64},
            {"extra_body": {"reasoning": {"effort": "high"}}},
        ],
    )
    def test_whatever_shapes_answers_has_another_folder_and_key(self, change: dict[str, Any]) -> None:
        other = replace(SCOPE, **change)
        assert other.name != SCOPE.name
        assert content_key(other, **ASKED) != content_key(SCOPE, **ASKED)

    @pytest.mark.parametrize(
        "change",
        [{"max_tokens": 65}, {"seed": None}, {"messages": []}, {"tools": [{"type": "function"}]}],
    )
    def test_whatever_is_asked_has_another_key(self, change: dict[str, Any]) -> None:
        assert content_key(SCOPE, **(ASKED | change)) != content_key(SCOPE, **ASKED)

    def test_ids_and_messages_exclude_each_other(self) -> None:
        with pytest.raises(ValueError, match="one of them"):
            content_key(SCOPE, **ASKED, prompt_ids=[1])

    @given(st.lists(st.integers(0, 2**128 - 1), unique=True, max_size=2000), st.integers(0, 2**60))
    @settings(max_examples=30, deadline=None)
    def test_the_index_finds_every_key_where_it_was_last_put(self, numbers: list[int], shift: int) -> None:
        index, expected = KeyIndex(), {}
        for place, number in enumerate(numbers + numbers[::2]):
            index.put(f"{number:032x}" + "f" * 32, place + shift)
            expected[f"{number:032x}"] = place + shift
        assert len(index) == len(expected)
        assert all(index.get(short + "0" * 32) == place for short, place in expected.items())

    def test_keys_that_end_in_zeros_are_told_apart(self) -> None:
        index = KeyIndex()
        keys = ["00" * place + "01" + "00" * (31 - place) for place in range(16)] + ["00" * 32]
        for place, name in enumerate(keys * 40):
            index.put(name, place)
        assert [index.get(name) for name in keys] == list(range(39 * 17, 40 * 17))


class TestWriting:
    def test_an_answer_comes_back_as_it_was(self, tmp_path: Path) -> None:
        meta = AnswerMeta("B3", "p", "u", "sglang", 5, "a1", "A", "m", "fp8", "gen-1", 3, 4, 120)
        raw = b'\n \n{"x":"\xff"}\x93\xe9yR' * 3
        with open_paid(tmp_path, SCOPE) as paid:
            assert paid.append_now(key(1), meta, raw)
            answer = paid.get(key(1))
            paid.compact()
            moved = paid.get(key(1))
        assert answer
        assert answer == moved
        assert (answer.meta, answer.body) == (meta, raw)
        assert (tmp_path / "paid" / SCOPE.name / "scope.json").exists()

    def test_the_first_answer_of_a_key_stays(self, tmp_path: Path) -> None:
        with PaidAnswers(tmp_path) as paid:
            assert paid.append_now(key(1), META, b"first")
            assert not paid.append_now(key(1), META, b"second")
            paid.compact()
            assert not paid.append_now(key(1), META, b"third")
        with PaidAnswers(tmp_path) as paid:
            assert not paid.append_now(key(1), META, b"fourth")
            assert (answer := paid.get(key(1)))
            assert answer.body == b"first"
            assert len(paid) == 1

    def test_many_at_once_share_their_syncs_and_each_is_kept_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        syncs, fsync = [], os.fsync
        monkeypatch.setattr(os, "fsync", lambda descriptor: (syncs.append(1), fsync(descriptor))[1])

        async def ask() -> list[bool]:
            twice = [number for number in range(500) for _ in range(2)]
            return await asyncio.gather(*(paid.append(key(number), META, body(number)) for number in twice))

        with PaidAnswers(tmp_path, segment_bytes=20_000) as paid:
            before = len(syncs)
            assert sum(asyncio.run(ask())) == 500
            assert len(syncs) - before < 100
            assert len(paid) == 500
            paid.compact()
            assert [answer.key for answer in paid.each(key(number) for number in range(600))] == [
                key(number) for number in range(500)
            ]

    def test_whoever_stops_waiting_takes_nothing_back(self, tmp_path: Path) -> None:
        async def leave() -> None:
            waiting = asyncio.create_task(paid.append(key(1), META, b"kept"))
            await asyncio.sleep(0)
            waiting.cancel()
            assert not await paid.append(key(1), META, b"late")

        with PaidAnswers(tmp_path) as paid:
            asyncio.run(leave())
            assert (answer := paid.get(key(1)))
            assert answer.body == b"kept"

    def test_threads_and_compaction_do_not_disturb_each_other(self, tmp_path: Path) -> None:
        with PaidAnswers(tmp_path, segment_bytes=5_000) as paid:

            def add(first: int) -> None:
                for number in range(first, first + 200):
                    paid.append_now(key(number), META, body(number))
                    assert paid.get(key(number))

            threads = [threading.Thread(target=add, args=(first,)) for first in (0, 100, 300)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            paid.compact()
            assert held(paid, [body(number) for number in range(500)]) == list(range(500))
        rows = [
            row for part in parts_in(tmp_path) for row in read_table(part_path(tmp_path, part), PAID_ANSWERS)["key"]
        ]
        assert len(rows) == len({row.as_py() for row in rows}) == 500

    def test_a_full_disk_is_an_error_for_all_who_wait_and_costs_nothing_that_was_safe(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write = os.write

        def full(descriptor: int, data: memoryview) -> int:
            if len(data) > 20:
                return write(descriptor, data[:20])
            raise OSError(errno.ENOSPC, "No space left on device")

        with PaidAnswers(tmp_path) as paid:
            paid.append_now(key(1), META, b"safe")
            monkeypatch.setattr(os, "write", full)
            with pytest.raises(StoreError, match="No space left"):
                paid.append_now(key(2), META, b"lost")
            monkeypatch.undo()
            with pytest.raises(StoreError, match="start again"):
                paid.append_now(key(3), META, b"refused")
            assert key(1) in paid
            assert key(2) not in paid
        with PaidAnswers(tmp_path) as paid:
            assert held(paid, [b"", b"safe", b"lost"]) == [1]
            assert paid.append_now(key(2), META, b"now")


class TestCutsAndDamage:
    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.binary(max_size=200), min_size=1, max_size=6), st.data())
    def test_any_prefix_of_the_file_gives_a_prefix_of_the_answers(
        self, bodies: list[bytes], data: st.DataObject
    ) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            ends = filled(folder, bodies)
            cut, path = data.draw(st.integers(0, ends[-1])), segment_path(folder, 1)
            path.write_bytes(path.read_bytes()[:cut])
            whole = max(place for place, end in enumerate(ends) if end <= cut)
            with PaidAnswers(folder, read_only=True) as reader:
                assert held(reader, bodies) == list(range(whole))
            assert path.stat().st_size == cut  # a reader changes nothing
            with PaidAnswers(folder) as paid:
                assert held(paid, bodies) == list(range(whole))
                assert (path.stat().st_size, paid.losses.torn_bytes) == (ends[whole], cut - ends[whole])
                assert not paid.losses.damaged
                for number, content in enumerate(bodies):
                    assert paid.append_now(key(number), META, content) == (number >= whole)
                paid.compact()
                assert held(paid, bodies) == list(range(len(bodies)))

    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.binary(max_size=200), min_size=1, max_size=6), st.data())
    def test_a_changed_byte_costs_one_answer_and_is_told(self, bodies: list[bytes], data: st.DataObject) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            ends = filled(folder, bodies)
            path, place = segment_path(folder, 1), data.draw(st.integers(0, ends[-1] - 1))
            content = bytearray(path.read_bytes())
            content[place] ^= data.draw(st.integers(1, 255))
            path.write_bytes(content)
            lost = max(number for number, end in enumerate(ends[:-1]) if end <= place)
            with PaidAnswers(folder) as paid:
                assert held(paid, bodies) == [number for number in range(len(bodies)) if number != lost]
                is_last = lost == len(bodies) - 1
                assert (len(paid.losses.damaged), paid.losses.torn_bytes > 0) == (not is_last, is_last)
                paid.append_now(key(lost), META, bodies[lost])
                paid.compact()
                assert held(paid, bodies) == list(range(len(bodies)))
            assert path.with_suffix(".damaged").exists() != is_last  # set aside, not destroyed

    def test_a_record_inside_a_body_is_no_answer(self, tmp_path: Path) -> None:
        filled(tmp_path / "inner", [b"inner"])
        inner = segment_path(tmp_path / "inner", 1).read_bytes()
        ends = filled(tmp_path / "outer", [b"x" * 40 + inner + inner, b"next"])
        path = segment_path(tmp_path / "outer", 1)
        content = bytearray(path.read_bytes())
        content[5] ^= 1
        path.write_bytes(content)
        with PaidAnswers(tmp_path / "outer") as paid:
            assert held(paid, [b"", b"next"]) == [1]
            assert [(damage.start, damage.end) for damage in paid.losses.damaged] == [(0, ends[1])]

    def test_damage_after_opening_is_an_error_not_another_answer(self, tmp_path: Path) -> None:
        with PaidAnswers(tmp_path) as paid:
            paid.append_now(key(1), META, b"answer")
            path = segment_path(tmp_path, 1)
            path.write_bytes(path.read_bytes()[:-1] + b"!")
            with pytest.raises(ArtifactInvalid, match="damaged since"):
                paid.get(key(1))

    def test_a_damaged_part_is_named(self, tmp_path: Path) -> None:
        with PaidAnswers(tmp_path) as paid:
            paid.append_now(key(1), META, os.urandom(5000))
            paid.compact()
        path = part_path(tmp_path, 1)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        with PaidAnswers(tmp_path) as paid, pytest.raises(ArtifactInvalid, match=str(path)):
            paid.get(key(1))


@pytest.fixture(scope="module")
def kill() -> Any:
    with killer() as process:
        yield process


class TestKills:
    @pytest.mark.parametrize(("moment", "step", "stride"), EVERY_STEP)
    def test_a_kill_at_any_step_loses_and_doubles_nothing(
        self, kill: Killer, tmp_path: Path, moment: str, step: int, stride: int
    ) -> None:
        bodies = [body(number) for number in range(ANSWERS)]
        while kill.run("paid", folder := tmp_path / str(step), step, moment):
            safe = told(folder)
            with PaidAnswers(folder, read_only=True) as reader:
                assert {*safe} <= {*held(reader, bodies)}
            with PaidAnswers(folder) as paid:
                present = held(paid, bodies)
                assert {*safe} <= {*present}
                assert len(present) <= len(safe) + 1  # one was on its way
                assert not paid.losses.damaged
            assert not kill.run("paid", folder, 0, moment)
            with PaidAnswers(folder) as paid:
                assert held(paid, bodies) == list(range(ANSWERS))
            parts = [read_table(part_path(folder, part), PAID_ANSWERS)["key"] for part in parts_in(folder)]
            assert sorted(name for part in parts for name in part.to_pylist()) == [key(n) for n in range(ANSWERS)]
            step += stride
        assert step > 40

    def test_a_run_that_is_killed_again_and_again_comes_to_its_end(self, kill: Killer, tmp_path: Path) -> None:
        folder, bodies, step = tmp_path / "store", [body(number) for number in range(ANSWERS)], 3
        while kill.run("paid", folder, step, MOMENTS[step % 3]):
            step += 1
        assert sorted(told(folder)) == sorted({*told(folder)})
        with PaidAnswers(folder) as paid:
            assert held(paid, bodies) == list(range(ANSWERS))


class TestManyProcesses:
    def test_a_second_writer_is_refused_by_name_of_the_first(self, tmp_path: Path) -> None:
        with PaidAnswers(tmp_path), pytest.raises(StoreError, match=f"process {os.getpid()}"):
            PaidAnswers(tmp_path)

    def test_a_second_writer_may_wait(self, tmp_path: Path) -> None:
        first = PaidAnswers(tmp_path)
        threading.Timer(0.2, first.close).start()
        with PaidAnswers(tmp_path, wait_seconds=5) as second:
            assert second.append_now(key(1), META, b"x")

    def test_readers_see_what_was_there_while_the_writer_goes_on(self, tmp_path: Path) -> None:
        with PaidAnswers(tmp_path) as paid:
            paid.append_now(key(0), META, b"a")
            with PaidAnswers(tmp_path, read_only=True) as reader:
                paid.append_now(key(1), META, b"b")
                paid.compact()
                assert not segment_path(tmp_path, 1).exists()
                assert held(reader, [b"a", b"b"]) == [0]
                with pytest.raises(StoreError, match="for reading"):
                    reader.append_now(key(2), META, b"c")
            with PaidAnswers(tmp_path, read_only=True) as reader:
                assert held(reader, [b"a", b"b"]) == [0, 1]

    def test_a_reader_of_nothing_finds_nothing(self, tmp_path: Path) -> None:
        with PaidAnswers(tmp_path / "none", read_only=True) as reader:
            assert key(1) not in reader
        assert not (tmp_path / "none").exists()

    def test_closed_segments_become_parts_while_the_run_goes_on(self, tmp_path: Path) -> None:
        with PaidAnswers(tmp_path, segment_bytes=2_000) as paid:
            for number in range(100):
                paid.append_now(key(number), META, body(number))
        assert parts_in(tmp_path)
        assert len(segments_in(tmp_path)) < 100


class TestOldJournals:
    COUNTED = '{"prompt_id":"p1","output_ids":[5,6],' + (
        '"text":"hi","finish_reason":"stop","prompt_tokens":3,"completion_tokens":2}'
    )
    IDS_ONLY = '{"prompt_id":"p2","output_ids":[7]}'

    def written(self, path: Path, *lines: str) -> Path:
        from zlib import crc32

        path.write_bytes(b"".join(b"%08x %s\n" % (crc32(line.encode()), line.encode()) for line in lines))
        return path

    def test_both_shapes_are_read_from_checked_batches(self, tmp_path: Path) -> None:
        path = self.written(tmp_path / "j", f'["k1",[{self.COUNTED}]]', f'["k2",[{self.IDS_ONLY}]]')
        found = import_journal(path)
        assert [(a.prompt_id, a.prompt_tokens, a.completion_tokens) for a in found.answers] == [
            ("p1", 3, 2),
            ("p2", None, None),
        ]
        [counted], [ids_only] = (read_responses(answer.body) for answer in found.answers)
        assert isinstance(counted, Response)
        assert isinstance(ids_only, Response)
        assert (counted.output_ids, counted.completion_tokens, counted.finish_reason) == ([5, 6], 2, "stop")
        assert (ids_only.output_ids, ids_only.completion_tokens, ids_only.content) == ([7], None, None)

    def test_plain_lines_are_read_too(self, tmp_path: Path) -> None:
        (tmp_path / "j").write_text(f"{self.COUNTED}\n{self.IDS_ONLY}\n")
        assert [answer.prompt_id for answer in import_journal(tmp_path / "j").answers] == ["p1", "p2"]

    def test_bad_lines_are_named_and_those_after_them_kept(self, tmp_path: Path) -> None:
        path = self.written(tmp_path / "j", f'["k1",[{self.COUNTED}]]')
        lying = self.COUNTED.replace('"completion_tokens":2', '"completion_tokens":9')
        with open(path, "a") as file:
            file.write(f'00000000 []\nnonsense\n{lying}\n{self.IDS_ONLY}\n{self.COUNTED}\n{{"prompt_id":"p3","outp')
        found = import_journal(path)
        assert [answer.prompt_id for answer in found.answers] == ["p1", "p2"]
        assert found.repeated == 1
        assert [number for number, _ in found.skipped] == [2, 3, 4, 7]
