"""The report of an audit shows every check, every plot, and rows with their mask; also when a gate was closed."""

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from prefect import flow
from prefect.client.orchestration import get_client

from schemas.answers import AUDIT, DISTRIBUTIONS, SEQUENCES
from schemas.prompts import QUARANTINE
from schemas.recipe import Recipe
from schemas.sections import DatasetSpec, TargetSpec
from tasks.artifacts.artifact import Shards
from tasks.report.audit import report_audit
from tasks.report.audit_html import render_html
from tasks.report.audit_plots import PLOTS, write_audit_plots
from tasks.report.audit_samples import Sample, choose_samples, pieces_of, sample_of
from tasks.validate.audit import Audit, AuditFailed
from tests import tokenizers
from tests.rows import Workspace, prompt_id
from tests.validate import kimi
from tests.validate.kimi import CLOSE, END, OPEN, good, ids

FAULTY = {"completion_ids": ids("<b>x & y</b>", CLOSE, 163840)}
KIMI = tokenizers.codec("kimi")


def audit_of(*of: dict[str, Any], **spec: Any) -> tuple[Audit, Any, Any]:
    audit = kimi.audit(**spec)
    audit.distributions.count("billed_delta", "Provider <A>", "0", 40)
    audit.distributions.count("billed_delta", "Provider <A>", "-2", 3)
    audit.distributions.count("billed_delta", "Provider <A>", "unknown", 1)
    audited = audit.take(kimi.table(*of))
    return audit, audited.sequences, audited.quarantine


@pytest.fixture
def target() -> Shards:
    """Enough of a target for its tokenizer to be found."""
    return Shards(shards=(), facts={"folder": str(tokenizers.folder("kimi"))})


@pytest.fixture
def recipe() -> Recipe:
    return Recipe(
        name="audited",
        target=TargetSpec(model=str(tokenizers.folder("kimi"))),
        datasets=[DatasetSpec(name="a", source="a"), DatasetSpec(name="b", source="b", split="benchmark")],
    )


@pytest.fixture(autouse=True)
def _kimi_is_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.report.audit.load_codec_of", lambda target, spec: KIMI)


def artifact(*of: dict[str, Any]) -> Shards:
    audit, sequences, quarantine = audit_of(*of)
    findings = audit.judge()
    out = Workspace("audited/given.parquet")
    out.add_table("sequences", "sequences.parquet", sequences, SEQUENCES)
    out.add_table("quarantine", "quarantine.parquet", quarantine, QUARANTINE)
    out.add_table("audit", "audit.parquet", findings.audit, AUDIT)
    out.add_table("distributions", "distributions.parquet", findings.distributions, DISTRIBUTIONS)
    return out.publish(facts=dict(findings.facts))


def sequences_of(*of: dict[str, Any]) -> Shards:
    out = Workspace("reconstructed/given.parquet")
    out.add_table("sequences", "sequences.parquet", kimi.table(*of), SEQUENCES)
    return out.publish()


def failed(*of: dict[str, Any]) -> AuditFailed:
    audit, _, _ = audit_of(*of, max_quarantined_share=0)
    with pytest.raises(AuditFailed) as caught:
        audit.judge()
    return caught.value


def test_the_report_shows_checks_plots_and_rows(store: Path, recipe: Recipe, target: Shards):
    rows = (good(1), good(2, finish_reason="length", completion_ids=ids("x")), good(3, **FAULTY))
    report = report_audit(store, recipe, artifact(*rows), [], target)
    assert report.markdown == store / "reports" / "audited" / "audit.md"
    text = report.markdown.read_text()
    assert "Every gate is open." in text
    assert "| id_out_of_range | 3 | 1 | 3 |" in text
    assert "| billed_delta | Provider &lt;A> | -2: 3, 0: 40, unknown: 1 |" in text
    for plot in re.findall(r"\]\((.*?)\)", text):
        assert (report.markdown.parent / plot).exists()
    assert set(report.plots) == set(PLOTS)
    page = report.html.read_text()
    assert f'<h3 class="kept">kept: {prompt_id(1)}' in page
    assert f'<h3 class="rejected">id_out_of_range: {prompt_id(3)}' in page


def test_a_closed_gate_is_reported_too(store: Path, recipe: Recipe, target: Shards):
    rows = (good(1), good(2, **FAULTY))
    report = report_audit(store, recipe, failed(*rows), [sequences_of(good(1))], target)
    text = report.markdown.read_text()
    assert "**the audit stops the flow: too many rows fail id_out_of_range (1 of 2 rows, 50.00%)" in text
    assert f"id_out_of_range, prompt {prompt_id(2)}: `a sequence must keep this rule" in text
    assert 'tr class="closed"' in report.html.read_text()


def test_text_in_the_page_is_escaped_and_the_page_needs_nothing_else():
    page = render_html("x", [], [sample_of(KIMI, good(1, **FAULTY), "id_out_of_range", "<script>")])
    assert "&lt;b&gt;" in page or "&lt;b" in page
    assert "<b>" not in page
    assert "<script" not in page
    assert not re.search(r"(src|href)=", page)
    body = page[page.index("<body") : page.index("</html>")]
    assert ElementTree.fromstring(body) is not None


def test_prompt_answer_and_markers_are_told_apart():
    sample = sample_of(KIMI, good(1), "kept")
    supervised = [number for piece in sample.pieces if piece.supervised for number in piece.ids]
    assert supervised == kimi.COMPLETION
    assert [piece.text for piece in sample.pieces if piece.marker and piece.supervised] == ["</think>", "<|im_end|>"]
    opened = next(piece for piece in sample.pieces if piece.ids == (OPEN,))
    assert (opened.marker, opened.supervised) == (True, False)


def test_ids_of_one_character_are_one_piece_and_a_cut_character_is_shown():
    rare = ids("𓀀")
    assert len(rare) > 1
    (piece,) = pieces_of(KIMI, rare, [1] * len(rare))
    assert (piece.text, piece.ids) == ("𓀀", tuple(rare))
    cut = pieces_of(KIMI, rare[:-1], [1] * (len(rare) - 1))
    assert sum(len(piece.ids) for piece in cut) == len(rare) - 1


def test_long_rows_are_cut_and_say_so():
    sample = sample_of(KIMI, good(1, prompt_ids=[17285] * 500, completion_ids=[687] * 1000 + [END]), "kept")
    gaps = [piece.text for piece in sample.pieces if not piece.ids]
    assert gaps == ["… 340 ids …", "… 621 ids …"]
    assert sample.pieces[-1].ids == (END,)
    assert "500 + 1001 ids, 1001 supervised" in sample.about


def test_samples_are_of_every_kind_and_reason():
    rows = [
        good(1),
        good(2),
        good(3, dataset="code"),
        good(4, **FAULTY),
        good(5, **FAULTY),
        good(6, loss_mask=[0] * 23),
    ]
    _, kept, quarantine = audit_of(*rows)
    samples = choose_samples(KIMI, [kept], quarantine)
    assert [(sample.verdict, sample.prompt_id) for sample in samples][:3] == [
        ("kept", prompt_id(1)),
        ("kept", prompt_id(3)),
        ("id_out_of_range", prompt_id(4)),
    ]
    assert len(samples) == 4


def test_plots_are_whole_and_equal_for_equal_figures(tmp_path: Path):
    audit, kept, quarantine = audit_of(
        good(1), good(2, completion_ids=ids("$x$ 中文 👩 \0\t\n", CLOSE, "y", END)), good(3, **FAULTY)
    )
    distributions = audit.findings().distributions
    samples = choose_samples(KIMI, [kept], quarantine)
    one = write_audit_plots(tmp_path / "one", distributions, samples)
    write_audit_plots(tmp_path / "two", distributions, samples)
    for name, png in one.items():
        assert png.read_bytes().startswith(b"\x89PNG")
        svg = (tmp_path / "one" / f"{name}.svg").read_bytes()
        assert ElementTree.fromstring(svg).tag.endswith("svg")
        assert svg == (tmp_path / "two" / f"{name}.svg").read_bytes()


def test_an_audit_of_nothing_has_plots(tmp_path: Path):
    empty: list[Sample] = []
    assert set(write_audit_plots(tmp_path, DISTRIBUTIONS.arrow.empty_table(), empty)) == set(PLOTS)


@pytest.mark.usefixtures("prefect_server")
def test_a_flow_publishes_the_audit(store: Path, recipe: Recipe, target: Shards):
    audited = artifact(good(1))

    @flow
    def reporting() -> None:
        report_audit(store, recipe, audited, [], target)

    reporting()
    with get_client(sync_client=True) as client:
        found = {one.key: one.type for one in client.read_artifacts() if one.key and "audit" in one.key}
    assert found == {
        "audited-audit": "markdown",
        "audited-audit-checks": "table",
        "audited-audit-billed-delta": "image",
        "audited-audit-lengths": "image",
        "audited-audit-quarantine": "image",
        "audited-audit-samples": "image",
    }
