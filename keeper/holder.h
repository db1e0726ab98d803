/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXK_HOLDER_H
#define DLXK_HOLDER_H

/*
 * A holder: the process that has the descriptors of one publisher. It keeps them, sends them, and
 * closes those that the publisher drops, without looking into any of them: even fstat() of a file
 * can wait for whoever made the file. If a descriptor blocks the holder nevertheless, only what
 * this publisher shares is late.
 *
 * A reader is sent at most DLXK_AHEAD descriptors that it has not received. They count for the
 * daemon's user, and the kernel refuses to send if that user has too many in flight.
 */

#include <stddef.h>
#include <stdint.h>

/* Few, so that many readers can be served at a time: 32 if 256 descriptors may be in flight, a
 * quarter of the smallest usual limit of 1024. A part costs two wake-ups. */
#define DLXK_AHEAD 8U
/* A reader that has received nothing for this long is given up. */
#define DLXK_READER_NS UINT64_C(2000000000)
/* The most open files of one holder, within the hard limit of the process. */
#define DLXK_FILES_MAX 65536U
/* Of these, those for sockets and for what arrives before it is refused. */
#define DLXK_FILES_SPARE 320U

struct dlxk_holder_options {
    uint64_t reader_ns;  /* 0: DLXK_READER_NS */
    uint32_t n_fds_most; /* 0: what RLIMIT_NOFILE allows */
};

/* Runs a holder until the router closes its end or nobody is left to serve. Takes both sockets: the
 * owner's, on which the owner puts descriptors, and the router's. Returns an exit status. */
int dlxk_holder_run(int take_owner, int take_control, const struct dlxk_holder_options *options);

/* Runs a holder in a child that was just forked: only these two fds stay open, the process ends
 * with its parent, and it gets as many files as it may have. Returns what dlxk_holder_run()
 * does. */
int dlxk_holder_main(int owner, int control, int parent_pid,
                     const struct dlxk_holder_options *options);

#endif
