/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXK_KEEPER_H
#define DLXK_KEEPER_H

/*
 * The keeper's loop: a listener, the connection with the daemon, and the processes of publishers.
 * The driver of a GPU is loaded by the first ALLOCATE, without a context. No descriptor is received
 * but pidfds that the daemon opened.
 *
 * How long a publisher has its memory:
 *
 *     daemon                             publisher's process    the memory
 *     has it (ALLOCATE, CLAIM)           any                    stays until FREE or FORGET
 *     any other, or none                 lives                  stays
 *     has not claimed yet                has ended              stays
 *     has sent CLAIMED, without it       has ended              is freed
 *     none for less than `grace`         has ended              stays
 *     none for `grace`                   has ended              is freed
 *
 * The keeper ends when it has had no memory and no daemon for that long.
 */

#include "common/listen.h"

#define DLXK_GRACE_NS UINT64_C(60000000000)
/* The most open files: one for each allocation and each publisher. */
#define DLXK_FILES_MAX 65536U
/* Files that are left to drivers, which open some for each GPU; a quarter of a low limit. */
#define DLXK_FILES_SPARE 256U

struct dlxk_options {
    uint64_t grace_ns; /* 0: DLXK_GRACE_NS */
    struct dlx_listen
        *place; /* where it listens, if the files there are its own; NULL: they are not */
};

/* Serves until there is nothing to do any more. If files of `place` are removed, it makes them
 * again, and has another listener, which the caller keeps with the place. Returns 0 or an error. */
int dlxk_run(int borrow_listener, const struct dlxk_options *options);

#endif
