/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/serve_listen.h"
#include "cli/args.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 32 };

/* ---- TCP ------------------------------------------------------------------------------------- */

/* The address before the last colon, and the port behind it. */
static bool parse_address(const char *text, struct sockaddr_storage *ret, socklen_t *ret_size)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
    const char *colon = strrchr(text, ':');
    uint64_t port;
    char host[64];
    if (!colon || !args_parse_number(colon + 1, 0, 65535, &port) ||
        snprintf(host, sizeof host, "%.*s", (int)(colon - text), text) >= (int)sizeof host)
        return false;
    if (strcmp(host, "[::1]") == 0) {
        v6.sin6_port = htons((uint16_t)port);
        memcpy(ret, &v6, *ret_size = sizeof v6);
        return true;
    }
    if (inet_pton(AF_INET, strcmp(host, "localhost") == 0 ? "127.0.0.1" : host, &v4.sin_addr) !=
            1 ||
        v4.sin_addr.s_addr != htonl(INADDR_LOOPBACK)) /* http_is_loopback() knows no other */
        return false;
    v4.sin_port = htons((uint16_t)port);
    memcpy(ret, &v4, *ret_size = sizeof v4);
    return true;
}

/* With the port that the kernel chose, if it was 0. */
static void name_address(struct serve_listen *l)
{
    struct sockaddr_storage a = {0};
    socklen_t size = sizeof a;
    char host[64] = "";
    (void)getsockname(l->fd, (struct sockaddr *)&a, &size);
    const struct sockaddr_in *v4 = (const void *)&a;
    const struct sockaddr_in6 *v6 = (const void *)&a;
    const bool is_v6 = a.ss_family == AF_INET6;
    (void)inet_ntop(a.ss_family, is_v6 ? (const void *)&v6->sin6_addr : &v4->sin_addr, host,
                    sizeof host);
    (void)snprintf(l->address, sizeof l->address, is_v6 ? "[%s]:%u" : "%s:%u", host,
                   ntohs(is_v6 ? v6->sin6_port : v4->sin_port));
}

static int listen_on_loopback(struct serve_listen *l, const char *text, struct cli_error *e)
{
    struct sockaddr_storage address;
    socklen_t size;
    const int yes = 1;
    if (!parse_address(text, &address, &size))
        return cli_fail(e, DLX_E_INVALID,
                        "--listen: '%.100s' is neither 127.0.0.1:PORT, [::1]:PORT, localhost:PORT "
                        "nor unix:PATH. Other machines get nothing: put a proxy before it",
                        text);
    l->fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->fd < 0)
        return cli_fail(e, DLX_E_SYSTEM, "socket: %s", strerror(errno));
    (void)setsockopt(l->fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(l->fd, (struct sockaddr *)&address, size) < 0 || listen(l->fd, BACKLOG) < 0) {
        if (errno == EADDRINUSE)
            return cli_fail(e, DLX_E_IN_USE,
                            "another program listens on %.100s: end it (`ss -ltnp` names it), or "
                            "choose another port with --listen",
                            text);
        return cli_fail(e, DLX_E_SYSTEM, "%.100s: %s", text, strerror(errno));
    }
    name_address(l);
    return 0;
}

/* ---- a socket in the file system ------------------------------------------------------------- */

/* A socket on which no process listens is what a killed one left. */
static bool is_left_over(const struct sockaddr_un *address)
{
    struct stat st;
    if (lstat(address->sun_path, &st) < 0 || !S_ISSOCK(st.st_mode))
        return false;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool refused = fd >= 0 && connect(fd, (const struct sockaddr *)address, sizeof *address) < 0 &&
                   errno == ECONNREFUSED;
    if (fd >= 0)
        (void)close(fd);
    return refused;
}

static int listen_on_path(struct serve_listen *l, const char *path, struct cli_error *e)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (!*path || strlen(path) >= sizeof address.sun_path)
        return cli_fail(e, DLX_E_INVALID, "--listen: a path has 1 to %zu bytes: '%.200s'",
                        sizeof address.sun_path - 1, path);
    memcpy(address.sun_path, path, strlen(path) + 1);
    l->is_unix = true;
    l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->fd < 0)
        return cli_fail(e, DLX_E_SYSTEM, "socket: %s", strerror(errno));
    if (is_left_over(&address))
        (void)unlink(path);
    mode_t before = umask(0177); /* the socket is its owner's alone */
    int r = bind(l->fd, (struct sockaddr *)&address, sizeof address);
    int error = errno;
    (void)umask(before);
    if (r < 0 && error == EADDRINUSE)
        return cli_fail(e, DLX_E_IN_USE,
                        "%.200s is there, and is no socket that a killed dlxctl left: end the "
                        "program that listens on it, remove it, or choose another path",
                        path);
    if (r < 0 || listen(l->fd, BACKLOG) < 0)
        return cli_fail(e, DLX_E_SYSTEM, "%.200s: %s", path, strerror(r < 0 ? error : errno));
    memcpy(l->path, path, strlen(path) + 1);
    (void)snprintf(l->address, sizeof l->address, "unix:%s", path);
    return 0;
}

int serve_listen_open(struct serve_listen *l, const char *text, struct cli_error *e)
{
    *l = (struct serve_listen){.fd = -1};
    int r = strncmp(text, "unix:", 5) == 0 ? listen_on_path(l, text + 5, e)
                                           : listen_on_loopback(l, text, e);
    if (r < 0)
        serve_listen_close(l);
    return r;
}

void serve_listen_close(struct serve_listen *l)
{
    if (l->fd >= 0)
        (void)close(l->fd);
    l->fd = -1;
    if (l->path[0])
        (void)unlink(l->path);
    l->path[0] = '\0';
}
