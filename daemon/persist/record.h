/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_RECORD_H
#define DLXD_RECORD_H

/* What the daemon records of a publisher for the next daemon, and how that reads it: an entry of
 * the ledger, and the names of the descriptors that the service manager stores. Nothing else
 * survives a restart, and this module has both directions. */
#include "daemon/persist/ledger.h"
#include "daemon/objects/publisher.h"

struct dlxd_arena;

/* The prefixes of the descriptors' names. A publisher's id follows the first four. */
#define DLXD_RECORD_PIDFD     "dlx-pid-"
#define DLXD_RECORD_REGION    "dlx-region-" /* ID-ARENA-SEQ; the control block is ID-0-0 */
#define DLXD_RECORD_GROUP     "dlx-group-"  /* ID-NUMBER-NAME: a claims page */
#define DLXD_RECORD_BELL      "dlx-bell-"   /* ID-NUMBER: the bell of that group */
#define DLXD_RECORD_LEDGER    "dlx-ledger-" /* and a number: the newest has the greatest one */
#define DLXD_RECORD_OURS      "dlx-"        /* the prefix of all of them */
#define DLXD_RECORD_NAME_SIZE 128

void dlxd_record_write(const struct dlxd_publisher *publisher, struct dlxd_ledger_entry *ret);
/* The strings of `ret` belong to the entry. */
void dlxd_record_read(const struct dlxd_ledger_entry *entry, struct dlxd_publisher_former *ret);

/* `name` has room for DLXD_RECORD_NAME_SIZE bytes. */
void dlxd_record_name_pidfd(const struct dlxd_publisher *publisher, char *name);
void dlxd_record_name_region(const struct dlxd_publisher *publisher, const struct dlxd_arena *arena,
                             char *name);

void dlxd_record_name_group(const struct dlxd_group *group, char *name);
void dlxd_record_name_bell(const struct dlxd_group *group, char *name);

/* Makes a new name each time, because a later daemon may be unable to read an earlier ledger. */
void dlxd_record_name_ledger(char *name);

/* In the order in which the next daemon restores them. */
enum dlxd_record_kind {
    DLXD_RECORD_IS_PIDFD,
    DLXD_RECORD_IS_REGION,
    DLXD_RECORD_IS_GROUP,
    DLXD_RECORD_IS_BELL,
};

/* The parts of such a name. */
struct dlxd_record_name {
    uint64_t publisher;
    enum dlxd_record_kind kind;
    uint32_t number; /* of the region, or of the group */
    uint64_t ready_seq;
    const char *group; /* a part of the name that was parsed */
};

/* Returns false for any other name. */
bool dlxd_record_parse(const char *name, struct dlxd_record_name *ret);

#endif
