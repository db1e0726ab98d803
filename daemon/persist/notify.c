/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/persist/notify.h"
#include "common/error.h"
#include "common/util.h"
#include <inttypes.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

/* Returns the size of the address, or 0 if there is none. */
static socklen_t find_socket(struct sockaddr_un *address)
{
    const char *path = getenv("NOTIFY_SOCKET");
    size_t size = path ? strlen(path) : 0;
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (size < 2 || size >= sizeof address->sun_path || (*path != '/' && *path != '@'))
        return 0;
    memcpy(address->sun_path, path, size);
    if (*path == '@') /* abstract */
        address->sun_path[0] = '\0';
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + size);
}

bool dlxd_notify_is_possible(void)
{
    struct sockaddr_un address;
    return find_socket(&address) > 0;
}

/* Parses a whole decimal number; returns 0 for anything else, and 0 has no use here. */
static uint64_t notify_parse(const char *text)
{
    char *end;
    if (!text || *text < '0' || *text > '9')
        return 0;
    errno = 0;
    uintmax_t value = strtoumax(text, &end, 10);
    return *end || errno || value > UINT64_MAX ? 0 : (uint64_t)value;
}

uint64_t dlxd_notify_watchdog_us(void)
{
    const char *pid = getenv("WATCHDOG_PID");
    if (pid && notify_parse(pid) != (uint64_t)getpid())
        return 0;
    return dlxd_notify_is_possible() ? notify_parse(getenv("WATCHDOG_USEC")) : 0;
}

int dlxd_notify(const char *state, int borrow_fd)
{
    struct sockaddr_un address;
    struct iovec text = {.iov_base = (char *)(uintptr_t)state, .iov_len = strlen(state)};
    struct msghdr message = {.msg_iov = &text, .msg_iovlen = 1};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = {0}};
    message.msg_name = &address;
    message.msg_namelen = find_socket(&address);
    if (message.msg_namelen == 0)
        return dlx__fail(DLX_E_NOT_FOUND, "NOTIFY_SOCKET names no socket");
    if (borrow_fd >= 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
        control.header = (struct cmsghdr){
            .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.header), &borrow_fd, sizeof(int));
    }
    dlx_cleanup(dlx__closep) int sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (sock < 0)
        return dlx__fail_errno("socket for the service manager");
    if (sendmsg(sock, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
        return 0;
    /* The number of descriptors in flight is limited, too. */
    if (errno == EAGAIN || errno == ENOBUFS || errno == ETOOMANYREFS)
        return DLX_E_FULL;
    return dlx__fail_errno("telling the service manager");
}
