"""Connections that break, servers that are away, listeners that go deaf: nothing is lost and nothing done twice (C15, C88)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from quiesce.domain.errors import StoreUnavailable
from quiesce.domain.runs import Run
from quiesce.domain.writes import RunWrite, WriteOutcome
from quiesce.ports.notifier import WORK
from quiesce.ports.store import Store, Transaction
from quiesce.stores.postgres import PostgresSettings, PostgresStore
from quiesce.testing.samples import Samples

Open = Callable[[str], Awaitable[Store]]

_BOUND_S = 30


class Proxy:
    """A TCP port in front of the server's socket, that can be cut, closed, and made to swallow what the server says."""

    def __init__(self, socket_path: str) -> None:
        self._socket_path = socket_path
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._speaks = asyncio.Event()
        self._speaks.set()
        self.port = 0

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Refuse new connections and cut those that there are."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def fall_silent(self) -> None:
        """Keep every present connection open and let nothing more through to the client."""
        self._speaks.clear()
        self._speaks = asyncio.Event()
        self._speaks.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_unix_connection(self._socket_path)
        self._writers += [writer, server_writer]
        for pump in (self._pump(reader, server_writer, None), self._pump(server_reader, writer, self._speaks)):
            task = asyncio.ensure_future(pump)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, speaks: asyncio.Event | None) -> None:
        try:
            while data := await source.read(65536):
                if speaks is None or speaks.is_set():
                    sink.write(data)
                    await sink.drain()
        except OSError:
            pass
        finally:
            sink.close()


@pytest.fixture
def server_socket(postgres_url: str) -> str:
    directory = parse_qs(urlsplit(postgres_url).query)["host"][0]
    return str(next(Path(directory).glob(".s.PGSQL.*[0-9]")))


@pytest.fixture
async def proxy(server_socket: str) -> AsyncIterator[Proxy]:
    opened = Proxy(server_socket)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
def patience_ms() -> int:
    """How long a store goes on trying: here, longer than any pause of the machine."""
    return _BOUND_S * 1000


@pytest.fixture
async def through_proxy(proxy: Proxy, postgres_url: str, patience_ms: int) -> AsyncIterator[PostgresStore]:
    """A store that reaches the server through the proxy only."""
    schema = parse_qs(urlsplit(postgres_url).query)["schema"][0]
    settings = PostgresSettings(
        conninfo=f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres", schema=schema, patience_ms=patience_ms, ping_ms=200
    )
    store = await asyncio.to_thread(PostgresStore, settings)
    yield store
    await store.close()


@pytest.fixture
def kill(postgres_server: str, postgres_url: str) -> Callable[[str], int]:
    """Ends the server's side of this schema's connections whose last statement matches; returns how many."""
    schema = parse_qs(urlsplit(postgres_url).query)["schema"][0]

    def terminate(statement: str = "%") -> int:
        with psycopg.connect(postgres_server, autocommit=True) as connection:
            row = connection.execute(
                "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity"
                " WHERE application_name = %s AND query LIKE %s",
                [schema, statement],
            ).fetchone()
            return 0 if row is None else int(row[0])

    return terminate


@pytest.fixture
async def store(postgres_url: str, opened: Open) -> PostgresStore:
    """A store whose connections are known by the name of its schema."""
    schema = parse_qs(urlsplit(postgres_url).query)["schema"][0]
    store = await opened(f"{postgres_url}&application_name={schema}")
    assert isinstance(store, PostgresStore)
    return store


async def _add(store: Store, *runs: Run) -> None:
    def insert(tx: Transaction) -> None:
        for run in runs:
            tx.runs.insert(run)
            tx.streams.open(run.id)

    await store.transact(insert)


@pytest.mark.req("C88")
async def test_a_write_after_all_connections_were_ended_is_applied_once(
    store: PostgresStore, make: Samples, kill: Callable[[], int]
) -> None:
    run = make.running()
    await _add(store, run)
    await store.write(RunWrite(run_id=run.id, fence=run.fence, events=make.texts(run, "a")))
    first = (await store.read(lambda tx: tx.streams.read(run.id, after=0, limit=9)))[0]
    assert kill() >= 2
    events = make.texts(run, "b", after=first)
    assert await store.write(RunWrite(run_id=run.id, fence=run.fence, events=events)) is WriteOutcome.APPLIED
    assert len(await store.read(lambda tx: tx.streams.read(run.id, after=0, limit=9))) == 2


@pytest.mark.req("C88")
async def test_decisions_and_reads_after_all_connections_were_ended_succeed(
    store: PostgresStore, make: Samples, kill: Callable[[], int]
) -> None:
    await asyncio.gather(*(store.transact(lambda tx: tx.now) for _ in range(8)))
    assert kill() >= 1
    workers = [make.worker() for _ in range(8)]
    await asyncio.gather(*(store.transact(lambda tx, worker=worker: tx.workers.insert(worker)) for worker in workers))  # type: ignore[misc]
    assert kill() >= 1
    assert await store.read(lambda tx: [tx.workers.get(worker.id) for worker in workers]) == workers


@pytest.mark.req("C88")
async def test_a_decision_whose_connection_breaks_half_way_is_run_again(
    store: PostgresStore, make: Samples, kill: Callable[[], int]
) -> None:
    worker = make.worker()
    runs = 0

    def decide(tx: Transaction) -> int:
        nonlocal runs
        runs += 1
        tx.workers.insert(worker)
        if runs == 1:
            kill()
        found = tx.workers.get(worker.id)
        assert found == worker
        return runs

    assert await store.transact(decide) == 2
    assert await store.read(lambda tx: tx.workers.get(worker.id)) == worker


@pytest.mark.req("C88")
async def test_a_decision_whose_commit_goes_unanswered_is_reported_as_open(
    store: PostgresStore, make: Samples, postgres_url: str
) -> None:
    _end_the_backend_at_commit(postgres_url, "outbox", times=1)
    run, message = make.run(), make.message(make.run())
    calls = 0

    def decide(tx: Transaction) -> None:
        nonlocal calls
        calls += 1
        tx.runs.insert(run)
        tx.outbox.append(message)

    with pytest.raises(StoreUnavailable, match="open"):
        await store.transact(decide)
    assert calls == 1
    assert await store.read(lambda tx: tx.runs.get(run.id)) is None
    await store.transact(decide)
    assert await store.read(lambda tx: tx.runs.get(run.id)) == run


@pytest.mark.req("C88")
async def test_a_write_whose_commit_goes_unanswered_is_handed_in_again(
    store: PostgresStore, make: Samples, postgres_url: str
) -> None:
    _end_the_backend_at_commit(postgres_url, "event", times=2)
    run = make.running()
    await _add(store, run)
    write = RunWrite(run_id=run.id, fence=run.fence, events=make.texts(run, "a"))
    assert await store.write(write) is WriteOutcome.APPLIED
    assert len(await store.read(lambda tx: tx.streams.read(run.id, after=0, limit=9))) == 1
    assert store.counters.writes == 1


def _end_the_backend_at_commit(url: str, table: str, *, times: int) -> None:
    """Have the server end a connection while it commits rows of a table, the first so many times."""
    settings = PostgresSettings.from_url(url)
    with psycopg.connect(settings.conninfo, autocommit=True) as connection:
        connection.execute("SELECT set_config('search_path', %s, false)", [settings.schema])
        connection.execute(
            f"CREATE SEQUENCE deaths; CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            f" IF nextval('deaths') <= {times} THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;"
            " RETURN NULL; END $$;"
            f" CREATE CONSTRAINT TRIGGER dies AFTER INSERT ON {table} DEFERRABLE INITIALLY DEFERRED"
            " FOR EACH ROW EXECUTE FUNCTION die();".encode()
        )


@pytest.mark.req("C88")
@pytest.mark.parametrize("patience_ms", [1000])
async def test_a_server_that_stays_away_is_unavailable_and_used_again_when_it_is_back(
    through_proxy: PostgresStore, proxy: Proxy, make: Samples
) -> None:
    store, run = through_proxy, make.running()
    await _add(store, run)
    await proxy.close()
    write = RunWrite(run_id=run.id, fence=run.fence, events=make.texts(run, "a"))
    with pytest.raises(StoreUnavailable):
        await store.write(write)
    with pytest.raises(StoreUnavailable):
        await store.transact(lambda tx: tx.now)
    await proxy.open()
    async with asyncio.timeout(_BOUND_S):
        while (outcome := await _tried(store, write)) is None:  # its patience is short, and the machine may have paused
            await asyncio.sleep(0.01)
    assert outcome is WriteOutcome.APPLIED
    assert len(await store.read(lambda tx: tx.streams.read(run.id, after=0, limit=9))) == 1


async def _tried(store: PostgresStore, write: RunWrite) -> WriteOutcome | None:
    with contextlib.suppress(StoreUnavailable):
        return await store.write(write)
    return None


@pytest.mark.req("C88")
async def test_a_write_waits_for_a_server_that_is_away_for_a_moment(
    through_proxy: PostgresStore, proxy: Proxy, make: Samples
) -> None:
    store, run = through_proxy, make.running()
    await _add(store, run)
    await proxy.close()
    writing = asyncio.ensure_future(store.write(RunWrite(run_id=run.id, fence=run.fence, events=make.texts(run, "a"))))
    await asyncio.sleep(0)
    await proxy.open()
    assert await writing is WriteOutcome.APPLIED


async def _connected(store: PostgresStore) -> None:
    assert await asyncio.to_thread(store.listener.wait_connected, _BOUND_S * 1000)


@pytest.mark.req("C15")
async def test_a_decision_of_another_process_rings_a_bell(store: PostgresStore, postgres_url: str, opened: Open) -> None:
    bell = store.notifier.bell(WORK)
    waiting = asyncio.ensure_future(bell.wait(_BOUND_S * 1000))
    await asyncio.sleep(0)
    await _connected(store)
    other = await opened(postgres_url)
    await other.transact(lambda tx: tx.ring(WORK))
    assert await waiting
    bell.close()


@pytest.mark.req("C15")
async def test_a_listener_whose_connection_was_ended_comes_back(
    store: PostgresStore, postgres_url: str, opened: Open, kill: Callable[[str], int]
) -> None:
    bell = store.notifier.bell(WORK)
    waiting = asyncio.ensure_future(bell.wait(_BOUND_S * 1000))
    await asyncio.sleep(0)
    await _connected(store)
    assert kill("LISTEN%") == 1
    assert await waiting, "its return rings every bell, since rings were missed"
    await _connected(store)
    assert store.listener.reconnects >= 1
    again = asyncio.ensure_future(bell.wait(_BOUND_S * 1000))
    other = await opened(postgres_url)
    await other.transact(lambda tx: tx.ring(WORK))
    assert await again
    bell.close()


@pytest.mark.req("C15")
async def test_a_listener_that_has_gone_deaf_is_found_out(through_proxy: PostgresStore, proxy: Proxy) -> None:
    store = through_proxy
    bell = store.notifier.bell(WORK)
    waiting = asyncio.ensure_future(bell.wait(_BOUND_S * 1000))
    await asyncio.sleep(0)
    await _connected(store)
    proxy.fall_silent()
    assert await waiting, "its replacement rings every bell"
    assert store.listener.reconnects >= 1
    bell.close()


@pytest.mark.req("C15")
async def test_without_a_listener_polling_suffices(store: PostgresStore, make: Samples, postgres_url: str, opened: Open) -> None:
    store.listener.close()
    other = await opened(postgres_url)
    worker = make.worker()

    def announce(tx: Transaction) -> None:
        tx.workers.insert(worker)
        tx.ring(WORK)

    await other.transact(announce)
    bell = store.notifier.bell(WORK)
    assert not await bell.wait(1)
    assert await store.read(lambda tx: tx.workers.get(worker.id)) == worker
    assert not store.listener.is_connected
    bell.close()


@pytest.mark.req("C15")
async def test_write_values_notify_nobody_and_ring_here(store: PostgresStore, make: Samples) -> None:
    run = make.running()
    await _add(store, run)
    bell = store.notifier.bell(f"run:{run.id}")
    await store.write(RunWrite(run_id=run.id, fence=run.fence, events=make.texts(run, "a")))
    assert await bell.wait(0)
    assert "notify" not in store.counters.by_name
    bell.close()


async def test_time_is_the_servers(store: PostgresStore, postgres_server: str) -> None:
    def clock() -> int:
        with psycopg.connect(postgres_server) as connection:
            row = connection.execute("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint").fetchone()
            assert row is not None
            return int(row[0])

    before = await asyncio.to_thread(clock)
    now = await store.transact(lambda tx: tx.now)
    assert before <= now <= await asyncio.to_thread(clock)


async def test_the_clock_costs_a_decision_no_round_trip(store: PostgresStore) -> None:
    await store.transact(lambda tx: tx.now)
    before = replace(store.counters).statements
    await store.transact(lambda tx: (tx.now, tx.now))
    assert store.counters.statements - before == 2, "begin and commit"


async def test_threads_end_with_the_store(postgres_url: str) -> None:
    before = set(threading.enumerate())
    store = await asyncio.to_thread(PostgresStore, PostgresSettings.from_url(postgres_url))
    bell = store.notifier.bell(WORK)
    await bell.wait(1)
    await _connected(store)
    await store.close()
    ours = {thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("quiesce")}
    assert ours == set()
