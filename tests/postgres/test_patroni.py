"""A cluster that Patroni looks after: its primary is killed at random under writers and followers,
nothing acknowledged is lost, and every program goes on by itself.

It needs the programs `patroni` and `etcd` (Debian: `apt-get install patroni etcd-server`).
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from capsule import Store
from tests.postgres.server import _user, binaries
from tests.postgres.test_failover import FOLLOWER, lost
from tests.postgres.writers import histories, writing
from tests.processes import Child, until

#: How often the primary dies, and how many appends are acknowledged in between.
ROUNDS, EACH = (10, 500) if os.environ.get("CAPSULE_TORTURE") else (2, 100)
WRITERS, FOLLOWERS = 8, 3
#: The configuration of a node. `primary_start_timeout: 0`: a primary that died is replaced at once.
NODE = """
scope: capsule
name: {name}
restapi: {{listen: "127.0.0.1:{api}", connect_address: "127.0.0.1:{api}"}}
etcd3: {{hosts: "127.0.0.1:{etcd}"}}
bootstrap:
  dcs:
    ttl: 20
    loop_wait: 1
    retry_timeout: 3
    synchronous_mode: true
    primary_start_timeout: 0
    master_start_timeout: 0
    postgresql:
      use_pg_rewind: true
      parameters: {{max_connections: 100, wal_keep_size: 128MB, shared_buffers: 64MB}}
  initdb: [{{encoding: UTF8}}, {{locale: C}}]
postgresql:
  listen: "127.0.0.1:{port}"
  connect_address: "127.0.0.1:{port}"
  data_dir: {directory}/data
  bin_dir: {programs}
  pgpass: {directory}/pgpass
  parameters: {{unix_socket_directories: "{directory}"}}
  pg_hba: ["local all all trust", "host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"]
  authentication:
    superuser: {{username: postgres, password: x}}
    replication: {{username: replicator, password: x}}
    rewind: {{username: rewinder, password: x}}
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Node:
    """A server with the program that looks after it."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.name = f"node{number}"
        self.port, self.api = free_port(), free_port()
        self.directory = cluster.directory / self.name
        self.directory.mkdir()
        self.directory.chmod(0o700)
        self._configuration = self.directory / "patroni.yml"
        self._configuration.write_text(
            NODE.format(
                name=self.name,
                api=self.api,
                etcd=cluster.etcd_port,
                port=self.port,
                directory=self.directory,
                programs=binaries(),
            )
        )
        for path in (self.directory, self._configuration):
            cluster.give_away(path)
        self._cluster = cluster
        self.start()

    def start(self) -> None:
        """Start Patroni, which starts the server."""
        self._patroni = self._cluster.run("patroni", str(self._configuration), log=self.name)

    def state(self) -> dict[str, Any]:
        """What Patroni reports."""
        with suppress(OSError, ValueError):
            url = f"http://127.0.0.1:{self.api}/patroni"
            with urllib.request.urlopen(url, timeout=2) as answer:
                return dict(json.load(answer))
        return {}

    @property
    def is_primary(self) -> bool:
        state = self.state()
        return state.get("role") in ("master", "primary") and state.get("state") == "running"

    @property
    def is_standby(self) -> bool:
        state = self.state()
        return state.get("role") in ("replica", "standby") and state.get("state") in (
            "running",
            "streaming",
        )

    def kill_server(self) -> None:
        """Kill all processes of the server at once."""
        pid = int((self.directory / "data" / "postmaster.pid").read_text().split()[0])
        for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)

    def kill_machine(self) -> None:
        """Kill Patroni too, as when the machine dies."""
        self._patroni.kill()
        self._patroni.wait()
        self.kill_server()


class Cluster:
    """Three nodes, and an etcd in which they agree."""

    def __init__(self) -> None:
        self.user = _user()
        self.directory = Path(tempfile.mkdtemp(prefix="capsule-patroni-", dir="/tmp"))
        self.directory.chmod(0o755)
        self.give_away(self.directory)
        self._processes: list[subprocess.Popen[bytes]] = []
        self.etcd_port, peer_port = free_port(), free_port()
        client, peer = f"http://127.0.0.1:{self.etcd_port}", f"http://127.0.0.1:{peer_port}"
        self.run(
            *("etcd", "--data-dir", f"{self.directory}/etcd", "--listen-client-urls", client),
            *("--advertise-client-urls", client, "--listen-peer-urls", peer),
            *("--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"),
            log="etcd",
        )
        self.nodes = [Node(self, 1)]
        until(self.primary)
        self.nodes += [Node(self, number) for number in (2, 3)]
        until(self.is_whole)
        ports = ",".join(str(node.port) for node in self.nodes)
        self.url = (
            f"postgresql://postgres@127.0.0.1,127.0.0.1,127.0.0.1/postgres?port={ports}"
            "&target_session_attrs=read-write&connect_timeout=3"
        )

    def give_away(self, path: Path) -> None:
        if self.user:
            os.chown(path, self.user["user"], self.user["group"])

    def run(self, *words: str, log: str) -> subprocess.Popen[bytes]:
        """Start a program that ends with this process, however that ends."""
        with open(self.directory / f"{log}.log", "ab") as output:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *words],
                **self.user,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={"PATH": "/usr/bin:/bin:/usr/sbin", "HOME": str(self.directory)},
            )
        self._processes.append(process)
        return process

    def primary(self) -> Node | None:
        """The primary. None: there is none now."""
        return next((node for node in self.nodes if node.is_primary), None)

    def is_whole(self) -> bool:
        """Whether there are a primary and two standbys, one of which is synchronous."""
        primary = self.primary()
        if primary is None or sum(node.is_standby for node in self.nodes) < 2:
            return False
        replicas = primary.state().get("replication") or []
        return any(each.get("sync_state") == "sync" for each in replicas)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        for node in self.nodes:
            with suppress(OSError, ValueError, psutil.NoSuchProcess):
                node.kill_server()
        shutil.rmtree(self.directory, ignore_errors=True)


@pytest.fixture
def cluster(postgres: str) -> Iterator[Cluster]:
    """Skips where the programs are not installed."""
    for program in ("patroni", "etcd", "setpriv"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program}")
    cluster = Cluster()
    yield cluster
    cluster.close()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_primary_that_is_killed_at_random_loses_nothing_and_every_program_goes_on(
    cluster: Cluster, child: Callable[..., Child]
) -> None:
    draw = random.Random(1)
    Store.init(cluster.url)
    with Store.open(cluster.url) as store:
        ids = [store.create(type="group").id for _ in range(6)]
    followers = [child(FOLLOWER, cluster.url) for _ in range(FOLLOWERS)]
    for follower in followers:
        follower.hear()
    with writing(child, cluster.url, ids, WRITERS) as said:
        for number in range(ROUNDS):
            enough = len(said) + draw.randint(EACH // 2, EACH)
            until(lambda enough=enough: len(said) >= enough)  # type: ignore[misc]
            primary = until(cluster.primary)
            assert primary is not None
            if number % 2:
                primary.kill_machine()
            else:
                primary.kill_server()
            enough = len(said) + EACH // 2
            until(lambda enough=enough: len(said) >= enough)  # type: ignore[misc]
            if number % 2:
                primary.start()
            until(cluster.is_whole)
    acknowledged = sum(message is not None for _, _, message, _ in said)
    print(f"{ROUNDS} failovers, {acknowledged} acknowledged, {len(said) - acknowledged} not known")
    assert lost(cluster.url, said) == []
    with Store.open(cluster.url) as store:
        there = histories(store)
    total = sum(map(len, there.values()))
    for follower in followers:
        follower.say(total)
        heard = follower.hear()
        for id, history in there.items():
            assert [message for of, message in heard if of == id] == [
                entry["id"] for entry in history
            ]
