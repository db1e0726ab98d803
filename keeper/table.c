/* SPDX-License-Identifier: Apache-2.0 */
#include "keeper/table.h"
#include "common/error.h"
#include "daemon/users/share.h"
#include "keeper/wire.h"
#include <signal.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

int dlxk_unwatch(int epoll, int take_fd)
{
    if (take_fd >= 0)
        (void)epoll_ctl(epoll, EPOLL_CTL_DEL, take_fd, NULL);
    return dlx__close(take_fd);
}

static bool table_watch(const struct dlxk_table *table, int fd, struct dlxk_source *source)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = source};
    return epoll_ctl(table->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

int dlxk_table_init(struct dlxk_table *table, int borrow_epoll, uint32_t n_max)
{
    sigset_t set;
    *table = (struct dlxk_table){.epoll = borrow_epoll, .n_max = n_max};
    dlxd_list_init(&table->live);
    dlxd_list_init(&table->ending);
    table->on_deaths = (struct dlxk_source){DLXK_ON_DEATHS, table};
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGCHLD);
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    table->deaths = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (table->deaths < 0 || !table_watch(table, table->deaths, &table->on_deaths))
        return dlx__fail_errno("the GPU keeper cannot watch its holders");
    return 0;
}

struct dlxk_entry *dlxk_table_find(const struct dlxk_table *table, uint64_t origin, uint64_t user)
{
    for (struct dlxd_list *it = table->live.next; it != &table->live; it = it->next) {
        struct dlxk_entry *entry = dlxd_container_of(it, struct dlxk_entry, node);
        if (entry->origin == origin && entry->user == user)
            return entry;
    }
    return NULL;
}

static uint32_t table_count(const struct dlxd_list *list, uint64_t user)
{
    uint32_t n = 0;
    for (struct dlxd_list *it = list->next; it != list; it = it->next)
        n += dlxd_container_of(it, struct dlxk_entry, node)->user == user;
    return n;
}

static int check_share(const struct dlxk_table *table, uint64_t user)
{
    uint32_t n = table_count(&table->live, user) + table_count(&table->ending, user);
    if (table->n < table->n_max && dlxd_share_is_fair(n + 1, table->n_max - table->n - 1))
        return 0;
    return dlx__fail(DLX_E_LIMIT,
                     "the GPU keeper serves %u publishers (limit %u), %u of them of uid %u, which "
                     "may have %u times what is left: close publishers of tensors on GPUs",
                     table->n, table->n_max, n, (uint32_t)user, DLXD_SHARE_OF_LEFT);
}

static int start(struct dlxk_table *table, struct dlxk_entry *entry, int owner,
                 const struct dlxk_holder_options *options)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        return dlx__fail_errno("socket of a holder");
    dlx__packet_refuse_fds(pair[0]);
    entry->control = pair[0];
    pid_t router = getpid();
    pid_t pid = fork();
    if (pid == 0)
        _exit(dlxk_holder_main(owner, pair[1], router, options));
    int r = pid < 0 ? dlx__fail_errno("the GPU keeper cannot start a holder") : 0;
    dlx__close(pair[1]);
    if (r < 0)
        return r;
    entry->pid = pid;
    if (!table_watch(table, entry->control, &entry->on_control)) {
        r = dlx__fail_errno("the GPU keeper cannot watch a holder");
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, 0); /* it has nothing yet that could block it */
    }
    return r;
}

static void free_entry(const struct dlxk_table *table, struct dlxk_entry *entry)
{
    dlxd_list_remove(&entry->node);
    entry->control = dlxk_unwatch(table->epoll, entry->control);
    free(entry);
}

int dlxk_table_start(struct dlxk_table *table, uint64_t origin, uint64_t user, int take_sock,
                     const struct dlxk_holder_options *options)
{
    dlx_cleanup(dlx__closep) int owner = take_sock;
    int r = check_share(table, user);
    if (r < 0)
        return r;
    struct dlxk_entry *entry = calloc(1, sizeof *entry);
    if (!entry)
        return dlx__fail(DLX_E_NO_MEMORY, "the GPU keeper is out of memory");
    *entry = (struct dlxk_entry){.origin = origin, .user = user, .control = -1, .is_wanted = true};
    dlxd_list_init(&entry->node);
    entry->on_control = (struct dlxk_source){DLXK_ON_HOLDER, entry};
    r = start(table, entry, owner, options);
    if (r < 0) {
        free_entry(table, entry);
        return r;
    }
    dlxd_list_push_back(&table->live, &entry->node);
    table->n++;
    return 0;
}

void dlxk_table_end(struct dlxk_table *table, struct dlxk_entry *entry)
{
    (void)kill(entry->pid, SIGKILL);
    entry->control = dlxk_unwatch(table->epoll, entry->control);
    dlxd_list_remove(&entry->node);
    dlxd_list_push_back(&table->ending, &entry->node);
}

static struct dlxk_entry *find_pid(const struct dlxd_list *list, pid_t pid)
{
    for (struct dlxd_list *it = list->next; it != list; it = it->next) {
        struct dlxk_entry *entry = dlxd_container_of(it, struct dlxk_entry, node);
        if (entry->pid == pid)
            return entry;
    }
    return NULL;
}

struct dlxk_entry *dlxk_table_next_dead(const struct dlxk_table *table)
{
    struct signalfd_siginfo info;
    pid_t pid;
    while (read(table->deaths, &info, sizeof info) > 0)
        ;
    while ((pid = waitpid(-1, NULL, WNOHANG)) > 0) {
        struct dlxk_entry *entry = find_pid(&table->live, pid);
        if (!entry)
            entry = find_pid(&table->ending, pid);
        if (entry)
            return entry;
    }
    return NULL;
}

void dlxk_table_free(struct dlxk_table *table, struct dlxk_entry *entry)
{
    table->n--;
    free_entry(table, entry);
}

void dlxk_table_deinit(struct dlxk_table *table)
{
    dlx_for_each (it, &table->live)
        dlxk_table_end(table, dlxd_container_of(it, struct dlxk_entry, node));
    dlx_for_each (it, &table->ending)
        free_entry(table, dlxd_container_of(it, struct dlxk_entry, node));
    table->deaths = dlxk_unwatch(table->epoll, table->deaths);
}
