"""What `--help` teaches: for each verb what it is for, and commands to try."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Guide:
    """Help of one verb: a line for the list of verbs, and a text with examples."""

    summary: str
    text: str


def _guide(summary: str, *examples: str, more: str = "") -> Guide:
    """Return a help whose paragraphs are filled and whose examples keep their lines."""
    lines = "\n".join(f"  $ {example}" for example in examples)
    words = f"{summary}\n\n{more}" if more else summary
    return Guide(summary, f"{words}\n\n\b\nExamples:\n{lines}")


GUIDE: Final[Mapping[str, Guide]] = {
    "start": _guide(
        "Submit a run and advance it to its end.",
        "quiesce start --case durable-report",
        "quiesce start --case slow-stream --input '{\"tokens\": 500}' --session work",
        "quiesce start agents:researcher --input '[\"Why?\"]' --key order-7 --budget tool_calls=5",
        more="The run is durable before anything is executed. Leaving (Ctrl-C, SIGTERM, a closed terminal) is no cancel: the "
        "run is handed back, and `quiesce resume` goes on with it.",
    ),
    "resume": _guide(
        "Go on with a run, or read back how it ended.",
        "quiesce resume last",
        "quiesce resume 0193f2c4-7d10-7 agents:researcher --session work",
        more="Of a run that has ended nothing is executed and nothing written: its receipt is read and verified, and the files "
        "that it saved are compared with their digests. A run that a live holder advances is refused (LEASE_BUSY), a run "
        "that was bound to another model too (BINDING_MISMATCH).",
    ),
    "watch": _guide(
        "Follow a run's stream, from any process, to its end.",
        "quiesce watch last",
        "quiesce watch last --after 120 --json",
        more="Every event has a number; `--after N` goes on behind the one that was seen last. The last frame says how the run "
        "ended and names its receipt.",
    ),
    "cancel": _guide(
        "Cancel a run, from any process, and wait for its receipt.",
        'quiesce cancel last --reason "changed my mind"',
        "quiesce cancel last --mode after_step --grace 5000",
        more="With `--no-wait` only the admission is reported: that the cancel was accepted says nothing about what became "
        "durable. A run that had ended stays as it was; that is no failure.",
    ),
    "correct": _guide(
        "Give a running agent your words, for its next safe boundary.",
        'quiesce correct last "answer in French"',
        'quiesce correct last "leave out the prices" --key review-7',
        more="Kept is not applied: `quiesce mailbox` says whether the agent took it, where, or which receipt brought it back. A "
        "run that has ended takes nothing (RUN_ENDED, with its receipt).",
    ),
    "wake": _guide(
        "Wake a run that waits, or will wait, for a name.",
        "quiesce wake last order-7",
        "quiesce wake last order-7 --value '{\"paid\": true}'",
        more="`quiesce explain` names what a run waits for. A wake that comes first is kept, and taken once.",
    ),
    "mailbox": _guide(
        "Show what reached a run from outside, and what became of it.",
        "quiesce mailbox last",
        "quiesce mailbox last --withdraw 0193f2c4-7d10-7abc-8def-000000000007",
        more="Of each entry: `queued`, `applied` (at which operation), `withdrawn`, or `returned` (by which receipt).",
    ),
    "inbox": _guide(
        "Show what runs ask of people.",
        "quiesce inbox",
        "quiesce inbox --json",
        more="The open questions of all runs, each with the id to answer it by (`quiesce answer`) and the schema that an answer "
        "must fit.",
    ),
    "receipt": _guide(
        "Show the receipt of a run that has ended.",
        "quiesce receipt last",
        "quiesce receipt last --json",
        more="It says: stopped here, this became durable, this was seen beyond it, this is why, this may follow.",
    ),
    "answer": _guide(
        "Answer a question of a run, once and for good.",
        "quiesce answer 0193f2c4-7d10-7b02-8000-5a3c1e9f0d11 --value true",
        "quiesce answer 0193f2c4-7d10-7b02-8000-5a3c1e9f0d11 --value '\"tomorrow\"' --actor ada",
        more="The first answer counts; a later one is told who was first (ALREADY_ANSWERED). After its time a question "
        "is expired (QUESTION_EXPIRED), which is nobody's no. A parked run goes on with any worker, or with `quiesce resume`.",
    ),
    "list": _guide("List runs, newest first.", "quiesce list", "quiesce list --status running --status waiting --json"),
    "inspect": _guide(
        "Show all that is stored of a run, and what may be done.",
        "quiesce inspect last",
        "quiesce inspect last --json",
        more="Answers three questions: which acts may continue, which facts may only be read again, which unknown outcomes "
        "must stop. Changes nothing, not even the bytes of the database file.",
    ),
    "explain": _guide("Say what a run waits for, or why nothing moves.", "quiesce explain last"),
    "trace": _guide(
        "Show what is on record of a run, in the order of time.",
        "quiesce trace last",
        "quiesce trace last --json",
        more="Read from the facts themselves and stored nowhere. What nobody recorded is said to be missing, and an outcome that "
        "nobody knows to be unknown. It shows no arguments, results or payloads.",
    ),
    "reconcile": _guide(
        "Decide about an effect that may have happened.",
        "quiesce reconcile last",
        'quiesce reconcile last 2 --verdict happened --result \'{"id": 7}\' --grounds "order book, line 7"',
        "quiesce reconcile last 2 --ask",
        more="Without an operation, lists the undecided ones. `--ask` reads the destination again, where the tool has a probe. "
        "`happened` takes the result that the destination gave; "
        "`did_not_happen` lets the run dispatch it again; `give_up` lets the run go on without knowing. The decision is kept "
        "with its grounds and who made it.",
    ),
    "thread": _guide(
        "Show a thread: its turns, and what may be done next.",
        "quiesce thread t-1",
        "quiesce thread t-1 --json",
        more="Each state comes with the number of the stream that it contains; what was seen beyond it is shown as partial. "
        "What was rolled back stays, and is marked.",
    ),
    "continue": _guide(
        "Go on with a thread under a recorded choice.",
        "quiesce continue t-1 --input '\"and now?\"'",
        "quiesce continue t-1 --accept 0193f2c4-7d10-7b02-8000-5a3c1e9f0d11 --policy reconcile --input '\"go on\"'",
        "quiesce continue t-1 --accept 0193f2c4-7d10-7b02-8000-5a3c1e9f0d11 --policy restart",
        more="Where the last run left a gap, a choice is needed that names its receipt. `reconcile` keeps what was seen beyond "
        "the checkpoint, as partial output (or, with `--carry rollback`, builds on nothing of that run); `restart` goes on from "
        "the checkpoint, and the record names what is given up. An effect whose outcome is unknown blocks: see `quiesce "
        "reconcile`. Without --input, the choice is made for the first queued run.",
    ),
    "standing": _guide(
        "Show standing policies, or declare one.",
        "quiesce standing",
        "quiesce standing --agent researcher --on-gap reconcile",
        "quiesce standing --thread t-1 --on-gap restart --carry rollback",
        more="What may be done, without asking again, where a run left a gap. A thread's counts before its agent's; the newest "
        "counts. Each use is on record with who declared it. Nothing passes an unknown effect.",
    ),
    "verify": _guide(
        "Compute again what a receipt claims.",
        "quiesce verify last",
        "quiesce verify --bundle run.json",
        more="State, stream and receipt digests, the thread's chain, the policy, and the files that were saved.",
    ),
    "export": _guide(
        "Write a run's evidence into one file.",
        "quiesce export last -o run.json",
        more="`quiesce verify --bundle` checks it anywhere, without the store.",
    ),
    "compare": _guide(
        "Compare what was seen with what is stored.",
        "quiesce compare last",
        "quiesce compare last --events seen.jsonl",
        "quiesce compare last --events seen.jsonl --record --actor ada",
        'quiesce compare last --resolve "the client\'s cache was broken"',
        "quiesce compare --bundle run.json --seen 3:6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b",
        more="Alone, compares the last checkpoint with what may have been seen. With `--events` (what `quiesce watch --json` "
        "printed, from the first event on) or `--seen` (a number and its chain value), says whether a client saw the same, how "
        "far it is behind or ahead, or at which event it saw something else. `--record` keeps that it did: nothing builds on "
        "the run any more until a person decides (`--resolve`).",
    ),
    "worker": _guide(
        "Advance whatever is due, until told to stop.",
        "quiesce worker --session work",
        "quiesce worker agents:researcher --store postgresql://db/agents --name w1",
        more="SIGTERM and Ctrl-C drain: nothing more is claimed, calls in flight get their time, unfinished runs are handed "
        "back.",
    ),
    "doctor": _guide("Check this installation and the store.", "quiesce doctor --session work"),
    "crash-points": _guide(
        "List the places where a test may kill the process.",
        "QUIESCE_CRASH_AT=effect.after quiesce start --case once-effect",
        more="`QUIESCE_CRASH_AT=name[:n]` makes the n-th arrival there end the process with SIGKILL.",
    ),
    "queue": _guide(
        "Look at commands on their way to their owners, and decide about those that are stuck.",
        "quiesce queue list --status unknown",
        "quiesce queue show 0193f2c4-7d10-7abc-8def-000000000007",
        'quiesce queue requeue 0193f2c4-7d10-7abc-8def-000000000007 --why "the worker knows this kind now"',
        more="Delivery and effect are two facts: that a command was delivered does not say that it took effect, and one that "
        "was not acknowledged may have. What cannot be known stays `unknown` until its owner's receipt shows.",
    ),
    "schedules": _guide(
        "Start runs by the clock, and see what each planned time came to.",
        'quiesce schedules add nightly agents:reporter --cron "0 2 * * *" --timezone Europe/London --missed one',
        "quiesce schedules add once agents:reporter --at 2026-12-24T18:00 --timezone Europe/Berlin",
        "quiesce schedules list",
        "quiesce schedules fires nightly",
        "quiesce schedules pause nightly",
        more="A schedule fires while a `quiesce worker` of its session or store runs. Each planned time has a receipt: due, "
        "fired, late by how much, which times it stands for, which were missed, and the run that it made. That it fired does "
        "not say that anything ran: its status is the run's own.",
    ),
    "demo": _guide(
        "Tell the story in about a minute, with real processes.",
        "quiesce demo",
        "quiesce demo --fast --session story",
        more="A worker dies between an effect and its record, another takes over, an unknown effect is decided by a person, a "
        "stream is cancelled from outside, and what is left is verified. Every claim is read from the store or the logs.",
    ),
}
"""Help of each verb."""
