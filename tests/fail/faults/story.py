# SPDX-License-Identifier: Apache-2.0
"""One telling of the story with one fault, and the judgement: survivors' data, accounts, and
everything given back."""

import os
import select
import signal
import threading
import time

import ledger
import scene
import work
from stage import DEADLINE_S, SETTLE_S, WORK_ROLES, Failed, Stage, idle_fds, role_of

MAIN, LAST, LAST_SIDE = "faults/main", 400, 160  # story_faults.c
QUIET_S = 0.05  # a survivor that does nothing for so long waits for the stopped one


class Story:
    """kill: the victim is expected to be killed. stop_log: to be stopped, as that file tells.
    plain: blocks of memory that are alive at the end without faults. residue: a file may stay, as
    its removal failed."""

    def __init__(self, stage, kill, stop_log, plain, residue):
        self.stage, self.kill, self.stop_log, self.plain, self.residue = (
            stage,
            kill,
            stop_log,
            plain,
            residue,
        )
        self.struck = False  # the victim was killed, or stopped
        self.daemon = None
        self.away = []  # when the daemon was, [(from_ns, to_ns)]
        self.replaced = []
        self.failure = None
        self.ended = threading.Event()

    # -- processes that come and go ----------------------------------------------------------------

    def start_daemon(self):
        daemon = self.stage.daemon()
        if not daemon.ready:
            is_victim = daemon is self.stage.first["daemon"] and self.stage.victim == "daemon"
            if not is_victim:
                raise Failed(f"a daemon that nothing was done to ended with {daemon.poll()}")
            if daemon.poll() == -signal.SIGKILL and self.kill:
                self.struck = True
            elif daemon.poll() == 1 and daemon.said().strip() and not self.kill:
                pass  # it could not start, and said so
            else:
                raise Failed(f"the daemon ended with {daemon.poll()} before it was ready")
            daemon = self.stage.daemon()
            if not daemon.ready:
                raise Failed(f"the next daemon ended with {daemon.poll()}")
        self.daemon = daemon

    def is_planned(self, process):
        return (
            self.kill
            and process is self.stage.first[process.role]
            and process.role == self.stage.victim
            and process.poll() == -signal.SIGKILL
        )

    def on_exit(self, process):
        """A process has ended: as planned, or at the end of its story."""
        if self.is_planned(process):
            self.struck = True
            self.replace(process)
        elif process.role == "daemon":
            raise Failed(f"the daemon ended with {process.poll()}")
        elif process.poll() != 0:
            raise Failed(f"{process.role} ended with {process.poll()}")

    def replace(self, process):
        if process.role == "daemon":
            since = time.monotonic_ns()
            self.start_daemon()
            self.away.append((since, time.monotonic_ns()))
        else:
            self.replace_actor(process)

    # -- the stopped -------------------------------------------------------------------------------

    def watch_for_stopped(self):
        """In a thread of its own: the victim may be stopped as it starts, or as it ends."""
        n_stops = 0
        while not self.ended.wait(0.005):
            victim = self.stage.first.get(self.stage.victim)
            if not victim or self.count_stops() == n_stops:
                continue
            n_stops = self.count_stops()
            try:
                if not self.struck:
                    self.struck = True
                    self.others_go_on(victim)
            except (Failed, OSError, ValueError) as e:
                self.failure = str(e)
            os.kill(victim.pid, signal.SIGCONT)

    def count_stops(self):
        """strace stops each thread that comes to the point, and with it all of them."""
        try:
            with open(self.stop_log, encoding="utf-8", errors="replace") as f:
                sent = f.read().split("--- SIGSTOP {")
        except OSError:
            return 0
        return max(0, len(sent) - 1 - ("stopped by SIGSTOP" not in sent[-1]))

    def others_go_on(self, victim):
        """While one is stopped: until all others have ended or wait."""
        if victim.role != "daemon":
            self.stage.info()
        last, since = None, time.monotonic()
        while time.monotonic() - since < QUIET_S and time.monotonic() < self.stage.until:
            others = [p for p in list(self.stage.processes) if p is not victim]
            now = [(p.ledger.progress(), p.head.scene) for p in others]
            if now != last:
                last, since = now, time.monotonic()
            select.select([], [], [], 0.005)
        self.check_others(victim)

    # -- the story ---------------------------------------------------------------------------------

    def tell(self):
        watcher = threading.Thread(target=self.watch_for_stopped)
        if self.stop_log:
            watcher.start()
        try:
            self.tell_all()
            self.judge()
        finally:
            self.ended.set()
            if self.stop_log:
                watcher.join()
        if self.failure:
            raise Failed(self.failure)

    def tell_all(self):
        self.names_before = set(scene.shm_names())
        self.start_daemon()
        self.start_actors()
        ended = set()
        while True:
            running = [p for p in (self.daemon, *self.actors()) if p not in ended]
            self.conduct(ended)
            if not any(p is not self.daemon for p in running):
                break
            if time.monotonic() > self.stage.until:
                raise Failed(f"the story did not end within {DEADLINE_S} s")
            waiting = select.poll()
            for p in running:
                waiting.register(p.pidfd, select.POLLIN)
            waiting.poll(200)
            for p in running:
                if p.poll() is not None:
                    ended.add(p)
                    self.on_exit(p)

    # -- the judgement -----------------------------------------------------------------------------

    def judge(self):
        self.judge_daemon()
        actors = [p for p in self.stage.processes if p.role != "daemon"]
        self.judge_actors(actors)
        for p in actors:
            if p.status == 0:
                self.judge_leaks(p)

    def judge_leaks(self, p):
        if p.head.fds != 0 or p.head.maps != 0:
            raise Failed(
                f"{p.role} has {p.head.fds:+d} open files and {p.head.maps:+d} maps at its end"
            )
        is_victim = p is self.stage.first.get(self.stage.victim)
        if p.head.n_errors > 0 and not is_victim and self.stage.victim != "daemon":
            raise Failed(
                f"{p.role} met {p.head.n_errors} errors, though only {self.stage.victim} was hurt"
            )
        self.judge_heap(p)

    def judge_heap(self, p):
        if self.plain and p.head.live > self.plain[p.role]:
            raise Failed(
                f"{p.role} ended with {p.head.live} blocks of memory, without faults with "
                f"{self.plain[p.role]}"
            )

    def judge_daemon(self):
        """The daemon is as it was before the first client came, and ends when asked."""
        daemon = self.daemon
        baseline = idle_fds(self.stage.memory)
        until = time.monotonic() + SETTLE_S
        while True:
            try:
                n_fds, info = scene.n_fds(daemon.pid), self.stage.info()
            except (OSError, Failed) as e:
                daemon.wait(1 if self.stage.victim == "daemon" and self.kill else 0)
                if self.end_if_killed():
                    return
                raise Failed(f"the daemon does not answer: {e}") from e
            left = {
                k: info.get(k)
                for k in ("n_publishers", "n_links", "n_topics", "shared_bytes")
                if info.get(k)
            }
            if n_fds == baseline and not left:
                break
            if self.end_if_killed():
                return
            if time.monotonic() > until:
                raise Failed(
                    f"the daemon has {n_fds} open files, {baseline} at first; left: {left}"
                )
            select.select([], [], [], 0.002)
        daemon.popen.terminate()
        if daemon.wait(10) is None:
            raise Failed("the daemon does not end on SIGTERM")
        if self.end_if_killed():
            return
        if daemon.poll() != 0:
            raise Failed(f"the daemon ended with {daemon.poll()} on SIGTERM")
        left = {x for x in os.listdir(self.stage.folder) if not x.endswith((".log", ".trace"))}
        if left and not self.residue:
            raise Failed(f"the daemon left {left}")
        self.judge_heap(daemon)
        ours = {p.pid for p in self.stage.processes}
        mine = {
            name
            for name, pid in scene.shm_names().items()
            if name not in self.names_before and pid in ours
        }
        for name in mine if self.residue else ():
            os.unlink(os.path.join("/dev/shm", name))
        if mine and not self.residue:
            raise Failed(f"left in /dev/shm: {mine}")

    def end_if_killed(self):
        """The fault struck as the daemon had nothing to do any more: the next one is as good."""
        if self.daemon.poll() is not None and self.is_planned(self.daemon):
            self.struck = True
            self.start_daemon()
            self.judge_daemon()
            return True
        return False


class Streams(Story):
    """A publisher, and two subscribers (story_faults.c)."""

    def start_actors(self):
        self.subscribers = {role: self.stage.actor(role) for role in ("a", "b")}
        self.publisher = self.stage.actor("publisher")

    def actors(self):
        return self.publisher, *self.subscribers.values()

    def conduct(self, ended):
        # A subscriber that has ended may be replaced, and needs the publisher then.
        n = sum(p not in ended for p in self.subscribers.values())
        self.publisher.head.wanted = n
        if n == 0:
            self.stage.end_input(self.publisher)

    def replace_actor(self, process):
        role = process.role
        if role == "publisher":
            if any(s.poll() is None for s in self.subscribers.values()):
                self.publisher = self.stage.actor(role)
                self.replaced.append(role)
        elif self.publisher.poll() is None and process.head.scene != ledger.FINISHED:
            self.subscribers[role] = self.stage.actor(role)
            self.replaced.append(role)

    def check_others(self, victim):
        if victim.role != "b" or not hasattr(self, "publisher"):
            return
        if self.publisher.head.scene == ledger.STREAMING:
            n = self.publisher.ledger.progress()[1]
            raise Failed(f"b was stopped, and the publisher did not go on: {n} messages")

    def judge_actors(self, actors):
        self.published = {o.key: o for p in actors for o in p.ledger.objects(ledger.PUBLISHER)}
        # Of those that published to their end: how many messages there were.
        self.sent = {
            o.key: o.done
            for p in actors
            for o in p.ledger.objects(ledger.PUBLISHER)
            if p.status == 0 and o.topic == MAIN
        }
        for p in actors:
            if p.status == 0 and p.role in ("a", "b"):
                self.judge_subscriber(p)

    def judge_subscriber(self, p):
        subscriptions = p.ledger.objects(ledger.SUBSCRIPTION)
        last = {}  # by publisher
        for s in subscriptions:
            for words in ledger.contradictions(s, self.published):
                raise Failed(f"{p.role} {words}")
            for k in s.keys:
                last[k.key] = max(k.last, last.get(k.key, 0))
        mains = {key: n for key, n in last.items() if self.published[key].topic == MAIN}
        if not any(n >= LAST for n in mains.values()):
            raise Failed(f"{p.role} ended before the last message")
        for key, n in mains.items():
            if key in self.sent and not LAST <= n <= self.sent[key]:
                raise Failed(f"{p.role} saw {n} of {self.sent[key]} messages")
        if p.role == "a" and not p.head.n_errors:
            self.judge_reliable(p, subscriptions[0], last)

    def judge_reliable(self, p, subscription, last):
        """A process that met no error, so it had one subscription only."""
        is_first = p is self.stage.first["a"]
        for k in subscription.keys:
            lost, first = k.gaps - k.first_gap, k.start + k.first_gap + 1
            if lost:
                raise Failed(f"a is reliable and missed {lost} messages without an error")
            if is_first and first != 1 and self.stage.victim != "daemon":
                raise Failed(f"a is reliable, was there first, and began with message {first}")
        if not (self.stage.victim == "publisher" and self.kill and is_first):
            return
        for o in self.stage.first["publisher"].ledger.objects(ledger.PUBLISHER):
            # a leaves after the last message, whatever more is published
            done = min(o.done, LAST if o.topic == MAIN else LAST_SIDE)
            if last.get(o.key, 0) < done:
                raise Failed(
                    f"the publisher was killed after {o.done} messages of {o.topic}, a saw "
                    f"{last.get(o.key, 0)}"
                )


class Work(Story):
    """An asker, and two helpers (story_faults_work.c)."""

    def start_actors(self):
        self.helpers = {role: self.stage.actor(role) for role in ("c", "d")}
        self.asker = self.stage.actor("asker")

    def actors(self):
        return self.asker, *self.helpers.values()

    def conduct(self, ended):
        if self.asker in ended:
            for helper in self.helpers.values():
                self.stage.end_input(helper)

    def replace_actor(self, process):
        if process.role == "asker":
            self.asker = self.stage.actor("asker")
        elif self.asker.poll() is None:
            self.helpers[process.role] = self.stage.actor(process.role)
        else:
            return
        self.replaced.append(process.role)

    def check_others(self, victim):
        """The asker waits for a helper that has something."""

    def judge_actors(self, actors):
        objects = [o for p in actors for o in p.ledger.objects()]
        steps = [step for p in actors for step in p.ledger.steps()]
        totals = Totals()
        victim = self.stage.first[self.stage.victim]
        hurt = None if self.kill else victim.pid
        away = self.away or ([(0, time.monotonic_ns())] if victim.role == "daemon" else [])
        is_hurt = bool(self.stage.prefix or self.stage.fail[1])
        work.judge_queues(objects, steps, int(self.kill), self.away, totals, n_groups=1)
        work.judge_calls(objects, steps, int(is_hurt), away, totals, hurt if is_hurt else None)
        if totals.faults:
            raise Failed(totals.faults[0])
        done = {(key, seq) for _, _, key, seq, *_, what in steps if what == ledger.SAYS_DONE}
        for p in actors:
            for o in p.ledger.objects(ledger.PUBLISHER) if p.status == 0 else ():
                missing = [n for n in range(1, o.done + 1) if (o.key, n) not in done]
                if missing:
                    raise Failed(f"the asker has drained {o}, and no helper did {missing}")


class Totals:
    """What work.py counts."""

    def __init__(self):
        self.faults = []

    def __getattr__(self, name):
        return 0


def tell(
    victim=None,
    prefix=(),
    fail=(0, 0),
    memory="memfd",
    everywhere=(),
    kill=False,
    stop=False,
    plain=None,
    residue=False,
):
    """Returns (failure or None, what was said, the story)."""
    kind = Work if victim in WORK_ROLES else Streams
    victim = role_of(victim)
    with Stage(victim, prefix, fail, memory, everywhere) as stage:
        stage.prefix = [x.replace("@FOLDER@", stage.folder) for x in stage.prefix]
        story = kind(
            stage,
            kill,
            os.path.join(stage.folder, f"{victim}.trace") if stop else None,
            plain,
            residue,
        )
        failure = None
        try:
            story.tell()
        except Failed as e:
            failure = str(e)
        except (OSError, ValueError, KeyError) as e:
            failure = f"{type(e).__name__}: {e}"
        said = stage.story()
        story.allocations = {role: p.head.allocations for role, p in stage.first.items()}
        story.failed = stage.first[victim].head.failed if victim in stage.first else 0
        story.published = list(getattr(story, "published", {}).values())
        story.trace = {}
        for role in stage.first:
            path = os.path.join(stage.folder, f"{role}.trace")
            if os.path.exists(path):
                with open(path, encoding="utf-8", errors="replace") as f:
                    story.trace[role] = f.read()
        return failure, said, story
