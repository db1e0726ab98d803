/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_START_H
#define DLX_CLIENT_START_H

/*
 * Runs a program that outlives this process and is no child of it, and waits until the program says
 * that it is ready.
 *
 *     caller                  starter                     program
 *     clone, suspended  --->  setsid, pipe, clone   --->  signals reset, fds closed, exec
 *        :                    reads what it says    <---  "READY=1" on its stderr
 *     reaps the starter <---  exits                       (goes to init, or to a subreaper)
 *
 * The starter is made by clone() without an exit signal, so the calling process sees no SIGCHLD and
 * its wait(-1) does not find it; it never executes a program, since execve() gives the signal back.
 * It shares the caller's memory, like a child of vfork(): nothing is copied, however large the
 * caller is, and nothing can fail for lack of memory. Only the calling thread waits. Its signals
 * are blocked for as long as the start takes; where the client has an `interrupt`, only until the
 * program is executed.
 */

#include "client/control/client.h"
#include "common/util.h"

#define DLX_START_WORDS_SIZE 400

struct dlx_start {
    /* In: absolute path; both end with NULL. */
    const char *program;
    char *const *argv;
    char *const *envp;
    uint64_t deadline;
    const struct dlx_client *client; /* whose `interrupt` is asked; NULL: none */
    /* Out. */
    int error;        /* errno of the starter's failure, else 0 */
    const char *what; /* the failure, in words */
    bool ready;
    bool ended; /* before it was ready, with `status`, as wait(2) gives it */
    int status; /* neither ready, ended nor error: killed for being late, or no longer wanted */
    bool interrupted;                 /* by the client's `interrupt` */
    char words[DLX_START_WORDS_SIZE]; /* the end of what it said, printable */
};

/* Returns 0 and the result in `start`; DLX_E_NO_MEMORY, DLX_E_SYSTEM: there was no start. */
int dlx__start(struct dlx_start *start);

#endif
