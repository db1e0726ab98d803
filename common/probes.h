/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_COMMON_PROBES_H
#define DLX_COMMON_PROBES_H

/*
 * Probes for tracers (USDT, by <sys/sdt.h>): `dlxctl trace`, bpftrace, perf, SystemTap. A probe is
 * one nop until a tracer replaces it with a breakpoint. A note in the ELF file says where it is and
 * in which registers or fields its arguments lie, so that nothing is computed for it: an argument
 * is a value that the code has anyway. docs/TRACE.md has the table that users read; it and this
 * file are the same.
 *
 * A build without <sys/sdt.h>, or with -DDLX_NO_PROBES, has no probes.
 *
 * Ids are those of the daemon that made the object. `ns` is CLOCK_MONOTONIC.
 */

#if !defined(DLX_NO_PROBES) && defined(__has_include)
#if __has_include(<sys/sdt.h>)
#include <sys/sdt.h>
#define DLX_HAS_PROBES 1
#endif
#endif

#ifdef DLX_HAS_PROBES
#define DLX_PROBE3(provider, name, a, b, c)       DTRACE_PROBE3(provider, name, a, b, c)
#define DLX_PROBE4(provider, name, a, b, c, d)    DTRACE_PROBE4(provider, name, a, b, c, d)
#define DLX_PROBE5(provider, name, a, b, c, d, e) DTRACE_PROBE5(provider, name, a, b, c, d, e)
#else
#define DLX_PROBE3(provider, name, a, b, c)    ((void)(a), (void)(b), (void)(c))
#define DLX_PROBE4(provider, name, a, b, c, d) ((void)(a), (void)(b), (void)(c), (void)(d))
#define DLX_PROBE5(provider, name, a, b, c, d, e)                                                  \
    ((void)(a), (void)(b), (void)(c), (void)(d), (void)(e))
#endif

/* Which end of a link a probe is at. */
#define DLX_PROBE_PUBLISHER  1
#define DLX_PROBE_SUBSCRIBER 2

/* ---- libdlx ---------------------------------------------------------------------------------- */

/* A message is in the ring, and sleeping subscribers are about to be woken: publisher, message
 * number, bytes of its tensors, the time of the message, which the program may have set. */
#define DLX_PROBE_PUBLISH(publisher, n, bytes, ns)                                                 \
    DLX_PROBE4(libdlx, publish, publisher, n, bytes, ns)

/* A subscriber is about to get the message: publisher, message number, link, bytes, the time of the
 * message. */
#define DLX_PROBE_TAKE(publisher, n, link, bytes, ns)                                              \
    DLX_PROBE5(libdlx, take, publisher, n, link, bytes, ns)

/* The last reference to a taken message has gone, and its payload is about to go back: publisher,
 * message number, link. */
#define DLX_PROBE_RELEASE(publisher, n, link) DLX_PROBE3(libdlx, release, publisher, n, link)

/* The publisher has looked for messages that no subscriber needs: publisher, how many were retired
 * or freed, its newest message. */
#define DLX_PROBE_RECLAIM(publisher, count, head)                                                  \
    DLX_PROBE3(libdlx, reclaim, publisher, count, head)

/* An end of a link is ready: publisher, link, topic (a string), which end, pid of the other end. A
 * publisher that was announced has its publisher's end, link 0 and pid 0. */
#define DLX_PROBE_ATTACH(publisher, link, topic, end, pid)                                         \
    DLX_PROBE5(libdlx, attach, publisher, link, topic, end, pid)

/* This end is about to wake the other one: publisher, link, which end rings, pid of the other. */
#define DLX_PROBE_BELL(publisher, link, end, pid)                                                  \
    DLX_PROBE4(libdlx, bell, publisher, link, end, pid)

/* ---- dlpackd --------------------------------------------------------------------------------- */

/* A link has got its publisher: publisher, link, topic (a string), pids of publisher and
 * subscriber. */
#define DLX_PROBE_DAEMON_ATTACH(publisher, link, topic, publisher_pid, subscriber_pid)             \
    DLX_PROBE5(dlpackd, attach, publisher, link, topic, publisher_pid, subscriber_pid)

/* The daemon lets go of memory of a publisher: publisher, topic (a string), the arena; 0: all that
 * a publisher had which has gone. */
#define DLX_PROBE_DAEMON_RECLAIM(publisher, topic, arena)                                          \
    DLX_PROBE3(dlpackd, reclaim, publisher, topic, arena)

#endif
