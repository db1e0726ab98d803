# SPDX-License-Identifier: Apache-2.0
"""The points: every system call of a trace, and how each can fail."""

import collections
import re

import story
from stage import ROLES, WORK_ROLES, role_of

LINE = re.compile(r"^(?:(\d+) +)?(\w+)\((.*)$")  # (None, name, ...): strace follows one thread
THREAD = re.compile(r"^(?:(\d+) +)?")

# How a call of ours can fail, after the kernel's manual pages and sources. Other calls cannot fail,
# in the way that we make them (munmap() of a whole mapping; F_GET_SEALS; brk(), which returns no
# error; EPIPE and ECONNRESET while the peer is there), or are the C library's own affair (futex).
# ENOMEM is there also where this kernel does not return it.
MEMORY = ("ENOMEM",)
FILES = ("EMFILE", "ENFILE", "ENOMEM")
ERRNOS = {
    "accept4": (*FILES, "EAGAIN", "EINTR", "ECONNABORTED"),
    "bind": ("EADDRINUSE", "EACCES", "ENOMEM", "ENOSPC", "EROFS"),
    "chmod": ("EPERM", "EROFS", "ENOMEM"),
    "clone": ("EAGAIN", "ENOMEM"),
    "clone3": ("EAGAIN", "ENOMEM", "ENOSYS"),
    "connect": ("EINTR", "EAGAIN", "ECONNREFUSED", "ENOENT", "ENOMEM"),
    "epoll_create1": FILES,
    "epoll_wait": ("EINTR",),
    "epoll_pwait": ("EINTR",),
    "eventfd2": FILES,
    "fallocate": ("EINTR", "ENOMEM", "ENOSPC"),
    "fchmod": ("EPERM", "ENOMEM", "EROFS"),
    "flock": ("EINTR", "ENOLCK", "EWOULDBLOCK"),
    "ftruncate": ("EINTR", "ENOMEM"),
    "getrandom": ("EAGAIN", "EINTR", "ENOSYS"),
    "listen": ("EADDRINUSE", "ENOMEM"),
    "madvise": ("ENOMEM", "EAGAIN"),
    "memfd_create": FILES,
    "mincore": ("EAGAIN",),
    "mkdir": ("EACCES", "ENOSPC", "ENOMEM", "EROFS"),
    "mmap": MEMORY,
    "mprotect": MEMORY,
    "openat": (*FILES, "ENOENT", "EACCES"),
    "pidfd_open": (*FILES, "ESRCH"),
    "pipe2": FILES,
    "poll": ("EINTR", "ENOMEM"),
    "pread64": ("EIO", "EINTR"),
    "prlimit64": ("EPERM",),
    "pwrite64": ("ENOSPC", "EIO", "EINTR"),
    "read": ("EINTR",),
    "recvfrom": ("EAGAIN", "EINTR", "ENOMEM"),
    "recvmsg": ("EAGAIN", "EINTR", "ENOMEM", "ENOBUFS"),
    "sendmsg": ("EAGAIN", "EINTR", "ENOMEM", "ENOBUFS", "ETOOMANYREFS"),
    "sendto": ("EAGAIN", "EINTR", "ENOMEM", "ENOBUFS"),
    "setsockopt": ("ENOMEM", "ENOPROTOOPT"),
    "shutdown": ("ENOTCONN",),
    "socket": (*FILES, "ENOBUFS"),
    "socketpair": FILES,
    "sysinfo": ("EFAULT",),
    "timerfd_create": FILES,
    "unlink": ("ENOENT", "EACCES", "EROFS"),
}
# By what is in the arguments, first match. close() is not here: the kernel closes the file whatever
# it returns, which a call that is not made cannot do.
BY_ARGUMENT = {
    "epoll_ctl": (("EPOLL_CTL_ADD", ("ENOMEM", "ENOSPC")),),
    "fcntl": (("F_DUPFD", ("EMFILE", "ENOMEM")), ("F_ADD_SEALS", ("EBUSY", "EPERM"))),
    "getsockopt": (
        ("SO_PEERCRED", MEMORY),
        ("0x4d", (*FILES, "ESRCH", "EINVAL", "ENODATA", "ENOPROTOOPT")),
    ),
    "newfstatat": (("AT_FDCWD", MEMORY),),
    # The log; the ready fd, whose reader may have gone; others are libuv's pipes, which have room.
    "write": (
        ("^2, ", ("EAGAIN", "EINTR", "EPIPE", "ENOSPC", "EIO")),
        ("READY=1", ("EINTR", "EPIPE")),
        ("", ("EINTR",)),
    ),
    "prctl": (("PR_GET_NAME", ("EFAULT",)),),
}


def calls_of(trace, page_fd=True):
    """[(name, n, arguments)] of the part between the marks of story_faults.c, or after the mmap of
    the allocator (alloc.c).

    strace counts the calls of each thread for itself. The n-th call of another thread is no point
    if the first one has made its own n-th before that part."""
    counts, calls, inside, marks = collections.Counter(), [], False, 0
    first, before = None, collections.Counter()
    for line in trace.split("\n"):
        m = LINE.match(line)
        if not m:
            continue
        pid, name, rest = m.groups()
        counts[pid, name] += 1
        first = first or pid
        n = counts[pid, name]
        if (
            name == "mmap"
            and "MAP_SHARED, " in rest
            and "4096, PROT_READ|PROT_WRITE" in rest
            and not marks
        ):
            inside, marks = page_fd, -1
            before = collections.Counter({call: k for (p, call), k in counts.items() if p == first})
        elif name == "getppid":
            inside = not inside
        elif (
            inside
            and name not in ("exit_group", "exit", "rt_sigreturn")
            and (pid == first or n > before[name])
        ):
            calls.append((name, n, rest))
    return calls


def injected_calls(trace):
    """[(name, arguments)] of the calls that strace made fail, at most one of each thread."""
    begun, injected = {}, []  # begun: by thread, the call that strace has shown the beginning of
    for line in trace.split("\n"):
        if m := LINE.match(line):
            begun[m[1]] = m[2], m[3]
        if line.endswith("(INJECTED)"):
            injected.append(begun[THREAD.match(line)[1]])
    return injected


def errnos_of(name, arguments):
    for word, errnos in BY_ARGUMENT.get(name, ()):
        if re.search(word, arguments):
            return errnos
    return ERRNOS.get(name, ())


def trace_of(role, memory="memfd"):
    failure, said, told = story.tell(victim=role, memory=memory, prefix=strace(role, ()))
    if failure:
        raise story.Failed(f"the story without faults, {role} under strace: {failure}\n{said}")
    return told.trace[role_of(role)]


def strace(role, inject, threads=True):
    """The command before the victim's; it traces the first thread alone unless `threads`."""
    follow = ["-f"] if threads else []
    return ["strace", "-D", *follow, "-qq", "-o", f"@FOLDER@/{role_of(role)}.trace", *inject]


def enumerate_calls(role, memory="memfd"):
    """Of two tellings, as no two are quite the same."""
    seen = {}
    for _ in range(2):
        for name, n, arguments in calls_of(trace_of(role, memory), role_of(role) == "daemon"):
            seen.setdefault((name, n), arguments)
    return [(name, n, arguments) for (name, n), arguments in seen.items()]


ARGUMENTS = {}  # of the points that were enumerated


def syscall_points(roles=(*ROLES, *WORK_ROLES), memory="memfd"):
    """[(role, memory, name, n, action)]; action: SIGKILL, SIGSTOP or an errno."""
    points = []
    for role in roles:
        for name, n, arguments in enumerate_calls(role, memory):
            ARGUMENTS[role, memory, name, n] = arguments
            for action in ("SIGKILL", "SIGSTOP", *errnos_of(name, arguments)):
                points.append((role, memory, name, n, action))
    return points


def repeat(point):
    role, memory, name, n, action = point
    more = "" if memory == "memfd" else f" --memory {memory}"
    return f"--victim {role} --syscall {name}:{n}:{action}{more}"


def run_syscall(point, plain):
    """Returns (failure or None, reached, what was said, or why it says nothing)."""
    role, memory, name, n, action = point
    signal = action if action.startswith("SIG") else None
    how = f"signal={action}" if signal else f"error={action}"
    # strace 6.1 injects no signals where seccomp chose the calls.
    inject = [
        *([] if signal else ["--seccomp-bpf"]),
        "-e",
        f"trace={name}",
        "-e",
        f"inject={name}:{how}:when={n}",
    ]
    failure, said, told = story.tell(
        victim=role,
        memory=memory,
        # The first thread writes the log. Other threads only write to libuv's eventfd, as often as
        # it happens, and libuv rightly aborts if that fails.
        prefix=strace(role, inject, threads=bool(signal) or name != "write"),
        plain=plain,
        kill=action == "SIGKILL",
        stop=action == "SIGSTOP",
        residue=name in ("unlink", "newfstatat"),
    )
    if signal:
        return failure, told.struck, said
    injected = injected_calls(told.trace.get(role_of(role), ""))
    # Each thread has an n-th call of that name. If one of them cannot fail with this error, as a
    # write() to libuv's eventfd cannot, then what followed proves nothing.
    wrong = [call for call in injected if action not in errnos_of(*call)]
    if wrong:
        return None, False, f"{name}({wrong[0][1]} does not fail with {action} (points.py)"
    return failure, bool(injected), said
