/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/manager.h"
#include "tests/harness/fds.h"

/* The test asserts the thread's findings when it has ended: a child that is forked while a thread
 * is in ck_assert, which locks also when all is well, waits for that lock for ever. */
static void say(struct dlx_test_manager *manager, const char *fault)
{
    if (!manager->fault)
        manager->fault = fault;
}

/* The value of a line "key=value". */
static bool find_line(const char *text, const char *key, char *value, size_t size)
{
    size_t key_size = strlen(key);
    for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        if (strncmp(line, key, key_size) == 0 && line[key_size] == '=') {
            (void)snprintf(value, size, "%.*s", (int)strcspn(line + key_size + 1, "\n"),
                           line + key_size + 1);
            return true;
        }
    }
    return false;
}

static void keep(struct dlx_test_manager *manager, const char *name, int take_fd)
{
    if (manager->n == DLX_TEST_KEPT_MAX) {
        say(manager, "too many descriptors");
        dlx__close(take_fd);
        return;
    }
    struct dlx_test_kept *kept = &manager->kept[manager->n++];
    (void)snprintf(kept->name, sizeof kept->name, "%s", name);
    kept->fd = take_fd;
}

void dlx_test_manager_keep(struct dlx_test_manager *manager, const char *name, int take_fd)
{
    pthread_mutex_lock(&manager->lock);
    keep(manager, name, take_fd);
    pthread_mutex_unlock(&manager->lock);
}

static void forget(struct dlx_test_manager *manager, const char *name)
{
    for (size_t i = manager->n; i-- > 0;) {
        if (strcmp(manager->kept[i].name, name) == 0) {
            dlx__close(manager->kept[i].fd);
            manager->kept[i] = manager->kept[--manager->n];
        }
    }
}

static void obey(struct dlx_test_manager *manager, const char *text, int take_fd)
{
    char name[128] = "stored", value[128];
    dlx_cleanup(dlx__closep) int fd = take_fd; /* BARRIER: to close it is the answer */
    (void)find_line(text, "FDNAME", name, sizeof name);
    if (find_line(text, "FDSTORE", value, sizeof value)) {
        if (fd < 0)
            say(manager, "FDSTORE without a descriptor");
        if (!find_line(text, "FDPOLL", value, sizeof value))
            say(manager, "FDSTORE without FDPOLL");
        keep(manager, name, dlx__steal_fd(&fd));
    } else if (find_line(text, "FDSTOREREMOVE", value, sizeof value)) {
        forget(manager, name);
    }
}

static void *run(void *userdata)
{
    struct dlx_test_manager *manager = userdata;
    while (!atomic_load(&manager->stop)) {
        char text[512];
        union {
            struct cmsghdr header;
            char bytes[CMSG_SPACE(sizeof(int))];
        } control;
        struct iovec iov = {.iov_base = text, .iov_len = sizeof text - 1};
        struct msghdr message = {.msg_iov = &iov,
                                 .msg_iovlen = 1,
                                 .msg_control = &control,
                                 .msg_controllen = sizeof control};
        struct pollfd p = {.fd = atomic_load(&manager->stalled) ? -1 : manager->sock,
                           .events = POLLIN};
        int fd = -1;
        if (poll(&p, 1, 1) != 1)
            continue;
        pthread_mutex_lock(&manager->lock);
        ssize_t n = recvmsg(manager->sock, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n >= 0) {
            text[n] = '\0';
            const struct cmsghdr *header = CMSG_FIRSTHDR(&message);
            if (header && header->cmsg_type == SCM_RIGHTS)
                memcpy(&fd, CMSG_DATA(header), sizeof fd);
            obey(manager, text, fd);
        }
        pthread_mutex_unlock(&manager->lock);
    }
    return NULL;
}

void dlx_test_manager_start(struct dlx_test_manager *manager, const struct dlx_test_daemon *daemon)
{
    memset(manager, 0, sizeof *manager);
    (void)snprintf(manager->path, sizeof manager->path, "%s/n", daemon->dir);
    (void)unlink(manager->path); /* of a test that failed */
    manager->sock = dlx_test_fds_bind(manager->path, SOCK_DGRAM);
    pthread_mutex_init(&manager->lock, NULL);
    ck_assert_int_eq(pthread_create(&manager->thread, NULL, run, manager), 0);
}

void dlx_test_manager_stop(struct dlx_test_manager *manager)
{
    atomic_store(&manager->stop, true);
    ck_assert_int_eq(pthread_join(manager->thread, NULL), 0);
    ck_assert_msg(!manager->fault, "%s", manager->fault);
    while (manager->n > 0)
        dlx__close(manager->kept[--manager->n].fd);
    pthread_mutex_destroy(&manager->lock);
    dlx__close(manager->sock);
    (void)unlink(manager->path);
}

/* In the child. Copies the descriptors out of the way first, then into their places, without
 * close-on-exec. */
static void pass_fds(void *userdata)
{
    struct dlx_test_manager *manager = userdata;
    static char names[DLX_TEST_KEPT_MAX * 64], n_fds[32], pid[32], socket[300], most[64];
    size_t used = (size_t)snprintf(names, sizeof names, "LISTEN_FDNAMES=");
    int fds[DLX_TEST_KEPT_MAX];
    for (size_t i = 0; i < manager->n; i++) {
        fds[i] = fcntl(manager->kept[i].fd, F_DUPFD_CLOEXEC, 3 + (int)manager->n);
        int n = snprintf(names + used, sizeof names - used, "%s%s", i ? ":" : "",
                         manager->kept[i].name);
        used += (size_t)n;
        if (fds[i] < 0 || used >= sizeof names)
            _exit(125);
    }
    for (size_t i = 0; i < manager->n; i++)
        if (dup2(fds[i], 3 + (int)i) < 0)
            _exit(125);
    (void)snprintf(n_fds, sizeof n_fds, "LISTEN_FDS=%zu", manager->n);
    (void)snprintf(pid, sizeof pid, "LISTEN_PID=%d", (int)getpid());
    (void)snprintf(socket, sizeof socket, "NOTIFY_SOCKET=%s", manager->path);
    (void)snprintf(most, sizeof most, "FDSTORE=%s", manager->max);
    const char *const assignments[] = {names, n_fds, pid, socket, most};
    for (size_t i = 0; i < sizeof assignments / sizeof *assignments; i++)
        dlx_test_child_putenv(assignments[i]);
}

void dlx_test_manager_run(struct dlx_test_manager *manager, struct dlx_test_daemon *daemon,
                          unsigned max_fds)
{
    (void)snprintf(manager->max, sizeof manager->max, "%u", max_fds);
    struct pollfd p = {.fd = manager->sock, .events = POLLIN};
    pthread_mutex_lock(&manager->lock);
    while (poll(&p, 1, 0) == 1) { /* the former daemon's words come first, as with systemd */
        pthread_mutex_unlock(&manager->lock);
        (void)poll(NULL, 0, 1);
        pthread_mutex_lock(&manager->lock);
    }
    dlx_test_daemon_start_prepared(daemon, pass_fds, manager);
    pthread_mutex_unlock(&manager->lock);
}

size_t dlx_test_manager_n_kept(struct dlx_test_manager *manager, const char *prefix)
{
    size_t n = 0;
    pthread_mutex_lock(&manager->lock);
    for (size_t i = 0; i < manager->n; i++)
        n += strncmp(manager->kept[i].name, prefix, strlen(prefix)) == 0;
    pthread_mutex_unlock(&manager->lock);
    return n;
}

void dlx_test_manager_wait_n_kept(struct dlx_test_manager *manager, const char *prefix, size_t n)
{
    uint64_t deadline = dlx__deadline(PATIENCE);
    while (dlx_test_manager_n_kept(manager, prefix) != n) {
        ck_assert_msg(dlx__now_ns() < deadline, "%zu descriptors %s* are kept, expected %zu",
                      dlx_test_manager_n_kept(manager, prefix), prefix, n);
        (void)poll(NULL, 0, 1);
    }
}

void dlx_test_pass_sockets(const int *fds, int n, const char *names)
{
    static char texts[3][200];
    int copies[16];
    for (int i = 0; i < n; i++)
        copies[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 3 + n);
    for (int i = 0; i < n; i++)
        if (dup2(copies[i], 3 + i) < 0)
            _exit(126);
    (void)snprintf(texts[0], sizeof texts[0], "LISTEN_PID=%d", (int)getpid());
    (void)snprintf(texts[1], sizeof texts[1], "LISTEN_FDS=%d", n);
    (void)snprintf(texts[2], sizeof texts[2], "LISTEN_FDNAMES=%s", names);
    for (int i = 0; i < 3; i++)
        dlx_test_child_putenv(texts[i]);
}
