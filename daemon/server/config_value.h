/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_CONFIG_VALUE_H
#define DLXD_CONFIG_VALUE_H

/* The values of dlpackd.conf(5), and of the options that say the same. Each function returns 0, or
 * DLX_E_INVALID with words for the thread's message. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct dlx_memory;

/* The largest memory limit: small multiples of it must not overflow. */
#define DLXD_MEMORY_LIMIT_MAX (UINT64_C(1) << 60)

/* The most descriptors that the service manager may store. */
#define DLXD_FD_STORE_MAX 65536

/* Parses a user's name or number. DLX_E_INVALID if there is no such user or it may have no
 * rights. */
int dlxd_config_parse_user(const char *text, uid_t *ret);
int dlxd_config_parse_group(const char *text, gid_t *ret);
/* Parses a number from 0 to DLXD_FD_STORE_MAX. */
int dlxd_config_parse_count(const char *text, int32_t *ret);
/* Parses the permissions of a socket: "0660". */
int dlxd_config_parse_mode(const char *text, mode_t *ret);
/* Replaces `*path`, which is allocated. Also returns DLX_E_NO_MEMORY. */
int dlxd_config_parse_path(const char *text, char **path);
/* Parses the limit of shared memory for one user: "8GiB", "50%". */
int dlxd_config_parse_memory_limit(const char *text, uint64_t *ret);
/* Parses "20K", "8Gi", "infinity"; of memory also "8GiB"; and "50%" of `whole`, if that is not
 * 0. */
int dlxd_config_parse_amount(const char *text, bool is_memory, uint64_t whole, uint64_t *ret);
int dlxd_config_parse_memory(const char *name, const struct dlx_memory **ret);

#endif
