/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/notify.h"
#include "common/util.h"
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

void dlxd_notify(const char *state)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *path = getenv("NOTIFY_SOCKET");
    size_t size = path ? strlen(path) : 0;
    if (size < 2 || size >= sizeof address.sun_path || (*path != '/' && *path != '@'))
        return;
    memcpy(address.sun_path, path, size);
    if (*path == '@') /* abstract */
        address.sun_path[0] = '\0';
    dlx_cleanup(dlx__closep) int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0)
        (void)sendto(fd, state, strlen(state), MSG_NOSIGNAL | MSG_DONTWAIT,
                     (const struct sockaddr *)&address,
                     (socklen_t)(offsetof(struct sockaddr_un, sun_path) + size));
}
