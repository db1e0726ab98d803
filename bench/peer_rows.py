# SPDX-License-Identifier: Apache-2.0
"""The rows that hold ours against other libraries: bench/peers, all of them measured by its
pattern.c.

Ours and theirs take turns. A peer that is not installed, or fails, keeps its rows, with the reason.
"""

from harness import Failure, Row
from row_tools import BATCH, DEPTH, SIZES, rounds, values

OURS = "dlx"


class Duel:
    """Ours against one peer at one thing; the ratio, of `key` unless the group's, is formed in each
    round."""

    def __init__(self, row, peer, case, meaning, bar=None, key=None):
        self.row, self.peer, self.case, self.meaning, self.bar, self.key = (
            row,
            peer,
            case,
            meaning,
            bar,
            key,
        )


def measure(bench, cases, duels, n_rounds):
    """{(case, who): [result, ...]} and {(case, who): why there is none}.

    cases: {name: options of bench/peers/*}. In each round, case by case, ours comes first and then
    its peers.
    """
    results, reasons = {}, {}
    for _ in range(n_rounds):
        for case, options in cases.items():
            for who in [OURS] + [d.peer for d in duels if d.case == case]:
                key = case, who
                if key in reasons:
                    continue
                try:
                    results.setdefault(key, []).append(bench.peer(who, **options))
                except Failure as e:
                    if who == OURS:
                        raise
                    reasons[key] = str(e)
                    results.pop(key, None)
    return results, reasons


def rows_of(bench, duels, results, reasons, key):
    out = []
    for d in duels:
        reason = reasons.get((d.case, d.peer))
        ratios = None
        if not reason:
            ours, theirs = results[d.case, OURS], results[d.case, d.peer]
            ratios = [a[d.key or key] / b[d.key or key] for a, b in zip(ours, theirs)]
        out.append(
            Row(
                d.row,
                ratios,
                "",
                d.meaning,
                d.bar,
                reason=reason,
                skipped=bool(reason) and not bench.has_peer(d.peer),
            )
        )
    return out


def plain(results, name, unit, key, meaning, scale=1.0):
    """The figures themselves, of ours and of the peers."""
    return [
        Row(
            name.format(who=who, case=case),
            values(r, key, scale),
            unit,
            meaning.format(who="ours" if who == OURS else r[0]["peer"], case=case),
        )
        for (case, who), r in results.items()
    ]


def fair(bench, long, quick):
    return quick if bench.quick else long


def busy(bench):
    n = fair(bench, 100_000, 15_000)
    cases = {name: {"what": "latency", "size": size, "n": n} for name, size in SIZES.items()}
    what = "one-way p50, {}, busy, 64 bytes of it written and read, ours / {}"
    duels = [
        Duel(f"lat_busy_vs_iceoryx_{c}", "iceoryx", c, what.format(c, "iceoryx"), ("<=", 0.15))
        for c in SIZES
    ]
    duels += [
        Duel(f"lat_busy_vs_iceoryx2_{c}", "iceoryx2", c, what.format(c, "iceoryx2"), ("<=", bar))
        for c, bar in (("64B", 0.45), ("1MiB", 0.7))
    ]
    r, why = measure(bench, cases, duels, rounds(bench))
    return rows_of(bench, duels, r, why, "p50_ns") + plain(
        r, "{who}_busy_{case}_p50_ns", "ns", "p50_ns", "that of {who}, {case}"
    )


def rate(bench):
    n = fair(bench, 1_024_000, 102_400)  # multiples of the batch, as the warm-up is
    bars = {"iceoryx": (">=", 5), "iceoryx2": (">=", 3), "zmq": (">=", 3), "socket": None}
    options = {"what": "rate", "size": 64, "n": n, "warmup": n // 20, "depth": DEPTH}
    cases = {"64B": options, f"64B_batch{BATCH}": {**options, "batch": BATCH}}
    single, batch = cases
    what = "messages a second, 64 B, one to one, all delivered, ours with a depth of {}{} / {}"
    duels = [
        Duel(f"rate_vs_{peer}", peer, single, what.format(DEPTH, "", peer), bar)
        for peer, bar in bars.items()
    ]
    duels.append(
        Duel(
            "rate_batch_vs_zmq",
            "zmq",
            batch,
            what.format(DEPTH, f", up to {BATCH} by dlx_publish_n and dlx_take_n", "zmq"),
            (">=", 4.5),
        )
    )
    r, why = measure(bench, cases, duels, rounds(bench))
    return rows_of(bench, duels, r, why, "per_s") + plain(
        r, "{who}_rate_{case}_per_s", "/s", "per_s", "that of {who}, {case}"
    )


def block(bench):
    n = fair(bench, 4_000, 800)
    cases = {
        "1KiB": {"what": "latency", "mode": "block", "size": 1024, "n": n},
        "1MiB": {"what": "latency", "mode": "block", "size": 1 << 20, "n": n // 4},
    }
    what = "blocking one-way p50, {}, 64 bytes of it written and read, ours / {}"
    duels = [
        Duel(
            "wake_vs_iceoryx2",
            "iceoryx2",
            "1KiB",
            what.format("1 KiB", "iceoryx2 with its event service and wait set"),
            ("<=", 1.0),
        ),
        Duel(
            "wake_vs_iceoryx", "iceoryx", "1KiB", what.format("1 KiB", "iceoryx with its wait set")
        ),
        Duel(
            "lat_block_vs_zmq_1MiB", "zmq", "1MiB", what.format("1 MiB", "ZeroMQ ipc"), ("<=", 0.2)
        ),
        Duel("lat_block_vs_socket_1MiB", "socket", "1MiB", what.format("1 MiB", "a Unix socket")),
    ]
    r, why = measure(bench, cases, duels, rounds(bench))
    out = rows_of(bench, duels, r, why, "p50_ns")
    out += plain(r, "{who}_block_{case}_p50_ns", "ns", "p50_ns", "that of {who}, {case}")
    return out + plain(
        r,
        "{who}_block_{case}_sleeps",
        "",
        "sleeps_per_take",
        "times that {who} slept for a message, its threads included",
    )


def tail(bench):
    n, n_rounds = fair(bench, 15_000, 2_500), fair(bench, 10, 5)
    cases = {"10kHz": {"what": "tail", "mode": "block", "size": 64, "n": n, "hz": 10_000}}
    duels = [
        Duel(
            "tail_open_vs_iceoryx",
            "iceoryx",
            "10kHz",
            "p99.9 one-way, open loop at 10 kHz from the intended send time, blocking, ours / "
            "iceoryx",
            ("<=", 1.0),
        ),
        Duel(
            "tail_open_p50_vs_iceoryx",
            "iceoryx",
            "10kHz",
            "p50 of the same",
            ("<=", 1.0),
            key="p50_ns",
        ),
    ]
    r, why = measure(bench, cases, duels, n_rounds)
    out = rows_of(bench, duels, r, why, "p999_ns")
    for key in ("p50_ns", "p999_ns"):
        out += plain(r, "{who}_tail_" + key, "ns", key, f"that of {{who}}, {key[:-3]}")
    return out


def cold(bench):
    n = fair(bench, 500, 150)
    cases = {"cold": {"what": "cold", "size": 64, "n": n, "warmup": 10}}
    duels = [
        Duel(
            "cold_vs_iceoryx",
            "iceoryx",
            "cold",
            "one-way p50, closed loop, busy, 8 MiB streamed through the cache of each side "
            "before each "
            "message, ours / iceoryx",
            ("<=", 0.5),
        ),
        Duel("cold_vs_iceoryx2", "iceoryx2", "cold", "likewise, ours / iceoryx2", ("<=", 0.8)),
    ]
    r, why = measure(bench, cases, duels, rounds(bench))
    return rows_of(bench, duels, r, why, "p50_ns") + plain(
        r, "{who}_{case}_p50_ns", "ns", "p50_ns", "that of {who}"
    )


def call(bench):
    large = {"what": "call", "mode": "block", "size": 1 << 20, "n": fair(bench, 400, 150)}
    cases = {
        "64B": {"what": "call", "size": 64, "n": fair(bench, 100_000, 15_000)},
        "1MiB": large,
        "1MiB_all": {**large, "touch": -1},
    }
    what = (
        "call and reply, p50, 64 B each way, busy, 64 bytes written and read by each side, ours / "
    )
    duels = [
        Duel(
            "call_vs_iceoryx2_64B",
            "iceoryx2",
            "64B",
            what + "iceoryx2 request-response",
            ("<=", 0.7),
        )
    ]
    what = (
        "call and reply, p50, 1 MiB each way, blocking, {} written and read by each side, ours / {}"
    )
    for case, touched in (("1MiB", "64 bytes"), ("1MiB_all", "all of it")):
        for peer, name, bar in (
            ("zmq", "ZeroMQ REQ and REP", 0.3),
            ("grpc", "gRPC over a Unix socket", 0.05),
        ):
            duels.append(
                Duel(
                    f"call_vs_{peer}_{case}",
                    peer,
                    case,
                    what.format(touched, name),
                    ("<=", bar) if case == "1MiB" else None,
                )
            )
    r, why = measure(bench, cases, duels, rounds(bench))
    out = rows_of(bench, duels, r, why, "p50_ns")
    for key in ("p50_ns", "p99_ns"):
        name = "{who}_call_{case}_" + key
        out += plain(r, name, "ns", key, f"{key[:3]} of {{who}}, {{case}}")
    return out


GROUPS = {
    "peers_busy": busy,
    "peers_rate": rate,
    "peers_block": block,
    "peers_tail": tail,
    "peers_cold": cold,
    "peers_call": call,
}
