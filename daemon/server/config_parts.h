/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_CONFIG_PARTS_H
#define DLXD_CONFIG_PARTS_H

/* The named sections, for config.c: what a key sets, and what can be checked only after all files
 * were read. Each function returns 0, DLX_E_INVALID or DLX_E_NO_MEMORY. */
#include "daemon/server/config.h"

/* Parses a number below `end`. */
bool dlxd_config_parse_number(const char *text, unsigned long end, unsigned long *ret);
int dlxd_config_parse_group(const char *text, gid_t *ret);
int dlxd_config_parse_path(const char *text, char **ret);

int dlxd_config_set_in_rule(struct dlxd_rule *rule, const char *key, const char *value);
int dlxd_config_check_rule(const struct dlxd_config *config, const struct dlxd_rule *rule);

/* Starts the section. Copies `place`. */
int dlxd_config_add_socket(struct dlxd_config *config, const char *name, const char *place);
int dlxd_config_set_in_socket(struct dlxd_config *config, const char *name, const char *key,
                              const char *value);
void dlxd_config_deinit_sockets(struct dlxd_config *config);

int dlxd_config_add_quota(struct dlxd_config *config, const char *name, const char *place);
int dlxd_config_set_in_quota(struct dlxd_config *config, const char *name, const char *key,
                             const char *value);
/* Checks that each socket's class exists, tells the class its sockets, and completes each class. */
int dlxd_config_finish_quotas(struct dlxd_config *config);

#endif
