/* SPDX-License-Identifier: Apache-2.0 */
#include "common/error.h"
#include "daemon/server/config_parts.h"
#include <string.h>

struct dlxd_config_socket *dlxd_config_find_socket(const struct dlxd_config *config,
                                                   const char *name)
{
    for (size_t i = 0; i < config->n_sockets; i++)
        if (strcmp(config->sockets[i].name, name) == 0)
            return &config->sockets[i];
    return NULL;
}

int dlxd_config_add_socket(struct dlxd_config *config, const char *name, const char *place)
{
    int r = dlxd_check_name("socket", name);
    if (r < 0)
        return r;
    if (dlxd_config_find_socket(config, name))
        return 0; /* a later file adds to it */
    for (size_t i = 0; i < config->n_sockets; i++)
        if (dlxd_socket_number(config->sockets[i].name) == dlxd_socket_number(name))
            return dlx__fail(DLX_E_INVALID, "sockets %s and %s have the same number: rename one",
                             config->sockets[i].name, name);
    struct dlxd_config_socket *more =
        reallocarray(config->sockets, config->n_sockets + 1, sizeof *more);
    if (more)
        config->sockets = more;
    char *copy = more ? strdup(place) : NULL;
    if (!copy)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for socket %s", name);
    more[config->n_sockets] = (struct dlxd_config_socket){.place = copy};
    memcpy(more[config->n_sockets].name, name, strlen(name));
    config->n_sockets++;
    return 0;
}

static int set_mode(struct dlxd_config_socket *socket, const char *value)
{
    char *rest;
    unsigned long mode = strtoul(value, &rest, 8);
    if (*value < '0' || *value > '7' || *rest || mode == 0 || mode > 0777)
        return dlx__fail(DLX_E_INVALID, "'%.80s' is no mode of a file: 1 to 0777, in octal", value);
    socket->mode = (mode_t)mode;
    return 0;
}

int dlxd_config_set_in_socket(struct dlxd_config *config, const char *name, const char *key,
                              const char *value)
{
    struct dlxd_config_socket *socket = dlxd_config_find_socket(config, name);
    if (!socket)
        return dlx__fail(DLX_E_INVALID, "'[socket %.80s]' has to begin its line", name);
    if (strcmp(key, "path") == 0)
        return dlxd_config_parse_path(value,
                                      dlxd_socket_is_main(name) ? &config->socket : &socket->path);
    if (strcmp(key, "mode") == 0)
        return set_mode(socket, value);
    if (strcmp(key, "group") == 0) {
        int r = dlxd_config_parse_group(value, &socket->gid);
        socket->has_group = r == 0;
        return r;
    }
    if (strcmp(key, "quota") != 0)
        return dlx__fail(DLX_E_INVALID, "a socket has no '%.80s': path, mode, group, quota", key);
    free(socket->quota);
    socket->quota = strdup(value);
    return socket->quota ? 0 : dlx__fail(DLX_E_NO_MEMORY, "out of memory for a name");
}

void dlxd_config_deinit_sockets(struct dlxd_config *config)
{
    for (size_t i = 0; i < config->n_sockets; i++) {
        free(config->sockets[i].place);
        free(config->sockets[i].path);
        free(config->sockets[i].quota);
    }
    free(config->sockets);
    config->sockets = NULL;
    config->n_sockets = 0;
}
