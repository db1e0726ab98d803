/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_RECORD_H
#define DLXD_RECORD_H

/*
 * What is written of a publisher for the next daemon, and how that reads it: an entry of the
 * ledger, and the names of the descriptors that the service manager keeps. Nothing else survives
 * a restart, and both directions are here.
 */

#include "daemon/persist/ledger.h"
#include "daemon/objects/publisher.h"

struct dlxd_arena;

/* How the names of the descriptors begin. A publisher's id follows the first two. */
#define DLXD_RECORD_PIDFD     "dlx-pid-"
#define DLXD_RECORD_REGION    "dlx-region-" /* ID-ARENA-SEQ; of the control block ID-0-0 */
#define DLXD_RECORD_LEDGER    "dlx-ledger-" /* a number that tells it from others */
#define DLXD_RECORD_OURS      "dlx-"        /* any of them */
#define DLXD_RECORD_NAME_SIZE 128

void dlxd_record_write(const struct dlxd_publisher *publisher, struct dlxd_ledger_entry *ret);
/* The strings of `ret` are those of the entry. */
void dlxd_record_read(const struct dlxd_ledger_entry *entry, struct dlxd_publisher_former *ret);

/* `name` has DLXD_RECORD_NAME_SIZE bytes. */
void dlxd_record_name_pidfd(const struct dlxd_publisher *publisher, char *name);
void dlxd_record_name_region(const struct dlxd_publisher *publisher, const struct dlxd_arena *arena,
                             char *name);

/* Of another name than those before it, one of which the next daemon may not be able to read. */
void dlxd_record_name_ledger(char *name);

/* What such a name says. */
struct dlxd_record_name {
    uint64_t publisher;
    bool is_pidfd; /* and no region */
    uint32_t region;
    uint64_t ready_seq;
};

/* False: it is the name of something else. */
bool dlxd_record_parse(const char *name, struct dlxd_record_name *ret);

#endif
