/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_SPAWN_H
#define DLX_CLIENT_SPAWN_H

/*
 * Starting a private daemon: is it allowed, which program, and the start itself, which leaves the
 * calling process no child, no fd and no signal.
 */

#include "common/util.h"

#define DLX_PROGRAM_PATH_SIZE 4096

/* Why this process starts no daemon, in words; NULL: it may start one. `autospawn` is enum
 * dlx_autospawn, `env` the value of $DLX_AUTOSPAWN or NULL, `secure` whether it runs with rights
 * that its caller does not have. */
const char *dlx__spawn_refusal(uint32_t autospawn, const char *env, bool secure);

/* Was this process given rights by its file (AT_SECURE), or does it act for another user? */
bool dlx__spawn_is_secure(void);

/*
 * The program to start: $DLX_DAEMON; else `dlpackd` beside this library (beside the executable,
 * when it is linked into that), in ../bin or ../../bin from there; else on PATH, in its absolute
 * folders. Returns 0; DLX_E_NO_DAEMON naming where it was looked for, DLX_E_NO_MEMORY.
 */
int dlx__spawn_find(char ret[DLX_PROGRAM_PATH_SIZE]);

struct dlx_client;

/*
 * Start the program for the socket c->path and wait until it listens. Returns 0; DLX_E_NO_DAEMON
 * (it could not be executed, or ended: the message has its status and what it said), DLX_E_TIMEOUT
 * and DLX_E_INTERRUPTED (it is ended then), DLX_E_NO_MEMORY, DLX_E_SYSTEM.
 */
int dlx__spawn(const struct dlx_client *c, const char *program, uint64_t deadline);

#endif
