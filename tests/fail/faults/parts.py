# SPDX-License-Identifier: Apache-2.0
"""The parts of a run: series of points, each with how to repeat it alone."""

import itertools
import os
import subprocess
import time

import points
import scene
import story
from stage import BUILD, PROGRAMS, ROLES, WORK_ROLES, Failed, Stage, idle_fds, role_of

NAMES = ("plain", "kill", "stop", "errno", "malloc", "kernel", "words", "steps")
NEED_PTRACE = ("kill", "stop", "errno", "words", "steps")
PLAIN = dict.fromkeys((*ROLES, "asker", "c", "d"), 0)  # blocks of memory at the end: none

# Fixed samples: one of so many.
QUICK = {"kill": 50, "stop": 100, "errno": 140, "malloc": 18}
# The first call of the daemon with these arguments always fails, in a sample too: its reserve
# descriptor is opened again later; that it is ready is said again.
NAMED = {("openat", "EMFILE"): "/dev/null", ("write", "EINTR"): "READY=1"}
# Calls that repeat without end: of those after the 30th one in seven fails.
ENDLESS = {"sendto", "recvfrom", "poll", "epoll_wait", "recvmsg"}


def series_of(name, quick, sample):
    every = sample or (QUICK.get(name, 1) if quick else 1)
    return {
        "plain": plain,
        "kill": syscalls,
        "stop": syscalls,
        "errno": syscalls,
        "malloc": malloc,
        "kernel": kernel,
        "words": words,
        "steps": steps,
    }[name](name, every, quick)


def thinned(entries, every):
    """Every so many-th of all, in series as before."""
    chosen, at = [], every // 2
    for series in entries:
        chosen.append([e for i, e in enumerate(series) if (at + i) % every == 0])
        at += len(series)
    return [series for series in chosen if series]


# -- without faults: the story is what it should be ------------------------------------------------


def run_plain(memory):
    # Arenas without a use are dropped: on a busy machine not each time.
    for _ in range(20):
        failure, said, told = story.tell(memory=memory, plain=PLAIN)
        if failure:
            break
        (main, side) = told.published
        if main.depth == 16 and side.n_arenas[1] < side.n_arenas[0]:
            break
        failure = (
            f"the story is not the one that is meant: depth {main.depth}, {side.n_arenas[0]} and "
            f"then {side.n_arenas[1]} arenas"
        )
    return failure, True, said


def run_plain_work(memory):
    failure, said, _ = story.tell(victim="c", memory=memory, plain=PLAIN)
    return failure, True, said


def plain(_name, _every, _quick):
    return [
        [(f"--only plain ({memory})", lambda m=memory, r=run: r(m)) for _ in range(3)]
        for memory in ("memfd", "posix")
        for run in (run_plain, run_plain_work)
    ]


# -- system calls ----------------------------------------------------------------------------------


def wanted(name, point):
    call, n, action = point[2:]
    is_errno = not action.startswith("SIG")
    if is_errno and call in ENDLESS and n > 30 and n % 7:
        return False
    return {"kill": action == "SIGKILL", "stop": action == "SIGSTOP", "errno": is_errno}[name]


def syscalls(name, every, quick):
    all_points = points.syscall_points()
    if not quick:
        all_points += points.syscall_points(("daemon", "daemon@work"), "posix")
    chosen = [p for p in all_points if wanted(name, p)]
    chosen.sort(key=lambda p: (p[0], p[1], p[2], p[4], p[3]))
    named = []
    if name == "errno":
        named = [
            p
            for p in all_points
            if p[0] == "daemon"
            and p[2:5:2] in NAMED
            and NAMED[p[2:5:2]] in points.ARGUMENTS.get(p[:4], "")
        ]
        named = list({p[2]: p for p in reversed(named)}.values())
    groups = itertools.groupby(chosen, key=lambda p: (p[0], p[1], p[2], p[4]))
    return thinned(
        [
            [(points.repeat(p), lambda p=p: points.run_syscall(p, PLAIN)) for p in group]
            for _, group in groups
        ],
        every,
    ) + [[(points.repeat(p), lambda p=p: points.run_syscall(p, PLAIN))] for p in named]


# -- allocations -----------------------------------------------------------------------------------


def repeat_malloc(point):
    role, n, count = point[:3]
    return f"--victim {role} --malloc {n}:{count}" + (
        f":{CTL.index(point[3])}" if role == "dlxctl" else ""
    )


def run_malloc(point):
    role, n, count = point[:3]
    if role == "dlxctl":
        return run_malloc_ctl(n, count, point[3])
    failure, said, told = story.tell(victim=role, fail=(n, count), plain=PLAIN)
    return failure, told.failed > 0, said


RAW = ("--dtype", "float32", "--shape", "4")
CTL = (
    ("ls", "--json"),
    ("info",),
    ("info", "ctl/a"),
    ("holds", "--json"),
    ("echo", "--count", "1", "--history", "1", "ctl/a"),
    ("get", "ctl/a"),
    ("pub", "ctl/b", "raw", *RAW),
)


def run_ctl(stage, args, fail=(0, 0)):
    p = stage.start(
        "dlxctl", [BUILD / "dlxctl", *args], fail=fail, env={"DLX_SOCKET": stage.socket}
    )
    if p.wait(15) is None:
        raise Failed(f"dlxctl {' '.join(args)} hangs")
    return p


def run_malloc_ctl(n, count, args):
    """The program fails with words, or does its work; and leaves nothing behind."""
    with Stage() as stage:
        failure, reached = None, False
        try:
            daemon = stage.daemon()
            with open(os.path.join(stage.folder, "raw"), "wb") as raw:
                raw.write(bytes(16))
            publisher = stage.start(
                "dlxctl",
                [BUILD / "dlxctl", "pub", "ctl/a", "raw", *RAW, "--retain", "1"],
                env={"DLX_SOCKET": stage.socket},
            )
            if publisher.wait(15) != 0:
                raise Failed("dlxctl pub")
            good = run_ctl(stage, args)
            p = run_ctl(stage, args, (n, count))
            reached = p.head.failed > 0
            if (
                p.poll() not in (0, 1)
                or (p.poll() == 1 and not p.said().strip())
                or good.poll() != 0
            ):
                raise Failed(f"dlxctl {' '.join(args)} ended with {p.poll()}, {good.poll()} before")
            stage.ctl("rm", "ctl/a")
            until = time.monotonic() + 5
            while scene.n_fds(daemon.pid) != idle_fds("memfd"):
                stage.info()
                if time.monotonic() > until:
                    raise Failed(f"the daemon has {scene.n_fds(daemon.pid)} open files")
            daemon.popen.terminate()
            if daemon.wait(10) != 0 or daemon.head.live > 0:
                raise Failed(f"the daemon ended with {daemon.poll()} and {daemon.head.live} blocks")
        except Failed as e:
            failure = str(e)
        return failure, reached, stage.story()


def malloc(_name, every, _quick):
    entries = []
    for role in (*ROLES, *WORK_ROLES):
        _, _, told = story.tell(victim=role)
        n_all = told.allocations[role_of(role)]
        for count in (1, 5):
            entries.append(
                [
                    (repeat_malloc((role, n, count)), lambda p=(role, n, count): run_malloc(p))
                    for n in range(1, n_all + 20)
                ]
            )
    for args in CTL:
        entries.append(
            [
                (
                    repeat_malloc(("dlxctl", n, 1, args)),
                    lambda p=("dlxctl", n, 1, args): run_malloc(p),
                )
                for n in range(1, 600)
            ]
        )
    return thinned(entries, every)


# -- older kernels ---------------------------------------------------------------------------------

OLD_KERNEL = PROGRAMS / "old_kernel"
# The story goes well without each of them, and without all of them.
DISPENSABLE = (
    "peerpidfd",
    "passrights",
    "noexec-seal",
    "populate",
    "clone3",
    "close-range",
    "getrandom",
)


def run_kernel(features, memory="memfd"):
    failure, said, _ = story.tell(everywhere=[OLD_KERNEL, features], plain=PLAIN, memory=memory)
    return failure, True, said


def run_refusal(features, memory, words):
    """The daemon says at its start which feature it cannot do without."""
    with Stage(everywhere=[OLD_KERNEL, features], memory=memory) as stage:
        daemon = stage.daemon()
        said = daemon.said()
        failure = None
        if daemon.ready or daemon.poll() != 1 or words not in said:
            failure = f"without {features}: status {daemon.poll()}, and not '{words}'"
        return failure, True, said


def kernel(_name, _every, _quick):
    all_of_them = ",".join(DISPENSABLE)
    entries = [(f"--kernel {f}", lambda f=f: run_kernel(f)) for f in (*DISPENSABLE, all_of_them)]
    older = ",".join(
        (
            "memfd",
            "future-write",
            *(f for f in DISPENSABLE if f not in ("getrandom", "noexec-seal")),
        )
    )
    entries.append((f"--kernel {older} --memory posix", lambda: run_kernel(older, "posix")))
    for features, memory, words in (
        ("future-write", "memfd", "F_SEAL_FUTURE_WRITE"),
        ("memfd", "memfd", "memfd_create"),
        ("peerpidfd,pidfd-open", "memfd", "pidfd"),
    ):
        entries.append(
            (
                f"--kernel {features} (it is to refuse)",
                lambda a=(features, memory, words): run_refusal(*a),
            )
        )
    return [[e] for e in entries]


# -- single steps ----------------------------------------------------------------------------------


N_PHASES = 11  # steps.c: joining, nine messages, leaving
CHUNK = 20
STRIDE = 97
LONGEST = 40000  # instructions of a phase, about


def run_steps(arguments, program="steps"):
    """ROLE kill|stop PHASE FIRST STRIDE COUNT. Returns (failure, points, what was said)."""
    with Stage() as stage:
        daemon = stage.daemon()
        done = subprocess.run(
            [PROGRAMS / program, stage.socket, *arguments.split()],
            capture_output=True,
            text=True,
            check=False,
        )
        said = done.stdout + done.stderr
        if done.returncode != 0:
            return f"{program} ended with {done.returncode}: {said.strip()}", 1, stage.story()
        daemon.popen.terminate()
        if daemon.wait(10) != 0 or daemon.head.live > 0:
            return (
                f"the daemon ended with {daemon.poll()} and {daemon.head.live} blocks",
                1,
                stage.story(),
            )
        return None, int(said.split()[0]), said


def words(_name, _every, _quick):
    """All accesses to shared words of all phases: that takes seconds."""
    chosen = [
        f"{role} {mode} {phase} 0 1 {LONGEST}"
        for role in ("publisher", "subscriber")
        for mode in ("kill", "stop")
        for phase in range(N_PHASES)
    ]
    return [[(f"--words '{c}'", lambda c=c: run_steps(c, "words"))] for c in chosen]


def steps(_name, every, quick):
    """quick: some steps of each phase. Else every STRIDE-th one, or with --sample N every N-th
    one."""
    stride = 4001 if quick else every if every > 1 else STRIDE
    count = 2 if quick else CHUNK
    series = []
    for role in ("publisher", "subscriber"):
        for mode in ("kill", "stop"):
            for phase in range(N_PHASES):
                if quick and phase not in (1, 4, 6):
                    continue
                firsts = [1009] if quick else range(0, LONGEST, stride * count)
                chunks = [f"{role} {mode} {phase} {first} {stride} {count}" for first in firsts]
                series.append([(f"--steps '{c}'", lambda c=c: run_steps(c)) for c in chunks])
    return series
