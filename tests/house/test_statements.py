"""Statements about others are classed, and findings about this code are settled: neither by saying so, nor by a majority."""

import ast
import re
from pathlib import Path
from typing import Final

import pytest

from tests.house.test_documents import DOCUMENTS, ROOT, named_tests

# -- what is said of other systems --------------------------------------------------------------------------------------------

SYSTEMS: Final = (
    *("Absurd", "Airflow", "Celery", "DBOS", "Dramatiq", "FoundationDB", "Hatchet", "Inngest", "LangChain", "LangGraph"),
    *("Oban", "Prefect", "Procrastinate", "Resonate", "Restate", "Sidekiq", "Temporal", "TigerBeetle", "Trio"),
)
NAMED: Final = re.compile(r"\b(" + "|".join(SYSTEMS) + r")\b")
CLASSED: Final = re.compile(r"\((documented|reported|inferred): [^)]*\S[^)]*\)|\(own proposal\)")
"""Documented by that system itself, reported by somebody, or inferred, each with its evidence; or a proposal of our own."""


def unclassed(text: str) -> list[str]:
    """Return the paragraphs that name another system and do not say what stands behind the statement."""
    return [p for p in re.split(r"\n\s*\n", text) if NAMED.search(p) and not CLASSED.search(p)]


def prose_of(path: Path) -> str:
    """Return what a source file says to its reader: its docstrings and comments."""
    text = path.read_text()
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    said = [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
    return "\n\n".join([*said, *re.findall(r"# .*", text)])


@pytest.mark.req("QA-06")
def test_a_statement_about_another_system_says_what_stands_behind_it() -> None:
    source = sorted((ROOT / "src").rglob("*.py"))
    found = {path.name: unclassed(prose_of(path)) for path in source} | {p.name: unclassed(p.read_text()) for p in DOCUMENTS}
    assert {name: paragraphs for name, paragraphs in found.items() if paragraphs} == {}


@pytest.mark.req("QA-06")
@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Temporal replays from the history.", 1),
        ("Temporal replays from the history (documented: its manual, Workflows).", 0),
        ("Temporal replays (documented: ).", 1),
        ("Temporal replays (said: somebody).", 1),
        ("One of ours (reported: a talk).\n\nAnd Restate fences.", 1),
        ("As Trio does it (own proposal).", 0),
        ("A temporal order, and absurd.", 0),
    ],
)
def test_a_class_without_evidence_and_evidence_in_another_paragraph_do_not_count(text: str, count: int) -> None:
    assert len(unclassed(text)) == count


# -- what was found in this code ----------------------------------------------------------------------------------------------

SEEDS: Final = ROOT / "tests" / "simulation" / "seeds.txt"
_FOUND: Final = "tests/simulation/test_runtime_found.py::"
_STREAMS: Final = "tests/runtime/test_streams.py::"

BY_CODE: Final = {
    "a step tried again in one attempt was heard twice": (
        f"{_STREAMS}test_a_step_that_begins_anew_supersedes_its_partial_output_only"
    ),
    "what a step had said before a checkpoint was heard twice after a restart": (
        f"{_FOUND}test_what_an_interrupted_step_has_said_is_replaced_though_a_checkpoint_covers_it"
    ),
    "an error of a later try was taken for the answer to an unanswered one": (
        f"{_FOUND}test_a_definite_failure_says_nothing_of_an_earlier_try_without_an_answer"
    ),
    "an unanswered call that backed off was listed in no receipt": (
        f"{_FOUND}test_a_call_that_nobody_answered_is_in_doubt_while_it_backs_off"
    ),
    "a budget's refusal was taken for the answer to an unanswered call": (
        f"{_FOUND}test_a_budget_that_refuses_the_next_try_leaves_the_doubt_about_the_last"
    ),
    "a decision that came while the destination was asked was not heeded": (
        f"{_FOUND}test_a_decision_while_the_destination_is_asked_comes_first"
    ),
    "a reader was shown a number beyond the frontier": (
        "tests/runtime/test_boundary_frontier.py::test_a_late_chunk_of_a_show_first_stream_is_not_even_shown"
    ),
    "a holder that had been replaced called under the mark of its successor": (
        f"{_FOUND}test_a_holder_that_was_replaced_behind_its_mark_does_not_call_under_the_mark_of_its_successor"
    ),
}
"""Finding → the test that fails if it comes back."""

BY_ARGUMENT: Final = {
    "an operation inside a step waits in place: the run does not park": (
        "A run parks when all of its branches wait. A step is under way until its code has returned, also while that code waits "
        "for an operation of its own: what surrounds that operation is on the stack, and would be lost with the process. So it "
        "waits in place, holding its process, and the simulation no longer expects that such a run parks."
    ),
    "a gathering that fails leaves its other branches half done (of the workload, not of the product)": (
        "`asyncio.gather` leaves its other branches running when one of them fails, and the agent that awaited it ends. What "
        "they then leave half done is what the agent's own code says: a task group would say otherwise. A runtime that stepped "
        "in would change what the language means, so the journal shows those branches as they stand, and nothing else is done."
    ),
}
"""Finding → why nothing was changed."""


def findings() -> set[str]:
    """Return what the seeds that are kept once found."""
    lines = [line for line in SEEDS.read_text().splitlines() if line and not line.startswith("#")]
    return {re.sub(r"^\d+\s+", "", line) for line in lines}


@pytest.mark.req("QA-11", "QA-05")
def test_every_finding_is_settled_by_a_test_or_by_an_argument_and_none_by_both() -> None:
    assert findings() == BY_CODE.keys() | BY_ARGUMENT.keys()
    assert not BY_CODE.keys() & BY_ARGUMENT.keys()
    assert not set(BY_CODE.values()) - named_tests()
    assert all(len(argument.split()) > 20 for argument in BY_ARGUMENT.values()), "an argument, not a remark"
