/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXK_HOLDER_H
#define DLXK_HOLDER_H

/*
 * A holder: the process that has the descriptors of one publisher. It keeps and sends them and
 * closes what the publisher drops, and looks into none of them: even fstat() of a file can wait for
 * whoever made it. If a descriptor makes the holder wait all the same, only what this publisher
 * shares is late; its user can be without it.
 *
 * A reader is sent at most DLXK_AHEAD descriptors that it has not received: they count for the
 * user that the daemon runs as, and the kernel refuses to send when that one has too many.
 */

#include <stddef.h>
#include <stdint.h>

/* Few, so that many readers can be served at a time: 32 if 256 may be on their way, which is a quarter
 * of the smallest usual limit, 1024. A part costs two wake-ups. */
#define DLXK_AHEAD 8U
/* A reader that has received nothing for so long is given up. */
#define DLXK_READER_NS UINT64_C(2000000000)
/* Open files of one holder: the hard limit of the process, and this. */
#define DLXK_FILES_MAX 65536U
/* Of these, for sockets and for what comes in before it is refused. */
#define DLXK_FILES_SPARE 320U

struct dlxk_holder_options {
    uint64_t reader_ns;  /* 0: DLXK_READER_NS */
    uint32_t n_fds_most; /* 0: as RLIMIT_NOFILE allows */
};

/* Hold until the router closes its end, or nobody is left to serve. Takes both sockets: the owner's,
 * on which it puts, and the router's. Returns an exit status. */
int dlxk_holder_run(int take_owner, int take_control, const struct dlxk_holder_options *options);

/* In a child that was just forked: only these two stay open, the process ends with its parent, and
 * may have as many files as it can. Returns what dlxk_holder_run() does. */
int dlxk_holder_main(int owner, int control, int parent_pid,
                     const struct dlxk_holder_options *options);

#endif
