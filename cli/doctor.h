/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_DOCTOR_H
#define CLI_DOCTOR_H

/** `dlxctl doctor`: its report (doctor.c), and the checks, which are in doctor_<area>.c. */

#include "cli/cli.h"

enum doctor_status {
    DOCTOR_OK,
    DOCTOR_WARNING, /**< something is restricted, or will soon fail */
    DOCTOR_PROBLEM, /**< something fails */
    DOCTOR_UNKNOWN, /**< the check could not be made */
    DOCTOR_N_STATUSES
};

struct doctor {
    struct cli *cli;
    json_t *checks;   /**< with --json: an array, or NULL when memory was short */
    const char *area; /**< of the last line; NULL: there is none yet */
    unsigned width;   /**< of the terminal; 0: any */
    unsigned n[DOCTOR_N_STATUSES];
    bool has_daemon;      /**< one answers */
    bool is_posix_memory; /**< it makes files in /dev/shm */
    bool is_elsewhere;    /**< it is in another pid namespace */
};

#define DOCTOR_TEXT_SIZE 1024

/** Says that a check found nothing. `check` is "area.name". */
void doctor_ok(struct doctor *d, const char *check, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/** What a finding means, and what the user is to do. Both are copied. */
struct doctor_advice {
    const char *means;
    const char *todo;
};

/** Says what a check found. */
void doctor_found(struct doctor *d, const char *check, enum doctor_status status,
                  struct doctor_advice advice, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/** Features of the kernel that dlpackd and libdlx use. */
void doctor_kernel(struct doctor *d);

/** Limits of this process. */
void doctor_limits(struct doctor *d);

/** Memory of the machine and of this control group; /dev/shm. After doctor_daemon(). */
void doctor_memory(struct doctor *d);

/** The daemons that programs of this user find, and what the one that answers says. */
void doctor_daemon(struct doctor *d);

/** What the daemon that answers says of itself, of its version and of quotas. After
 *  doctor_daemon(), if that has found one. */
void doctor_answers(struct doctor *d);

/** Drivers of GPUs, and how memory of each GPU can be shared. Makes no context. */
void doctor_gpu(struct doctor *d);

#endif
