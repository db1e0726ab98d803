/* SPDX-License-Identifier: Apache-2.0 */

/* Names of users. To look one up may mean to ask a server, so the last ones are kept. */

#include "cli/user.h"
#include "cli/output.h"
#include <pwd.h>
#include <string.h>

enum { KEPT = 64 };

static struct {
    uint32_t uid;
    char name[USER_NAME_SIZE]; /* "": this place is free */
} kept[KEPT];

const char *user_name(uint32_t uid, char text[USER_NAME_SIZE])
{
    const size_t i = uid % KEPT;
    if (!*kept[i].name || kept[i].uid != uid) {
        const struct passwd *entry = getpwuid((uid_t)uid);
        kept[i].uid = uid;
        if (entry && *entry->pw_name)
            output_printable(entry->pw_name, kept[i].name, USER_NAME_SIZE);
        else
            (void)snprintf(kept[i].name, USER_NAME_SIZE, "%u", uid);
    }
    return memcpy(text, kept[i].name, USER_NAME_SIZE);
}
